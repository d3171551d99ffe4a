// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deepen makes a chain of directories, each with a file, relative to each other: its path is longer than
// any call takes.
func deepen(t testing.TB, dir string, depth int, name string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range depth {
		f, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		must(t, err, unix.Close(f), unix.Mkdirat(fd, name, 0o755), unix.Mkdirat(fd, "side", 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
}

// TestDeepTree is the depth of FS-14: 4,000 directories of 255 bytes, which neither descriptors nor
// paths bound.
func TestDeepTree(t *testing.T) {
	const depth = 4000
	s, _ := newStore(t)
	w := applyTo(t, s, "w")
	deepen(t, w.Path, depth, strings.Repeat("n", 255))
	p, err := pathsOf(s.dir, "w")
	must(t, err)
	rec, err := readRecord(p)
	must(t, err)
	tr := open(t, w.Path)
	before, most := descriptors(), int64(0)
	setMark(t, w.Path+"/file", 0, false) // so that there is a change to be watched
	count, err := tr.assign(t.Context(), rec.ProjectID, barriers{
		change: func(uint64) { most = max(most, int64(descriptors())) },
	})
	if err != nil || count.Inodes != 3*depth+1 || count.Directories != 2*depth+1 {
		t.Fatalf("%+v, %v", count, err)
	}
	// All of it again for another id: each inode is a change, at each depth.
	var deepest atomic.Int64
	count, err = tr.assign(t.Context(), newID(), barriers{change: func(uint64) { deepest.Store(max(deepest.Load(), int64(descriptors()))) }})
	if err != nil || count.Set != 3*depth+1 {
		t.Fatalf("%+v, %v", count, err)
	}
	if got := deepest.Load() - int64(before); got < openWindow-10 || got > openWindow+20 {
		t.Errorf("%d descriptors at most for %d directories that may be open", got, openWindow)
	}
	_, err = tr.assign(t.Context(), rec.ProjectID, barriers{})
	must(t, err)
	before = descriptors()
	releaseOf(t, s, "w")
	if left := files(t, s); len(left) > 0 || descriptors() != before {
		t.Errorf("left behind: %q, %d descriptors after %d", left, descriptors(), before)
	}
}

// TestWideAndSuspended: directories that are closed and opened again go on where they were, also in the
// middle of a piece.
func TestWideAndSuspended(t *testing.T) {
	dir, id := newDir(t), newID()
	inodes := int64(1)
	// Each of three levels is wider than a piece, and chains below reach over the window.
	for level, at := 0, dir; level < 3; level++ {
		for n := range 1500 {
			name := fmt.Sprintf("%s/entry-%d-with-a-name-of-some-length", at, n)
			if n%3 == 0 {
				must(t, os.Mkdir(name, 0o755))
			} else {
				create(t, at, strings.TrimPrefix(name, at+"/"))
			}
			inodes++
		}
		for _, n := range []int{0, 600, 1497} {
			deepen(t, fmt.Sprintf("%s/entry-%d-with-a-name-of-some-length", at, n), openWindow+40, "c")
			inodes += 3 * (openWindow + 40)
		}
		at = fmt.Sprintf("%s/entry-%d-with-a-name-of-some-length", at, 750)
	}
	count, err := assignTo(t, dir, id, barriers{})
	if err != nil || count.Inodes != inodes || count.Set != inodes {
		t.Errorf("%+v, %v; want %d", count, err, inodes)
	}
	holds(t, dir, id)
}

func TestTableFindsWhatItHas(t *testing.T) {
	tb := newTable()
	const n = 100_000
	for ino := range uint64(n) {
		i, isNew, err := tb.insert(ino * 128)
		if err != nil || !isNew {
			t.Fatal(ino, isNew, err)
		}
		i.nlink = uint32(ino)
	}
	for ino := range uint64(n) {
		if i := tb.find(ino * 128); i == nil || i.nlink != uint32(ino) {
			t.Fatalf("%d: %+v", ino*128, i)
		}
		if tb.find(ino*128+1) != nil {
			t.Fatalf("%d was found", ino*128+1)
		}
		if _, isNew, err := tb.insert(ino * 128); isNew || err != nil {
			t.Fatal("inserted twice", err)
		}
	}
	tb.n = MaxInodes
	if _, _, err := tb.insert(1); err == nil {
		t.Error("there is no bound")
	}
}

// peak returns VmHWM of this process in bytes, see proc_pid_status(5), after it was set back.
func peak(t testing.TB) (read func() int64) {
	t.Helper()
	must(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	return func() int64 {
		b, err := os.ReadFile("/proc/self/status")
		must(t, err)
		_, rest, ok := strings.Cut(string(b), "VmHWM:")
		if !ok {
			t.Fatal("no VmHWM")
		}
		kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		must(t, err)
		return kib << 10
	}
}

// BenchmarkMillion applies to 1,000,000 files, half of them in one directory, and reports the peak of
// the process's memory.
func BenchmarkMillion(b *testing.B) {
	dir := newDir(b)
	fill(b, dir, 500_000)
	must(b, os.Mkdir(dir+"/wide", 0o755))
	for n := range 500_000 {
		fd, err := unix.Open(fmt.Sprintf("%s/wide/file-with-a-longer-name-%d", dir, n), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		must(b, err, unix.Close(fd))
	}
	tr := open(b, dir)
	var times, memory []float64
	for b.Loop() {
		read, start := peak(b), time.Now()
		count, err := tr.assign(context.Background(), newID(), barriers{})
		if err != nil || count.Inodes != 1_000_502 || count.Set != count.Inodes {
			b.Fatalf("%+v, %v", count, err)
		}
		times, memory = append(times, float64(time.Since(start).Microseconds())), append(memory, float64(read())/(1<<20))
	}
	b.ReportMetric(median(times), "p50-µs")
	b.ReportMetric(memory[len(memory)-1], "peak-MiB")
}

// TestMovedWhileSuspended: the way back from a subtree that was moved leads elsewhere, and is not taken.
func TestMovedWhileSuspended(t *testing.T) {
	base, id := newDir(t), newID()
	create(t, base, "ws/", "out/", "out/file", "out/d/", "out/d/file")
	deepen(t, base+"/ws", openWindow+60, "c")
	branch := base + "/ws" + strings.Repeat("/c", 20)
	before := marks(t, base+"/out", base+"/ws")
	seen := 0
	_, err := assignTo(t, base+"/ws", id, barriers{change: func(uint64) {
		if seen++; seen == 2*(openWindow+50) { // below what is open
			must(t, os.Rename(branch+"/c", base+"/out/c"))
		}
	}})
	if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "it was moved") {
		t.Errorf("got %v", err)
	}
	sameMarks(t, before, marks(t, base))
}
