// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"sync"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// maxWatches bounds the streams of changes of one sandbox.
const maxWatches = 4

// Watch returns the workspace of a ready sandbox, to watch its changes. That is no use of the
// sandbox: its idle time runs, and retirement does not wait for release. The returned
// context is ctx, and ends too when retirement begins, with the sandbox's code as its cause.
// Retirement waits for the end of what watches the tree, [workspace.Tree.Close], so that must end with
// the context. release must be called; beyond four at once it is EXEC_CONCURRENCY_EXHAUSTED.
func (m *Manager) Watch(ctx context.Context, ws, sb string) (context.Context, *workspace.Tree, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.readyLocked(ws, sb)
	if err != nil {
		return nil, nil, nil, err
	}
	if s.watches >= maxWatches {
		return nil, nil, nil, api.E(api.ExecConcurrencyExhausted, errors.New("streams of changes"))
	}
	s.watches++
	ctx, end := m.while(ctx, s)
	return ctx, s.tree, sync.OnceFunc(func() {
		end()
		m.mu.Lock()
		defer m.mu.Unlock()
		s.watches--
	}), nil
}

// while returns ctx, which ends too when retirement begins, with the sandbox's code as its
// cause. end must be called.
func (m *Manager) while(ctx context.Context, s *sandbox) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() {
		m.mu.Lock()
		code := s.rec.code()
		m.mu.Unlock()
		cancel(api.E(code, errors.New("sandbox retires during the operation")))
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
