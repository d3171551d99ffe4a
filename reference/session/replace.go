// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// errRetires: the sandbox's end has begun, and replaces nothing.
var errRetires = errors.New("the sandbox is retiring")

// replaced ends the container of s and starts another in its place, under a deadline of its own.
// When that cannot be done, or not proven, the sandbox retires, which goes on until everything is
// proven gone, and the error is INCOMPLETE_CLEANUP, or UNQUALIFIED when the container for the command
// is not admitted; when the sandbox retires already, it is the code of that.
//
// Precondition: the caller holds the secret claim of s, so nothing else uses its container.
func (m *Manager) replaced(s *sandbox, readOnly bool) error {
	ctx, cancel := context.WithTimeout(s.life, m.lim.CreateDeadline)
	defer cancel()
	err := m.replace(ctx, s, readOnly)
	if err == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.rec.State == stateRetiring {
		return api.E(s.rec.code(), err)
	}
	m.log.Error("container not replaced", "sandbox", s.rec.SandboxID, "generation", s.rec.Generation, "read-only", readOnly, "err", err)
	m.retireLocked(s, reasonCleanup)
	// Before the command has run, a start that is refused is told as one.
	var refused *api.Error
	if readOnly && errors.As(err, &refused) && refused.Code == api.Unqualified {
		return api.E(api.Unqualified, err)
	}
	return api.E(api.IncompleteCleanup, err)
}

// replace makes each step durable before it happens. At any moment the record names the one
// container that may exist: the old one until it is proven gone, then the new one by a name that
// nobody has used.
func (m *Manager) replace(ctx context.Context, s *sandbox, readOnly bool) error {
	start, image, err := m.admitted(ctx, s) // before anything is ended
	if err != nil {
		return err
	}
	// From here on the old generation's watcher and timer are stale.
	if err := m.restate(ctx, s, onReplace, func(r *record) { r.Generation++ }); err != nil {
		return err
	}
	m.mu.Lock()
	old := s.rec
	m.mu.Unlock()
	if err := s.control.Close(); err != nil {
		m.log.Debug("close bridge", "sandbox", old.SandboxID, "err", err)
	}
	if _, err := m.cfg.Engine.Remove(ctx, old.ContainerID, old.Container); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	instance, err := m.cfg.Engine.Instance(ctx)
	if err != nil {
		return fmt.Errorf("identify engine: %w", err)
	}
	if err := m.restate(ctx, s, onReplace, func(r *record) {
		r.Container, r.ContainerID, r.EngineInstance, r.Sent, r.Settled = "hallmark-"+randomHex(), "", instance, true, false
	}); err != nil {
		return err
	}
	c, err := m.container(ctx, s, image, readOnly)
	if err != nil {
		return err
	}
	if err := m.boot(ctx, s, c, start); err != nil {
		return err
	}
	if err := m.restate(ctx, s, onReplaced, func(*record) {}); err != nil {
		return err
	}
	m.log.Info("container replaced", "sandbox", old.SandboxID, "generation", old.Generation, "read-only", readOnly)
	return nil
}

// restate changes what names the container, durable first. Others see a ready sandbox all the time.
// A sandbox that retires meanwhile keeps what it had: its end has decided on that.
func (m *Manager) restate(ctx context.Context, s *sandbox, on event, change func(*record)) error {
	m.mu.Lock()
	next := s.rec
	m.mu.Unlock()
	change(&next)
	if _, ok := next.step(on); !ok {
		return errRetires
	}
	if err := m.put(ctx, next); err != nil {
		return fmt.Errorf("store record: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !s.serves() {
		return errRetires
	}
	// Member by member: the others are read without the lock.
	moved := s.rec.Generation != next.Generation
	s.rec.Generation, s.rec.Container, s.rec.ContainerID = next.Generation, next.Container, next.ContainerID
	s.rec.EngineInstance, s.rec.Sent, s.rec.Settled = next.EngineInstance, next.Sent, next.Settled
	if moved && s.timer != nil { // it carries the generation that it was set for
		s.timer.Stop()
		s.timer = nil
		m.armLocked(s)
	}
	m.moveLocked(s, on)
	return nil
}
