// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Cancel ends an invocation and returns its terminal outcome once it has one: the result when the
// command had ended by itself, else the error that the call of exec got, usually EXEC_ABORTED.
// Repeating it gives the same. It counts as a use of the sandbox.
//
// A cancel that comes before the command was started, even while the claim is being stored, keeps
// the id taken: nothing will ever run under it. An id that is not taken, or whose outcome is not
// kept any more, is OUTCOME_UNKNOWN; an end that does not come within ctx is TIMEOUT.
func (m *Manager) Cancel(ctx context.Context, ws, sb, id string) (api.CancelResponse, error) {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		if _, ran := m.ranAtEnd(ws, sb, id); ran {
			err = api.E(api.OutcomeUnknown, fmt.Errorf("sandbox ended: %w", err))
		}
		return api.CancelResponse{}, err
	}
	defer release()
	m.mu.Lock()
	inv, ok := s.invocations[id]
	if ok && inv.running {
		inv.cancelled = true
		inv.stop()
	}
	m.mu.Unlock()
	if !ok {
		return api.CancelResponse{}, api.E(api.OutcomeUnknown, errors.New("no such invocation"))
	}
	select {
	case <-inv.ended:
	case <-ctx.Done():
		return api.CancelResponse{}, api.E(api.Timeout, fmt.Errorf("wait for the end: %w", ctx.Err()))
	}
	if inv.freed { // nothing ran under the id, and nobody holds it now
		return api.CancelResponse{}, api.E(api.OutcomeUnknown, inv.err)
	}
	if inv.err != nil {
		var e *api.Error
		if !errors.As(inv.err, &e) {
			e = api.E(api.ExecAborted, inv.err)
		}
		detail := e.Code.Body("").Error
		return api.CancelResponse{Error: &detail}, nil
	}
	result := inv.result
	return api.CancelResponse{Result: &result}, nil
}
