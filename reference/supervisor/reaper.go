// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper waits for every child of PID 1: keepers, which it knows, and orphans, which it does not.
// os/exec is not used in this process, since its Wait would compete for the same statuses.
type reaper struct {
	audit   *audit
	mu      sync.Mutex // held for fork+register, for reaping, and for a sweep of orphans
	keepers map[int]chan struct{}
}

func newReaper(a *audit) *reaper {
	r := &reaper{audit: a, keepers: map[int]chan struct{}{}}
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	go func() {
		for range c {
			r.mu.Lock()
			r.reap()
			r.mu.Unlock()
		}
	}()
	return r
}

// start forks one child of this program; gone is closed when it has been reaped.
func (r *reaper) start(argv []string, env []string, files []uintptr) (pid int, gone <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err = syscall.ForkExec(self, argv, &syscall.ProcAttr{Dir: "/", Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true}}) // a session of its own: signals to PID 1's group miss it
	if err != nil {
		return 0, nil, err
	}
	c := make(chan struct{})
	r.keepers[pid] = c
	return pid, c, nil
}

// kill sends SIGKILL to a keeper that has not been reaped.
func (r *reaper) kill(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepers[pid] != nil { // so the pid is still its own
		unix.Kill(pid, unix.SIGKILL)
	}
}

// killTree ends a keeper that does not end its invocation, and everything below it. The keeper stands still
// while its tree is looked at, so that it neither reaps nor forks; what escapes the look falls to PID 1
// and to sweep.
func (r *reaper) killTree(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepers[pid] == nil {
		return
	}
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
			close(c)
		} else if ws.Signaled() && ws.Signal() == unix.SIGKILL {
			r.audit.count("orphans-killed", 1)
		}
	}
}

// sweep kills the orphans that a dead keeper has left to PID 1.
func (r *reaper) sweep() {
	deadline := time.Now().Add(KillWithin)
	orphan := func(pid int) bool { return r.keepers[pid] == nil }
	for {
		r.mu.Lock()
		t := tree{root: os.Getpid(), roots: orphan}
		for range 3 {
			if running, err := t.signal(unix.SIGSTOP, true, deadline); err != nil || running == 0 {
				break
			}
		}
		t.signal(unix.SIGKILL, false, deadline)
		none := r.reap()
		left, err := descendants(os.Getpid(), orphan, deadline)
		r.mu.Unlock()
		if none || err == nil && len(left) == 0 || time.Now().After(deadline) {
			return
		}
		time.Sleep(time.Millisecond) // between rounds, so that the dying can die
	}
}
