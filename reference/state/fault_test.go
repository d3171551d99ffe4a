// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

func fifo(path string) error { return unix.Mkfifo(path, 0o600) }

// mounted is a filesystem of the given kind and size for one test; it needs root.
func mounted(t *testing.T, kind string, bytes int64) string {
	t.Helper()
	dir := t.TempDir() + "/m"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
	}
	if kind == "tmpfs" {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
			t.Fatalf("mount tmpfs: %v", err)
		}
	} else {
		image := t.TempDir() + "/image"
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes)); err != nil {
			t.Fatal(err)
		}
		run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image)
		run("mount", "-o", "loop", image, dir)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// A full disk fails those who wait for it, loses nothing, and is over when there is room again.
func TestFullDisk(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir, h, ctx := mounted(t, kind, 4<<20), newHand(), t.Context()
			var seen []Commit
			st := open(t, dir+"/s", Options{Now: h.now, Observe: func(c Commit) { seen = append(seen, c) }})
			defer st.Close() // before the file system goes
			if err := st.ConsumeNonce(ctx, "short", "ws", h.in(time.Second)); err != nil {
				t.Fatal(err)
			}
			value := make([]byte, 8<<10)
			stored := 0
			for ; ; stored++ {
				if stored == 10 {
					fill(t, dir+"/ballast")
				}
				err := st.Put(ctx, "b", fmt.Sprintf("%06d", stored), value)
				if errors.Is(err, unix.ENOSPC) && !errors.Is(err, ErrBroken) {
					break
				}
				if err != nil || stored > 1000 {
					t.Fatalf("put %d: %v", stored, err)
				}
			}
			exp := h.in(time.Minute)
			refused := ""
			for i := 0; refused == ""; i++ {
				id := fmt.Sprint("nonce-", i)
				if err := st.ConsumeNonce(ctx, id, "ws", exp); errors.Is(err, unix.ENOSPC) {
					refused = id
				} else if err != nil || i > 10_000 {
					t.Fatalf("nonce %d: %v", i, err)
				}
			}
			if last := seen[len(seen)-1]; last.Err == nil || last.Writes != 1 {
				t.Errorf("observed %+v", last)
			}
			// A nonce that ends in a commit that fails is still to be dropped. The committer waits at
			// the gate, so that what follows is one commit, and too large.
			h.ms.Add(2000)
			gate, results := make(chan struct{}), make(chan error, 2)
			st.queue <- &write{run: func() error { <-gate; return nil }, result: make(chan error, 1)}
			st.queue <- &write{nonce: &nonce{id: "when short has ended", workspace: "ws", expMs: exp}, result: results}
			st.queue <- &write{bucket: "b", changes: []Change{{Key: "large", Value: make([]byte, 64<<10)}}, result: results}
			close(gate)
			for range 2 {
				if err := <-results; !errors.Is(err, unix.ENOSPC) {
					t.Errorf("a large commit: %v", err)
				}
			}
			if err := os.Remove(dir + "/ballast"); err != nil {
				t.Fatal(err)
			}
			if err := st.ConsumeNonce(ctx, refused, "ws", exp); !errors.Is(err, ErrReplay) {
				t.Errorf("a nonce whose commit failed: %v", err)
			}
			if err := st.Put(ctx, "b", "after", value); err != nil {
				t.Fatalf("with room again: %v", err)
			}
			if err := st.ConsumeNonce(ctx, "nonce-after", "ws", exp); err != nil {
				t.Fatalf("nonce with room again: %v", err)
			}
			if _, err := st.Get(ctx, nonceBucket, "short"); !errors.Is(err, ErrNotFound) {
				t.Errorf("the nonce that ended meanwhile is still stored: %v", err)
			}
			if err := errors.Join(st.Check(ctx), st.Close()); err != nil {
				t.Fatal(err)
			}
			st = open(t, dir+"/s", Options{Now: h.now})
			defer st.Close()
			for i := range stored {
				if got, err := st.Get(ctx, "b", fmt.Sprintf("%06d", i)); err != nil || len(got) != len(value) {
					t.Fatalf("record %d of %d: %v", i, stored, err)
				}
			}
			for _, id := range []string{"nonce-after", "nonce-0"} {
				if id == refused {
					continue
				}
				if err := st.ConsumeNonce(ctx, id, "ws", exp); !errors.Is(err, ErrReplay) {
					t.Errorf("%s: %v", id, err)
				}
			}
			t.Logf("%d records before the disk was full, first refused %s", stored, refused)
			if err := st.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// fill takes all room that is left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if serr := errors.Join(f.Sync(), f.Close()); !errors.Is(err, unix.ENOSPC) || serr != nil {
		t.Fatalf("fill: %v, %v", err, serr)
	}
}

// A full disk at the start is an error of the start, and no file is left half made.
func TestFullDiskAtTheStart(t *testing.T) {
	dir := mounted(t, "tmpfs", 64<<10)
	fill(t, dir+"/ballast")
	if _, err := Open(dir+"/s", Options{Mode: api.Production}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(dir + "/ballast"); err != nil {
		t.Fatal(err)
	}
	st, err := Open(dir+"/s", Options{Mode: api.Production})
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

func TestReadOnly(t *testing.T) {
	h := newHand()
	prepared := func(dir string) {
		t.Helper()
		st, err := Open(dir, Options{Mode: api.Production, Now: h.now})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(st.Put(t.Context(), "b", "k", []byte("v")), st.Close()); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("filesystem", func(t *testing.T) {
		dir := mounted(t, "tmpfs", 4<<20)
		prepared(dir + "/s")
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir + "/s", dir + "/new"} {
			if _, err := Open(d, Options{Mode: api.Production}); !errors.Is(err, unix.EROFS) {
				t.Errorf("got %v", err)
			}
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
			t.Fatal(err)
		}
		prepared(dir + "/s")
	})
	t.Run("file", func(t *testing.T) {
		dir := t.TempDir() + "/s"
		prepared(dir)
		path := filepath.Join(dir, fileName)
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(path, 0); err != nil {
				t.Error(err)
			}
		}()
		if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{Mode: api.Production}); !errors.Is(err, unix.EROFS) {
			t.Errorf("got %v", err)
		}
	})
}

