// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sweeper ends strays: what has left the tree of its keeper. All who wait for that share its looks.
type sweeper struct {
	look func(deadline time.Time) (strays []stat, complete bool)
	proc *os.File // of /proc, so that a look at nobody needs no further descriptor; the running goroutine's alone
	seen []stat   // by the last look; the running goroutine's alone

	mu      sync.Mutex
	waiting []*sweep
	running bool
}

// sweep is one that waits for a look without a stray.
type sweep struct {
	until  time.Time
	killed map[int]uint64 // by pid and start: what got SIGKILL since it asked
	none   chan struct{}  // closed when there was such a look, begun after it asked
}

// sweep kills every stray until a look that has begun since finds none, or the deadline passes. none says that
// one did; killed is how many strays were killed meanwhile, whosesoever they were. Strays of an invocation that
// still runs are killed as well: nobody keeps them.
//
// A look that finds none is a proof, though it is not atomic. Of processes that escaped, one is always a child
// of PID 1, by whatever forks and exits: an orphan becomes one before its parent can be reaped. Who is one
// when a look begins stays in /proc to its end, as a zombie at least, since nobody is reaped meanwhile. And
// what is left of an ended pid namespace cannot fork, clone(2).
//
// Nothing less would do. A look shows whose child a stray is by now, not whose it was, and all that would tell is
// the tenant's to change; so one that was born between two looks may be of any invocation that had a stray at the
// first, and it is not enough that the strays of one look are dead. A neighbour that makes strays faster
// than looks follow each other is therefore stopped for a moment, see standStill.
//
// Beside a bomb a look may take seconds: each of its system calls waits for the processor like all others.
func (r *reaper) sweep(deadline time.Time) (killed int, none bool) {
	w := &sweep{until: deadline, killed: map[int]uint64{}, none: make(chan struct{})}
	s := &r.sweeper
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	if !s.running {
		s.running = true
		go r.sweepAll()
	}
	s.mu.Unlock()
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-w.none:
	case <-late.C:
		return 0, false
	}
	return len(w.killed), true
}

// sweepAll serves who waits, and ends when nobody does.
func (r *reaper) sweepAll() {
	s := &r.sweeper
	corpses := map[int]uint64{}           // start times of strays that were dead at an earlier look
	patience := time.Now().Add(strayless) // whoever comes later waits for at most as long
	for round := 0; ; round++ {
		s.mu.Lock()
		var waiting []*sweep
		var deadline time.Time
		for _, w := range s.waiting {
			if time.Now().Before(w.until) {
				waiting = append(waiting, w)
				if w.until.After(deadline) {
					deadline = w.until
				}
			}
		}
		s.waiting, s.running = waiting, len(waiting) > 0
		s.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		if round > 0 {
			time.Sleep(time.Millisecond) // so that the dying can die: that has an event for their parents only
		}
		none := r.round(waiting, corpses, deadline)
		if !none && time.Now().After(patience) {
			none = r.standStill(waiting, corpses, deadline)
			patience = time.Now().Add(strayless)
		}
		if none {
			s.mu.Lock()
			s.waiting = s.waiting[len(waiting):] // who came meanwhile stands behind
			s.mu.Unlock()
			for _, w := range waiting {
				close(w.none)
			}
			round, patience = -1, time.Now().Add(strayless)
		}
	}
}

// round is one look, and the end of what it finds. It returns true when there was nothing.
func (r *reaper) round(waiting []*sweep, corpses map[int]uint64, deadline time.Time) (none bool) {
	r.hold()
	defer r.letGo()
	strays, complete := r.sweeper.look(deadline)
	if complete && gone(strays, corpses) {
		return true
	}
	// Not stopped first: a sentry may send SIGHUP to a whole group when a member of it ends beside a stopped one, and a
	// stray's group may be that of processes that are none.
	reached, _ := tree{root: os.Getpid()}.deliver(strays, unix.SIGKILL, false, deadline)
	r.told(waiting, reached)
	return false
}

// gone says that no stray of a complete look lives, or may yet be reaped. Somebody may keep a dead one from being
// reaped, ptrace(2): it is no stray any more at the second look that finds it dead, and has forked nobody since the first.
func gone(strays []stat, corpses map[int]uint64) bool {
	none := true
	for _, p := range strays {
		if start, ok := corpses[p.pid]; !p.dead() || !ok || start != p.start {
			none = false
		}
		if p.dead() {
			corpses[p.pid] = p.start
		}
	}
	return none
}

// told adds who got SIGKILL to the counts.
func (r *reaper) told(waiting []*sweep, reached []stat) {
	for i, w := range waiting {
		for _, p := range reached {
			if w.killed[p.pid] != p.start {
				w.killed[p.pid] = p.start
				if i == 0 {
					r.audit.count("orphans-killed", 1)
				}
			}
		}
	}
}

