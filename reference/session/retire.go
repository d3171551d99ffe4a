// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// Bounds of a retirement.
const (
	backoffFirst  = 100 * time.Millisecond
	backoffLast   = 5 * time.Second
	quietWithin   = 5 * time.Second // for operations in progress, per attempt
	storeDeadline = 5 * time.Second
	bridgeVerdict = time.Second // how long a lost bridge waits for the engine's word
)

// errTombstone: a create may still be in flight under the recorded name.
var errTombstone = errors.New("a create of this name may still be in flight")

// watch notices the end of a ready sandbox: of its container, or of its supervisor.
func (m *Manager) watch(s *sandbox, generation int64, container string, ctl Control) {
	defer m.wg.Done()
	ended := make(chan engine.Death, 1)
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		if d, err := m.cfg.Engine.Wait(s.life, container); err == nil {
			ended <- d
		}
	}()
	var d engine.Death
	select {
	case <-s.life.Done():
		return
	case d = <-ended:
	case <-ctl.Done():
		// The bridge breaks first when a sandbox dies; the engine knows why a little later.
		t := time.NewTimer(bridgeVerdict)
		defer t.Stop()
		select {
		case <-s.life.Done():
			return
		case d = <-ended:
		case <-t.C:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.rec.Generation != generation || s.rec.State != stateReady && s.rec.State != stateCreating {
		return
	}
	s.rec.OOM = d.OOMKilled
	m.log.Warn("sandbox died", "sandbox", s.rec.SandboxID, "oom", d.OOMKilled, "exit", d.ExitCode, "gone", d.Gone, "bridge", ctl.Err())
	m.retireLocked(s, reasonDied)
	close(s.dead)
}

// Dispose ends a sandbox and returns nil only after its removal is proven; repeating it
// succeeds. INCOMPLETE_CLEANUP means that it stays owned and is retried.
func (m *Manager) Dispose(ctx context.Context, ws, sb string) error {
	m.mu.Lock()
	s, ok := m.live[sb]
	if !ok {
		defer m.mu.Unlock()
		_, err := m.remembered(ws, sb)
		return err
	}
	if s.rec.WorkspaceID != ws {
		m.mu.Unlock()
		return api.E(api.SandboxWorkspaceMismatch, nil)
	}
	attempt := s.attempt
	m.retireLocked(s, reasonDispose)
	m.mu.Unlock()
	select {
	case <-s.retired:
		return nil
	case <-attempt:
		return api.E(api.IncompleteCleanup, errors.New("removal is retried"))
	case <-ctx.Done():
		return api.E(api.IncompleteCleanup, ctx.Err())
	}
}

// Purge removes a workspace's data with proof, while no sandbox holds it.
func (m *Manager) Purge(ctx context.Context, ws string) error {
	m.mu.Lock()
	if m.closing || !m.reconciled {
		m.mu.Unlock()
		return api.E(api.Unavailable, errors.New("not serving"))
	}
	if _, held := m.workspaces[ws]; held || m.purging[ws] {
		m.mu.Unlock()
		return api.E(api.IncompleteCleanup, errors.New("workspace is held"))
	}
	m.purging[ws] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.purging, ws)
	}()
	err := m.cfg.Quota.Purge(ctx, ws)
	if err != nil && !errors.Is(err, quota.ErrNotFound) {
		return fail(api.IncompleteCleanup, "purge workspace", err)
	}
	return nil // names of its temporaries stay recorded: a new workspace of that id drops them
}

// retire begins the end of generation of s. It does not wait; a second call does nothing.
func (m *Manager) retire(s *sandbox, generation int64, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.rec.Generation == generation {
		m.retireLocked(s, reason)
	}
}

// retireLocked is single-flight. A sandbox that is being created is only told to stop: the
// create itself then retires it, so that nothing is removed while it is being made.
func (m *Manager) retireLocked(s *sandbox, reason string) {
	if s.rec.State == stateRetiring || s.rec.State == stateGone {
		return
	}
	if s.building() {
		s.end()
		return
	}
	s.rec.State, s.rec.Reason = stateRetiring, reason
	m.done.retired(reason)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.end()
	m.log.Info("sandbox retiring", "sandbox", s.rec.SandboxID, "generation", s.rec.Generation, "reason", reason)
	m.wg.Add(1)
	go m.retirement(s)
}

// building reports whether create still works on s; create sets failure before it retires.
func (s *sandbox) building() bool {
	return s.failure == nil && (s.rec.State == stateIntended || s.rec.State == stateCreating)
}

// retirement removes everything of s, again and again until it is proven gone.
func (m *Manager) retirement(s *sandbox) {
	defer m.wg.Done()
	for backoff := backoffFirst; ; backoff = min(2*backoff, backoffLast) {
		err := m.remove(s)
		if err == nil {
			return
		}
		m.log.Warn("sandbox not removed", "sandbox", s.rec.SandboxID, "retry", backoff, "err", err)
		m.mu.Lock()
		m.done.retries++
		close(s.attempt)
		s.attempt = make(chan struct{})
		m.mu.Unlock()
		t := time.NewTimer(backoff)
		select {
		case <-t.C:
		case <-m.stop.Done():
			t.Stop()
			return
		}
	}
}

