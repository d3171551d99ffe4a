// SPDX-License-Identifier: Apache-2.0

package labcmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
)

// What cannot be meant is told before anything is built or started.
func TestVMUsage(t *testing.T) {
	t.Setenv("HALLMARK_CACHE", filepath.Join(t.TempDir(), "never-made"))
	for _, args := range [][]string{
		{"lab", "vm"}, {"lab", "vm", "run"}, {"lab", "vm", "walk"},
		{"lab", "vm", "run", "--put", "README.md", "--", "true"}, {"lab", "vm", "run", "--put", ":/x", "--", "true"}, {"lab", "vm", "run", "--put", "a:relative", "--", "true"},
		{"lab", "vm", "run", "--get", "relative", "--", "true"}, {"lab", "vm", "run", "--timeout", "-1s", "--", "true"},
	} {
		if out, status := hallmark(t, args...); status != exit.Failed {
			t.Errorf("%v: status %d, %s", args, status, out)
		}
	}
	if _, err := os.Stat(os.Getenv("HALLMARK_CACHE")); !os.IsNotExist(err) {
		t.Errorf("a cache was made: %v", err)
	}
}

// One command in a guest: files go in and out, and its end decides the status.
func TestVMRun(t *testing.T) {
	if os.Getenv("HALLMARK_VM") == "" {
		t.Skip("boots guests: HALLMARK_VM=1 runs it")
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("payload"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, int) {
		return hallmark(t, append([]string{"lab", "vm", "run", "--put", in + ":/data", "--get", "/data", "--out", out, "--timeout", "20s", "--"}, args...)...)
	}
	if text, status := run("sh", "-c", "cat /data/in; echo more >>/data/in; mount | grep -c prjquota"); status != exit.OK || text != "payload2\n" {
		t.Errorf("status %d: %q", status, text)
	}
	if b, err := os.ReadFile(filepath.Join(out, "data", "in")); err != nil || string(b) != "payloadmore\n" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "console.log")); err != nil || !strings.Contains(string(b), "serving") {
		t.Errorf("console: %q, %v", b, err)
	}
	for want, argv := range map[int][]string{exit.Negative: {"false"}, exit.Incomplete: {"sleep", "300"}, exit.Failed: {"/no/such"}} {
		if text, status := run(argv...); status != want {
			t.Errorf("%v: status %d, want %d: %s", argv, status, want, text)
		}
	}
}
