// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
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
	sweeper sweeper
	trees   sync.Mutex // held for killTree: each look takes a thread, and PID 1 has so many

	mu      sync.Mutex // held for fork+register, for reaping and for a signal to a keeper; not for a look at /proc
	keepers map[int]*child
	looking int // looks under way, while which nobody is reaped
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
	r := &reaper{audit: a, keepers: map[int]*child{}}
	r.sweeper.proc, r.sweeper.look = proc, r.look
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	go func() {
		for range c {
			r.mu.Lock()
			if r.looking == 0 {
				r.reap()
			}
			r.mu.Unlock()
		}
	}()
	return r, nil
}

// hold keeps this process from reaping anybody until letGo: who is dead stays a zombie, so that no pid of a child
// becomes another's and nobody is missing from /proc.
func (r *reaper) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looking++
}

// letGo ends hold; the last one reaps what has died meanwhile.
func (r *reaper) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looking--; r.looking == 0 {
		r.reap()
	}
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
	r.trees.Lock()
	defer r.trees.Unlock()
	r.hold()
	defer r.letGo()
	if !r.keeps(c) {
		return
	}
	pid := c.pid // its own until letGo
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

// keeps says that c has not been reaped.
func (r *reaper) keeps(c *child) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keepers[c.pid] == c
}

// reap collects what is dead. Precondition: mu is held.
func (r *reaper) reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || pid == 0:
			return
		}
		if c := r.keepers[pid]; c != nil {
			delete(r.keepers, pid)
			close(c.gone)
		}
	}
}
