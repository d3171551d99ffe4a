// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// harden prepares this process before it meets a tenant: no new privileges, no inheritable
// capability, not dumpable, no core file of it or of what it starts, nothing but 0, 1, 2 across exec, and its threads made.
//
// Attributes of threads are set on all of them: the Go runtime has several by now.
func harden(threads int) error {
	runtime.GOMAXPROCS(1)
	warm(threads)
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	if err := dropInheritable(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear dumpable: %w", err)
	}
	// The launch profile asks for the same; this holds whether the engine heard it or not.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	unix.Umask(0o022)
	return sealDescriptors()
}

// dropInheritable clears the inheritable set, which setuid(2) leaves alone and which some engines
// fill (CVE-2022-24769). The ambient set falls with it, capabilities(7).
func dropInheritable() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if data[0].Inheritable|data[1].Inheritable == 0 {
		return nil
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	// hdr.Pid is 0, so each thread changes itself.
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	if e != 0 {
		return fmt.Errorf("clear inheritable capabilities: %w", e)
	}
	return nil
}

// sealDescriptors marks every descriptor above 2 close-on-exec, whoever opened it.
func sealDescriptors() error {
	err := unix.CloseRange(3, ^uint(0)>>1&0xffffffff, unix.CLOSE_RANGE_CLOEXEC) // Linux 5.11
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("seal descriptors: %w", err)
	}
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			unix.CloseOnExec(fd) // EBADF: closed since, which is as good
		}
	}
	return nil
}

// warm makes the runtime create n threads and keep them. Threads of a Go process are never
// given back while their goroutines end unlocked, so n blocking reads at once leave n idle threads.
func warm(n int) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return // a machine at its limit this early; later failures speak for themselves
	}
	var started, ended sync.WaitGroup
	for range n {
		started.Add(1)
		ended.Add(1)
		go func() {
			defer ended.Done()
			runtime.LockOSThread() // one thread per goroutine, for certain
			defer runtime.UnlockOSThread()
			started.Done()
			var b [1]byte
			for {
				if _, err := unix.Read(p[0], b[:]); err != unix.EINTR {
					return
				}
			}
		}()
	}
	started.Wait()
	unix.Close(p[1])
	ended.Wait()
	unix.Close(p[0])
}
