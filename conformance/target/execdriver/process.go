// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markerVariable is in the environment of the program and of all that inherit it: a process that
// carries the run's random value descends from the program, whatever group or session it is in.
const markerVariable = "HALLMARK_EXEC_MARKER"

// stateVariable names the program's folder.
const stateVariable = "HALLMARK_EXEC_STATE"

// maxLog bounds what is kept of the program's standard error, in bytes; the rest is read and
// dropped.
const maxLog = 4 << 20

// process is the running program.
type process struct {
	pid    int
	marker string
	stdin  *os.File
	stdout *os.File
	log    *logFile
	done   chan struct{} // the program has ended, and its group with it
	status string        // after done
	failed bool          // after done: another end than exit status 0

	mu     sync.Mutex
	reaped bool // the number may be somebody else's
}

// start runs the program in a process group of its own. It gets SIGTERM when this process dies,
// which lets it clean up; the end of its input says the same.
func start(c Config, state, log string) (*process, error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the program: %w", err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inRead.Close()
		inWrite.Close()
		return nil, fmt.Errorf("pipe from the program: %w", err)
	}
	p := &process{marker: rand.Text(), stdin: inWrite, stdout: outRead, done: make(chan struct{})}
	release := func() {
		inRead.Close()
		outWrite.Close()
	}
	abort := func(err error) (*process, error) {
		release()
		inWrite.Close()
		outRead.Close()
		return nil, err
	}
	if p.log, err = openLog(log); err != nil {
		return abort(err)
	}
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), markerVariable+"="+p.marker, stateVariable+"="+state)
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, p.log.w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is of the thread that forked (prctl(2), PR_SET_PDEATHSIG): this
		// one stays until the program has ended.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		release()
		p.log.w.Close()
		if err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.wait(cmd)
	}()
	if err := <-started; err != nil {
		p.log.close()
		inWrite.Close()
		outRead.Close()
		return nil, fmt.Errorf("start the program: %w", err)
	}
	return p, nil
}

// wait ends what is left in the group while the leader is not yet reaped: until then nobody else
// can have its number.
func (p *process) wait(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	p.signalGroup()
	p.mu.Lock()
	err := cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	p.status, p.failed = cmd.ProcessState.String(), err != nil
	close(p.done)
}

func (p *process) signalGroup() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		syscall.Kill(-p.pid, syscall.SIGKILL)
	}
}

// kill ends the program and its group.
func (p *process) kill() {
	p.signalGroup()
	<-p.done
}

// await says whether the program ended by itself within bound.
func (p *process) await(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// survivors ends the processes that carry the marker, and names them. Call it after done.
func (p *process) survivors() []string {
	var names []string
	for range 20 { // a process may start another between the look and its end
		found := marked(p.marker)
		if len(found) == 0 {
			return names
		}
		for _, f := range found {
			names = append(names, fmt.Sprintf("process %d (%s)", f.pid, f.name))
			f.end()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return append(names, "and they do not end")
}

type descendant struct {
	pid   int
	name  string
	pidfd int
}

func (d descendant) end() {
	unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0)
	unix.Close(d.pidfd)
}

// marked finds processes by proc_pid_environ(5). The descriptor is opened before the look, so
// that it cannot be another process's that gets the signal.
func marked(marker string) []descendant {
	want := []byte(markerVariable + "=" + marker + "\x00")
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var out []descendant
	for _, f := range files {
		dir := filepath.Dir(f)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, want...)) {
			unix.Close(fd)
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		out = append(out, descendant{pid, strings.TrimSpace(string(name)), fd})
	}
	return out
}

// logFile keeps the first maxLog bytes of a pipe.
type logFile struct {
	path string
	w    *os.File // the program's end
	r    *os.File
	done chan struct{}

	mu   sync.Mutex
	tail []byte // the last line or so, for errors
}

func openLog(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the program's log: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("pipe of the program's log: %w", err)
	}
	l := &logFile{path: path, w: w, r: r, done: make(chan struct{})}
	go l.copy(f)
	return l, nil
}

func (l *logFile) copy(f *os.File) {
	defer close(l.done)
	defer f.Close()
	left := maxLog
	buf := make([]byte, 32<<10)
	for {
		n, err := l.r.Read(buf)
		if n > 0 {
			l.mu.Lock()
			l.tail = append(l.tail, buf[:n]...)
			l.tail = l.tail[max(0, len(l.tail)-300):]
			l.mu.Unlock()
			keep := min(n, left)
			if _, werr := f.Write(buf[:keep]); werr == nil {
				left -= keep
			}
		}
		if err != nil {
			return
		}
	}
}

// last is the end of what the program said on standard error.
func (l *logFile) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(l.tail), "?"))
}

// close ends the copy, even while somebody else holds the pipe.
func (l *logFile) close() {
	l.r.SetReadDeadline(time.Now().Add(time.Second))
	<-l.done
	l.r.Close()
}
