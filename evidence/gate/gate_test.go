// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// question writes w's world and a gate key of its own to disk.
func question(t *testing.T, w *evidencetest.World) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		Root: filepath.Join(dir, RootPublicFile), Trust: filepath.Join(dir, TrustFile), Bundles: []string{filepath.Join(dir, "bundle")},
		Key: filepath.Join(dir, GateKeyFile), State: filepath.Join(dir, StateDir), Out: filepath.Join(dir, PinsFile), Catalogue: w.Catalogue, Now: w.Now,
	}
	key, err := signing.Generate(c.Key, PublicPath(c.Key), evidence.Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	w.Policy.Keys = append(w.Policy.Keys, evidencetest.Key(key, evidence.RoleGate, "gate.example", w.Now))
	evidence.SortPolicyKeys(w.Policy.Keys)
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Bundle()
	if err == nil {
		err = b.Write(c.Bundles[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string][]byte{c.Root: w.Root.PublicKey().PEM(), c.Trust: trust} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func records(t *testing.T, c Config) []Record {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.State, RecordFile))
	if err != nil {
		t.Fatal(err)
	}
	var out []Record
	for line := range bytes.Lines(text) {
		var r Record
		if strictjson.Unmarshal(bytes.TrimSuffix(line, []byte("\n")), &r, strictjson.Limits{}) == nil {
			out = append(out, r)
		}
	}
	return out
}

// Every decision about bundles is recorded, admitted or not, and the record names the pins by their digest.
func TestDecisionsAreRecorded(t *testing.T) {
	c := question(t, world(t))
	if r, err := Run(c); err != nil || !r.Admitted {
		t.Fatalf("%+v, %v", r, err)
	}
	pins, err := os.ReadFile(c.Out)
	if err != nil {
		t.Fatal(err)
	}
	denied := c
	denied.Cohort = evidence.Digest(nil)
	if r, err := Run(denied); err != nil || r.Reason != evidence.ReasonCohortOther {
		t.Fatalf("%s, %v", r.Reason, err)
	}
	got := records(t, c)
	if len(got) != 2 || !got[0].Admitted || got[0].Pins != evidence.Digest(pins) || len(got[0].Bundles) != 1 || !got[0].Fleet.Released ||
		got[1].Admitted || got[1].Pins != "" || got[1].Reason != evidence.ReasonCohortOther {
		t.Errorf("records %+v", got)
	}
	// A line that was cut off does not take the next one with it.
	name := filepath.Join(c.State, RecordFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text[:len(text)-20], 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Run(c); err != nil || !r.Admitted {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := records(t, c); len(got) != 2 || !got[1].Admitted {
		t.Errorf("after a cut: %d records", len(got))
	}
}

// Without a record there are no pins.
func TestNoPinsWithoutARecord(t *testing.T) {
	c := question(t, world(t))
	if err := os.MkdirAll(filepath.Join(c.State, RecordFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := Run(c); err == nil || r.Admitted {
		t.Errorf("admitted %v, %v", r.Admitted, err)
	}
	if _, err := os.Stat(c.Out); err == nil {
		t.Error("pins were written")
	}
}

// A policy or a root key that nobody ever writes holds nobody up: a gate that waits decides nothing.
func TestTrustFilesThatWait(t *testing.T) {
	for name, path := range map[string]func(*Config) *string{"trust": func(c *Config) *string { return &c.Trust }, "root": func(c *Config) *string { return &c.Root }} {
		c := question(t, world(t))
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		*path(&c) = pipe
		done := make(chan error, 1)
		go func() {
			_, err := Run(c)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s is a FIFO, and there is no error", name)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the gate waits for somebody who writes %s", name)
		}
	}
}
