// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tenant is the uid and gid that operations run as and that files belong to.
const Tenant = 65532

// thread is an OS thread with the tenant's authority. It lives for one operation and
// dies with its goroutine, so degraded credentials never return to Go's pool.
type thread struct {
	jobs chan func()
	done chan struct{}
}

// newThread starts one. The caller must close it.
func newThread() (*thread, error) {
	t := &thread{jobs: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go t.begin(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

// begin locks the goroutine to its thread. The main thread must keep its credentials: it
// is what /proc/<pid> shows, and Go cannot end it. While it is held here the second attempt
// runs elsewhere.
func (t *thread) begin(ready chan error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		again := make(chan error)
		go t.begin(again)
		err := <-again
		runtime.UnlockOSThread() // untouched so far
		ready <- err
		return
	}
	// From here on never unlocked: the thread ends with the goroutine. Go starts new threads
	// from a clean template while one is locked, so nothing inherits from this one.
	err := dropCredentials()
	ready <- err
	if err != nil {
		return
	}
	defer close(t.done)
	for f := range t.jobs {
		f()
	}
}

// do runs f on the thread and waits for it.
func (t *thread) do(f func() error) error {
	var err error
	ran := make(chan struct{})
	t.jobs <- func() { err = f(); close(ran) }
	<-ran
	return err
}

// close ends the thread after the job in progress.
func (t *thread) close() {
	close(t.jobs)
	<-t.done
}

// asTenant runs f on a thread of its own.
func asTenant(f func() error) error {
	t, err := newThread()
	if err != nil {
		return err
	}
	defer t.close()
	return t.do(f)
}

// dropCredentials changes the calling thread alone: raw system calls, since the syscall
// package would change all threads. The order matters: groups and gid need root's
// capabilities, and leaving uid 0 in all three ids empties the permitted, effective and ambient sets
// (capabilities(7)); capset makes the inheritable one empty too. The bounding set can stay, as
// no_new_privs makes exec powerless. Everything is read back.
func dropCredentials() error {
	const id = Tenant
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop groups: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); e != 0 {
		return fmt.Errorf("drop gid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); e != 0 {
		return fmt.Errorf("drop uid: %w", e)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if _, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0); e != 0 {
		return fmt.Errorf("drop capabilities: %w", e)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	// An umask of its own, zero: modes are what this package says, whatever the process has.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("own umask: %w", err)
	}
	unix.Umask(0)

	ru, eu, su := unix.Getresuid()
	rg, eg, sg := unix.Getresgid()
	for _, got := range []int{ru, eu, su, rg, eg, sg} {
		if got != id {
			return fmt.Errorf("credentials read back: id %d", got)
		}
	}
	if n, _, e := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0); e != 0 || n != 0 {
		return fmt.Errorf("credentials read back: %d groups", n)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0); e != 0 || caps != [2]unix.CapUserData{} {
		return fmt.Errorf("credentials read back: capabilities are left")
	}
	return nil
}
