// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Window bounds: fewer hits than these would make the race test say nothing.
const (
	raceTime   = 2 * time.Second // at least
	needHits   = 100             // operations that met the symlink
	needPasses = 100             // operations that met the directory
	raceLimit  = time.Minute     // for a machine with little time to give
)

// racing reports whether a race that began then goes on: until it has its witnesses, or its time is up.
func racing(began time.Time, hits, passes int) bool {
	gone := time.Since(began)
	return gone < raceTime || gone < raceLimit && (hits < needHits || passes < needPasses)
}

// swap exchanges d and link in ws until stop is closed, and counts.
func swap(t *testing.T, ws string, stop <-chan struct{}, count *atomic.Int64) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, ws+"/d", unix.AT_FDCWD, ws+"/link", unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("swap: %v", err)
				return
			}
			count.Add(1)
		}
	}()
	return done
}

// TestAncestorSwapNeverEscapes exchanges a directory with a symlink to an outside tree that
// the tenant's uid may change, while every operation works below it. First the race is
// armed: the same attack on a naive writer must reach the outside.
func TestAncestorSwapNeverEscapes(t *testing.T) {
	tree, ws, out := newTree(t)
	mkdirTenant(t, ws+"/d")
	secret := "inside " + rand.Text()
	writeTenant(t, ws+"/d/canary", secret)
	if err := os.Symlink(out, ws+"/link"); err != nil {
		t.Fatal(err)
	}

	stop := make(chan struct{})
	var swaps atomic.Int64
	done := swap(t, ws, stop, &swaps)

	escaped := false
	for deadline := time.Now().Add(10 * time.Second); !escaped && time.Now().Before(deadline); {
		if fi, err := os.Lstat(ws + "/d"); err != nil || !fi.IsDir() {
			continue // the naive check
		}
		_ = os.WriteFile(ws+"/d/naive", []byte("x"), 0o644)
		_, err := os.Lstat(out + "/naive")
		escaped = err == nil
	}
	if !escaped {
		t.Error("the oracle is not armed: a naive writer never escaped")
	}
	_ = os.Remove(out + "/naive")
	_ = os.Remove(ws + "/d/naive")
	_ = os.Remove(ws + "/link/naive")

	outside, armed := hashTree(t, out), swaps.Load()
	ctx, body := context.Background(), []byte("written by the worker")
	var hits, passes, other int
	judge := func(op string, err error) {
		switch {
		case err == nil:
			passes++
		case errors.Is(err, ErrUnsafe):
			hits++
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrExists), errors.Is(err, ErrMoved):
			other++
		default:
			t.Errorf("%s: %v", op, err)
		}
	}
	for i, began := 0, time.Now(); racing(began, hits, passes); i++ {
		mode := Replace
		if i%2 == 0 {
			mode = Create
		}
		_, _, err := tree.Write(ctx, []byte("d/w"), mode, bytes.NewReader(body), digestOf(body), false)
		judge("write", err)
		r, _, err := tree.Read(ctx, []byte("d/canary"))
		judge("read", err)
		if err == nil {
			b, rerr := io.ReadAll(r)
			r.Close()
			if rerr != nil || string(b) != secret {
				t.Errorf("read %q, %v", b, rerr)
			}
		}
		judge("mkdir", tree.Mkdir(ctx, []byte("d/sub")))
		judge("rename", tree.Rename(ctx, []byte("d/sub"), []byte("d/moved")))
		judge("remove", tree.Remove(ctx, []byte("d/moved")))
		judge("remove", tree.Remove(ctx, []byte("d/w")))
		page, err := tree.List(ctx, []byte("d"), "", 100)
		judge("list", err)
		for _, e := range page.Entries {
			if string(e.Name) == "canary" && e.Size != int64(len(secret)) {
				t.Errorf("listed the outside canary")
			}
		}
	}
	close(stop)
	<-done
	t.Logf("swaps %d, window hits %d, passes %d, other %d", swaps.Load()-armed, hits, passes, other)
	if hits < needHits || passes < needPasses {
		t.Errorf("too few witnesses: %d hits and %d passes", hits, passes)
	}
	if hashTree(t, out) != outside {
		t.Error("the outside tree changed")
	}
	for _, dir := range []string{ws + "/d", ws + "/link"} {
		if fi, err := os.Lstat(dir); err == nil && fi.IsDir() {
			for _, n := range names(t, dir) {
				if strings.HasPrefix(n, ".hallmark-") {
					t.Errorf("temporary %s is left", n)
				}
			}
		}
	}
}

// TestLeafSwapNeverEscapes exchanges the file itself with a symlink to the outside canary.
func TestLeafSwapNeverEscapes(t *testing.T) {
	tree, ws, out := newTree(t)
	secret := "inside " + rand.Text()
	writeTenant(t, ws+"/d", secret)
	if err := os.Symlink(out+"/canary", ws+"/link"); err != nil {
		t.Fatal(err)
	}
	outside := hashTree(t, out)
	stop := make(chan struct{})
	var swaps atomic.Int64
	done := swap(t, ws, stop, &swaps)
	ctx := context.Background()
	var hits, passes int
	for began := time.Now(); racing(began, hits, passes); {
		r, _, err := tree.Read(ctx, []byte("d"))
		switch {
		case err == nil:
			passes++
			if b, rerr := io.ReadAll(r); rerr != nil || string(b) != secret {
				t.Errorf("read %q, %v", b, rerr)
			}
			r.Close()
		case errors.Is(err, ErrUnsafe):
			hits++
		default:
			t.Errorf("read: %v", err)
		}
	}
	close(stop)
	<-done
	t.Logf("swaps %d, window hits %d, passes %d", swaps.Load(), hits, passes)
	if hits < needHits || passes < needPasses {
		t.Errorf("too few witnesses: %d hits and %d passes", hits, passes)
	}
	if hashTree(t, out) != outside {
		t.Error("the outside tree changed")
	}
}
