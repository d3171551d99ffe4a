// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// doneMark ends the stored digest of an invocation that has ended.
const doneMark = " done"

// invocation is one id under one sandbox. The Manager's lock guards its members; result and err are
// set once and may be read without it when ended is closed.
type invocation struct {
	id, digest string
	secret     bool // no outcome is kept
	running    bool
	aged       bool               // ended, but its outcome is not kept any more
	stop       context.CancelFunc // ends the command; it may be called at any time
	cancelled  bool               // a cancel came in time: whatever happens, the id stays taken
	freed      bool               // nothing was started and the id was given back: the invocation never was
	ended      chan struct{}      // closed when running has ended, either way
	result     api.ExecResult
	err        error
}

func (i *invocation) size() int64 { return int64(len(i.result.Stdout) + len(i.result.Stderr)) }

// over reports whether ended is closed.
func (i *invocation) over() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// repeated is the answer to a repetition, nil for the stored outcome.
func (i *invocation) repeated(digest string) error {
	switch {
	case i.digest != digest:
		return api.E(api.IdempotencyConflict, nil)
	case i.running:
		return api.E(api.ExecInProgress, nil)
	case i.secret:
		return api.E(api.SecretNotReplayable, nil)
	case i.aged:
		return api.E(api.OutcomeUnknown, nil)
	}
	return nil
}

func key(s *sandbox, id string) string { return s.rec.SandboxID + "/" + id }

// invoke claims an invocation id. fresh is true for the one caller that must run it, or free it;
// the claim is durable by then. Everybody else gets the ended invocation, or the refusal. stop ends
// what the caller will run; a cancel calls it, also while the claim is being stored. With secret the
// caller has the sandbox for itself: no other invocation and no change of the workspace through the API.
func (m *Manager) invoke(s *sandbox, id, digest string, secret bool, stop context.CancelFunc) (inv *invocation, fresh bool, err error) {
	m.mu.Lock()
	if old, ok := s.invocations[id]; ok {
		defer m.mu.Unlock()
		return old, false, old.repeated(digest)
	}
	if m.execs >= m.lim.Execs || s.execs >= m.lim.ExecsPerSandbox || s.secret || secret && (s.execs > 0 || s.writes > 0) {
		m.mu.Unlock()
		return nil, false, api.E(api.ExecConcurrencyExhausted, nil)
	}
	inv = &invocation{id: id, digest: digest, secret: secret, running: true, stop: stop, ended: make(chan struct{})}
	s.invocations[id] = inv
	m.execs++
	s.execs++
	s.secret = secret
	aged := s.aged
	m.mu.Unlock()

	// Neither a caller that leaves nor a cancel cuts the commit short: whether the row is there
	// would be anybody's guess, and who came first too.
	ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
	defer cancel()
	if aged {
		switch stored, err := m.cfg.Store.Get(ctx, bucketInvocations, key(s, id)); {
		case err == nil:
			m.unclaim(s, inv, nil)
			old := &invocation{digest: strings.TrimSuffix(string(stored), doneMark), aged: true}
			return old, false, old.repeated(digest)
		case !errors.Is(err, state.ErrNotFound):
			return nil, false, m.unclaim(s, inv, fail(api.Unavailable, "look invocation up", err))
		}
	}
	if err := m.cfg.Store.Put(ctx, bucketInvocations, key(s, id), []byte(digest)); err != nil {
		return nil, false, m.unclaim(s, inv, fail(api.Unavailable, "store invocation", err))
	}
	return inv, true, nil
}

// unclaim gives an id back that nothing was run under, and returns err, the answer to its caller.
func (m *Manager) unclaim(s *sandbox, inv *invocation, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(s.invocations, inv.id)
	inv.freed = true
	m.endLocked(s, inv, api.ExecResult{}, err)
	return err
}

// endLocked is the end of running, either way. It is the only place that gives slots back.
func (m *Manager) endLocked(s *sandbox, inv *invocation, result api.ExecResult, err error) {
	inv.running, inv.result, inv.err = false, result, err
	m.execs--
	s.execs--
	if inv.secret {
		s.secret = false
	}
	close(inv.ended)
}

// abandon ends an invocation under which nothing was started, because its caller left in time or
// the supervisor refused. The id is free again, unless somebody cancelled it: who was told of an
// outcome must never see the command run after all.
func (m *Manager) abandon(s *sandbox, inv *invocation, err error, release func()) {
	m.mu.Lock()
	cancelled := inv.cancelled // one that comes later finds the id freed
	m.mu.Unlock()
	if cancelled {
		m.finish(s, inv, api.ExecResult{}, api.E(api.ExecAborted, err), release)
		return
	}
	ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
	defer cancel()
	if serr := m.cfg.Store.Update(ctx, bucketInvocations, state.Change{Key: key(s, inv.id), Delete: true}); serr != nil {
		// It stays as an invocation whose outcome is unknown, which is safe.
		m.finish(s, inv, api.ExecResult{}, api.E(api.OutcomeUnknown, serr), release)
		return
	}
	m.unclaim(s, inv, err)
	release()
}

// finish stores an outcome, drops the oldest ones beyond the bounds, and marks the durable
// row. The caller does not wait for the mark: without it the outcome is unknown after a
// restart, and by then it is. release comes after the mark, so that retirement, which waits
// for it, drops the rows for good.
func (m *Manager) finish(s *sandbox, inv *invocation, result api.ExecResult, err error, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked(s, inv, result, err)
	s.finished = append(s.finished, inv.id)
	s.kept += inv.size()
	for len(s.finished) > m.lim.Outcomes || (s.kept > m.lim.OutcomeBytes && len(s.finished) > 1) {
		oldest := s.finished[0]
		s.finished = s.finished[1:]
		s.kept -= s.invocations[oldest].size()
		delete(s.invocations, oldest) // its row in the store stays
		s.aged = true
	}
	row, digest := key(s, inv.id), inv.digest
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
