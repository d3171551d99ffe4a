// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper waits for every child of PID 1: keepers, which it knows, and orphans, which it does not.
// os/exec is not used in this process, since its Wait would compete for the same statuses.
type reaper struct {
	audit   *audit
	mu      sync.Mutex // held for fork+register, for reaping, and for each look of a sweep
	proc    *os.File   // of /proc, so that a look needs no further descriptor
	keepers map[int]*child
	killed  uint64 // orphans that SIGKILL ended, and that no sweep has told of
}

// child is one keeper. Its pid may be another's once it has been reaped; then the pid leads elsewhere in
// the reaper's map, or nowhere.
type child struct {
	pid  int
	gone chan struct{} // closed when it has been reaped
}

func newReaper(a *audit) (*reaper, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("open process list: %w", err)
	}
	r := &reaper{audit: a, proc: proc, keepers: map[int]*child{}}
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	go func() {
		for range c {
			r.mu.Lock()
			r.reap()
			r.mu.Unlock()
		}
	}()
	return r, nil
}

// start forks one child of this program.
func (r *reaper) start(argv []string, env []string, files []uintptr) (*child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(self, argv, &syscall.ProcAttr{Dir: "/", Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true}}) // a session of its own: signals to PID 1's group miss it
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, gone: make(chan struct{})}
	r.keepers[pid] = c
	return c, nil
}

// kill sends SIGKILL to a keeper that has not been reaped.
func (r *reaper) kill(c *child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepers[c.pid] == c { // so the pid is still its own
		unix.Kill(c.pid, unix.SIGKILL)
	}
}

// killTree ends a keeper that does not end its invocation, and everything below it. The keeper stands still
// while its tree is looked at, so that it neither reaps nor forks; what escapes the look falls to PID 1
// and to sweep.
func (r *reaper) killTree(c *child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepers[c.pid] != c {
		return
	}
	pid := c.pid
	deadline := time.Now().Add(giveUpWithin)
	unix.Kill(pid, unix.SIGSTOP)
	for time.Now().Before(deadline) {
		if st, err := readStat(pid); err != nil || st.halted() {
			break
		}
		time.Sleep(time.Millisecond) // a stop has an event, but only for who waits for this child alone
	}
	t := tree{root: pid}
	for range 3 {
		if running, err := t.signal(unix.SIGSTOP, true, deadline); err != nil || running == 0 {
			break
		}
	}
	t.signal(unix.SIGKILL, false, deadline)
	unix.Kill(pid, unix.SIGKILL)
}

// reap collects what is dead. It returns true when no child is left. Precondition: mu is held.
func (r *reaper) reap() (none bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || pid == 0:
			return err == unix.ECHILD
		}
		if c := r.keepers[pid]; c != nil {
			delete(r.keepers, pid)
			close(c.gone)
		} else if ws.Signaled() && ws.Signal() == unix.SIGKILL {
			r.killed++
			r.audit.count("orphans-killed", 1)
		}
	}
}

// noParent is the parent, to look at, of a process whose parent is outside of this pid namespace, or nobody.
const noParent = 0

// stray says that a process has left the tree of its keeper, or is nobody's. There are two ways. A child
// of PID 1 that is no keeper: what a dead keeper leaves, and, where a sentry lets a process clear the mark of a
// subreaper above it by prctl(2), any orphan. And a process of the tenant's without a parent: where a sentry
// does not wait for the processes of a pid namespace whose first one has ended. Without a parent are also
// the engine's execs, which are root's. Precondition: mu is held.
func (r *reaper) stray(p stat) bool {
	switch p.ppid {
	case os.Getpid():
		return r.keepers[p.pid] == nil
	case noParent:
		return !p.dead() && ownedBy(p.pid, Tenant) // who reaps it, if anybody, is no business of ours
	}
	return false
}

// ownedBy asks for the effective uid of a process: the owner of its folder, dumpable or not, proc_pid(5).
func ownedBy(pid int, uid uint32) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && st.Uid == uid
}

// nobody says that there is no process that could be a stray: none of the tenant's, and no child of PID 1 but the
// keepers. That is so after most commands, it takes a few system calls, and no descriptor, which others may have
// used up. Precondition: mu is held.
func (r *reaper) nobody() bool {
	if _, err := r.proc.Seek(0, io.SeekStart); err != nil {
		return false
	}
	names, err := r.proc.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || r.keepers[pid] != nil {
			continue
		}
		// ECHILD: it is no child of this process, waitid(2).
		if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) != unix.ECHILD || ownedBy(pid, Tenant) {
			return false
		}
	}
	return true
}

// sweep kills every stray until a look finds none or the deadline passes. none says that it did; killed is how many SIGKILL has
// ended since a sweep last said so. Strays of an invocation that still runs are killed as well: nobody keeps them.
//
// A look that finds none is a proof, though it is not atomic. Of processes that escaped, one is always a child
// of PID 1, by whatever forks and exits: an orphan becomes one before its parent can be reaped. Who is one
// when a look begins stays in /proc to its end, as a zombie at least, since nobody is reaped meanwhile. And
// what is left of an ended pid namespace cannot fork, clone(2).
//
// Beside a bomb a look may take seconds: each of its system calls waits for the processor like all others.
func (r *reaper) sweep(deadline time.Time) (killed uint64, none bool) {
	t := tree{root: os.Getpid(), roots: r.stray}
	corpses := map[int]uint64{} // start times of strays that were dead at an earlier look
	for {
		r.mu.Lock()
		r.reap()
		if none = r.nobody(); !none {
			left, err := descendants(t.root, t.roots, deadline)
			none = err == nil
			for _, p := range left {
				// Somebody may keep a dead one from being reaped, ptrace(2). It has forked nobody since.
				if start, ok := corpses[p.pid]; !p.dead() || !ok || start != p.start {
					none = false
				}
				if p.dead() {
					corpses[p.pid] = p.start
				}
			}
		}
		if none {
			killed, r.killed = r.killed, 0
			r.mu.Unlock()
			return killed, true
		}
		for range 3 {
			if running, err := t.signal(unix.SIGSTOP, true, deadline); err != nil || running == 0 {
				break
			}
		}
		t.signal(unix.SIGKILL, false, deadline)
		r.mu.Unlock()
		if time.Now().After(deadline) {
			return 0, false
		}
		time.Sleep(time.Millisecond) // between rounds, so that the dying can die
	}
}
