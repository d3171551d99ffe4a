// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEveryInodeGetsTheID(t *testing.T) {
	for _, byName := range []bool{true, false} {
		t.Run(fmt.Sprintf("file_setattr-%t", byName), func(t *testing.T) {
			dir, id := newDir(t), newID()
			create(t, dir, "f", "d/", "d/f", "d/e/", "d/e/f", "l>f", "dangling>nowhere", "abroad>/etc", "p|", "s=", "pair=f", "d/pair=f", "d/l>..", "empty/")
			tr := open(t, dir)
			if byName && !tr.byName {
				t.Skip("not measured here: this kernel has no file_setattr(2), Linux 6.17")
			}
			tr.byName = byName
			before := marks(t, dir)
			count, err := tr.assign(t.Context(), id, barriers{})
			must(t, err)
			want := Counted{Inodes: 13, Directories: 4, Linked: 1, Special: 6, Set: 13}
			unset := !byName || on(t, "ext4")
			if unset {
				want.Unset, want.Set = 6, 7
			}
			if count != want {
				t.Errorf("counted %+v, want %+v", count, want)
			}
			for path, m := range marks(t, dir) {
				st, err := os.Lstat(path)
				must(t, err)
				expect := mark{ino: m.ino, gen: m.gen, projid: id, inherit: st.IsDir()}
				if unset && !st.IsDir() && !st.Mode().IsRegular() {
					expect = before[path]
				}
				if m != expect {
					t.Errorf("%s is %+v, want %+v", path, m, expect)
				}
			}
			again, err := tr.assign(t.Context(), id, barriers{})
			if want.Set = 0; err != nil || again != want {
				t.Errorf("the second time %+v, %v", again, err)
			}
			if got, err := tr.audit(t.Context(), id); err != nil || got != want {
				t.Errorf("audit: %+v, %v", got, err)
			}
			if _, err := tr.audit(t.Context(), id+1); !errors.Is(err, ErrChanged) {
				t.Errorf("audit for another id: %v", err)
			}
		})
	}
}

// TestVerifyFindsOneWrongInode: whatever it is, and wherever.
func TestVerifyFindsOneWrongInode(t *testing.T) {
	dir, id := newDir(t), newID()
	create(t, dir, "f", "d/", "d/f", "d/e/", "d/e/f", "p|", "l>f")
	tr := open(t, dir)
	for _, byName := range []bool{tr.byName, false} {
		for _, name := range []string{"", "f", "d", "d/f", "d/e", "d/e/f"} {
			tr.byName = byName
			_, err := tr.assign(t.Context(), id, barriers{})
			must(t, err)
			_, err = tr.audit(t.Context(), id)
			must(t, err)
			setMark(t, filepath.Join(dir, name), id+1, true)
			_, err = tr.audit(t.Context(), id)
			var named *FileError
			if !errors.Is(err, ErrChanged) || !errors.As(err, &named) || named.Path != filepath.Clean(name) {
				t.Errorf("%q with another id: %v", name, err)
			}
			if st, serr := os.Stat(filepath.Join(dir, name)); serr == nil && st.IsDir() {
				setMark(t, filepath.Join(dir, name), id, false)
				if _, err = tr.audit(t.Context(), id); !errors.Is(err, ErrChanged) {
					t.Errorf("%q without the inherit flag: %v", name, err)
				}
			}
		}
	}
}

// setMark changes an inode as somebody else would.
func setMark(t testing.TB, path string, id uint32, inherit bool) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	x, err := getOpen(int(f.Fd()))
	must(t, err, setOpen(int(f.Fd()), x, id, inherit && x.xflags != ^uint32(0)))
}

