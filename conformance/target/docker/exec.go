// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/engineexec"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/leftover"
)

// killGrace is how long the engine may take to close the stream of a killed exec: it waits 2 s for
// whoever still holds the pipe. lastWords is how long it may take when the container has ended.
const (
	killGrace = 4 * time.Second
	lastWords = 500 * time.Millisecond
)

// errOver ends the wait for an exec whose container has ended.
var errOver = errors.New("the container has ended")

// Exec is create, attach and inspect of an engine exec. It answers when the engine has closed the
// stream; at the time-out, and when ctx ends, it kills the exec's host process and nothing else, and
// answers with what came. A program that cannot be started is an answer too: exit code 126 or 127,
// and the engine's words on stdout.
func (s *sandbox) Exec(ctx context.Context, cmd target.Command) (target.Result, error) {
	if cmd.Timeout == 0 {
		cmd.Timeout = 30 * time.Second
	}
	if cmd.MaxOutput == 0 {
		cmd.MaxOutput = 1 << 20
	}
	dir := workspaceDir
	if cmd.Cwd != "" {
		if err := checkPath(cmd.Cwd); err != nil {
			return target.Result{}, err
		}
		dir = filepath.Join(workspaceDir, cmd.Cwd)
	}
	// A sandbox that is known to have ended does not get as far as the engine.
	s.mu.Lock()
	known := s.end
	if s.disposed {
		known = refusal(CodeGone, target.KindGone, errors.New("the sandbox was disposed"))
	}
	s.mu.Unlock()
	if known != nil {
		return target.Result{}, known
	}
	limited, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	ex, err := engineexec.Start(limited, s.engine, s.container, engineexec.Options{
		User: s.cfg.User, Dir: dir, Argv: cmd.Argv, Stdin: cmd.Stdin, MaxOutput: cmd.MaxOutput,
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return target.Result{ExitCode: -1, TimedOut: true, Duration: cmd.Timeout}, nil // the engine did not get as far
	}
	if err != nil {
		return target.Result{}, s.failed(ctx, err)
	}
	defer ex.Close()
	res, err := s.wait(limited, ex)
	if errors.Is(err, errOver) {
		return res, s.failed(ctx, refusal(CodeEngineFailed, "", err))
	}
	if err != nil && limited.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), killGrace)
		defer cancel()
		kerr := s.killLeader(after, ex)
		res, err = ex.Wait(after)
		if ctx.Err() != nil {
			return res, errors.Join(context.Cause(ctx), kerr)
		}
		res.TimedOut = true
		if after.Err() != nil {
			err = nil // the stream is still held: the answer is what came
		}
		if err == nil && kerr != nil {
			return res, s.failed(ctx, kerr)
		}
	}
	if err != nil {
		return res, s.failed(ctx, err)
	}
	// An exec whose sandbox ends with it has a code of the engine's: 137 as if it had been killed, 128
	// where the runtime lost its sandbox, 126 where that had gone before.
	if res.ExitCode >= 125 {
		if res.ExitCode == runtimeLost || res.ExitCode == killed {
			s.untilGone(ctx, lastWords)
		}
		if end := s.diedNow(ctx); end != nil {
			return res, end
		}
	}
	return res, nil
}

// Exit codes that a command has when its sandbox dies under it, and may have for reasons of its own.
const (
	runtimeLost = 128
	killed      = 128 + 9
)

// untilGone waits until the container's process is gone, but no longer than d: its sockets are closed
// while it still exits, so that who waits for a command may hear of it first.
func (s *sandbox) untilGone(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for ctx.Err() == nil {
		if _, alive := leftover.Find(s.pid); alive != nil {
			return
		}
		rest(ctx, 10*time.Millisecond)
	}
}

// wait is [engineexec.Exec.Wait] that ends with the container too.
func (s *sandbox) wait(ctx context.Context, ex *engineexec.Exec) (target.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.over:
			rest(ctx, lastWords)
			cancel(errOver)
		}
	}()
	return ex.Wait(ctx)
}

// failed names err by what became of the sandbox, where that is what became of the command.
func (s *sandbox) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = engineError(err)
	if target.CodeOf(err) == CodeEngineUnreachable {
		return err
	}
	if end := s.diedNow(ctx); end != nil {
		return end
	}
	return err
}

// killLeader sends SIGKILL to the exec's host process, if it is one: a child of the process that is
// the parent of the container's own, the engine's shim, while the engine says that it runs.
func (s *sandbox) killLeader(ctx context.Context, ex *engineexec.Exec) error {
	in, err := ex.Inspect(ctx)
	if err != nil {
		return engineError(err)
	}
	if !in.Running || in.Pid <= 1 {
		return nil
	}
	fd, err := unix.PidfdOpen(in.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill exec: %w", err)
	}
	defer unix.Close(fd)
	// Now that the number is held fast: is it still this exec's?
	again, err := ex.Inspect(ctx)
	if err != nil {
		return engineError(err)
	}
	if !again.Running || again.Pid != in.Pid {
		return nil
	}
	shim, err := leftover.Parent(s.pid)
	if err != nil {
		return nil // the container's process has ended, and with it the command
	}
	if parent, err := leftover.Parent(in.Pid); err != nil || parent != shim {
		return nil // it ended meanwhile
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill exec: %w", err)
	}
	return nil
}
