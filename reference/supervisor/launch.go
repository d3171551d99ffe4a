// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// Exit codes of a command that could not be executed, as sh(1) gives them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// launched is the end of a launch: a pid, or an exit code without a process, or a failed step.
type launched struct {
	pid   int
	exit  uint8
	step  control.Step
	errno syscall.Errno
}

// launch starts the leader with the tenant's authority and nothing else: new session, uid and gid
// [Tenant], no groups, no capability (setuid(2) away from 0 clears them; the inheritable set was
// cleared at start), the fixed environment, fds 0, 1, 2. The working directory is entered after
// privileges are dropped, so a directory that the tenant may not enter is not entered for it.
//
// It may block for as long as the tenant can stop the new process between its setuid and its exec:
// run it beside a time-out.
func launch(s *control.Spawn, fds [3]int) launched {
	if err := sealDescriptors(); err != nil {
		return launched{step: control.StepFork, errno: errnoOf(err)}
	}
	cwd := path.Join(Workspace, s.Cwd)
	found := errno(syscall.ENOENT)
	for _, file := range candidates(s.Argv[0]) {
		pid, err := fork(file, s.Argv, cwd, fds)
		switch {
		case err == nil:
			return launched{pid: pid}
		case noProcess(err):
			return launched{step: control.StepFork, errno: errnoOf(err)}
		case !notThere(err):
			found = errnoOf(err) // execvp(3): go on, but remember that something was there
		}
	}
	// The kernel does not say whether chdir or execve failed. A program that is known to start
	// tells them apart; this costs a spawn on the way to an error only.
	pid, err := fork(self, []string{Binary, "nothing"}, cwd, fds)
	switch {
	case err == nil:
		awaitNothing(pid)
	case noProcess(err):
		return launched{step: control.StepFork, errno: errnoOf(err)}
	default:
		return launched{step: control.StepCwd, errno: errnoOf(err)}
	}
	if notThere(syscall.Errno(found)) {
		return launched{exit: exitNotFound}
	}
	return launched{exit: exitNotExecutable}
}

type errno = syscall.Errno

// fork is one vfork and execve. The child has the parent's memory until execve, under the tenant's
// uid: harden made it not dumpable, so no tenant process can attach to it.
func fork(file string, argv []string, cwd string, fds [3]int) (int, error) {
	restore, err := chargeTenant()
	if err != nil {
		return 0, err
	}
	defer restore()
	return syscall.ForkExec(file, argv, &syscall.ProcAttr{
		Dir:   cwd,
		Env:   Environment(),
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: Tenant, Gid: Tenant}, // and setgroups(0)
		},
	})
}

// limitProcesses bounds what this keeper and its children may make, hard: the tenant inherits it. The
// keeper itself needs nothing more: its threads are made.
func limitProcesses(n int) error {
	if n <= 0 {
		return nil
	}
	lim := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &lim); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// chargeTenant makes this thread's real user the tenant until restore, so that a fork counts against the
// tenant's processes and not against root's, getrlimit(2) RLIMIT_NPROC: sentries hold uid 0 to the limit too.
// The effective and saved ids stay 0. A tenant can signal the thread meanwhile, and by that end its own
// invocation, as lost; it cannot trace it.
func chargeTenant() (restore func(), err error) {
	runtime.LockOSThread()
	set := func(ruid int) syscall.Errno {
		_, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(ruid), ^uintptr(0), ^uintptr(0))
		return e
	}
	if e := set(Tenant); e != 0 {
		runtime.UnlockOSThread()
		return nil, e
	}
	return func() {
		if e := set(0); e != 0 {
			os.Exit(1) // half a keeper is none
		}
		runtime.UnlockOSThread()
	}, nil
}

// candidates are the files to try, in order. A name with a slash is itself, relative to the working
// directory. In the search path a name that is certainly absent is left out, which saves a fork
// each; root here may see less than the tenant (it cannot search the tenant's private
// directories), so "cannot tell" stays in.
func candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var out []string
	for _, dir := range searchPath() {
		file := dir + "/" + name
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err == nil || !notThere(err) {
			out = append(out, file)
		}
	}
	return out
}

func notThere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// noProcess says that the machine, not the command, is why nothing started. EPERM can only be
// the change of user: execve gives it for traced or no_new_privs cases that do not arise here.
func noProcess(err error) bool {
	switch errnoOf(err) {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EPERM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR, syscall.EIO:
		return true
	}
	return false
}

func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return syscall.EIO
}

// awaitNothing waits for the probe of launch, which exits at once. Somebody else may have reaped
// it already: ECHILD ends the wait too.
func awaitNothing(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
			return
		}
	}
}

// openPipes makes the three pipes of an invocation.
func openPipes() (stdin, stdout, stderr *os.File, fds [3]int, err error) {
	var own [3]*os.File
	for i, end := range []string{"w", "r", "r"} {
		if own[i], fds[i], err = pipe(end); err != nil {
			for j := range i {
				own[j].Close()
				unix.Close(fds[j])
			}
			return nil, nil, nil, fds, err
		}
	}
	return own[0], own[1], own[2], fds, nil
}