func TestOtherFlagsStay(t *testing.T) {
	const nodump, noatime = 0x80, 0x40 // FS_XFLAG_NODUMP, FS_XFLAG_NOATIME
	for _, flags := range []uint32{nodump, noatime | nodump, xflagAppend, xflagImmutable, xflagImmutable | nodump} {
		for _, name := range []string{"f", "d"} {
			t.Run(fmt.Sprintf("%s-%#x", name, flags), func(t *testing.T) {
				dir, id := newDir(t), newID()
				create(t, dir, "f", "d/", "d/g")
				f, err := os.Open(dir + "/" + name)
				must(t, err)
				t.Cleanup(func() { must(t, f.Close()) })
				x, err := getOpen(int(f.Fd()))
				must(t, err)
				plain := x
				x.xflags |= flags
				must(t, setOpen(int(f.Fd()), x, x.projid, false))
				t.Cleanup(func() { must(t, setOpen(int(f.Fd()), plain, id, false)) })
				_, err = assignTo(t, dir, id, barriers{})
				if flags&xflagImmutable != 0 && on(t, "ext4") {
					if !errors.Is(err, ErrForeign) {
						t.Errorf("ext4 keeps the id of an immutable file: %v", err)
					}
					return
				}
				must(t, err)
				now, err := getOpen(int(f.Fd()))
				must(t, err)
				if now.xflags&(flags) != flags || now.projid != id {
					t.Errorf("flags %#x and id %d afterwards", now.xflags, now.projid)
				}
				holds(t, dir, id)
			})
		}
	}
}

func TestNameOutsideIsRefusedByName(t *testing.T) {
	for _, name := range []string{"f", "l", "p", "s"} {
		t.Run(name, func(t *testing.T) {
			base, id := newDir(t), newID()
			create(t, base, "ws/", "ws/a/", "ws/a/f", "ws/a/l>x", "ws/a/p|", "ws/a/s=", "ws/a/inside=ws/a/f", "ws/b/", "out/")
			must(t, os.Link(base+"/ws/a/"+name, base+"/out/other"))
			before := marks(t, base)
			_, err := assignTo(t, base+"/ws", id, barriers{})
			var named *FileError
			if !errors.Is(err, ErrOutsideLink) || !errors.As(err, &named) || !strings.HasPrefix(named.Path, "a/") {
				t.Fatalf("got %v", err)
			}
			if want := inodeOf(t, base+"/out/other"); inodeOf(t, base+"/ws/"+named.Path) != want {
				t.Errorf("it names %s, another file", named.Path)
			}
			sameMarks(t, before, marks(t, base))
			must(t, os.Remove(base+"/out/other"))
			_, err = assignTo(t, base+"/ws", id, barriers{})
			must(t, err)
			holds(t, base+"/ws", id)
		})
	}
}

// TestMissingDirectoryIsNoticed: one that the snapshot has and a pass does not meet.
func TestMissingDirectoryIsNoticed(t *testing.T) {
	dir := newDir(t)
	create(t, dir, "d/", "d/f")
	tr := open(t, dir)
	taken, err := tr.take(t.Context())
	must(t, err)
	taken.count.Directories++
	pass := &apply{compare: compare{tree: tr, inodes: taken.inodes, projid: newID()}, before: func(uint64) {}}
	if err := pass.pass(t.Context(), pass, taken); !errors.Is(err, ErrChanged) {
		t.Errorf("got %v", err)
	}
}

// TestDevicesAreRefused: nothing special is opened, so nothing waits and no device notices.
func TestDevicesAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		mode  uint32
		major uint32
	}{"character": {unix.S_IFCHR, 1}, "block": {unix.S_IFBLK, 7}} {
		t.Run(name, func(t *testing.T) {
			dir, id := newDir(t), newID()
			create(t, dir, "d/", "d/f", "p|")
			must(t, unix.Mknod(dir+"/d/device", tt.mode|0o666, int(unix.Mkdev(tt.major, 5))))
			before := marks(t, dir+"/d/f", dir+"/p")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := open(t, dir).assign(ctx, id, barriers{})
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), `"d/device"`) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
			sameMarks(t, before, marks(t, dir+"/d/f", dir+"/p"))
		})
	}
}

