// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	m.mu.Lock()
	killed := s.killed
	m.mu.Unlock()
	ended := make(chan engine.Death, 1)
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		if d, err := m.cfg.Engine.Wait(s.life, container); err == nil {
			ended <- d
		}
	}()
	var d engine.Death
	oom := false
	select {
	case <-s.life.Done():
		return
	case d = <-ended:
	case <-ctl.Done():
		// The bridge breaks first when a sandbox dies; the engine knows why a little later, and on a busy
		// host too late. The kernel knows now, and not for long: its counter goes with the cgroup.
		if killed != nil {
			oom, _ = killed() // an error says nothing either way
		}
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
	if s.rec.Generation != generation || !s.serves() {
		return
	}
	s.rec.OOM = d.OOMKilled || oom
	m.log.Warn("sandbox died", "sandbox", s.rec.SandboxID, "oom", s.rec.OOM, "exit", d.ExitCode, "gone", d.Gone, "bridge", ctl.Err())
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
	case <-m.stop.Done():
		return api.E(api.IncompleteCleanup, errors.New("the worker ends; its next start goes on"))
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

// retireLocked is single-flight. A sandbox that is being created is only told to stop.
func (m *Manager) retireLocked(s *sandbox, reason string) { m.moveLocked(s, event(reason)) }

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
	ctl, tree, quiet := s.control, s.tree, s.quiet
	m.mu.Unlock()
	if ctl != nil { // commands end with it, whatever the store and the engine do
		if err := ctl.Close(); err != nil {
			m.log.Debug("close bridge", "sandbox", s.rec.SandboxID, "err", err)
		}
	}
	// Removal goes on without, and soon: until its end the earlier record owns the sandbox just as well.
	if err := m.mark(ctx, s); err != nil {
		m.log.Warn("store retirement", "sandbox", s.rec.SandboxID, "err", err)
	}
	asked, err := m.removeContainer(ctx, s)
	if err != nil {
		return err
	}
	if err := waitQuiet(ctx, quiet); err != nil {
		return err
	}
	// An operation that has just ended may have been about to exchange the container.
	m.mu.Lock()
	changed := s.rec.Container != asked.Container || s.rec.ContainerID != asked.ContainerID
	m.mu.Unlock()
	if changed {
		if asked, err = m.removeContainer(ctx, s); err != nil {
			return err
		}
	}
	if tree != nil {
		if err := tree.Close(); err != nil {
			return fmt.Errorf("close workspace: %w", err)
		}
		m.mu.Lock()
		s.tree = nil
		m.mu.Unlock()
	}
	rec := asked
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

// mark makes the retirement durable, once, and with it which invocations ran when the worker ended.
func (m *Manager) mark(ctx context.Context, s *sandbox) error {
	if s.marked {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeDeadline)
	defer cancel()
	m.mu.Lock()
	rec := s.rec
	m.mu.Unlock()
	err := m.put(ctx, rec)
	s.marked = err == nil
	return err
}

// removeContainer proves that the container of s is gone, as far as that can be, and returns the record
// that it went by.
func (m *Manager) removeContainer(ctx context.Context, s *sandbox) (record, error) {
	m.mu.Lock()
	rec := s.rec
	m.mu.Unlock()
	if !rec.Sent {
		return rec, nil
	}
	found, err := m.cfg.Engine.Remove(ctx, rec.ContainerID, rec.Container)
	if err != nil {
		return rec, fmt.Errorf("remove container: %w", err)
	}
	rec.Settled = rec.Settled || found || m.restarted(ctx, s)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.rec.Container == rec.Container {
		s.rec.Settled = s.rec.Settled || rec.Settled
	}
	return rec, nil
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
	m.moveLocked(s, onEntomb)
	return errTombstone
}

// restarted reports whether the engine that took the create of s has ended since. Where nobody knows
// which one took it, it was the one of now at the latest, unless the host has started again.
func (m *Manager) restarted(ctx context.Context, s *sandbox) bool {
	now, err := m.cfg.Engine.Instance(ctx)
	if err != nil {
		m.log.Warn("identify engine", "err", err)
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.unsure && engine.SameBoot(now, s.rec.EngineInstance) {
		s.rec.EngineInstance = now
	}
	s.unsure = false
	return now != s.rec.EngineInstance
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
// never was a sandbox for anyone. The rows of its invocations go only when the record says what they said:
// a process that ends in between would have nobody to ask.
func (m *Manager) conclude(ctx context.Context, s *sandbox, rec record) error {
	if err := m.mark(ctx, s); err != nil {
		return fmt.Errorf("store retirement: %w", err)
	}
	if err := m.dropInvocations(ctx, rec.SandboxID); err != nil {
		return err
	}
	rec.GoneUnixMs = time.Now().UnixMilli()
	rec.step(onRemoved)
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
	s.rec.Settled, s.rec.GoneUnixMs = rec.Settled, rec.GoneUnixMs
	m.moveLocked(s, onRemoved)
	m.done.removals++
	s.invocations = nil
	m.mu.Unlock()
	m.log.Info("sandbox gone", "sandbox", rec.SandboxID, "reason", rec.Reason)
	m.drop(ctx)
	return nil
}

// dropBatch is how many rows are deleted at once: everybody who writes waits for a transaction.
const dropBatch = 500

// dropInvocations deletes the rows of a sandbox's invocations, of which there may be any number.
func (m *Manager) dropInvocations(ctx context.Context, sb string) error {
	for {
		keys, err := m.cfg.Store.Keys(bucketInvocations, sb+"/", dropBatch)
		if err != nil {
			return fmt.Errorf("list invocations: %w", err)
		}
		if len(keys) == 0 {
			return nil
		}
		rows := make([]state.Change, len(keys))
		for i, k := range keys {
			rows[i] = state.Change{Key: k, Delete: true}
		}
		if err := m.cfg.Store.Update(ctx, bucketInvocations, rows...); err != nil {
			return fmt.Errorf("drop invocations: %w", err)
		}
	}
}

// drop forgets the records that are past remembering; a failure leaves them for the next start.
func (m *Manager) drop(ctx context.Context) {
	m.mu.Lock()
	changes := make([]state.Change, len(m.outlived))
	for i, id := range m.outlived {
		changes[i] = state.Change{Key: id, Delete: true}
	}
	m.outlived = nil
	m.mu.Unlock()
	for batch := range slices.Chunk(changes, dropBatch) {
		if err := m.cfg.Store.Update(ctx, bucketSandboxes, batch...); err != nil {
			m.log.Warn("forget old records", "count", len(batch), "err", err)
		}
	}
}
