// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWorkspaceIsWhatWasPromised(t *testing.T) {
	s, k := newStore(t)
	w := applyTo(t, s, "w:1")
	if !w.New || w.ProjectID != ids.First || w.Bytes != 8*mib || w.Inodes != 64 || w.Filesystem != "xfs" || w.Files != 65 || w.Blocks*w.BlockSize != 8*mib {
		t.Errorf("%+v", w)
	}
	var st unix.Stat_t
	must(t, unix.Stat(w.Path, &st))
	if st.Uid != Tenant || st.Gid != Tenant || st.Mode != unix.S_IFDIR|0o755 || unix.Major(st.Dev) != w.Major || unix.Minor(st.Dev) != w.Minor {
		t.Errorf("%+v, told %+v", st, w)
	}
	if l := k.limits[w.ProjectID]; l.BytesLimit != 8*mib || l.InodesLimit != 65 {
		t.Errorf("limits %+v", l)
	}
	u, err := s.Usage(t.Context(), "w:1")
	if want := (Used{BytesLimit: 8 * mib, InodesLimit: 64, ProjectID: w.ProjectID}); err != nil || u != want {
		t.Errorf("an empty workspace: %+v, %v", u, err)
	}
	create(t, w.Path, "d/", "d/f", "l>f")
	if u, err = s.Usage(t.Context(), "w:1"); err != nil || u.Inodes != 3 || u.Bytes != 4096 {
		t.Errorf("usage %+v, %v", u, err)
	}
	again := applyTo(t, s, "w:1")
	if again.New || again.ProjectID != w.ProjectID || again.Walked.Inodes != 4 || again.Walked.Set != 0 {
		t.Errorf("again %+v", again)
	}
	seen, err := s.Verify(t.Context(), "w:1")
	if again.Walked.Set = 0; err != nil || seen != again {
		t.Errorf("verify %+v, %v", seen, err)
	}
	list, err := s.List()
	if err != nil || len(list.Workspaces) != 1 || list.Workspaces[0] != (Entry{"w:1", ids.First, applied}) {
		t.Errorf("list %+v, %v", list, err)
	}
	sound(t, s)
	if d := releaseOf(t, s, "w:1"); !d.Found {
		t.Error("nothing was found")
	}
	if left := files(t, s); len(left) > 0 || k.limits[ids.First] != (Quota{}) {
		t.Errorf("left behind: %q, %+v", left, k.limits)
	}
	if d := releaseOf(t, s, "w:1"); d.Found {
		t.Error("something was found twice")
	}
}