// Each of the two locks keeps a second store out by itself, within its time.
func TestEitherLock(t *testing.T) {
	dir := t.TempDir() + "/s"
	open(t, dir, Options{}).Close()
	for _, path := range []string{dir, filepath.Join(dir, fileName)} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := Open(dir, Options{Mode: api.Production, Timeout: 100 * time.Millisecond}); !errors.Is(err, ErrLocked) {
			t.Errorf("%s is locked: %v", path, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
		f.Close()
	}
	open(t, dir, Options{})
}

// broken stores refuse everything, do not come back by themselves, and lose nothing.
func TestCommitThatFailsForGood(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, st *Store) (undo func()){
		// write(2) on a descriptor that is open for reading: EBADF, as an I/O error would come.
		"write error": func(t *testing.T, st *Store) func() {
			replace := func(by int) {
				if err := unix.Dup3(by, int(st.file.Fd()), unix.O_CLOEXEC); err != nil {
					t.Fatal(err)
				}
			}
			ro, err := os.Open(st.file.Name())
			if err != nil {
				t.Fatal(err)
			}
			own, err := unix.FcntlInt(st.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			replace(int(ro.Fd()))
			return func() {
				replace(own)
				if err := errors.Join(ro.Close(), unix.Close(own)); err != nil {
					t.Error(err)
				}
			}
		},
		// bbolt panics when it meets a page of another kind.
		"damaged under the map": func(t *testing.T, st *Store) func() { scribble(t, st, 2); return func() {} },
		// The map reaches beyond the end of the file: SIGBUS.
		"cut under the map": func(t *testing.T, st *Store) func() {
			if err := os.Truncate(st.file.Name(), int64(2*os.Getpagesize())); err != nil {
				t.Fatal(err)
			}
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, dir := newHand(), t.TempDir()+"/s"
			st, err := Open(dir, Options{Mode: api.Production, Now: h.now})
			if err != nil {
				t.Fatal(err)
			}
			if err := st.ConsumeNonce(t.Context(), "before", "ws", h.in(time.Minute)); err != nil {
				t.Fatal(err)
			}
			good, err := os.ReadFile(st.file.Name())
			if err != nil {
				t.Fatal(err)
			}
			undo := harm(t, st)
			if err := st.ConsumeNonce(t.Context(), "during", "ws", h.in(time.Minute)); !errors.Is(err, ErrBroken) {
				t.Errorf("the commit that fails: %v", err)
			}
			// What was there is there again; the store must not trust it.
			undo()
			if err := os.WriteFile(st.file.Name(), good, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := st.ConsumeNonce(t.Context(), "after", "ws", h.in(time.Minute)); !errors.Is(err, ErrBroken) {
				t.Errorf("a later commit: %v", err)
			}
			if err := st.Put(t.Context(), "b", "k", nil); !errors.Is(err, ErrBroken) {
				t.Errorf("a later put: %v", err)
			}
			if _, err := st.Get(t.Context(), "b", "k"); err == nil {
				t.Error("a record that was never stored is there")
			}
			if err := st.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			st = open(t, dir, Options{Now: h.now})
			if err := st.ConsumeNonce(t.Context(), "before", "ws", h.in(time.Minute)); !errors.Is(err, ErrReplay) {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

// scribble overwrites every page but the first ones with what is no page.
func scribble(t *testing.T, st *Store, from int) {
	t.Helper()
	f, err := os.OpenFile(st.file.Name(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	junk := make([]byte, 16)
	for i := range junk {
		junk[i] = 0xA5
	}
	for at := int64(from * os.Getpagesize()); at < info.Size(); at += int64(os.Getpagesize()) {
		if _, err := f.WriteAt(junk, at); err != nil {
			t.Fatal(err)
		}
	}
}

// What is read from a damaged map is an error of the reader alone.
func TestReadOfADamagedMap(t *testing.T) {
	dir := t.TempDir() + "/s"
	st, err := Open(dir, Options{Mode: api.Production})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Put(t.Context(), "b", "k", make([]byte, 20_000)); err != nil {
		t.Fatal(err)
	}
	scribble(t, st, 2)
	if _, err := st.Get(t.Context(), "b", "k"); !errors.Is(err, ErrDamaged) {
		t.Errorf("get: %v", err)
	}
	if err := os.Truncate(st.file.Name(), int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if err := st.Each("b", func(string, []byte) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("each: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// One caller's impossible record must not fail the others of its commit.
func TestImpossibleRecordFailsAlone(t *testing.T) {
	st := open(t, t.TempDir()+"/s", Options{})
	gate := make(chan struct{})
	hold := &write{run: func() error { <-gate; return nil }, result: make(chan error, 1)}
	st.queue <- hold // the committer waits here, so that what follows is one batch
	good, bad := make(chan error, 1), make(chan error, 1)
	go func() { good <- st.Put(context.Background(), "b", "good", nil) }()
	go func() { bad <- st.Put(context.Background(), "b", string(make([]byte, 40_000)), nil) }()
	var refused error
	select {
	case refused = <-bad: // before the commit that it would fail
	case <-time.After(2 * time.Second):
	}
	close(gate)
	if err := <-good; err != nil || refused == nil {
		t.Errorf("good %v, bad %v", err, refused)
	}
}
