// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// errResync: what is known of the tree cannot be mended by the events to come.
var errResync = errors.New("the tree must be looked at anew")

// view is what a watcher knows of the tree: the watched directories and their names, as they were
// at the last event that was handled. Events alone change names that are known. What is
// not known, the inside of a directory that has appeared, is looked at when no event
// is read but not handled, and counts only when none has come meanwhile that concerns the path to it.
// All methods but run, step and wait are called on the tenant's thread.
type view struct {
	t   *Tree
	lim WatchLimits
	out *changeQueue

	fd     int
	file   *os.File
	buf    []byte
	events []event // read; those before next are handled
	next   int

	root  *node
	nodes map[int32]*node // by watch descriptor
	todo  []look

	dirty   []string // paths with modifications that are not reported yet, in order
	unclean map[string]bool
	since   time.Time // of the first of them

	owed  bool      // an Overflow, once everything is looked at
	blind time.Time // when to look anew, while a directory is not watched for a bound

	used  time.Duration // of the thread's CPU time, at began
	began time.Time
}

// maxDirty bounds the modifications that are collected.
const maxDirty = 256

// take handles b, what else has been read, and what is to do, as far as that goes now.
func (v *view) take(ctx context.Context, b []byte) error {
	if !v.blind.IsZero() && !time.Now().Before(v.blind) {
		return errResync
	}
	v.events = parseEvents(v.events, b)
	for {
		for v.next < len(v.events) {
			if err := v.breathe(ctx); err != nil {
				return err
			}
			e := v.events[v.next]
			v.next++
			if err := v.handle(e); err != nil {
				return err
			}
			if len(v.todo) > v.lim.Directories {
				return errResync
			}
		}
		v.events, v.next = v.events[:0], 0
		again, err := v.work(ctx)
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	if v.owed && len(v.todo) == 0 {
		v.flush()
		v.out.add(Change{Type: Overflow})
		v.owed = false // whatever the queue held
	}
	if len(v.dirty) > 0 && time.Since(v.since) >= quietTime {
		v.flush()
	}
	return nil
}

// alarm is when wait must end without an event; zero for never.
func (v *view) alarm() time.Time {
	at := v.blind
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(v.dirty) > 0 {
		sooner(v.since.Add(quietTime))
	}
	if len(v.todo) > 0 {
		sooner(time.Now().Add(staleTime))
	}
	return at
}

func (v *view) handle(e event) error {
	switch {
	case e.mask == 0: // the second half of a rename
		return nil
	case e.mask&unix.IN_Q_OVERFLOW != 0:
		return errResync
	}
	n := v.nodes[e.wd]
	switch {
	case n == nil: // dropped meanwhile
		return nil
	case e.mask&unix.IN_IGNORED != 0: // the directory is gone, or its filesystem
		if n == v.root {
			return ErrClosed
		}
		v.drop(n)
		return nil
	case e.name == "": // the directory itself: its parent has told
		return nil
	}
	dir := e.mask&unix.IN_ISDIR != 0
	switch {
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		v.appeared(n, e.name, dir)
		n.remember(e)
	case e.mask&unix.IN_MOVED_FROM != 0:
		return v.left(n, e, dir)
	case e.mask&unix.IN_DELETE != 0:
		v.vanished(n, e.name, dir)
		n.remember(e)
	case e.mask&unix.IN_ATTRIB != 0 && v.absent(n, e.name):
		// A file without a name, open(2) O_TMPFILE, under the number that stands for one.
	case e.mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_ATTRIB) != 0:
		v.modified(n, e.name)
		if dir && n.children[e.name] == nil { // it may have become readable
			v.todo = append(v.todo, look{n: n, name: e.name, loud: true})
		}
	}
	return nil
}

// appeared handles a name that is new in n, or another's now.
func (v *view) appeared(n *node, name string, dir bool) {
	kind := Dir
	if !dir {
		kind = v.kind(n, name)
	}
	v.say(Change{Type: Created, Path: n.path(name), Kind: kind})
	if dir {
		v.forget(n, name)
		v.todo = append(v.todo, look{n: n, name: name, loud: true})
	}
}