// remove makes one attempt. The order matters: nothing of the tenant runs any more before
// the workspace is touched, and nothing is forgotten before both are proven gone.
func (m *Manager) remove(s *sandbox) error {
	ctx, cancel := context.WithTimeout(m.stop, m.lim.DisposeDeadline)
	defer cancel()
	m.mu.Lock()
	rec, ctl, tree, quiet := s.rec, s.control, s.tree, s.quiet
	m.mu.Unlock()
	if !s.marked {
		if err := m.put(ctx, rec); err != nil {
			// Removal goes on without: the earlier record owns the sandbox just as well.
			m.log.Warn("store retirement", "sandbox", rec.SandboxID, "err", err)
		}
		s.marked = true
	}
	if ctl != nil {
		if err := ctl.Close(); err != nil {
			m.log.Debug("close bridge", "sandbox", rec.SandboxID, "err", err)
		}
	}
	if rec.Sent {
		found, err := m.cfg.Engine.Remove(ctx, rec.ContainerID, rec.Container)
		if err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		rec.Settled = rec.Settled || found || m.restarted(ctx, rec)
		m.mu.Lock()
		s.rec.Settled = rec.Settled
		m.mu.Unlock()
	}
	if err := waitQuiet(ctx, quiet); err != nil {
		return err
	}
	if tree != nil {
		if err := tree.Close(); err != nil {
			return fmt.Errorf("close workspace: %w", err)
		}
		m.mu.Lock()
		s.tree = nil
		m.mu.Unlock()
	}
	if !rec.Released {
		if err := m.cfg.Quota.Release(ctx, rec.WorkspaceID); err != nil && !errors.Is(err, quota.ErrNotFound) {
			return fmt.Errorf("release workspace: %w", err)
		}
		if rec.Failed && rec.Fresh { // nobody was told of this workspace, and nobody could have used it
			if err := m.cfg.Quota.Purge(ctx, rec.WorkspaceID); err != nil && !errors.Is(err, quota.ErrNotFound) {
				return fmt.Errorf("purge workspace of a failed create: %w", err)
			}
		}
	}
	if rec.Sent && !rec.Settled {
		return m.entomb(ctx, s, rec)
	}
	return m.conclude(ctx, s, rec)
}

// entomb gives the workspace of s back and keeps its name. What may still appear under the
// name has never been started and never can be: only this process starts containers.
func (m *Manager) entomb(ctx context.Context, s *sandbox, rec record) error {
	if rec.Released {
		return errTombstone
	}
	rec.Released = true
	if err := m.put(ctx, rec); err != nil {
		return fmt.Errorf("store tombstone: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.rec.Released = true
	if m.workspaces[rec.WorkspaceID] == s {
		delete(m.workspaces, rec.WorkspaceID)
	}
	return errTombstone
}

// restarted reports whether the engine that took the create has ended since.
func (m *Manager) restarted(ctx context.Context, r record) bool {
	now, err := m.cfg.Engine.Instance(ctx)
	if err != nil {
		m.log.Warn("identify engine", "err", err)
		return false
	}
	return now != r.EngineInstance
}

func waitQuiet(ctx context.Context, quiet <-chan struct{}) error {
	t := time.NewTimer(quietWithin)
	defer t.Stop()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for operations: %w", ctx.Err())
	case <-t.C:
		return errors.New("operations are still in progress")
	}
}

// conclude replaces the record of a removed sandbox by its memory, or by nothing when it
// never was a sandbox for anyone.
func (m *Manager) conclude(ctx context.Context, s *sandbox, rec record) error {
	var rows []state.Change
	prefix := rec.SandboxID + "/"
	if err := m.cfg.Store.Each(bucketInvocations, func(k string, _ []byte) error {
		if strings.HasPrefix(k, prefix) {
			rows = append(rows, state.Change{Key: k, Delete: true})
		}
		return nil
	}); err != nil {
		return fmt.Errorf("list invocations: %w", err)
	}
	if len(rows) > 0 {
		if err := m.cfg.Store.Update(ctx, bucketInvocations, rows...); err != nil {
			return fmt.Errorf("drop invocations: %w", err)
		}
	}
	rec.State, rec.GoneUnixMs = stateGone, time.Now().UnixMilli()
	change := state.Change{Key: rec.SandboxID, Delete: true}
	if !rec.Failed {
		text, err := json.Marshal(rec)
		if err != nil {
			return fmt.Errorf("encode record: %w", err)
		}
		change = state.Change{Key: rec.SandboxID, Value: text}
	}
	if err := m.cfg.Store.Update(ctx, bucketSandboxes, change); err != nil {
		return fmt.Errorf("store removal: %w", err)
	}
	m.mu.Lock()
	s.rec = rec
	m.forgetLocked(s)
	m.done.removals++
	var forgotten []string
	if !rec.Failed {
		forgotten = m.gone.add(rec, time.Now())
	}
	s.invocations = nil
	m.mu.Unlock()
	m.log.Info("sandbox gone", "sandbox", rec.SandboxID, "reason", rec.Reason)
	m.drop(ctx, forgotten)
	return nil
}

// drop forgets records that are past remembering; a failure leaves them for the next start.
func (m *Manager) drop(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	changes := make([]state.Change, len(ids))
	for i, id := range ids {
		changes[i] = state.Change{Key: id, Delete: true}
	}
	if err := m.cfg.Store.Update(ctx, bucketSandboxes, changes...); err != nil {
		m.log.Warn("forget old records", "count", len(ids), "err", err)
	}
}
