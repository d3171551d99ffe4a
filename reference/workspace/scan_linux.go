// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of looks that do not count.
const (
	maxTries  = 100                  // of one, before everything is looked at anew
	staleTime = 5 * time.Millisecond // between them when no event explains it
	maxReads  = 4                    // of 64 KiB of events after one look
)

// look is a directory to watch and to list.
type look struct {
	n     *node
	name  string // in n
	loud  bool   // report what is in it
	tries int
}

// entryIn is what a list found.
type entryIn struct {
	name string
	kind Kind
}

// begin watches and lists everything, from nothing.
func (v *view) begin(ctx context.Context) error {
	v.nodes, v.todo, v.events, v.next = map[int32]*node{}, nil, nil, 0
	v.dirty, v.unclean, v.blind, v.owed = nil, nil, time.Time{}, false
	st, err := v.t.root.stat()
	if err != nil {
		return classed("look at workspace", err)
	}
	wd, err := addWatch(v.fd, v.t.root)
	if err != nil {
		return classed("watch workspace", err)
	}
	v.root = &node{wd: wd, dev: st.Dev, ino: st.Ino}
	v.nodes[wd] = v.root
	dir, err := v.t.reopen(v.t.root, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return classed("open workspace", err)
	}
	entries, err := v.list(ctx, dir, false)
	dir.close()
	if err != nil {
		return err
	}
	for _, e := range entries { // one that has an event by now is looked at twice, for nothing
		v.lookLater(look{n: v.root, name: e.name})
	}
	for {
		if err := v.take(ctx, nil); err != nil || len(v.todo) == 0 {
			return err
		}
		if err := sleep(ctx, staleTime); err != nil {
			return err
		}
		n, err := readNow(v.fd, v.buf)
		if err != nil {
			return err
		}
		v.events = parseEvents(v.events, v.buf[:n])
	}
}

// work looks at what is to be looked at, breadth first: where a bound is met, the deep is left out.
// It returns true when there are events to handle first. What cannot be done now stays.
func (v *view) work(ctx context.Context) (again bool, err error) {
	var stay []look
	for len(v.todo) > 0 {
		if err := v.breathe(ctx); err != nil {
			return false, err
		}
		d := v.todo[0]
		v.todo = v.todo[1:]
		if v.nodes[d.n.wd] != d.n { // dropped
			continue
		}
		done, err := v.look(ctx, d)
		if err != nil {
			return false, err
		}
		if !done {
			if d.tries++; d.tries > maxTries || len(stay) >= v.lim.Directories {
				return false, errResync
			}
			stay = append(stay, d)
		}
		if len(v.events) > 0 {
			v.todo = append(stay, v.todo...)
			return true, nil
		}
	}
	v.todo = stay
	return false, nil
}

