// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"syscall"
	"time"
)

// process is one run of a daemon. It dies with this process.
type process struct {
	pid  int
	done chan struct{}
	err  error // after done
}

func startProcess(path string, args []string, output string) (*process, error) {
	f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is of the thread that forked (prctl(2), PR_SET_PDEATHSIG):
		// this one stays until the daemon has ended.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill sends SIGKILL and waits for the end. A process that has ended was reaped by Wait, so the
// pid is signalled only while it is ours.
func (p *process) kill() {
	if p.alive() {
		syscall.Kill(p.pid, syscall.SIGKILL)
	}
	<-p.done
}

// terminate asks for a clean end; an exit status other than 0, or none within bound, is an error.
func (p *process) terminate(bound time.Duration) error {
	if !p.alive() {
		return fmt.Errorf("it had ended before: %v", p.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if _, err := p.signalled(ctx, nil); err != nil {
		return fmt.Errorf("within %s: %w", bound, err)
	}
	return p.err
}

// signalled sends SIGTERM, a second one when again has returned, and returns the exit status. The process is
// killed when ctx ends first.
func (p *process) signalled(ctx context.Context, again func()) (int, error) {
	syscall.Kill(p.pid, syscall.SIGTERM)
	if again != nil {
		again()
		if p.alive() {
			syscall.Kill(p.pid, syscall.SIGTERM)
		}
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		return 0, fmt.Errorf("it did not end: %w", ctx.Err())
	}
	var exited *exec.ExitError
	switch {
	case p.err == nil:
		return 0, nil
	case errors.As(p.err, &exited):
		return exited.ExitCode(), nil
	}
	return 0, p.err
}

// startTicks is field 22 of proc_pid_stat(5): with the pid it names one process for good.
func startTicks(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("stat of %d is short", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid) // its parent has not asked for it yet
	}
	return fields[19], nil
}