func TestKnownMeansApplied(t *testing.T) {
	s, _ := newStore(t)
	known := func(want bool, when string) {
		t.Helper()
		if got, err := Known(s.dir, "w"); err != nil || got != want {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	known(false, "before")
	s.step = func(step string) { known(step == "recorded", step) }
	applyTo(t, s, "w")
	s.step = func(string) {}
	known(true, "applied")
	releaseOf(t, s, "w")
	known(false, "released")
	if _, err := Known(s.dir, "../w"); !errors.Is(err, ErrUsage) {
		t.Errorf("an id that is none: %v", err)
	}
}

func TestBoundsAreNeverChanged(t *testing.T) {
	s, _ := newStore(t)
	applyTo(t, s, "w")
	for _, b := range [][2]int64{{8*mib + 1, 64}, {4 * mib, 64}, {8 * mib, 65}} {
		if _, err := s.Apply(t.Context(), "w", b[0], b[1], ids, Reserve{}); !errors.Is(err, ErrMismatch) {
			t.Errorf("%v: %v", b, err)
		}
	}
	for _, b := range [][2]int64{{0, 64}, {MinBytes - 1, 64}, {MaxBytes + 1, 64}, {8 * mib, MinInodes - 1}, {8 * mib, MaxWorkspaceInodes + 1}, {-1, -1}} {
		if _, err := s.Apply(t.Context(), "x", b[0], b[1], ids, Reserve{}); !errors.Is(err, ErrSpec) {
			t.Errorf("%v: %v", b, err)
		}
	}
	for _, r := range []Range{{}, {1, 10}, {MinProjectID - 1, MinProjectID}, {MinProjectID + 1, MinProjectID}, {MinProjectID, 1<<32 - 1}} {
		if _, err := s.Apply(t.Context(), "x", 8*mib, 64, r, Reserve{}); !errors.Is(err, ErrUsage) {
			t.Errorf("%v: %v", r, err)
		}
	}
	if left := files(t, s); len(left) != 3 {
		t.Errorf("a refused call left %q", left)
	}
}

// TestIDsAreGivenOnce: of many calls at once, none shares an id, and the range is used to its end.
func TestIDsAreGivenOnce(t *testing.T) {
	s, k := newStore(t)
	r := Range{First: MinProjectID, Last: MinProjectID + 11}
	k.held[r.First+2] = Quota{Inodes: 1}             // somebody else's file
	k.limits[r.First+5] = Quota{BytesLimit: 1 << 20} // somebody else's limit
	k.limits[r.First+7] = Quota{}                    // known to the kernel, and free
	var wg sync.WaitGroup
	var mu sync.Mutex
	got, full := map[uint32]int{}, 0
	for n := range 14 {
		wg.Go(func() {
			other, err := openStore(s.dir, k) // as another process has it
			if err != nil {
				t.Error(err)
				return
			}
			w, err := other.Apply(t.Context(), fmt.Sprint("w", n), 4*mib, 16, r, Reserve{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				got[w.ProjectID]++
			case errors.Is(err, ErrExhausted):
				full++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(got) != 10 || full != 4 || got[r.First+2] > 0 || got[r.First+5] > 0 || got[r.First+7] != 1 {
		t.Errorf("given %v, refused %d", got, full)
	}
	sound(t, s)
	k.held[r.First+2] = Quota{}
	delete(k.held, r.First+2)
	if w, err := s.Apply(t.Context(), "late", 4*mib, 16, r, Reserve{}); err != nil || w.ProjectID != r.First+2 {
		t.Errorf("after the other has gone: %+v, %v", w, err)
	}
}

// TestIDIsNotReusedWhileCharged is QT-14 (b): an open file without a name keeps the id.
func TestIDIsNotReusedWhileCharged(t *testing.T) {
	s, k := newStore(t)
	first := applyTo(t, s, "a").ProjectID
	k.held[first] = Quota{Bytes: 4096, Inodes: 1}
	if _, err := s.Release(t.Context(), "a", 30*time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Fatalf("released while charged: %v", err)
	}
	if l := k.limits[first]; l.BytesLimit == 0 {
		t.Error("what is still charged has no limit any more")
	}
	if _, err := s.Apply(t.Context(), "a", 8*mib, 64, ids, Reserve{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a workspace that is being released: %v", err)
	}
	if w := applyTo(t, s, "b"); w.ProjectID == first {
		t.Error("the id was given again")
	}
	sound(t, s)
	delete(k.held, first)
	releaseOf(t, s, "a")
	w := applyTo(t, s, "c")
	if w.ProjectID != first {
		t.Errorf("%d is free, and %d was given", first, w.ProjectID)
	}
	if u, err := s.Usage(t.Context(), "c"); err != nil || u.Bytes != 0 || u.Inodes != 0 || u.InodesLimit != 64 {
		t.Errorf("a recycled id begins with %+v, %v", u, err)
	}
}

// TestQuotaThatGoesAwayIsNoticed is QT-14 (a): nothing says yes any more, and nothing is made.
func TestQuotaThatGoesAwayIsNoticed(t *testing.T) {
	s, k := newStore(t)
	w := applyTo(t, s, "w")
	create(t, w.Path, "f")
	ask := func(what string) {
		t.Helper()
		_, verr := s.Verify(t.Context(), "w")
		_, uerr := s.Usage(t.Context(), "w")
		for _, err := range []error{verr, uerr} {
			if !errors.Is(err, ErrNotEnforced) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	good := k.st
	for what, st := range map[string]State{"off": {Filesystem: "xfs"}, "counting only": {Filesystem: "xfs", Accounted: true}} {
		k.st = st
		ask(what)
		if _, err := s.Apply(t.Context(), "new", 8*mib, 64, ids, Reserve{}); !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: apply: %v", what, err)
		}
		if _, err := openStore(s.dir, k); !errors.Is(err, ErrNotEnforced) {
			t.Errorf("%s: open: %v", what, err)
		}
	}
	k.st = State{Filesystem: "xfs"}
	if _, err := s.Release(t.Context(), "w", time.Second); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("release without counting: %v", err)
	}
	k.st = good
	releaseOf(t, s, "w")

	applyTo(t, s, "w")
	limits := k.limits[ids.First]
	for what, l := range map[string]Quota{"no limit": {}, "more bytes": {BytesLimit: limits.BytesLimit + 512, InodesLimit: 65}, "more inodes": {BytesLimit: 8 * mib, InodesLimit: 66}, "fewer": {BytesLimit: 8 * mib, InodesLimit: 64}} {
		k.limits[ids.First] = l
		ask(what)
	}
	applyTo(t, s, "w") // sets them again
	if k.limits[ids.First] != limits {
		t.Errorf("limits are %+v", k.limits[ids.First])
	}
	k.large = true
	if _, err := s.Verify(t.Context(), "w"); !errors.Is(err, ErrNotEnforced) {
		t.Errorf("a directory as large as the filesystem: %v", err)
	}
	k.large = false
	setMark(t, w.Path, 0, false)
	if _, err := s.Verify(t.Context(), "w"); !errors.Is(err, ErrChanged) {
		t.Errorf("a root without its id: %v", err)
	}
}

func TestLostDirectoryIsDamage(t *testing.T) {
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	must(t, os.RemoveAll(w.Path))
	_, verr := s.Verify(t.Context(), "w")
	_, aerr := s.Apply(t.Context(), "w", 8*mib, 64, ids, Reserve{})
	if !errors.Is(verr, ErrCorrupt) || !errors.Is(aerr, ErrCorrupt) {
		t.Errorf("verify %v, apply %v", verr, aerr)
	}
	must(t, os.Symlink("/etc", w.Path))
	if _, err := s.Verify(t.Context(), "w"); err == nil {
		t.Error("a link was taken for the workspace")
	}
	must(t, os.Remove(w.Path))
	releaseOf(t, s, "w")
	p, err := pathsOf(s.dir, "x")
	must(t, err, os.WriteFile(p.record, []byte("{"), 0o600))
	if _, err := s.Apply(t.Context(), "y", 8*mib, 64, ids, Reserve{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an id was given although a record cannot be read: %v", err)
	}
}

func TestHostReserve(t *testing.T) {
	s, _ := newStore(t)
	var st unix.Statfs_t
	must(t, unix.Statfs(s.dir, &st))
	free := int64(st.Bavail) * st.Frsize
	for _, r := range []Reserve{{Bytes: free - 4*mib}, {Inodes: int64(st.Ffree) - 10}} {
		if _, err := s.Apply(t.Context(), "w", 8*mib, 64, ids, r); !errors.Is(err, ErrReserve) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if left := files(t, s); len(left) > 0 {
		t.Errorf("a refused call left %q", left)
	}
	// What earlier ones may still take counts, although it is free now.
	half := (free - free/10 - 64*mib) / 2
	_, err := s.Apply(t.Context(), "a", half, 64, ids, Reserve{})
	must(t, err)
	if _, err := s.Apply(t.Context(), "b", half+128*mib, 64, ids, Reserve{Bytes: free / 10}); !errors.Is(err, ErrReserve) {
		t.Errorf("the sum of limits is more than there is: %v", err)
	}
}

func TestRepairAfterALinkOutside(t *testing.T) {
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	create(t, w.Path, "d/", "d/f", "d/pair=d/f", "fine", "finepair=fine", "l>target", "p|", "s=")
	must(t, unix.Setxattr(w.Path+"/d/f", "user.note", []byte("kept"), 0), unix.Chmod(w.Path+"/d/f", 0o4751))
	must(t, os.Truncate(w.Path+"/d/f", 1<<20))
	out := newDir(t)
	for _, n := range []string{"d/f", "l", "p", "s"} {
		must(t, os.Link(w.Path+"/"+n, out+"/"+filepath.Base(n)))
	}
	must(t, unix.Mknod(w.Path+"/d/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	inside, before := marks(t, w.Path), marks(t, out)
	if _, err := s.Apply(t.Context(), "w", 8*mib, 64, ids, Reserve{}); !errors.Is(err, ErrForeign) {
		t.Fatalf("apply: %v", err)
	}
	sameMarks(t, inside, marks(t, w.Path))
	got, err := s.Repair(t.Context(), "w")
	if want := (Repaired{Copied: 4, Removed: 2}); err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	if again := applyTo(t, s, "w"); again.Walked.Linked != 1 {
		t.Errorf("%+v", again)
	}
	holds(t, w.Path, w.ProjectID)
	sameMarks(t, before, marks(t, out))
	var st unix.Stat_t
	must(t, unix.Stat(w.Path+"/d/f", &st))
	note := make([]byte, 8)
	n, err := unix.Getxattr(w.Path+"/d/f", "user.note", note)
	must(t, err)
	text, err := os.ReadFile(w.Path + "/d/f")
	must(t, err)
	if st.Mode&0o7777 != 0o751 || st.Uid != Tenant || st.Nlink != 1 || string(note[:n]) != "kept" || len(text) != 1<<20 || string(text[:3]) != "d/f" || st.Blocks > 16 {
		t.Errorf("the copy: %+v, %q", st, note[:n])
	}
	if target, err := os.Readlink(w.Path + "/l"); err != nil || target != "target" {
		t.Errorf("the link: %q, %v", target, err)
	}
	if left, _ := filepath.Glob(w.Path + "/d/.hallmark*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	for _, gone := range []string{"s", "d/null"} {
		if _, err := os.Lstat(w.Path + "/" + gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
}

// TestRepairMakesNoRoom: copies are charged to nobody but the tenant.
func TestRepairMakesNoRoom(t *testing.T) {
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	must(t, os.WriteFile(w.Path+"/f", make([]byte, 5*mib), 0o644), os.Link(w.Path+"/f", newDir(t)+"/f"))
	before := inodeOf(t, w.Path+"/f")
	if _, err := s.Repair(t.Context(), "w"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if left := readNames(t, w.Path); len(left) != 1 || inodeOf(t, w.Path+"/f") != before {
		t.Errorf("afterwards %q", left)
	}
}

func readNames(t testing.TB, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestReleaseRefusesAMountPoint(t *testing.T) {
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	create(t, w.Path, "m/")
	must(t, unix.Mount("none", w.Path+"/m", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=1m"), os.WriteFile(w.Path+"/m/f", nil, 0o644))
	_, err := s.Release(t.Context(), "w", time.Second)
	if !errors.Is(err, ErrForeign) {
		t.Errorf("got %v", err)
	}
	moved, _ := filepath.Glob(s.dir + "/trash/*/m/f")
	if len(moved) != 1 {
		t.Fatalf("the mounted file: %q", moved)
	}
	must(t, unix.Unmount(filepath.Dir(moved[0]), unix.UMOUNT_NOFOLLOW))
	releaseOf(t, s, "w")
	if left := files(t, s); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestLockedOutTenantIsLetInAgain(t *testing.T) {
	s, _ := newStore(t)
	for _, tt := range []struct{ set, want uint32 }{{0, 0o700}, {0o1077, 0o1777}, {0o2555, 0o2755}, {0o711, 0o711}} {
		w := applyTo(t, s, "w")
		must(t, unix.Lchown(w.Path, 0, 0), unix.Chmod(w.Path, tt.set))
		applyTo(t, s, "w")
		var st unix.Stat_t
		must(t, unix.Stat(w.Path, &st))
		if got := st.Mode & 0o7777; got != tt.want || st.Uid != Tenant || st.Gid != Tenant {
			t.Errorf("chmod %#o: mode %#o instead of %#o, uid %d", tt.set, got, tt.want, st.Uid)
		}
	}
}

func TestOneOperationPerWorkspace(t *testing.T) {
	s, _ := newStore(t)
	other, err := openStore(s.dir, s.kernel)
	must(t, err)
	s.at = barriers{snapshot: func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, verr := other.Verify(ctx, "w")
		_, rerr := other.Release(ctx, "w", time.Second)
		_, aerr := other.Apply(ctx, "w", 8*mib, 64, ids, Reserve{})
		for _, err := range []error{verr, rerr, aerr} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("meanwhile: %v", err)
			}
		}
		if _, err := other.Apply(t.Context(), "another", 8*mib, 64, ids, Reserve{}); err != nil {
			t.Errorf("another workspace: %v", err)
		}
	}}
	applyTo(t, s, "w")
	sound(t, s)
}

// TestRemovalOfSmallPieces: a listing may come in pieces of one entry, the first of which is "."; none of them is
// the end.
func TestRemovalOfSmallPieces(t *testing.T) {
	whole := readDirent
	t.Cleanup(func() { readDirent = whole })
	pieces := 0
	readDirent = func(fd int, buf []byte) (int, error) {
		const dot = 24 // struct linux_dirent64 of "." and ".."
		n, err := whole(fd, buf[:dot])
		if err == unix.EINVAL { // the next one is longer
			return whole(fd, buf)
		}
		if n > 0 {
			pieces++
		}
		return n, err
	}
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	deepen(t, w.Path, 3, "below")
	releaseOf(t, s, "w")
	if left := files(t, s); len(left) > 0 || pieces < 2 {
		t.Errorf("left behind: %q, after %d pieces without a name", left, pieces)
	}
}