// look watches and lists one directory. It is not done when something concerns the path to
// it that is not handled yet: then nothing has changed.
func (v *view) look(ctx context.Context, d look) (done bool, err error) {
	if d.n.path(d.name) == nil {
		return true, nil
	}
	h, ok := v.enter(d.n)
	if h < 0 {
		return ok, nil
	}
	defer h.close()
	c, err := openBeneath(h, d.name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil { // gone, no directory, a symlink, a mount, closed to the tenant
		v.missedIf(err)
		return true, nil
	}
	defer c.close()
	st, err := c.stat()
	if err != nil {
		v.missed()
		return true, nil
	}
	wd, err := addWatch(v.fd, c)
	if err != nil { // EACCES: the tenant cannot read it
		v.missedIf(err)
		return true, nil
	}
	if old := v.nodes[wd]; old != nil {
		// Here it has been looked at since the last event about the name. One that is watched
		// under another name has an event to come.
		return old == d.n.children[d.name], nil
	}
	if len(v.nodes) >= v.lim.Directories {
		v.unwatch(wd)
		v.missed()
		return true, nil
	}
	dir, err := v.t.reopen(c, unix.O_RDONLY|unix.O_DIRECTORY)
	var entries []entryIn
	if err == nil {
		entries, err = v.list(ctx, dir, d.loud)
		dir.close()
		if err != nil {
			return false, err
		}
	} else if err != unix.EACCES { // which is new since it is watched
		v.missed()
	}
	if err := v.more(); err != nil {
		return false, err
	}
	if v.concerned(d.n, d.name) {
		v.unwatch(wd)
		return false, nil
	}
	n := &node{wd: wd, dev: st.Dev, ino: st.Ino}
	v.nodes[wd] = n
	if err := v.attach(n, d.n, d.name); err != nil {
		return false, err
	}
	told := v.unhandled(wd)
	for _, e := range entries {
		if told[e.name] { // by an event to come
			continue
		}
		if d.loud {
			v.say(Change{Type: Created, Path: n.path(e.name), Kind: e.kind})
		}
		if e.kind == Dir {
			v.lookLater(look{n: n, name: e.name, loud: d.loud})
		}
	}
	return true, nil
}

// lookLater plans a look, within the bound.
func (v *view) lookLater(d look) {
	if len(v.nodes)+len(v.todo) >= v.lim.Directories {
		v.missed()
		return
	}
	v.todo = append(v.todo, d)
}

// more reads what the kernel has queued by now.
func (v *view) more() error {
	for range maxReads {
		n, err := readNow(v.fd, v.buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		v.events = parseEvents(v.events, v.buf[:n])
	}
	return nil
}

const structural = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// concerned reports whether an event that is not handled is about name in n or about n's own path. The
// kernel queues an event before it lets go of the directory, so what a look saw of a
// directory's names is in the queue after it.
func (v *view) concerned(n *node, name string) bool {
	if v.next == len(v.events) {
		return false
	}
	chain := map[int32]string{n.wd: name}
	for a := n; a.parent != nil; a = a.parent {
		chain[a.parent.wd] = a.name
	}
	for _, e := range v.events[v.next:] {
		if on, ok := chain[e.wd]; e.mask&unix.IN_Q_OVERFLOW != 0 || ok && on == e.name && e.mask&structural != 0 {
			return true
		}
	}
	return false
}

// unhandled returns the names in wd that events to come are about.
func (v *view) unhandled(wd int32) map[string]bool {
	var names map[string]bool
	for _, e := range v.events[v.next:] {
		if e.wd == wd && e.mask&structural != 0 {
			if names == nil {
				names = map[string]bool{}
			}
			names[e.name] = true
		}
	}
	return names
}

// enter opens n as a place, by its path. -1 when it cannot: ok tells that this will stay so.
func (v *view) enter(n *node) (h handle, ok bool) {
	path := "."
	if n.parent != nil {
		p := n.parent.path(n.name)
		if p == nil {
			return -1, true
		}
		path = string(p)
	}
	h, err := openBeneath(v.t.root, path, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		v.missedIf(err)
		return -1, err == unix.EACCES
	}
	st, err := h.stat()
	if err != nil || st.Ino != n.ino || st.Dev != n.dev {
		h.close()
		return -1, false
	}
	return h, true
}

// list reads a directory. Without all, only its directories are returned.
func (v *view) list(ctx context.Context, dir handle, all bool) ([]entryIn, error) {
	var out []entryIn
	buf := make([]byte, 32<<10)
	for {
		if err := v.breathe(ctx); err != nil {
			return nil, err
		}
		n, err := unix.Getdents(int(dir), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil && err != unix.ENOENT { // ENOENT: removed while it is read
			v.missed()
		}
		if n <= 0 {
			return out, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			e := parseDirent(rest)
			rest = rest[e.size:]
			if e.name == "." || e.name == ".." {
				continue
			}
			kind := kindOf(uint32(e.kind) << 12)
			if kind == Unknown { // a filesystem that does not say
				if st, err := lstatAt(dir, e.name); err == nil {
					kind = kindOf(st.Mode)
				}
			}
			if all || kind == Dir {
				out = append(out, entryIn{e.name, kind})
			}
			if len(out) < maxListed {
				continue
			}
			if all {
				return nil, errResync
			}
			v.missed()
			return out, nil
		}
	}
}

// maxListed bounds the entries of one directory that are held at once. A directory that appears with more is
// one for a quiet look, where only directories count: its entries would not fit into the queue of changes.
const maxListed = 16384

// missed notes that a directory is not watched, for a bound or for want of something of the
// host's, and says so.
func (v *view) missed() {
	if v.blind.IsZero() {
		v.blind = time.Now().Add(blindTime)
		v.out.add(Change{Type: Overflow})
	}
}

// missedIf leaves out what is the tenant's own doing.
func (v *view) missedIf(err error) {
	switch err {
	case unix.ENOSPC, unix.ENOMEM, unix.EMFILE, unix.ENFILE: // ENOSPC is fs.inotify.max_user_watches
		v.missed()
	}
}

// kind looks at what has the name now; empty where that is not sure.
func (v *view) kind(n *node, name string) Kind {
	h, _ := v.enter(n)
	if h < 0 {
		return ""
	}
	defer h.close()
	st, err := lstatAt(h, name)
	if err != nil || kindOf(st.Mode) == Dir {
		return ""
	}
	return kindOf(st.Mode)
}

// absent reports whether there is certainly no such name now.
func (v *view) absent(n *node, name string) bool {
	h, _ := v.enter(n)
	if h < 0 {
		return false
	}
	defer h.close()
	_, err := lstatAt(h, name)
	return err == unix.ENOENT
}
