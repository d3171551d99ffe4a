// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// A secret-bearing invocation, in order:
//
//	mint     references are made anew from the configuration; nothing has happened when one is refused
//	claim    the id, durably, and the sandbox for itself: no other invocation, no write by the API
//	lease    attempts durable, providers asked, payloads judged; the container is still the old one
//	replace  a new container, /workspace read-only
//	run      the frame goes to the supervisor, once
//	replace  a new container, /workspace writable: no provider can keep the one that had the secret
//	dispose  every provider that was asked is told
//	finish   the outcome goes to the caller and is kept nowhere
//
// Whatever fails after the lease, the container is replaced again, or the sandbox retires, and then the lease
// is disposed.

// kept is an outcome that only its caller gets. It may be read when the invocation has ended.
type kept struct {
	result api.ExecResult
	err    error
}

// mint makes the references of req anew. Only the record is asked who is asking.
func (m *Manager) mint(s *sandbox, req api.ExecRequest) ([]credential.Reference, error) {
	if len(req.CredentialRefs) == 0 {
		return nil, nil
	}
	return m.cfg.Credentials.Mint(req.CredentialRefs, credential.Subject{
		WorkspaceID: s.rec.WorkspaceID, ExecutionID: s.rec.SessionID, InvocationID: req.InvocationID,
	})
}

// runSecret is run for an invocation with references.
func (m *Manager) runSecret(ctx context.Context, s *sandbox, inv *invocation, req api.ExecRequest, refs []credential.Reference, r *Run, release func()) {
	if ctx.Err() != nil {
		r.only = nil // the caller is told what is stored, like anybody else: nothing has run
		m.abandon(s, inv, aborted(ctx, ctx.Err()), release)
		return
	}
	result, err := m.withSecret(ctx, s, req, refs, r.out)
	r.only.result, r.only.err = result, terminal(err)
	stored := r.only.err
	if stored == nil {
		stored = api.E(api.SecretNotReplayable, nil)
	}
	m.finish(s, inv, api.ExecResult{}, stored, release)
}

func (m *Manager) withSecret(ctx context.Context, s *sandbox, req api.ExecRequest, refs []credential.Reference, out *output) (api.ExecResult, error) {
	lease, err := m.cfg.Credentials.Lease(ctx, refs)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) { // no word on the reference
		return api.ExecResult{}, aborted(ctx, err)
	}
	if err != nil {
		return api.ExecResult{}, fail(api.SecretReferenceRejected, "lease", err)
	}
	defer lease.Dispose()
	if err := m.replaced(s, true); err != nil {
		return api.ExecResult{}, err
	}
	result, err := m.deliver(ctx, s, req, lease, out)
	// A sandbox that retires for a reason of its own takes this container with it, and changes nothing
	// of what the command came to.
	var e *api.Error
	if rerr := m.replaced(s, false); errors.As(rerr, &e) && e.Code == api.IncompleteCleanup {
		return api.ExecResult{}, rerr
	}
	return result, err
}

// deliver runs the command in the container that was made for it. What it may leave there is no
// matter: the container goes next.
func (m *Manager) deliver(ctx context.Context, s *sandbox, req api.ExecRequest, lease *credential.Lease, out *output) (api.ExecResult, error) {
	if ctx.Err() != nil { // the caller left while the container was made
		return api.ExecResult{}, aborted(ctx, ctx.Err())
	}
	frame, err := lease.Take()
	if err != nil {
		return api.ExecResult{}, fail(api.SecretReferenceRejected, "take", err)
	}
	defer frame.Wipe()
	o, err := s.control.Stream(ctx, control.Spawn{
		ID: req.InvocationID, Argv: req.Argv, Cwd: req.Cwd, Stdin: req.Stdin,
		Timeout: time.Duration(req.TimeoutMs) * time.Millisecond, MaxOutput: req.MaxOutputBytes,
		Secret: control.Secret(frame),
	}, out.take)
	o.Stdout, o.Stderr = out.all()
	return m.outcome(ctx, s, req.InvocationID, o, err)
}

// Mutate marks a change of the workspace through the API, until done is called, which is safe to
// repeat. It is EXEC_CONCURRENCY_EXHAUSTED while a secret-bearing invocation holds the sandbox: what
// it sees must not change under it, and such an invocation does not begin while a change is under way.
func (m *Manager) Mutate(ws, sb string) (done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.live[sb]
	if !ok || s.rec.WorkspaceID != ws {
		return nil, api.E(api.SandboxNotFound, nil)
	}
	if s.secret {
		return nil, api.E(api.ExecConcurrencyExhausted, errors.New("a secret-bearing invocation holds the sandbox"))
	}
	s.writes++
	over := false
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !over {
			over = true
			s.writes--
		}
	}, nil
}
