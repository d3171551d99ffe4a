// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestTemporaryFilesOfDeadProcessesAreSwept(t *testing.T) {
	base := t.TempDir()
	t.Setenv("TMPDIR", base)
	mk := func(name string, locked bool) *os.File {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Join(dir, "below"), 0o711); err != nil {
			t.Fatal(err)
		}
		if !locked {
			return nil
		}
		f, err := target.LockRun(dir)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	mk(tempPrefix+"dead", true).Close()
	defer mk(tempPrefix+"living", true).Close()
	mk("somebodys", true).Close()
	mk(tempPrefix+"unknown", false)
	mk(tempPrefix+"mounted", true).Close()
	at := filepath.Join(base, tempPrefix+"mounted", "below")
	if err := unix.Mount("temp", at, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(at, 0) })
	if err := sweepTemp(); err == nil {
		t.Error("a mount below is no error")
	}
	for name, want := range map[string]bool{"dead": false, "living": true, "unknown": true, "mounted": true} {
		if _, err := os.Stat(filepath.Join(base, tempPrefix+name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
	if _, err := os.Stat(filepath.Join(base, "somebodys")); err != nil {
		t.Error("somebody's folder was removed")
	}
	remove, err := takeTemp()
	if err != nil {
		t.Fatal(err)
	}
	dir := os.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil || filepath.Dir(dir) != base {
		t.Errorf("temporary files go to %s, %v", dir, err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the process's own folder is left")
	}
}

// cleanups is a test whose end can be looked at.
type cleanups struct {
	*testing.T
	end    func()
	failed bool
}

func (c *cleanups) Cleanup(f func()) { c.end = f }
func (c *cleanups) Error(...any)     { c.failed = true }

// The work folder of a test stays when a program that was killed has bound a host folder in it.
func TestWorkFolderWithAMountStays(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := &cleanups{T: t}
	work, host := openFolder(c), t.TempDir()
	file := filepath.Join(host, "file")
	if err := errors.Join(os.MkdirAll(work, 0o700), os.WriteFile(file, nil, 0o600), unix.Mount(host, work, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(work, unix.MNT_DETACH) })
	c.end()
	if _, err := os.Lstat(file); err != nil || !c.failed {
		t.Errorf("the host's file: %v; the test fails: %v", err, c.failed)
	}
}
