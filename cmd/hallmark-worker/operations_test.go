// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// scrape reads the metrics of the site's worker.
func (s *site) scrape() map[string]float64 {
	s.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.cfg.Metrics.Listen)
	}
	c := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	res, err := c.Get("http://worker/metrics")
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		s.Fatalf("%d %v", res.StatusCode, err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "hallmark_worker_")), " "); ok && line[0] != '#' {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.Fatalf("%q: %v", line, err)
			}
			out[name] = v
		}
	}
	return out
}

// messages waits until the log at path has a line with the message, and returns all messages.
func (s *site) messages(path, message string) []string {
	s.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(path)
		var out []string
		found := false
		for line := range bytes.Lines(text) {
			var m struct{ Msg string }
			if err := json.Unmarshal(line, &m); err != nil {
				continue // the line is being written
			}
			out = append(out, m.Msg)
			found = found || m.Msg == message
		}
		if found {
			return out
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s never says %q:\n%s", path, message, text)
		}
	}
}

// Limits, metrics, the log and both signals on the real worker with a real sandbox.
func TestOperatedWorker(t *testing.T) {
	s := newSite(t)
	s.cfg.Metrics = &worker.Metrics{Listen: s.cfg.Listen + "-m"}
	s.cfg.Limits = &worker.Limits{Nonces: 2000, NoncesPerWorkspace: 1000, Connections: 20, Creates: 2, Execs: 9, ExecsPerSandbox: 3}
	p := s.start()
	ctx := t.Context()
	h, err := s.client.Health(ctx)
	if err != nil || h.Limits != s.cfg.EffectiveLimits() || h.Limits.Nonces != 2000 || h.Limits.ExecsPerSandbox != 3 {
		t.Errorf("health reports %+v, %v", h.Limits, err)
	}
	lease := s.create("ws")
	run := func(id string, argv ...string) error {
		_, err := s.client.Exec(ctx, "ws", lease.SandboxID, api.ExecRequest{InvocationID: id, Argv: argv, TimeoutMs: 120_000, MaxOutputBytes: 100})
		return err
	}
	if err := run("i1", "/bin/true"); err != nil {
		t.Fatal(err)
	}
	m := s.scrape()
	for name, want := range map[string]float64{
		`sandboxes{state="ready"}`: 1, `sandboxes{state="creating"}`: 0, "creates_in_flight": 0, "creates_limit": 2, "execs_limit": 9, "execs_in_flight": 0,
		`requests_total{code="ok",op="create"}`: 1, `requests_total{code="ok",op="exec"}`: 1, "nonces_limit": 2000, "connections_limit": 20,
		"workspace_reserved_bytes": 16 << 20, "workspace_reserved_inodes": 512, `state_commits_total{result="failed"}`: 0, "log_lines_lost_total": 0,
	} {
		if got, ok := m[name]; !ok || got != want {
			t.Errorf("%s is %v (%t), want %v", name, got, ok, want)
		}
	}
	if m["nonces"] < 3 || m[`state_commits_total{result="ok"}`] < 3 || m["process_open_fds"] < 5 {
		t.Errorf("nonces %v, commits %v, descriptors %v", m["nonces"], m[`state_commits_total{result="ok"}`], m["process_open_fds"])
	}

	// The log is renamed away and opened again: nothing is lost, and nothing is written to the old one.
	old := s.cfg.Log.Path + ".1"
	if err := os.Rename(s.cfg.Log.Path, old); err != nil {
		t.Fatal(err)
	}
	if err := run("i2", "/bin/true"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.messages(s.cfg.Log.Path, "log opened again")
	before := len(s.messages(old, "request served"))
	if err := run("i3", "/bin/true"); err != nil {
		t.Fatal(err)
	}
	s.messages(s.cfg.Log.Path, "request served")
	if after := len(s.messages(old, "request served")); after != before {
		t.Errorf("the old log grew from %d lines to %d", before, after)
	}
	if st, err := os.Stat(s.cfg.Log.Path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the new log: %v, %v", st, err)
	}

	// A command runs; the first signal waits for it, the second does not.
	running := make(chan error, 1)
	go func() { running <- run("i4", "/bin/sleep", "100") }()
	for deadline := time.Now().Add(time.Minute); s.scrape()["execs_in_flight"] != 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command does not run")
		}
	}
	for _, message := range []string{"draining", ""} {
		if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if message != "" {
			s.messages(s.cfg.Log.Path, message)
		}
	}
	s.wait(p)
	if st := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != unix.SIGTERM {
		t.Errorf("after the second signal: %v, %s", p.cmd.ProcessState, p.stderr)
	}
	if err := <-running; err == nil {
		t.Error("the command that was cut off succeeded")
	}
	if len(s.containers()) != 1 {
		t.Errorf("the second signal cleaned up: %v", s.containers())
	}

	// The next start knows what was left.
	p = s.start()
	if left := s.containers(); len(left) != 0 {
		t.Errorf("after the restart: %v", left)
	}
	if st, err := s.client.Get(ctx, "ws", lease.SandboxID); err != nil || st.State != "gone" {
		t.Errorf("the sandbox: %+v, %v", st, err)
	}
	codeIs(t, run("i4", "/bin/sleep", "100"), api.OutcomeUnknown)
	if err := s.client.Purge(ctx, "ws"); err != nil {
		t.Error(err)
	}
	s.stop(p)
	for _, path := range []string{s.cfg.Listen, s.cfg.Metrics.Listen} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", filepath.Base(path), err)
		}
	}
}

// A metrics listener that cannot be had stops the start, and a damaged or missing state file does,
// with a remedy and no stack.
func TestStartNeedsStateAndMetrics(t *testing.T) {
	s := newSite(t)
	s.stop(s.start())
	refused := func(name, says string) {
		t.Helper()
		p := s.spawn()
		if code := s.wait(p); code != exitFailed || !strings.Contains(p.stderr.String(), says) || strings.Contains(p.stderr.String(), "goroutine") {
			t.Errorf("%s: exit status %d, %s", name, code, p.stderr)
		}
	}
	s.cfg.Metrics = &worker.Metrics{Listen: s.cfg.StateDir + "/no/such/m.sock"}
	refused("metrics", "metrics cannot be served")
	s.cfg.Metrics = nil
	path := filepath.Join(s.cfg.StateDir, "worker.db")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for page := range 6 { // whatever it is, the worker ends with a sentence or serves
		bad := bytes.Clone(good)
		at := page * os.Getpagesize()
		clear(bad[at : at+os.Getpagesize()])
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if page < 2 {
			refused("meta page", "state file is damaged")
			continue
		}
		p := s.spawn()
		s.client.Forget()
		for ended := false; !ended; {
			select {
			case <-p.done:
				ended = true
				if !strings.Contains(p.stderr.String(), "state file is damaged") || strings.Contains(p.stderr.String(), "goroutine") {
					t.Errorf("page %d: %s", page, p.stderr)
				}
			case <-time.After(20 * time.Millisecond):
				if _, err := s.client.Health(t.Context()); err == nil { // a page that is free
					ended = true
					s.stop(p)
				}
			}
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	refused("missing", "missing from a directory that had one")
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	s.stop(s.start())
}
