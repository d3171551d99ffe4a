// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// tree is every process below root. Precondition of its methods: nobody reaps children of root while they
// run, so that the pid of a direct child is its own.
type tree struct{ root int }

// signal sends sig to each process of one look at the tree, and returns how many of them could
// still run when looked at. skipHalted leaves those out that are stopped or dead.
//
// A link "p is a child of q" of the look is proven when p's stat, read again, still says it: then q
// was p's parent all the time, and q itself was proven before. The signal goes to a pidfd that
// was opened before that second reading, so it reaches p or nobody. A sentry without pidfd gets a
// plain kill right after it.
//
// Under a bomb each system call here may wait for a hundred processes, so a look ends at the deadline.
func (t tree) signal(sig unix.Signal, skipHalted bool, deadline time.Time) (running int, err error) {
	look, err := descendants(t.root, time.Now().Add(time.Until(deadline)/2)) // the rest is for what it finds
	if errors.Is(err, errPartial) {
		running++ // whoever was not read
	} else if err != nil {
		return 0, err
	}
	_, n := t.deliver(look, sig, skipHalted, deadline)
	return running + n, nil
}

// deliver is the half of signal that comes after the look. reached are those that a signal went to.
func (t tree) deliver(look []stat, sig unix.Signal, skipHalted bool, deadline time.Time) (reached []stat, running int) {
	proven := map[int]bool{t.root: true, noParent: true}
	for _, p := range look {
		if time.Now().After(deadline) {
			return reached, running + 1
		}
		if !proven[p.ppid] {
			running++ // it moved; the next look finds it elsewhere
			continue
		}
		if !p.halted() {
			running++
		}
		if p.ppid == t.root {
			proven[p.pid] = true
			if !p.dead() && !(skipHalted && p.halted()) && unix.Kill(p.pid, sig) == nil {
				reached = append(reached, p)
			}
			continue
		}
		quiet := p.dead() || skipHalted && p.halted()
		proven[p.pid] = signalProven(p, sig, quiet)
		if proven[p.pid] && !quiet {
			reached = append(reached, p)
		}
	}
	return reached, running
}

// signalProven proves p's link and sends sig unless quiet.
func signalProven(p stat, sig unix.Signal, quiet bool) bool {
	fd, err := unix.PidfdOpen(p.pid, 0) // Linux 5.3
	if err == nil {
		defer unix.Close(fd)
	} else if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.EINVAL) {
		return false // gone
	}
	again, statErr := readStat(p.pid)
	if statErr != nil || again.ppid != p.ppid || again.start != p.start {
		return false
	}
	switch {
	case quiet:
	case err == nil:
		unix.PidfdSendSignal(fd, sig, nil, 0)
	default:
		unix.Kill(p.pid, sig)
	}
	return true
}

// kill ends the tree in rounds until reap says that nothing is left or the deadline passes. reap
// collects what is dead and returns true when no child is left.
func (t tree) kill(deadline time.Time, reap func() (none bool)) (proven bool) {
	for {
		if reap() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		// Stop first: three looks are enough for everything but processes that continue each
		// other, and those the kill below reaches all the same.
		for range 3 {
			if running, err := t.signal(unix.SIGSTOP, true, deadline); err != nil || running == 0 {
				break
			}
		}
		t.signal(unix.SIGKILL, false, deadline)
		for wait := 100 * time.Microsecond; wait < 15*time.Millisecond; wait *= 2 {
			if reap() {
				return true
			}
			time.Sleep(wait) // death has no event that names a whole tree; bounded by the loop
		}
	}
}