// TestNothingSpecialIsOpened watches from outside: a FIFO would let a writer in, a lease would be broken.
func TestNothingSpecialIsOpened(t *testing.T) {
	dir, id := newDir(t), newID()
	create(t, dir, "p|", "f")
	writers := 0
	try := func() {
		fd, err := unix.Open(dir+"/p", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			writers++
			unix.Close(fd)
		} else if err != unix.ENXIO { // no reader
			t.Error(err)
		}
	}
	_, err := assignTo(t, dir, id, barriers{snapshot: try, change: func(uint64) { try() }, applied: try, verified: try})
	must(t, err)
	if writers > 0 {
		t.Errorf("a writer found a reader %d times", writers)
	}
	holds(t, dir, id)
}

// TestLeaseIsNotWaitedFor: a file whose holder is asked to give a lease up is busy, at once.
func TestLeaseIsNotWaitedFor(t *testing.T) {
	dir, id := newDir(t), newID()
	create(t, dir, "f", "g")
	f, err := os.OpenFile(dir+"/f", os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must(t, err)
	before := marks(t, dir+"/g")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := open(t, dir).assign(ctx, id, barriers{}); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	must(t, err)
	sameMarks(t, before, marks(t, dir+"/g"))
}

func TestMountPointsAreRefused(t *testing.T) {
	for name, mount := range map[string]func(base string) (at string, err error){
		"another filesystem": func(base string) (string, error) {
			return base + "/ws/d/m", unix.Mount("none", base+"/ws/d/m", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=1m")
		},
		"the parent": func(base string) (string, error) {
			return base + "/ws/d/m", unix.Mount(base+"/ws", base+"/ws/d/m", "", unix.MS_BIND, "")
		},
		"a neighbour": func(base string) (string, error) {
			return base + "/ws/d/m", unix.Mount(base+"/other", base+"/ws/d/m", "", unix.MS_BIND, "")
		},
		"a file": func(base string) (string, error) {
			return base + "/ws/d/f", unix.Mount(base+"/other/g", base+"/ws/d/f", "", unix.MS_BIND, "")
		},
		"a file of another filesystem": func(base string) (string, error) {
			return base + "/ws/d/f", unix.Mount("/proc/self/status", base+"/ws/d/f", "", unix.MS_BIND, "")
		},
	} {
		for _, when := range []string{"before", "after the snapshot", "after the changes"} {
			t.Run(name+" "+when, func(t *testing.T) {
				base, id := newDir(t), newID()
				create(t, base, "ws/", "ws/d/", "ws/d/m/", "ws/d/f", "other/", "other/g")
				other := marks(t, base+"/other", base+"/ws/d/f", base+"/ws")
				var at string
				do := func() {
					var err error
					at, err = mount(base)
					must(t, err)
				}
				var b barriers
				switch when {
				case "before":
					do()
				case "after the snapshot":
					b.snapshot = do
				default:
					b.applied = do
				}
				_, err := assignTo(t, base+"/ws", id, b)
				must(t, unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
				if !errors.Is(err, ErrForeign) {
					t.Errorf("got %v", err)
				}
				sameMarks(t, other, marks(t, base))
			})
		}
	}
}

func TestCancelledWalkPutsEverythingBack(t *testing.T) {
	dir, id := newDir(t), newID()
	create(t, dir, "a/", "a/f", "b/", "b/f", "c/", "c/f", "l>f", "p|")
	setMark(t, dir+"/a", 77, true)
	setMark(t, dir+"/a/f", 78, false)
	before := marks(t, dir)
	for last := range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		_, err := open(t, dir).assign(ctx, id, barriers{change: func(uint64) {
			if n++; n > last {
				cancel()
			}
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after %d changes: %v", last, err)
		}
		sameMarks(t, before, marks(t, dir))
	}
}
