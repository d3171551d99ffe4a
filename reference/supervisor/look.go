// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"fmt"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// looker looks names of the workspace up for the worker, one request at a time, on a thread of PID 1 that has
// the tenant's authority over files and none beyond it.
//
// The thread is made at the start and kept. One that is made for each look, and ends with it, would have to
// be replaced, and a tenant at the process limit could make that fail, which ends a Go process.
type looker struct {
	walk func(path []byte, until time.Time) syscall.Errno
	slot chan struct{} // holds the look that is under way
	jobs chan *looking
}

// looking is one look.
type looking struct {
	paths [][]byte
	until time.Time
	done  chan syscall.Errno // room for one
}

// newLooker starts the thread, which looks by walk. Precondition: what changes all threads of this process has
// been done.
func newLooker(walk func(path []byte, until time.Time) syscall.Errno) (*looker, error) {
	l := &looker{walk: walk, slot: make(chan struct{}, 1), jobs: make(chan *looking)}
	ready := make(chan error)
	go l.begin(ready)
	return l, <-ready
}

// begin binds the goroutine to its thread for good. It must not be the first one, which /proc/1 shows; while
// that is held here the second attempt runs elsewhere.
func (l *looker) begin(ready chan error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		again := make(chan error)
		go l.begin(again)
		err := <-again
		runtime.UnlockOSThread() // untouched so far
		ready <- err
		return
	}
	err := actAsTenant()
	ready <- err
	if err != nil {
		return // and the thread ends
	}
	for j := range l.jobs {
		e := l.walkAll(j)
		<-l.slot // first: the answer may bring the next look
		j.done <- e
	}
}

// actAsTenant gives the calling thread the tenant's authority over files, credentials(7): effective ids, no
// groups, no capability, of which it cannot get one back. Raw system calls, since package syscall would change
// all threads.
//
// The real and the saved uid stay 0: by those kill(2) decides who may signal, and ptrace(2) asks for all three.
// A thread of PID 1 that had them could be sent a forged SIGSEGV by any tenant process. setfsuid(2) is for this,
// but no sentry here has it.
func actAsTenant() error {
	const id, same = uintptr(Tenant), ^uintptr(0)
	for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, same, id, same}, {unix.SYS_SETRESUID, same, id, same}} {
		if _, _, e := syscall.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return fmt.Errorf("act as the tenant: %w", e)
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none, caps [2]unix.CapUserData
	if _, _, e := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&none[0])), 0); e != 0 {
		return fmt.Errorf("drop capabilities: %w", e)
	}
	ru, eu, su := unix.Getresuid()
	rg, eg, sg := unix.Getresgid()
	groups, err := unix.Getgroups()
	_, _, e := syscall.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0)
	if ru != 0 || su != 0 || rg != 0 || sg != 0 || eu != Tenant || eg != Tenant || err != nil || len(groups) != 0 || e != 0 || caps != none {
		return fmt.Errorf("credentials read back: uids %d %d %d, gids %d %d %d, groups %v, capabilities %v", ru, eu, su, rg, eg, sg, groups, caps)
	}
	return nil
}

// look begins to look paths up. busy says that another look is under way, and nothing was begun. Otherwise done
// gives, within [control.LookWithin], 0 or the errno of the first path that could not be looked up. A look that
// the kernel keeps goes on to hold the one slot until it ends.
func (l *looker) look(paths [][]byte) (done func() syscall.Errno, busy bool) {
	select {
	case l.slot <- struct{}{}:
	default:
		return nil, true
	}
	j := &looking{paths: paths, until: time.Now().Add(control.LookWithin), done: make(chan syscall.Errno, 1)}
	return func() syscall.Errno {
		late := time.NewTimer(time.Until(j.until))
		defer late.Stop()
		l.jobs <- j // the thread waits for it: whoever has the slot is the only one
		select {
		case e := <-j.done:
			return e
		case <-late.C:
			return unix.ETIMEDOUT
		}
	}, false
}

// walkAll looks up each path, whatever becomes of the others.
func (l *looker) walkAll(j *looking) (first syscall.Errno) {
	for _, p := range j.paths {
		if e := l.walk(p, j.until); e != 0 && first == 0 {
			first = e
		}
	}
	return first
}

// walkBelow looks up each component of a path below root, by its folder's descriptor, and follows no link. That
// nothing is there, or no folder, is an answer. O_PATH opens nothing on the host, waits for no FIFO, and, with
// O_DIRECTORY, is the one way in which every sentry here obeys O_NOFOLLOW.
func walkBelow(root string) func(path []byte, until time.Time) syscall.Errno {
	return func(path []byte, until time.Time) syscall.Errno { return walk(root, path, until) }
}

func walk(root string, path []byte, until time.Time) syscall.Errno {
	const folder = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := unix.Open(root, folder, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer func() { unix.Close(dir) }()
	for name, rest, more := bytes.Cut(path, []byte("/")); ; name, rest, more = bytes.Cut(rest, []byte("/")) {
		if time.Now().After(until) {
			return unix.ETIMEDOUT
		}
		var st unix.Stat_t
		err := unix.Fstatat(dir, string(name), &st, unix.AT_SYMLINK_NOFOLLOW)
		if !more || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return answered(err)
		}
		below := -1
		if err == nil {
			below, err = unix.Openat(dir, string(name), folder, 0)
		}
		if err != nil {
			return answered(err)
		}
		unix.Close(dir)
		dir = below
	}
}

// answered is 0 where err says what has the name, or that nothing has.
func answered(err error) syscall.Errno {
	if err == nil || notThere(err) || errnoOf(err) == unix.ELOOP {
		return 0
	}
	return errnoOf(err)
}
