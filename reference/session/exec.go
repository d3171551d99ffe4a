// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// deathVerdict is how long an invocation that lost its supervisor waits to learn why.
const deathVerdict = 2 * time.Second

// doneMark ends the stored digest of an invocation that has ended.
const doneMark = " done"

// invocation is one id under one sandbox. result and err are set once, when running ends.
type invocation struct {
	digest  string
	running bool
	aged    bool // ended, but its outcome is not kept any more
	result  api.ExecResult
	err     error
}

func (i *invocation) size() int64 { return int64(len(i.result.Stdout) + len(i.result.Stderr)) }

// Exec runs one command, once. digest is the digest of the canonical request. A repetition
// gets the stored outcome, EXEC_IN_PROGRESS, OUTCOME_UNKNOWN or IDEMPOTENCY_CONFLICT; nothing
// runs twice under one id, whatever happened to the first. When ctx ends, the command is
// cancelled and the outcome is EXEC_ABORTED.
func (m *Manager) Exec(ctx context.Context, ws, sb string, req api.ExecRequest, digest string) (api.ExecResult, error) {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return api.ExecResult{}, m.unknown(sb, req.InvocationID, digest, err)
	}
	inv, fresh, err := m.invoke(ctx, s, req.InvocationID, digest)
	if err != nil {
		release()
		return api.ExecResult{}, err
	}
	if !fresh {
		release()
		return inv.result, inv.err
	}
	if ctx.Err() != nil { // the caller left while the claim was made durable
		m.forget(s, req.InvocationID, release)
		return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
	}
	out, err := s.control.Exec(ctx, control.Spawn{
		ID: req.InvocationID, Argv: req.Argv, Cwd: req.Cwd, Stdin: req.Stdin,
		Timeout: time.Duration(req.TimeoutMs) * time.Millisecond, MaxOutput: req.MaxOutputBytes,
	})
	if errors.Is(err, control.ErrBusy) { // nothing was started, so the id is free again
		m.forget(s, req.InvocationID, release)
		return api.ExecResult{}, api.E(api.ExecConcurrencyExhausted, err)
	}
	if unclean(out, err) { // before err is mapped: a cancel hides nothing of what control said
		m.retire(s, s.rec.Generation, reasonCleanup)
	}
	result, err := m.outcome(ctx, s, req.InvocationID, out, err)
	m.finish(s, req.InvocationID, result, err, release)
	return result, err
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

// invoke claims an invocation id. fresh is true for the one caller that must run it; the
// claim is durable by then.
func (m *Manager) invoke(ctx context.Context, s *sandbox, id, digest string) (inv *invocation, fresh bool, err error) {
	m.mu.Lock()
	if old, ok := s.invocations[id]; ok {
		defer m.mu.Unlock()
		return old, false, old.repeated(digest)
	}
	if m.execs >= m.lim.Execs || s.execs >= m.lim.ExecsPerSandbox {
		m.mu.Unlock()
		return nil, false, api.E(api.ExecConcurrencyExhausted, nil)
	}
	inv = &invocation{digest: digest, running: true}
	s.invocations[id] = inv
	m.execs++
	s.execs++
	aged := s.aged
	m.mu.Unlock()

	if aged {
		switch stored, err := m.cfg.Store.Get(ctx, bucketInvocations, key(s, id)); {
		case err == nil:
			m.unclaim(s, id)
			old := &invocation{digest: strings.TrimSuffix(string(stored), doneMark), aged: true}
			return old, false, old.repeated(digest)
		case !errors.Is(err, state.ErrNotFound):
			m.unclaim(s, id)
			return nil, false, fail(api.Unavailable, "look invocation up", err)
		}
	}
	if err := m.cfg.Store.Put(ctx, bucketInvocations, key(s, id), []byte(digest)); err != nil {
		m.unclaim(s, id)
		return nil, false, fail(api.Unavailable, "store invocation", err)
	}
	return inv, true, nil
}

func key(s *sandbox, id string) string { return s.rec.SandboxID + "/" + id }

// repeated is the answer to a repetition, nil for the stored outcome.
func (i *invocation) repeated(digest string) error {
	switch {
	case i.digest != digest:
		return api.E(api.IdempotencyConflict, nil)
	case i.running:
		return api.E(api.ExecInProgress, nil)
	case i.aged:
		return api.E(api.OutcomeUnknown, nil)
	}
	return nil
}

// unclaim gives an id back that nothing was run under.
func (m *Manager) unclaim(s *sandbox, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(s.invocations, id)
	m.execs--
	s.execs--
}

// forget frees an id that the supervisor refused to run.
func (m *Manager) forget(s *sandbox, id string, release func()) {
	ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
	defer cancel()
	if err := m.cfg.Store.Update(ctx, bucketInvocations, state.Change{Key: key(s, id), Delete: true}); err != nil {
		// It stays as an invocation whose outcome is unknown, which is safe.
		m.finish(s, id, api.ExecResult{}, api.E(api.OutcomeUnknown, err), release)
		return
	}
	m.unclaim(s, id)
	release()
}

// finish stores an outcome, drops the oldest ones beyond the bounds, and marks the durable
// row. The caller does not wait for the mark: without it the outcome is unknown after a
// restart, and by then it is. release comes after the mark, so that retirement, which waits
// for it, drops the rows for good.
func (m *Manager) finish(s *sandbox, id string, result api.ExecResult, err error, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	inv := s.invocations[id]
	inv.running, inv.result, inv.err = false, result, err
	m.execs--
	s.execs--
	s.finished = append(s.finished, id)
	s.kept += inv.size()
	for len(s.finished) > m.lim.Outcomes || (s.kept > m.lim.OutcomeBytes && len(s.finished) > 1) {
		oldest := s.finished[0]
		s.finished = s.finished[1:]
		s.kept -= s.invocations[oldest].size()
		delete(s.invocations, oldest) // its row in the store stays
		s.aged = true
	}
	row, digest := key(s, id), inv.digest
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer release()
		ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
		defer cancel()
		if err := m.cfg.Store.Put(ctx, bucketInvocations, row, []byte(digest+doneMark)); err != nil {
			m.log.Warn("mark invocation", "sandbox", s.rec.SandboxID, "err", err)
		}
	}()
}

// outcome maps what the supervisor said.
func (m *Manager) outcome(ctx context.Context, s *sandbox, id string, out control.Outcome, err error) (api.ExecResult, error) {
	var spawn *control.SpawnError
	switch {
	case errors.Is(err, control.ErrLost):
		return api.ExecResult{}, m.lost(s, err)
	case errors.As(err, &spawn):
		return api.ExecResult{}, api.E(spawnCode(spawn), err)
	case err != nil && ctx.Err() != nil:
		return api.ExecResult{}, api.E(api.ExecAborted, err)
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
func (m *Manager) unknown(sb, id, digest string, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.gone.sandbox(sb)
	if s, live := m.live[sb]; live {
		r, ok = s.rec, true
	}
	if !ok {
		return err
	}
	switch known, ok := r.Unknown[id]; {
	case !ok:
		return err
	case known != digest:
		return api.E(api.IdempotencyConflict, nil)
	}
	return api.E(api.OutcomeUnknown, fmt.Errorf("sandbox ended: %w", err))
}