// look finds the strays and what is below them. Precondition: hold.
func (r *reaper) look(deadline time.Time) (strays []stat, complete bool) {
	if r.nobody() {
		return nil, true
	}
	all, err := everybody(deadline)
	r.sweeper.seen = all
	return below(all, r.stray), err == nil
}

// noParent is the parent, to look at, of a process whose parent is outside of this pid namespace, or nobody.
const noParent = 0

// stray says that a process has left the tree of its keeper, or is nobody's. There are two ways. A child
// of PID 1 that is no keeper: what a dead keeper leaves, and, where a sentry lets a process clear the mark of a
// subreaper above it by prctl(2), any orphan. And a process of the tenant's without a parent: where a sentry
// does not wait for the processes of a pid namespace whose first one has ended. Without a parent are also
// the engine's execs, which are root's.
//
// Precondition: hold, since before the look; then every keeper that the look found is still known here, and
// registered by now, since it is forked and registered in one step.
func (r *reaper) stray(p stat) bool {
	switch p.ppid {
	case os.Getpid():
		return !r.keeper(p.pid)
	case noParent:
		return !p.dead() && ownedBy(p.pid, Tenant) // who reaps it, if anybody, is no business of ours
	}
	return false
}

func (r *reaper) keeper(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keepers[pid] != nil
}

// ownedBy asks for the effective uid of a process: the owner of its folder, dumpable or not, proc_pid(5).
func ownedBy(pid int, uid uint32) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && st.Uid == uid
}

// nobody says that there is no process that could be a stray: none of the tenant's, and no child of PID 1 but the
// keepers. That is so after most commands, it takes a few system calls, and no descriptor, which others may have
// used up. Precondition: hold.
func (r *reaper) nobody() bool {
	if _, err := r.sweeper.proc.Seek(0, io.SeekStart); err != nil {
		return false
	}
	names, err := r.sweeper.proc.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || r.keeper(pid) {
			continue
		}
		// ECHILD: it is no child of this process, waitid(2).
		if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) != unix.ECHILD || ownedBy(pid, Tenant) {
			return false
		}
	}
	return true
}

// standStill is for strays that keep coming, of themselves or of what has not left its tree: it stops
// every process of the tenant's, until a look finds none that runs, so that nobody makes a stray any more, ends the
// strays, and continues the others. It returns true when a look found no stray. A neighbour loses at most
// [standStillWithin] by it, and no more than its place in time; without a proof the worker would replace the
// sandbox, and end it.
func (r *reaper) standStill(waiting []*sweep, corpses map[int]uint64, deadline time.Time) (none bool) {
	if by := time.Now().Add(standStillWithin); by.Before(deadline) {
		deadline = by
	}
	groups := map[int]bool{}
	defer r.thaw(groups, r.sweeper.seen)
	for time.Now().Before(deadline) {
		if r.stopAll(groups, deadline) && r.round(waiting, corpses, deadline) {
			return true
		}
		time.Sleep(time.Millisecond) // a stop, too, has an event for the parent only
	}
	return false
}

// stopAll stops the process group of each process of the tenant's that one look finds running, and adds it to
// groups. It returns true when there was none. Each is stopped as soon as it is found: what stands leaves the
// processor to the look. And each as a whole: a sentry continues a group of which one ends while others are stopped.
// No group is a keeper's or the bridge's, which have sessions of their own.
func (r *reaper) stopAll(groups map[int]bool, deadline time.Time) (still bool) {
	r.hold()
	defer r.letGo()
	still = true
	err := eachProcess(deadline, func(p stat) {
		if p.halted() || p.pid == os.Getpid() || r.keeper(p.pid) || !ownedBy(p.pid, Tenant) {
			return
		}
		still = false
		groups[p.group] = true
		if p.group > 1 {
			unix.Kill(-p.group, unix.SIGSTOP)
		} else { // its leader is outside of this pid namespace
			unix.Kill(p.pid, unix.SIGSTOP)
		}
	})
	return still && err == nil
}

// thaw continues groups, but for what was stopped before, and is the tenant's own doing. Where that cannot be looked
// up, all of them: it takes no descriptor.
func (r *reaper) thaw(groups map[int]bool, before []stat) {
	stopped := map[int]uint64{}
	for _, p := range before {
		if p.halted() {
			stopped[p.pid] = p.start
		}
	}
	r.hold()
	defer r.letGo()
	all, err := everybody(time.Now().Add(lookWithin))
	for _, p := range all {
		if groups[p.group] && stopped[p.pid] != p.start {
			unix.Kill(p.pid, unix.SIGCONT) // also one that runs: a stop may be on its way to it
		}
	}
	for group := range groups {
		if err != nil && group > 1 {
			unix.Kill(-group, unix.SIGCONT)
		}
	}
}
