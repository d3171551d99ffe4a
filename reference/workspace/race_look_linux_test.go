// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A directory appears, and has gone to another name, with a second one in its place, before it is looked
// into. What the look finds is the second's, at a moment when the events that tell so are not handled: it
// does not count, or the first directory's names would be told of the second.
func TestLookThatRacedWithARenameDoesNotCount(t *testing.T) {
	tree, ws, _ := newTree(t)
	v, th := openView(t, tree)

	mkdirTenant(t, ws+"/new")
	writeTenant(t, ws+"/new/first", "")
	first := make([]byte, 64<<10)
	n, err := readNow(v.fd, first)
	if err != nil || n == 0 {
		t.Fatalf("%d bytes of events, %v", n, err)
	}
	if err := os.Rename(ws+"/new", ws+"/moved"); err != nil {
		t.Fatal(err)
	}
	mkdirTenant(t, ws+"/new")
	writeTenant(t, ws+"/new/second", "")
	if err := th.do(func() error { return v.take(t.Context(), first[:n]) }); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); len(v.todo) > 0 && time.Now().Before(deadline); time.Sleep(staleTime) {
		if err := th.do(func() error { return v.take(t.Context(), nil) }); err != nil {
			t.Fatal(err)
		}
	}

	mkdirTenant(t, ws+"/end")
	n, err = readNow(v.fd, first)
	if err != nil {
		t.Fatal(err)
	}
	if err := th.do(func() error { return v.take(t.Context(), first[:n]) }); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		c, err := v.out.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if string(c.Path) == "end" {
			break
		}
		got = append(got, c.String())
	}
	inOrder := func(want ...string) {
		t.Helper()
		at := -1
		for _, w := range want {
			i := slices.Index(got, w)
			if i <= at {
				t.Fatalf("%q is not behind what comes before it in %q", w, got)
			}
			at = i
		}
	}
	inOrder(`created "new" dir`, `removed "new" dir`, `created "moved" dir`, `created "moved/first" file`)
	inOrder(`removed "new" dir`, `created "new/second" file`)
	if slices.Contains(got, `overflow ""`) {
		t.Errorf("the tree was looked at anew: %q", got)
	}
	for _, node := range v.nodes {
		if node.parent == nil {
			continue
		}
		path := string(node.parent.path(node.name))
		var st unix.Stat_t
		if err := unix.Lstat(ws+"/"+path, &st); err != nil || st.Ino != node.ino {
			t.Errorf("what is known as %s is inode %d, on disk it is %d, %v", path, node.ino, st.Ino, err)
		}
	}
	if len(v.nodes) != 4 {
		t.Errorf("%d directories are watched, want the root, moved, new and end", len(v.nodes))
	}
}
