// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// survivors are the ways to outlive an invocation that main's do not have.
func survivors() map[string]func([]string) {
	return map[string]func([]string){"nested": nested, "pair": pair, "traced": traced, "vforker": vforker, "halter": halter, "fifo": fifo, "unmarked": unmarked, "become": become, "namespace": namespace}
}

// nested leaves subreapers below subreapers, each with an orphan of its own that beats.
func nested(a []string) {
	if len(a) == 1 {
		spawn(true, "nested", a[0], "3")
		for i := range 3 {
			waitFor(a[0] + strconv.Itoa(i+1))
		}
		return
	}
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	spawn(true, "daemon", a[0]+a[1])
	if n := num(a[1]); n > 1 {
		spawn(true, "nested", a[0], strconv.Itoa(n-1))
	}
	time.Sleep(time.Hour)
}

// unmarked clears the mark of a subreaper that it never was. Some sentries then give the orphans of its
// children to PID 1: one is left, by a child that was there before. "stay": it says so, and stays. "stream": there is
// no end of them.
func unmarked(a []string) {
	if len(a) >= 2 && a[1] == "child" {
		waitFor("/tmp/" + a[0])
		if len(a) == 3 {
			stream(a[0])
		}
		spawn(true, "stubborn", a[0])
		waitFor(a[0])
		return
	}
	c := spawn(true, append([]string{"unmarked", a[0], "child"}, slices.DeleteFunc(a[1:], func(how string) bool { return how == "stay" })...)...)
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	os.WriteFile("/tmp/"+a[0], []byte("."), 0o644)
	if err := c.Wait(); err != nil {
		fatal(err)
	}
	if len(a) == 2 {
		os.WriteFile(a[0]+".orphaned", []byte("."), 0o644)
		time.Sleep(time.Hour)
	}
}

// stream makes orphans that live for 50 ms, without end, by three processes at once, and beats.
func stream(name string) {
	signal.Ignore(unix.SIGHUP) // which a sentry may send to a group of which one ends while others are stopped
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err)
	}
	fd := f.Fd()
	runtime.LockOSThread()
	for range 2 {
		if rawFork() == 0 {
			break
		}
	}
	streaming(fd)
}

//go:nosplit
func streaming(fd uintptr) {
	beat := byte('.')
	nap := syscall.Timespec{Nsec: 50_000_000}
	for {
		pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if pid == 0 {
			if pid, _, _ = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
				syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
				syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&nap)), 0, 0)
			}
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall6(syscall.SYS_WAIT4, pid, 0, 0, 0, 0, 0)
		syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&beat)), 1)
	}
}

// namespace leaves processes in a pid namespace of its own, whose first one has ended.
func namespace(a []string) {
	const n = 3
	if len(a) == 2 { // the first one
		for i := range n {
			spawn(true, "stubborn", a[0]+strconv.Itoa(i+1))
			waitFor(a[0] + strconv.Itoa(i+1))
		}
		return
	}
	self, _ := os.Executable()
	c := exec.Command(self, "namespace", a[0], "first")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID}
	if out, err := c.CombinedOutput(); err != nil {
		fatal(string(out) + err.Error())
	}
}

// become beats as the tenant; it is started as root.
func become(a []string) {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65532, 65532, 65532), syscall.Setresuid(65532, 65532, 65532)); err != nil {
		fatal(err)
	}
	stubborn(a)
}

// pair leaves two processes that watch each other: who finds the other dead forks it again.
func pair(a []string) {
	f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err)
	}
	runtime.LockOSThread()
	fd := f.Fd()
	if rawFork() == 0 {
		watchEachOther(fd)
	}
	for range 2000 {
		if st, err := f.Stat(); err == nil && st.Size() > 20 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	fatal("no pair")
}

// watchEachOther never returns, and runs without a runtime.
//
//go:nosplit
func watchEachOther(fd uintptr) {
	all := ^uint64(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), 0, 8, 0, 0)
	for {
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		me, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		child := rawFork()
		for {
			dot := [1]byte{'.'}
			syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&dot)), 1)
			ts := [2]int64{0, 1_000_000}
			syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
			if child == 0 {
				if parent, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); parent != me {
					break // it is dead: take its place
				}
			} else if ended, _, errno := syscall.RawSyscall6(unix.SYS_WAIT4, child, 0, unix.WNOHANG, 0, 0, 0); ended != 0 || errno != 0 {
				break
			}
		}
	}
}

// traced stops a stubborn child by ptrace(2); "leave": and exits, which lets go of it.
func traced(a []string) {
	signal.Ignore(unix.SIGTERM)
	runtime.LockOSThread()
	c := spawn(true, "stubborn", a[0])
	waitFor(a[0])
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(c.Process.Pid) + "/task")
	if err != nil {
		fatal(err)
	}
	for _, task := range tasks {
		if err := unix.PtraceSeize(num(task.Name())); err != nil {
			fatal(err)
		}
		if err := unix.PtraceInterrupt(num(task.Name())); err != nil {
			fatal(err)
		}
	}
	if _, err := unix.Wait4(c.Process.Pid, nil, unix.WALL, nil); err != nil { // its stop
		fatal(err)
	}
	if len(a) == 1 {
		time.Sleep(time.Hour)
	}
}

// vforker waits in vfork(2) for a child that blocks every signal and beats; "leave": below a leader that exits.
func vforker(a []string) {
	f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err)
	}
	runtime.LockOSThread()
	fd := f.Fd()
	if len(a) > 1 && rawFork() != 0 {
		waitFor(a[0])
		return
	}
	vforkBeating(fd)
}

//go:nosplit
func vforkBeating(fd uintptr) {
	all := ^uint64(0)
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), 0, 8, 0, 0)
	pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	for pid == 0 {
		dot := [1]byte{'.'}
		syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&dot)), 1)
		ts := [2]int64{0, 5_000_000}
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
}

// halter beats, and stops itself after each beat.
func halter(a []string) {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err)
	}
	for {
		f.Write([]byte{'.'})
		unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// fifo waits in open(2) for a writer of a FIFO, and beats beside that.
func fifo(a []string) {
	if err := unix.Mkfifo("/tmp/"+a[0], 0o644); err != nil {
		fatal(err)
	}
	go unix.Open("/tmp/"+a[0], unix.O_RDONLY, 0)
	stubborn(a)
}
