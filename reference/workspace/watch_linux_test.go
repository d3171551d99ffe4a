// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func watch(t *testing.T, tree *Tree, lim WatchLimits) *Watcher {
	t.Helper()
	w, err := tree.Watch(t.Context(), lim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w *Watcher) Change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := w.Next(ctx)
	if err != nil {
		t.Fatalf("no further change: %v", err)
	}
	return c
}

func (c Change) String() string {
	s := fmt.Sprintf("%s %q", c.Type, c.Path)
	if c.From != nil {
		s += fmt.Sprintf(" from %q", c.From)
	}
	if c.Kind != "" {
		s += " " + string(c.Kind)
	}
	return s
}

// until returns the changes before the creation of name at the top, which it makes.
func until(t *testing.T, w *Watcher, ws, name string) []string {
	t.Helper()
	if err := os.Mkdir(ws+"/"+name, 0o755); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		c := next(t, w)
		if c.Type == Created && string(c.Path) == name {
			return got
		}
		got = append(got, c.String())
	}
}

func TestChangesByKind(t *testing.T) {
	tree, ws, out := newTree(t)
	mkdirTenant(t, ws+"/d")
	mkdirTenant(t, ws+"/e")
	writeTenant(t, ws+"/d/old", "x")
	if err := os.Symlink("../outside", ws+"/link"); err != nil {
		t.Fatal(err)
	}
	w := watch(t, tree, WatchLimits{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, tt := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"create", func() error { return os.WriteFile(ws+"/d/f", nil, 0o644) }, []string{`created "d/f" file`, `modified "d/f"`}},
		{"write", func() error { return os.WriteFile(ws+"/d/f", []byte("y"), 0o644) }, []string{`modified "d/f"`}},
		{"attributes", func() error { return os.Chmod(ws+"/d/old", 0o600) }, []string{`modified "d/old"`}},
		{"hard link", func() error { return os.Link(ws+"/d/f", ws+"/hard") }, []string{`created "hard" file`}},
		{"symlink", func() error { return os.Symlink("/etc", ws+"/e/s") }, []string{`created "e/s" symlink`}},
		{"fifo", func() error { return unix.Mkfifo(ws+"/e/p", 0o666) }, []string{`created "e/p" fifo`}},
		{"odd names", func() error { return os.WriteFile(ws+"/e/\n\"\xff", nil, 0o644) }, []string{"created \"e/\\n\\\"\\xff\" file", "modified \"e/\\n\\\"\\xff\""}},
		{"rename", func() error { return os.Rename(ws+"/d/f", ws+"/d/g") }, []string{`moved "d/g" from "d/f"`}},
		{"rename over", func() error { return os.Rename(ws+"/d/g", ws+"/e/p") }, []string{`moved "e/p" from "d/g"`}},
		{"rename of a directory", func() error { return os.Rename(ws+"/d", ws+"/e/d") }, []string{`moved "e/d" from "d" dir`}},
		{"in the moved one", func() error { return os.Mkdir(ws+"/e/d/sub", 0o755) }, []string{`created "e/d/sub" dir`}},
		{"remove", func() error { return os.Remove(ws + "/e/d/old") }, []string{`removed "e/d/old"`}},
		{"remove a directory", func() error { return os.Remove(ws + "/e/d/sub") }, []string{`removed "e/d/sub" dir`}},
		{"move out", func() error { return os.Rename(ws+"/e", out+"/e") }, []string{`removed "e" dir`}},
		{"outside", func() error { return errors.Join(os.Mkdir(out+"/e/x", 0o755), os.Mkdir(out+"/e/d/x", 0o755)) }, nil},
		{"move in", func() error { return os.Rename(out+"/e/d", ws+"/back") }, []string{`created "back" dir`, `created "back/x" dir`}},
		{"in what came in", func() error { return os.Mkdir(ws+"/back/x/y", 0o755) }, []string{`created "back/x/y" dir`}},
		{"API", func() error {
			_, _, err := tree.Write(t.Context(), []byte("api"), Create, strings.NewReader("x"), digestOf([]byte("x")), false)
			return err
		}, []string{`created "api" file`}},
	} {
		must(tt.do())
		var got []string
		for len(got) < len(tt.want) {
			got = append(got, next(t, w).String())
		}
		got = append(got, until(t, w, ws, fmt.Sprintf("mark%d", i))...)
		got = slices.Compact(got) // a file's close may fall behind what its write was collected with
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestExchangeIsAnOverflow: to a reader of moves only one of two names would be left.
func TestExchangeIsAnOverflow(t *testing.T) {
	tree, ws, _ := newTree(t)
	mkdirTenant(t, ws+"/a")
	mkdirTenant(t, ws+"/b")
	w := watch(t, tree, WatchLimits{})
	if err := unix.Renameat2(unix.AT_FDCWD, ws+"/a", unix.AT_FDCWD, ws+"/b", unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	for next(t, w).Type != Overflow {
	}
	// Both are still watched, under the names that they have now.
	for _, d := range []string{"a", "b"} {
		if err := os.Mkdir(ws+"/"+d+"/in-"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := until(t, w, ws, "mark"); !slices.Equal(got, []string{`created "a/in-a" dir`, `created "b/in-b" dir`}) {
		t.Errorf("got %q", got)
	}
}

// TestNewDirectoriesHideNothing: what is made in a directory before it is watched is told.
func TestNewDirectoriesHideNothing(t *testing.T) {
	tree, ws, _ := newTree(t)
	w := watch(t, tree, WatchLimits{})
	var want []string
	for i := range 300 {
		dir := ""
		for _, part := range []string{fmt.Sprintf("a%d", i), "b", "c"} {
			dir = strings.TrimPrefix(dir+"/"+part, "/")
			if err := os.Mkdir(ws+"/"+dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("nowhere", ws+"/"+dir+"/f"); err != nil {
				t.Fatal(err)
			}
			want = append(want, dir, dir+"/f")
		}
	}
	seen := map[string]int{}
	for len(seen) < len(want) {
		c := next(t, w)
		if c.Type != Created {
			t.Fatalf("got %v", c)
		}
		p := string(c.Path)
		seen[p]++
		if up := filepath.Dir(p); up != "." && seen[up] == 0 {
			t.Errorf("%s before its directory", p)
		}
	}
	for _, p := range want {
		if seen[p] != 1 {
			t.Errorf("%s was reported %d times", p, seen[p])
		}
	}
}

// model is what a client knows: it lists at the start and at each overflow, and follows changes. A list
// is not of one moment, so after an overflow it also lists what moves.
type model struct {
	root      string
	kinds     map[string]bool // whether it is a directory
	overflows int
}

func listTree(root string) map[string]bool {
	out := map[string]bool{}
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if rel, rerr := filepath.Rel(root, p); rerr == nil && rel != "." && (err == nil || d != nil) {
			out[rel] = d.IsDir()
		}
		return nil // what goes away meanwhile has an event
	})
	return out
}

func (m *model) below(p string) []string {
	var out []string
	for k := range m.kinds {
		if k == p || strings.HasPrefix(k, p+"/") {
			out = append(out, k)
		}
	}
	return out
}

func (m *model) follow(c Change) {
	p, from := string(c.Path), string(c.From)
	switch c.Type {
	case Overflow:
		m.overflows++
		m.kinds = listTree(m.root)
	case Created:
		for _, k := range m.below(p) {
			delete(m.kinds, k)
		}
		m.kinds[p] = c.Kind == Dir
	case Removed:
		for _, k := range m.below(p) {
			delete(m.kinds, k)
		}
	case Moved:
		moved := map[string]bool{p: c.Kind == Dir}
		for _, k := range m.below(from) {
			moved[p+k[len(from):]] = m.kinds[k]
			delete(m.kinds, k)
		}
		for _, k := range m.below(p) {
			delete(m.kinds, k)
		}
		if m.overflows > 0 && c.Kind == Dir {
			moved = map[string]bool{p: true}
			for k, dir := range listTree(m.root + "/" + p) {
				moved[p+"/"+k] = dir
			}
		}
		maps.Copy(m.kinds, moved)
	}
}

// storm makes n random changes below root.
func storm(root string, seed uint64, n int, exchange bool) {
	r := rand.New(rand.NewPCG(seed, seed))
	names := []string{"a", "b", "c", "\n", "\xff"}
	path := func() string {
		p := root
		for range 1 + r.IntN(4) {
			p += "/" + names[r.IntN(len(names))]
		}
		return p
	}
	for range n {
		switch r.IntN(10) {
		case 0, 1, 2:
			_ = os.MkdirAll(path(), 0o755)
		case 3, 4:
			_ = os.WriteFile(path(), []byte("x"), 0o644)
		case 5, 6:
			if from, to := path(), path(); exchange || from < to { // no move is undone
				_ = os.Rename(from, to)
			}
		case 7:
			if !exchange {
				continue
			}
			_ = unix.Renameat2(unix.AT_FDCWD, path(), unix.AT_FDCWD, path(), unix.RENAME_EXCHANGE)
		case 8:
			_ = os.Remove(path())
		case 9:
			_ = os.RemoveAll(path())
		}
	}
}

// TestClientConverges: whatever happens, who follows knows the tree in the end, and so does
// the watcher: changes after the storm are told under the right names.
func TestClientConverges(t *testing.T) {
	for _, tt := range []struct {
		name     string
		lim      WatchLimits
		rounds   int
		exchange bool // which makes overflows
		most     int  // overflows, 0 for at least one: directories that are not watched yet make some
	}{
		{"changes alone", WatchLimits{}, 20, false, 40},
		{"exchanges", WatchLimits{}, 10, true, 0},
		{"small queue", WatchLimits{Changes: 8}, 5, false, 0},
		{"short paths", WatchLimits{Bytes: 64}, 5, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, ws, _ := newTree(t)
			storm(ws, 1, 200, true)
			w := watch(t, tree, tt.lim)
			m := &model{root: ws, kinds: listTree(ws)}
			for round := range tt.rounds {
				var wg sync.WaitGroup
				for i := range 3 {
					wg.Go(func() { storm(ws, uint64(round*10+i), 300, tt.exchange) })
				}
				if round%2 == 0 { // else what was made meanwhile waits
					wg.Wait()
				}
				settle(t, w, m, &wg)
				// Each directory tells its name once more.
				want := listTree(ws)
				for p, dir := range want {
					if dir {
						_ = os.Mkdir(ws+"/"+p+"/probe", 0o755)
					}
				}
				settle(t, w, m, &wg)
				for p, dir := range want {
					if dir {
						_ = os.Remove(ws + "/" + p + "/probe")
					}
				}
				if t.Failed() {
					return
				}
			}
			t.Logf("%d overflows", m.overflows)
			if tt.most > 0 && m.overflows > tt.most || tt.most == 0 && m.overflows == 0 {
				t.Error("overflows are not what the case is about")
			}
		})
	}
}

// settle follows until the model is the tree.
func settle(t *testing.T, w *Watcher, m *model, wg *sync.WaitGroup) {
	t.Helper()
	wg.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		c, err := w.Next(ctx)
		cancel()
		if err == nil {
			m.follow(c)
			continue
		}
		want := listTree(m.root)
		if maps.Equal(want, m.kinds) {
			return
		}
		if time.Now().After(deadline) {
			for p, dir := range want {
				if got, ok := m.kinds[p]; !ok || got != dir {
					t.Errorf("missing or wrong: %q", p)
				}
			}
			for p := range m.kinds {
				if _, ok := want[p]; !ok {
					t.Errorf("left over: %q", p)
				}
			}
			return
		}
	}
}

// watches counts the watches of this process's inotify instances, proc_pid_fdinfo(5).
func watches(t *testing.T) (instances, marks int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || to != "anon_inode:inotify" {
			continue
		}
		b, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		if err != nil {
			t.Fatal(err)
		}
		instances++
		marks += strings.Count(string(b), "inotify wd:")
	}
	return instances, marks
}

func TestDirectoriesBeyondTheBound(t *testing.T) {
	tree, ws, _ := newTree(t)
	const bound = 500
	for i := range 2 * bound {
		if err := os.MkdirAll(fmt.Sprintf("%s/%d/deep", ws, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w := watch(t, tree, WatchLimits{Directories: bound})
	if c := next(t, w); c.Type != Overflow {
		t.Errorf("got %v", c)
	}
	if _, n := watches(t); n != bound {
		t.Errorf("%d watches", n)
	}
	for i := range 200 { // at run time likewise
		if err := os.MkdirAll(fmt.Sprintf("%s/new%d/deep", ws, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := until(t, w, ws, "mark")
	if len(got) != 200 { // the new ones are seen from the top, and cannot be entered
		t.Errorf("%d changes", len(got))
	}
	// Only the kernel's answer to one watch more says whether it is of a directory that is known: until the
	// last of them has been looked at, one comes and goes.
	n := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, n = watches(t); n == bound || n > bound+1 {
			break
		}
	}
	if n != bound {
		t.Errorf("%d watches", n)
	}
}

// TestHostileTreeIsBounded: more directories than are watched, a tree deeper than a path, and one that
// turns over and over, cost what the bounds say, and the watcher still tells what comes then.
func TestHostileTreeIsBounded(t *testing.T) {
	tree, ws, _ := newTree(t)
	for i := range 10_000 {
		if err := os.Mkdir(fmt.Sprintf("%s/%d", ws, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	descriptors := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	fds, before := descriptors(), heap()
	w := watch(t, tree, WatchLimits{})
	if _, n := watches(t); n != 8192 {
		t.Errorf("%d watches", n)
	}
	t.Logf("%d bytes more at first", heap()-before)
	// A chain of 300 names of 250 bytes, made from inside, since no path reaches its end.
	dir, err := unix.Open(ws, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("\xfe", 250)
	var chain []int
	for range 300 {
		chain = append(chain, dir)
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir, err = unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	unix.Close(dir)
	defer func() {
		for _, d := range slices.Backward(chain) { // RemoveAll could not
			if err := unix.Unlinkat(d, name, unix.AT_REMOVEDIR); err != nil {
				t.Error(err)
			}
			unix.Close(d)
		}
	}()
	for i := range 20_000 { // nobody takes a change meanwhile
		from, to := fmt.Sprintf("%s/%d", ws, i%100), fmt.Sprintf("%s/%d/%d", ws, 5000+i%97, i)
		if err := errors.Join(os.Rename(from, to), os.Rename(to, from)); err != nil {
			t.Fatal(err)
		}
	}
	if _, n := watches(t); n > 8192 {
		t.Errorf("%d watches", n)
	}
	// Here the instance, and for a moment two of a look.
	if n := descriptors() - len(chain) - fds; n > 4 {
		t.Errorf("%d descriptors more", n)
	}
	if more := heap() - before; more > 16<<20 {
		t.Errorf("%d bytes more", more)
	} else {
		t.Logf("%d bytes more", more)
	}
	if c := next(t, w); c.Type != Overflow {
		t.Errorf("got %v", c)
	}
	for i := 0; ; i++ { // each overflow hides what was made before it
		mark := fmt.Sprintf("mark%d", i)
		if err := os.Mkdir(ws+"/"+mark, 0o755); err != nil {
			t.Fatal(err)
		}
		c := next(t, w)
		for c.Type != Overflow && string(c.Path) != mark {
			c = next(t, w)
		}
		if c.Type != Overflow {
			break
		}
	}
}

// TestLostEventsAreMended: after the kernel's overflow the tree is looked at anew, and known.
func TestLostEventsAreMended(t *testing.T) {
	tree, ws, _ := newTree(t)
	mkdirTenant(t, ws+"/gone")
	th, err := newThread()
	if err != nil {
		t.Fatal(err)
	}
	defer th.close()
	lim := WatchLimits{}.withDefaults()
	v := &view{t: tree, lim: lim, out: newChangeQueue(lim.Changes, lim.Bytes)}
	defer v.close()
	on := func(f func() error) error { return th.do(f) }
	if err := on(func() error { return v.open(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(ws+"/gone", ws+"/here"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(ws+"/new/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for range most/2 + 1 { // nobody reads them
		if err := errors.Join(os.Mkdir(ws+"/full", 0o755), os.Remove(ws+"/full")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(ws + "/new/sub"); err != nil { // has no event any more
		t.Fatal(err)
	}
	if err := os.Mkdir(ws+"/new/other", 0o755); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		err = on(func() error {
			n, err := readNow(v.fd, v.buf)
			if err == nil && n == 0 {
				err = errors.New("the kernel dropped nothing")
			}
			if err != nil {
				return err
			}
			return v.take(t.Context(), v.buf[:n])
		})
	}
	if !errors.Is(err, errResync) {
		t.Fatalf("got %v", err)
	}
	if err := on(func() error { return v.resync(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if c, err := v.out.next(t.Context()); err != nil || c.Type != Overflow {
		t.Errorf("got %v, %v", c, err)
	}
	var known []string
	for _, n := range v.nodes {
		if n != v.root {
			known = append(known, string(n.parent.path(n.name)))
		}
	}
	slices.Sort(known)
	if !slices.Equal(known, []string{"here", "new", "new/other"}) {
		t.Errorf("known are %q", known)
	}
	if _, n := watches(t); n != 4 {
		t.Errorf("%d watches", n)
	}
}

// TestWatcherLooksNowhereElse: links, mounts and what the tenant cannot read.
func TestWatcherLooksNowhereElse(t *testing.T) {
	tree, ws, out := newTree(t)
	mkdirTenant(t, ws+"/m")
	if err := unix.Mount("tmpfs", ws+"/m", "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(ws+"/m", 0); err != nil {
			t.Error(err)
		}
	}()
	for _, d := range []string{"/closed", "/closed/in"} {
		if err := os.Mkdir(ws+d, 0o700); err != nil { // root's
			t.Fatal(err)
		}
	}
	if err := os.Symlink(out, ws+"/before"); err != nil {
		t.Fatal(err)
	}
	w := watch(t, tree, WatchLimits{})
	if err := os.Symlink(out, ws+"/after"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{ws + "/m/x", ws + "/closed/x", ws + "/closed/in/x", out + "/x"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := until(t, w, ws, "mark"); !slices.Equal(got, []string{`created "after" symlink`}) {
		t.Errorf("got %q", got)
	}
	if _, n := watches(t); n != 2 { // the root and the mark
		t.Errorf("%d watches", n)
	}
	if err := os.Chmod(ws+"/closed", 0o755); err != nil { // now it can be read
		t.Fatal(err)
	}
	got := []string{next(t, w).String(), next(t, w).String(), next(t, w).String()}
	slices.Sort(got)
	if !slices.Equal(got, []string{`created "closed/in" dir`, `created "closed/x" dir`, `modified "closed"`}) {
		t.Errorf("got %q", got)
	}
}

// TestWatcherLeavesNothing, however it ends.
func TestWatcherLeavesNothing(t *testing.T) {
	tree, ws, _ := newTree(t)
	storm(ws, 7, 300, true)
	count := func() string {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		instances, marks := watches(t)
		return fmt.Sprintf("%d descriptors, %d goroutines, %d instances, %d watches", len(fds), runtime.NumGoroutine(), instances, marks)
	}
	before := count()
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := tree.Watch(ctx, WatchLimits{})
		if err != nil {
			t.Fatal(err)
		}
		storm(ws, uint64(i), 50, true)
		if i%2 == 0 {
			cancel()
			<-w.done
			for err = nil; err == nil; { // what came before is still there
				_, err = w.Next(t.Context())
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		w.Close()
		cancel()
	}
	deadline := time.Now().Add(10 * time.Second)
	for count() != before && time.Now().Before(deadline) { // goroutines end a moment after they are done
		time.Sleep(time.Millisecond)
	}
	if after := count(); after != before {
		t.Errorf("before: %s; after: %s", before, after)
	}
}

// TestCloseOfTheTreeWaits for the watcher, whose root it would take away.
func TestCloseOfTheTreeWaits(t *testing.T) {
	_, ws, _ := newTree(t)
	tree, err := Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := tree.Watch(ctx, WatchLimits{})
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- tree.Close() }()
	select {
	case <-closed:
		t.Error("the tree was closed below a watcher")
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := tree.Watch(t.Context(), WatchLimits{}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}
