// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A cache that was filled elsewhere names files inside of itself, which are what it says; otherwise no lab starts.
func TestProvided(t *testing.T) {
	if p, err := readProvided(t.TempDir()); p != nil || err != nil {
		t.Errorf("an ordinary cache: %v %v", p, err)
	}
	fill := func(change func(cache string, p *Provided)) (string, error) {
		cache := t.TempDir()
		var p Provided
		for name, b := range map[string]*Binary{"runsc": &p.Runsc, "busybox": &p.Busybox} {
			b.Path = name
			if err := os.WriteFile(filepath.Join(cache, name), []byte(name), 0o755); err != nil {
				t.Fatal(err)
			}
			var err error
			if b.Digest, err = FileDigest(filepath.Join(cache, name)); err != nil {
				t.Fatal(err)
			}
		}
		p.Probe = "probe"
		change(cache, &p)
		if err := p.write(cache); err != nil {
			t.Fatal(err)
		}
		got, err := readProvided(cache)
		if err != nil {
			return cache, err
		}
		if got.Runsc.Path != filepath.Join(cache, "runsc") || got.Probe != filepath.Join(cache, "probe") {
			t.Errorf("%+v", got)
		}
		_, err = got.tools()
		return cache, err
	}
	for want, change := range map[string]func(string, *Provided){
		"not in the cache": func(_ string, p *Provided) { p.Runsc.Path = "../runsc" },
		"is not in":        func(_ string, p *Provided) { p.Probe = "/usr/bin/probe" },
		", and not sha256": func(cache string, _ *Provided) {
			if err := os.WriteFile(filepath.Join(cache, "runsc"), []byte("another"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"no such file": func(cache string, _ *Provided) {
			if err := os.Remove(filepath.Join(cache, "busybox")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if _, err := fill(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Whether an engine is installed on this machine decides the rest: the message names the first that is not.
	if _, err := fill(func(string, *Provided) {}); err != nil && !strings.Contains(err.Error(), "is not installed") {
		t.Error(err)
	}
}
