// SPDX-License-Identifier: Apache-2.0

package project

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// changes are what somebody may do to a tree while it is walked. Each gets the directory that holds
// the workspace "ws" and a neighbour "out". The kernel may refuse it, which is as good.
var changes = map[string]func(base string) error{
	"link from outside":  func(b string) error { return os.Link(b+"/out/g", b+"/ws/a/new") },
	"link to outside":    func(b string) error { return os.Link(b+"/ws/b/f", b+"/out/new") },
	"second name inside": func(b string) error { return os.Link(b+"/ws/b/f", b+"/ws/a/new") },
	"one name fewer":     func(b string) error { return os.Remove(b + "/ws/b/pair") },
	"relinked inside": func(b string) error {
		return errors.Join(os.Remove(b+"/ws/b/pair"), os.Link(b+"/ws/a/f", b+"/ws/b/c/new"))
	},
	"file from outside":      func(b string) error { return os.Rename(b+"/out/g", b+"/ws/b/new") },
	"file over another":      func(b string) error { return os.Rename(b+"/out/g", b+"/ws/b/f") },
	"file to outside":        func(b string) error { return os.Rename(b+"/ws/b/f", b+"/out/f") },
	"file to elsewhere":      func(b string) error { return os.Rename(b+"/ws/b/f", b+"/ws/a/moved") },
	"file renamed":           func(b string) error { return os.Rename(b+"/ws/b/f", b+"/ws/b/renamed") },
	"files exchanged":        func(b string) error { return exchange(b+"/ws/b/f", b+"/ws/a/f") },
	"exchanged with outside": func(b string) error { return exchange(b+"/ws/b/f", b+"/out/g") },
	"directory from outside": func(b string) error { return os.Rename(b+"/out/d", b+"/ws/b/new") },
	"directory to outside":   func(b string) error { return os.Rename(b+"/ws/b/c", b+"/out/c") },
	"directory to elsewhere": func(b string) error { return os.Rename(b+"/ws/b/c", b+"/ws/a/moved") },
	"directory down":         func(b string) error { return os.Rename(b+"/ws/b/c", b+"/ws/b/e/moved") },
	"directories exchanged":  func(b string) error { return exchange(b+"/ws/b/c", b+"/out/d") },
	"directory became a link": func(b string) error {
		return errors.Join(os.Rename(b+"/ws/b/c", b+"/out/c"), os.Symlink("../../out/d", b+"/ws/b/c"))
	},
	"exchanged with a link": func(b string) error { return exchange(b+"/ws/b/c", b+"/ws/a/link") },
	"file became a FIFO":    func(b string) error { return errors.Join(os.Remove(b+"/ws/b/f"), unix.Mkfifo(b+"/ws/b/f", 0o666)) },
	"file became a device": func(b string) error {
		return errors.Join(os.Remove(b+"/ws/b/f"), unix.Mknod(b+"/ws/b/f", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	},
	"FIFO became a file": func(b string) error {
		return errors.Join(os.Remove(b+"/ws/b/p"), os.WriteFile(b+"/ws/b/p", nil, 0o644))
	},
	"link became a file": func(b string) error {
		return errors.Join(os.Remove(b+"/ws/a/link"), os.WriteFile(b+"/ws/a/link", nil, 0o644))
	},
	"another file": func(b string) error {
		return errors.Join(os.Remove(b+"/ws/b/f"), os.WriteFile(b+"/ws/b/f", nil, 0o644))
	},
	"file removed":      func(b string) error { return os.Remove(b + "/ws/b/f") },
	"directory removed": func(b string) error { return os.Remove(b + "/ws/b/e") },
	"new file":          func(b string) error { return os.WriteFile(b+"/ws/b/new", nil, 0o644) },
	"new directory":     func(b string) error { return os.Mkdir(b+"/ws/b/new", 0o755) },
	"new link":          func(b string) error { return os.Symlink("/etc", b+"/ws/b/new") },
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// raceTree is the directory that changes work in.
func raceTree(t testing.TB) string {
	base := newDir(t)
	create(t, base, "ws/", "ws/a/", "ws/a/f", "ws/a/link>../../out/d", "ws/b/", "ws/b/f", "ws/b/p|", "ws/b/c/", "ws/b/c/f", "ws/b/e/",
		"ws/b/pair=ws/a/f", "ws/z/", "ws/z/f", "out/", "out/g", "out/d/", "out/d/f")
	setMark(t, base+"/out/g", 55, false)
	setMark(t, base+"/ws/z", 56, true)
	return base
}

// TestChangeBetweenPassesIsRefused: every change, at every barrier, ends the walk, and every inode that
// was there before has the id that it had. After the last look a change is the kernel's to bound.
func TestChangeBetweenPassesIsRefused(t *testing.T) {
	for name, change := range changes {
		for _, at := range []string{"snapshot", "first change", "applied"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				base, id := raceTree(t), newID()
				before := marks(t, base)
				var refused error
				var once sync.Once
				do := func() { once.Do(func() { refused = change(base) }) }
				var b barriers
				switch at {
				case "snapshot":
					b.snapshot = do
				case "first change":
					b.change = func(uint64) { do() }
				default:
					b.applied = do
				}
				_, err := assignTo(t, base+"/ws", id, b)
				if err == nil && refused == nil {
					t.Error("the walk said nothing")
				}
				if err != nil && !errors.Is(err, ErrChanged) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrOutsideLink) {
					t.Errorf("not a kind of its own: %v", err)
				}
				if refused != nil && !errors.Is(refused, unix.EXDEV) {
					t.Errorf("the change itself: %v", refused)
				}
				if err != nil {
					sameMarks(t, before, marks(t, base))
				} else {
					holds(t, base+"/ws", id)
				}
			})
		}
	}
}

