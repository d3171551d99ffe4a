// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
)

// newTree returns an open workspace on an ordinary directory and its path. Beside it lies
// a directory "outside" that the tenant's uid may change as well, so that only confinement protects it.
func newTree(t *testing.T) (*Tree, string, string) {
	t.Helper()
	base := t.TempDir()
	// The tenant's uid must reach both by path, for the attacks to be real.
	for p := base; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ws, out := base+"/ws", base+"/outside"
	for _, d := range []string{ws, out} {
		mkdirTenant(t, d)
	}
	writeTenant(t, out+"/canary", rand.Text())
	tree, err := Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree, ws, out
}

func mkdirTenant(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, Tenant, Tenant); err != nil {
		t.Fatal(err)
	}
}

func writeTenant(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, Tenant, Tenant); err != nil {
		t.Fatal(err)
	}
}

func digestOf(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

// hashTree covers names, kinds, modes, owners, link counts, times and contents.
func hashTree(t *testing.T, root string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %o %d %d %d %d %d\n", path, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim.Nano())
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%x\n", sha256.Sum256(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// names lists a host directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// loopTree mounts a real workspace image. usage returns bytes and inodes in use.
func loopTree(t *testing.T, bytes, inodes int64) (tree *Tree, path string, usage func() loopimage.Used) {
	t.Helper()
	runtime.LockOSThread() // loopimage's precondition for its tools
	defer runtime.UnlockOSThread()
	tools, err := loopimage.FindTools()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	store, err := loopimage.Open(dir+"/store", tools)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	const id = "ws-test"
	if _, err := store.Create(ctx, id, bytes, inodes, loopimage.Reserve{}); err != nil {
		t.Fatal(err)
	}
	m, err := store.Mount(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := store.Release(ctx, id); err != nil {
			t.Error(err)
		}
		if _, err := store.Purge(ctx, id); err != nil {
			t.Error(err)
		}
	})
	tree, err = Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return tree, m.Path, func() loopimage.Used {
		u, err := store.Usage(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
}

// openView is a watcher's view of tree, which nobody steps but the test, on the thread that it must be used on.
func openView(t *testing.T, tree *Tree) (*view, *thread) {
	t.Helper()
	th, err := newThread()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(th.close)
	lim := WatchLimits{}.withDefaults()
	v := &view{t: tree, lim: lim, out: newChangeQueue(lim.Changes, lim.Bytes)}
	t.Cleanup(v.close)
	if err := th.do(func() error { return v.open(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	return v, th
}
