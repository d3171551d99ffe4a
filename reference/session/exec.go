// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// deathVerdict is how long an invocation that lost its supervisor waits to learn why.
const deathVerdict = 2 * time.Second

// Exec runs one command, once. digest is the digest of the canonical request. A repetition
// gets the stored outcome, EXEC_IN_PROGRESS, OUTCOME_UNKNOWN or IDEMPOTENCY_CONFLICT; nothing
// runs twice under one id, whatever happened to the first. A secret-bearing one that has ended is
// SECRET_INVOCATION_NOT_REPLAYABLE. When ctx ends, the command is cancelled and the outcome is
// EXEC_ABORTED; before it has begun there is no outcome, the id is free again, and the answer is
// EXEC_ABORTED too, or TIMEOUT when it was a deadline that passed.
func (m *Manager) Exec(ctx context.Context, ws, sb string, req api.ExecRequest, digest string) (api.ExecResult, error) {
	r, err := m.Start(ctx, ws, sb, req, digest)
	if err != nil {
		return api.ExecResult{}, err
	}
	defer r.Close()
	return r.Outcome()
}

// Start is the first half of Exec: it claims the invocation, durably, begins to run it, and returns
// the caller's hold of it, which must be closed. Errors are those of Exec that come before a command
// could be started by this call; of an invocation that has ended before, the outcome is what the
// hold says, failed ones too. The command runs until it ends, or ctx does, or the hold is closed.
func (m *Manager) Start(ctx context.Context, ws, sb string, req api.ExecRequest, digest string) (*Run, error) {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return nil, m.unknown(ws, sb, req.InvocationID, digest, err)
	}
	refs, err := m.mint(s, req)
	if err != nil {
		release()
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	inv, fresh, err := m.invoke(s, req.InvocationID, digest, len(refs) > 0, stop)
	if err != nil {
		stop()
		release()
		return nil, err
	}
	if !fresh {
		stop()
		release()
		return &Run{inv: inv, out: &output{data: [2][]byte{inv.result.Stdout, inv.result.Stderr}}, leave: func() {}}, nil
	}
	r := &Run{inv: inv, out: &output{budget: req.MaxOutputBytes}, leave: stop}
	if len(refs) > 0 {
		r.only = &kept{}
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer stop()
		if len(refs) > 0 {
			m.runSecret(ctx, s, inv, req, refs, r, release)
		} else {
			m.run(ctx, s, inv, req, r.out, release)
		}
	}()
	return r, nil
}

// run is the effect of a claimed invocation, and its end: exactly one of abandon and finish.
func (m *Manager) run(ctx context.Context, s *sandbox, inv *invocation, req api.ExecRequest, out *output, release func()) {
	if ctx.Err() != nil { // the caller left, or somebody cancelled, while the claim was made durable
		m.abandon(s, inv, aborted(ctx, ctx.Err()), release)
		return
	}
	o, err := s.control.Stream(ctx, control.Spawn{
		ID: req.InvocationID, Argv: req.Argv, Cwd: req.Cwd, Stdin: req.Stdin,
		Timeout: time.Duration(req.TimeoutMs) * time.Millisecond, MaxOutput: req.MaxOutputBytes,
	}, out.take)
	if errors.Is(err, control.ErrBusy) { // nothing was started, so the id is free again
		m.abandon(s, inv, api.E(api.ExecConcurrencyExhausted, err), release)
		return
	}
	if unclean(o, err) { // before err is mapped: a cancel hides nothing of what control said
		m.retire(s, s.rec.Generation, reasonCleanup)
	}
	o.Stdout, o.Stderr = out.all()
	result, err := m.outcome(ctx, s, inv.id, o, err)
	m.finish(s, inv, result, terminal(err), release)
}

// unclean reports whether something of an invocation may be left: its cleanup is not proven,
// or there is no outcome although a process may have been started. A lost one is typed by
// [Manager.lost].
func unclean(out control.Outcome, err error) bool {
	var spawn *control.SpawnError
	switch {
	case errors.Is(err, control.ErrLost):
		return false
	case errors.As(err, &spawn), errors.Is(err, control.ErrFrame): // no process was started
		return false
	}
	return !out.CleanupProven
}