// TestChangeBeforeEachInode makes one change before each of the inodes is changed, in turn.
func TestChangeBeforeEachInode(t *testing.T) {
	met := map[string]int{}
	for name, change := range changes {
		for n := range 16 {
			base, id := raceTree(t), newID()
			before := marks(t, base)
			seen, happened := 0, false
			var refused error
			_, err := assignTo(t, base+"/ws", id, barriers{change: func(uint64) {
				if seen++; seen == n+1 {
					happened, refused = true, change(base)
				}
			}})
			if !happened {
				break
			}
			switch {
			case refused != nil && !errors.Is(refused, unix.EXDEV):
				t.Fatalf("%s before inode %d: %v", name, n, refused)
			case err != nil:
				met["refused"]++
				sameMarks(t, before, marks(t, base))
			case refused != nil:
				met["kept out by the kernel"]++
				holds(t, base+"/ws", id)
			default:
				t.Errorf("%s before inode %d: the walk said nothing", name, n)
			}
			if t.Failed() {
				t.Fatalf("%s before inode %d", name, n)
			}
		}
	}
	t.Log(met)
	if met["refused"] < 200 {
		t.Errorf("only %v", met)
	}
}

// TestRelinkedPairs is FS-06 over 100 seeds: pairs inside are fine, a relink at a random change is not.
func TestRelinkedPairs(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 6))
		dir, id := newDir(t), newID()
		var files []string
		for d := range 6 {
			create(t, dir, fmt.Sprintf("d%d/", d))
			for f := range 6 {
				name := fmt.Sprintf("d%d/f%d", d, f)
				create(t, dir, name)
				files = append(files, name)
			}
		}
		for p := range 12 {
			create(t, dir, fmt.Sprintf("d%d/pair%d=%s", r.IntN(6), p, files[r.IntN(len(files))]))
		}
		before, when, seen := marks(t, dir), r.IntN(40), 0
		_, err := assignTo(t, dir, id, barriers{change: func(uint64) {
			if seen++; seen != when+1 {
				return
			}
			links, _ := filepath.Glob(dir + "/d*/pair*")
			from := links[r.IntN(len(links))]
			keep := dir + "/kept"
			// The kernel refuses a link into a directory that has the id already: the root has.
			lerr := os.Link(from, keep)
			must(t, os.Remove(from))
			if lerr == nil {
				must(t, os.Rename(keep, from+"-again"))
			}
		}})
		if !errors.Is(err, ErrChanged) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sameMarks(t, before, marks(t, dir))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		_, err = assignTo(t, dir, id, barriers{})
		must(t, err)
		holds(t, dir, id)
	}
}

// TestHammer is FS-07: 64 threads move subtrees and make files while the walk runs, again and again.
// Either it refuses, or every inode that it found has the id and every directory passes it on.
func TestHammer(t *testing.T) {
	const rounds = 36
	counts := map[string]int{}
	var moved, made, refused atomic.Int64
	for round := range rounds {
		base, id := newDir(t), newID()
		create(t, base, "ws/", "out/", "out/g")
		for d := range 8 {
			create(t, base, fmt.Sprintf("ws/d%d/s/t/", d), fmt.Sprintf("ws/d%d/s/f", d), fmt.Sprintf("ws/d%d/s/t/f", d))
		}
		setMark(t, base+"/out/g", 55, false)
		before := marks(t, base)
		stop := make(chan struct{})
		var wg, ready sync.WaitGroup
		threads := 64
		if round%3 == 2 {
			threads = 1 // rarely in the way: some of these walks end well
		}
		ready.Add(threads)
		for n := range threads {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(n)))
				ready.Done()
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					from, to := r.IntN(8), r.IntN(8)
					a, b := fmt.Sprintf("%s/ws/d%d/s", base, from), fmt.Sprintf("%s/ws/d%d/moved-%d", base, to, n)
					switch err := os.Rename(a, b); {
					case err == nil:
						moved.Add(1)
						_ = os.Rename(b, a) // refused when the id came between
					case errors.Is(err, unix.EXDEV):
						refused.Add(1)
					}
					if f, err := os.Create(fmt.Sprintf("%s/ws/d%d/made-%d-%d", base, from, n, i%4)); err == nil {
						made.Add(1)
						f.Close()
					}
					if err := os.Link(base+"/out/g", fmt.Sprintf("%s/ws/d%d/outside-%d", base, to, n)); errors.Is(err, unix.EXDEV) {
						refused.Add(1)
					}
				}
			})
		}
		ready.Wait()
		if threads == 1 {
			close(stop)
		}
		_, err := assignTo(t, base+"/ws", id, barriers{})
		if threads != 1 {
			close(stop)
		}
		wg.Wait()
		switch {
		case err == nil:
			counts["ok"]++
			holds(t, base+"/ws", id)
		case errors.Is(err, ErrChanged), errors.Is(err, ErrOutsideLink):
			counts["refused"]++
			sameMarks(t, before, marks(t, base))
		default:
			t.Errorf("round %d: %v", round, err)
		}
		if m := readMark(t, base+"/out/g"); m.projid != 55 {
			t.Errorf("round %d: the outside inode has project id %d", round, m.projid)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%v; %d moves, %d files made, %d refused by the kernel", counts, moved.Load(), made.Load(), refused.Load())
	if counts["refused"] < rounds/3 || moved.Load() < 100 || made.Load() < 1000 {
		t.Error("the hammer hit too little")
	}
}
