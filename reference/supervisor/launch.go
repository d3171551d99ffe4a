// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// Exit codes of a command that could not be executed, as sh(1) gives them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// reportFD is where a keeper leaves the launch stage's end of the report pipe, behind [secretFD]. It
// closes at the execve that makes the command.
const reportFD = 4

// reportReady is the first byte of a report: what follows happens with the tenant's authority.
const reportReady = 'r'

// report is what the launch stage said before it became the command, or instead.
type report struct {
	ready bool // it came as far as becoming the tenant
	exit  uint8
	step  control.Step
	errno syscall.Errno
}

// launch starts the launch stage of an invocation, in a session of its own, and returns its pid, which
// will be the leader's, and the reading end of its report.
//
// The new process is root's until long after its execve, so no tenant can stop it while this process
// waits for that in vfork(2), where the runtime's only processor is held. It becomes the tenant by itself,
// see [Launch]; stopped there it stops nobody else. secret is the descriptor of its secret, or -1: then
// there is nothing at [secretFD].
func launch(s *control.Spawn, fds [3]int, secret int) (pid int, said *os.File, err error) {
	if err := sealDescriptors(); err != nil {
		return 0, nil, err
	}
	said, fd, err := pipe("r")
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(fd)
	stage := StageLaunch
	if secret >= 0 {
		stage = StageLaunchSecret
	}
	pid, err = syscall.ForkExec(self, append([]string{Binary, stage, path.Join(Workspace, s.Cwd)}, s.Argv...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1", "GOGC=off", "GOTRACEBACK=none"}, // its own; the command gets Environment
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2]), uintptr(secret), uintptr(fd)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		said.Close()
		return 0, nil, err
	}
	return pid, said, nil
}

// The launch stage's names on the command line.
const (
	StageLaunch       = "launch"
	StageLaunchSecret = "launch-secret" // descriptor 3 goes on to the command
)

// Launch is the launch stage: it becomes the tenant, enters args[1] and executes args[2:]; args[0] is the
// stage. It returns only when it could not start; what fails later it reports to its keeper, and exits.
//
// The command gets the tenant's authority and nothing else: uid and gid [Tenant], no groups, no capability
// (setresuid(2) away from 0 clears them; the inheritable set was cleared by the keeper), no new
// privileges, the fixed environment, no ignored signal, descriptors 0, 1, 2, and 3 with a secret. The working directory is entered and the program
// found after privileges are dropped, so nothing is reached for the tenant that it may not reach.
func Launch(args []string) error {
	if os.Getuid() != 0 || len(args) < 3 {
		return errors.New("launch is started by a keeper only")
	}
	runtime.LockOSThread() // identity is this thread's, and execve keeps the calling thread's
	// Not dumpable: no tenant can trace this process, or reach its report, once it has the tenant's uid.
	if err := errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		sealDescriptors(), unignore()); err != nil {
		return fmt.Errorf("prepare launch: %w", err)
	}
	secret := args[0] == StageLaunchSecret
	if secret {
		if err := passSecret(); err != nil {
			return fmt.Errorf("pass secret: %w", err)
		}
	}
	if _, err := unix.Write(reportFD, []byte{reportReady}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	send(becomeCommand(args[1], args[2:], secret))
	os.Exit(0)
	return nil
}

// becomeCommand returns only when it failed.
func becomeCommand(cwd string, argv []string, secret bool) report {
	const id = uintptr(Tenant)
	for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
		if _, _, e := syscall.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return report{step: control.StepFork, errno: e}
		}
	}
	home := Workspace
	if secret {
		if err := makeSecretHome(); err != nil {
			return report{step: control.StepFork, errno: errnoOf(err)}
		}
		home = secretHome
	}
	if err := unix.Chdir(cwd); err != nil {
		return report{step: control.StepCwd, errno: errnoOf(err)}
	}
	found := syscall.ENOENT
	for _, file := range candidates(argv[0]) {
		err := syscall.Exec(file, argv, environment(home))
		switch {
		case noProcess(err):
			return report{step: control.StepFork, errno: errnoOf(err)}
		case !notThere(err):
			found = errnoOf(err) // execvp(3): go on, but remember that something was there
		}
	}
	if notThere(found) {
		return report{exit: exitNotFound}
	}
	return report{exit: exitNotExecutable}
}

// send writes what follows [reportReady].
func send(r report) {
	unix.Write(reportFD, binary.BigEndian.AppendUint32([]byte{r.exit, byte(r.step)}, uint32(r.errno)))
}

// readReport takes the report of a launch stage that is dead or has become the command.
func readReport(said *os.File) report {
	said.SetReadDeadline(time.Now().Add(time.Second)) // it is all there; for a process that cannot be killed
	var b [1 + 6]byte
	n, err := io.ReadFull(said, b[:])
	r := report{ready: n > 0 && b[0] == reportReady}
	if err == nil && r.ready {
		r.exit, r.step, r.errno = b[1], control.Step(b[2]), syscall.Errno(binary.BigEndian.Uint32(b[3:]))
	}
	return r
}

// candidates are the files to try, in order. A name with a slash is itself, relative to the working
// directory.
func candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var out []string
	for _, dir := range searchPath() {
		out = append(out, dir+"/"+name)
	}
	return out
}

func notThere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// noProcess says that the machine, not the command, is why nothing started.
func noProcess(err error) bool {
	switch errnoOf(err) {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR, syscall.EIO:
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

// streams are the pipes of one invocation: our ends, and the three that the tenant gets.
type streams struct {
	stdin   *os.File
	outputs [2]int // stdout, stderr
	tenant  [3]int
}

func openPipes() (p streams, err error) {
	if p.stdin, p.tenant[0], err = pipe("w"); err != nil {
		return p, err
	}
	for i := range p.outputs {
		if p.outputs[i], p.tenant[1+i], err = rawPipe("r"); err != nil {
			p.stdin.Close()
			unix.Close(p.tenant[0])
			for j := range i {
				unix.Close(p.outputs[j])
				unix.Close(p.tenant[1+j])
			}
			return p, err
		}
	}
	return p, nil
}

// closeOwn closes our ends, where nobody reads them yet.
func (p *streams) closeOwn() {
	p.stdin.Close()
	for _, fd := range p.outputs {
		unix.Close(fd)
	}
}

func (p *streams) closeTenant() {
	for _, fd := range p.tenant {
		unix.Close(fd)
	}
}
