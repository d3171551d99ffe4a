// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What a program has bound below a folder is not removed with it, whatever links lead there.
func TestRemoveTreeStopsAtMounts(t *testing.T) {
	base := t.TempDir()
	host, dir, link := filepath.Join(base, "host"), filepath.Join(base, "dir"), filepath.Join(base, "link")
	at := filepath.Join(dir, "state", "bound")
	file := filepath.Join(host, "file")
	if err := errors.Join(os.Mkdir(host, 0o700), os.MkdirAll(at, 0o700), os.WriteFile(file, nil, 0o600), os.Symlink(base, link)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(host, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
	for _, name := range []string{dir, filepath.Join(link, "dir"), at} {
		if err := RemoveTree(name); err == nil {
			t.Errorf("%s: a mount is no error", name)
		}
		if err := ClearTree(name); err == nil {
			t.Errorf("%s: a mount is no error", name)
		}
		if _, err := os.Lstat(file); err != nil {
			t.Fatalf("%s: the host's file is gone: %v", name, err)
		}
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "keep"), nil, 0o600), ClearTree(dir, "keep")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%d entries are left, %v", len(left), err)
	}
	if err := errors.Join(RemoveTree(dir), RemoveTree(dir)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}