// vanished handles a name that n has no more.
func (v *view) vanished(n *node, name string, dir bool) {
	v.say(Change{Type: Removed, Path: n.path(name), Kind: kindIf(dir)})
	if dir {
		v.forget(n, name)
	}
}

// left handles the first half of a rename, and the second one where it is known.
func (v *view) left(n *node, e event, dir bool) error {
	back := n.takesBack(e)
	n.remember(e)
	second, ok := v.pair(e.cookie)
	to := v.nodes[second.wd]
	if !ok || to == nil {
		v.vanished(n, e.name, dir)
		if back {
			v.again(look{n: n, name: e.name})
		}
		return nil
	}
	if err := v.renamed(n, e.name, to, second.name, dir); err != nil {
		return err
	}
	back = back && to.beganWith(second, n)
	to.remember(second)
	if back {
		v.again(look{n: n, name: e.name}, look{n: to, name: second.name})
	}
	return nil
}

func (v *view) renamed(from *node, old string, to *node, name string, dir bool) error {
	src, dst, x := from.path(old), to.path(name), from.children[old]
	known := !dir || x != nil && v.nodes[x.wd] == x
	switch {
	case dst == nil:
		v.say(Change{Type: Removed, Path: src, Kind: kindIf(dir)})
	case src == nil:
		v.say(Change{Type: Created, Path: dst, Kind: kindIf(dir)})
	case !known: // what is in it will be told as created: nobody is to list it before it is watched
		v.say(Change{Type: Removed, Path: src, Kind: Dir})
		v.say(Change{Type: Created, Path: dst, Kind: Dir})
	default:
		v.say(Change{Type: Moved, Path: dst, From: src, Kind: kindIf(dir)})
	}
	if !dir {
		return nil
	}
	v.forget(to, name)
	if known && v.nodes[x.wd] == x {
		if v.waiting(x) { // who lists what moves, after an Overflow, does so too early
			v.owed = true
		}
		return v.attach(x, to, name)
	}
	v.todo = append(v.todo, look{n: to, name: name, loud: true})
	return nil
}

// waiting reports whether a directory below n is still to be looked at.
func (v *view) waiting(n *node) bool {
	for _, d := range v.todo {
		for a := d.n; a != nil; a = a.parent {
			if a == n {
				return true
			}
		}
	}
	return false
}

func (v *view) modified(n *node, name string) {
	p := n.path(name)
	if p == nil || v.unclean[string(p)] {
		return
	}
	if len(v.dirty) == maxDirty {
		v.flush()
	}
	if len(v.dirty) == 0 {
		v.since = time.Now()
		v.unclean = map[string]bool{}
	}
	v.dirty = append(v.dirty, string(p))
	v.unclean[string(p)] = true
}

// flush reports the collected modifications.
func (v *view) flush() {
	for _, p := range v.dirty {
		v.tell(Change{Type: Modified, Path: []byte(p)})
	}
	v.dirty, v.unclean = nil, nil
}

// say reports a change of names, behind the modifications that came before it. One without
// a path is not for us to say.
func (v *view) say(c Change) {
	v.flush()
	if c.Path != nil {
		v.tell(c)
	}
}

// tell owes an Overflow when the queue made one of itself: that one came while directories may have waited to
// be looked at, and who lists before a directory is watched may see a name whose end nobody tells.
func (v *view) tell(c Change) {
	if v.out.add(c) && len(v.todo) > 0 {
		v.owed = true
	}
}

func kindIf(dir bool) Kind {
	if dir {
		return Dir
	}
	return ""
}

// resync drops everything that is known and looks at the tree anew. Overflow comes last: what
// changes after it is reported.
func (v *view) resync(ctx context.Context) error {
	for wd := range v.nodes {
		_, _ = unix.InotifyRmWatch(v.fd, uint32(wd))
	}
	for { // ends, since nothing is watched
		n, err := readNow(v.fd, v.buf)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	err := v.begin(ctx)
	if errors.Is(err, ErrAccess) { // the tenant has closed its workspace, and may open it again
		err = errResync
	}
	if err == nil || errors.Is(err, errResync) {
		v.out.add(Change{Type: Overflow})
	}
	return err
}