// outcome maps what the supervisor said.
func (m *Manager) outcome(ctx context.Context, s *sandbox, id string, out control.Outcome, err error) (api.ExecResult, error) {
	var spawn *control.SpawnError
	switch {
	case errors.Is(err, control.ErrLost):
		return api.ExecResult{}, m.lost(s, err)
	case errors.As(err, &spawn) && spawn.Errno == syscall.ECANCELED && ctx.Err() != nil: // it ended before there was a process
		return api.ExecResult{}, aborted(ctx, err)
	case errors.As(err, &spawn):
		return api.ExecResult{}, api.E(spawnCode(spawn), err)
	case err != nil && ctx.Err() != nil:
		return api.ExecResult{}, aborted(ctx, err)
	case errors.Is(err, control.ErrFrame):
		return api.ExecResult{}, api.E(api.RequestInvalid, err)
	case err != nil:
		return api.ExecResult{}, fail(api.ExecAborted, "run", err)
	}
	r := api.ExecResult{
		InvocationID: id, Stdout: out.Stdout, Stderr: out.Stderr, Signal: out.Signal,
		DurationMs:        out.Duration.Milliseconds(),
		Truncated:         api.Truncated{Stdout: out.TruncatedStdout, Stderr: out.TruncatedStderr, DroppedBytes: out.DroppedBytes},
		DescendantsKilled: out.DescendantsKilled, CleanupProven: out.CleanupProven, TimedOut: out.TimedOut,
	}
	if out.Signal == "" {
		code := out.ExitCode
		r.ExitCode = &code
	}
	return r, nil
}

// aborted gives the end of an invocation's context its code. Its deadline is the API's own; else the
// caller has left, somebody has cancelled the invocation, or the worker drains. For an outcome see [terminal].
func aborted(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return api.E(api.Timeout, err)
	}
	return api.E(api.ExecAborted, err)
}

// terminal is err as the outcome of an invocation. Its id answers the same for good, so a code that says that the
// same request may succeed later would send its caller round in a circle. INCOMPLETE_CLEANUP stays: what is
// tried again then is the removal of the sandbox, whose end its caller has to know of.
func terminal(err error) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code.Retryable() && e.Code != api.IncompleteCleanup {
		return api.E(api.ExecAborted, err)
	}
	return err
}

// spawnCode is the code of a command that was not started. A working directory fails as a
// path of the file operations does.
func spawnCode(e *control.SpawnError) api.Code {
	if e.Step == control.StepCwd {
		switch e.Errno {
		case syscall.ENOENT, syscall.ENOTDIR:
			return api.PathNotFound
		case syscall.EACCES, syscall.EPERM, syscall.ENAMETOOLONG:
			return api.RequestInvalid
		case syscall.ELOOP:
			return api.PathUnsafe
		}
	}
	return api.ExecAborted
}

// lost types the end of a supervisor, the sandbox's lease, its death, or its memory, and sees
// to it that the sandbox ends.
func (m *Manager) lost(s *sandbox, cause error) error {
	// While the bridge lives, only this invocation's keeper died: what it kept may run on, and
	// nobody watches it. Otherwise the sandbox may have died; the engine knows more in a moment.
	if s.control.Err() != nil {
		t := time.NewTimer(deathVerdict)
		defer t.Stop()
		select {
		case <-s.life.Done(): // retirement knows why
		case <-s.dead:
		case <-t.C:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retireLocked(s, reasonDied)
	if s.rec.State == stateRetiring {
		return api.E(s.rec.code(), cause)
	}
	return api.E(api.SandboxDied, cause)
}

// unknown replaces err for an invocation that ran when its sandbox ended.
func (m *Manager) unknown(ws, sb, id, digest string, err error) error {
	known, ran := m.ranAtEnd(ws, sb, id)
	switch {
	case !ran:
		return err
	case known != digest:
		return api.E(api.IdempotencyConflict, nil)
	}
	return api.E(api.OutcomeUnknown, fmt.Errorf("sandbox ended: %w", err))
}

// ranAtEnd returns the digest of an invocation that ran when its sandbox ended, as the record of
// the sandbox says. Another workspace learns nothing.
func (m *Manager) ranAtEnd(ws, sb, id string) (digest string, ran bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.gone.sandbox(sb)
	if s, live := m.live[sb]; live {
		r, ok = s.rec, true
	}
	if !ok || r.WorkspaceID != ws {
		return "", false
	}
	digest, ran = r.Unknown[id]
	return digest, ran
}
