// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"
)

// reconcileWithin bounds a startup reconcile whose caller set no bound.
const reconcileWithin = time.Minute

// maxUnknown bounds the invocations of one sandbox whose outcome is unknown after a restart.
const maxUnknown = 64

// Reconcile ends what earlier processes left. It acts only on what the durable record
// proves to be ours, by the exact random name that was recorded before the container was
// asked for; what merely carries our labels is reported and left alone. One failure never
// keeps the rest from being tried. It must return nil before anything is served; an error
// says what could not be proven gone within ctx, and the retries go on.
func (m *Manager) Reconcile(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, reconcileWithin)
		defer cancel()
	}
	left, err := m.load()
	if err != nil {
		return fmt.Errorf("load records: %w", err)
	}
	m.reportLookalikes(ctx, left)
	var errs []error
	for _, s := range left {
		if err := m.settled(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("reconcile: %w", errors.Join(errs...))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reconciled = true
	m.log.Info("reconciled", "removed", len(left), "tombstones", len(m.live))
	return nil
}

// settled waits until s is gone, or only its name is still owned.
func (m *Manager) settled(ctx context.Context, s *sandbox) error {
	for {
		m.mu.Lock()
		id, attempt, free := s.rec.SandboxID, s.attempt, m.workspaces[s.rec.WorkspaceID] != s
		m.mu.Unlock()
		if free {
			return nil
		}
		select {
		case <-s.retired:
			return nil
		case <-attempt:
		case <-ctx.Done():
			return fmt.Errorf("sandbox %s: removal is not proven: %w", id, ctx.Err())
		}
	}
}

// load reads the records, remembers those of gone sandboxes and starts the retirement of
// the others.
func (m *Manager) load() ([]*sandbox, error) {
	var gone, owned []record
	if err := m.cfg.Store.Each(bucketSandboxes, func(k string, v []byte) error {
		var r record
		if err := json.Unmarshal(v, &r); err != nil || r.SandboxID != k {
			return fmt.Errorf("record %q is damaged: %w", k, errors.Join(err, errRecord(r)))
		}
		if r.State == stateGone {
			gone = append(gone, r)
		} else {
			owned = append(owned, r)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	unknown, err := m.unfinished()
	if err != nil {
		return nil, err
	}
	sort.SliceStable(gone, func(i, j int) bool { return gone[i].GoneUnixMs < gone[j].GoneUnixMs })
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reconciled || len(m.live) > 0 {
		return nil, errors.New("reconcile runs once, before anything is served")
	}
	var forgotten []string
	for _, r := range gone {
		forgotten = append(forgotten, m.gone.add(r, time.Now())...)
	}
	left := make([]*sandbox, 0, len(owned))
	for _, r := range owned {
		r.Unknown = unknown[r.SandboxID]
		if r.State == stateIntended || r.State == stateCreating {
			r.Failed = true // no one was told of it
		}
		s := newSandbox(r)
		close(s.created)
		s.failure = errors.New("made by an earlier process")
		m.live[r.SandboxID], m.leases[r.ClientLeaseID] = s, s
		if !r.Released {
			m.workspaces[r.WorkspaceID] = s
		}
		left = append(left, s)
		if r.State == stateRetiring { // its reason stays the first one
			s.rec.State = stateReady
			m.retireLocked(s, r.Reason)
		} else {
			m.retireLocked(s, reasonCleanup)
		}
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
		defer cancel()
		m.drop(ctx, forgotten)
	}()
	return left, nil
}

func errRecord(r record) error {
	if r.SandboxID == "" {
		return errors.New("no sandbox id")
	}
	return nil
}

// unfinished collects, per sandbox, the invocations without the mark of an end.
func (m *Manager) unfinished() (map[string]map[string]string, error) {
	out := map[string]map[string]string{}
	err := m.cfg.Store.Each(bucketInvocations, func(k string, v []byte) error {
		sb, id, ok := strings.Cut(k, "/")
		if !ok || strings.HasSuffix(string(v), doneMark) || len(out[sb]) >= maxUnknown {
			return nil
		}
		if out[sb] == nil {
			out[sb] = map[string]string{}
		}
		out[sb][id] = string(v)
		return nil
	})
	return out, err
}

// reportLookalikes logs containers that carry our label without a record of ours.
func (m *Manager) reportLookalikes(ctx context.Context, left []*sandbox) {
	ours := map[string]bool{}
	m.mu.Lock()
	for _, s := range left {
		ours[s.rec.Container] = true
	}
	m.mu.Unlock()
	listed, err := m.cfg.Engine.List(ctx, m.cfg.Identity.WorkerID)
	if err != nil {
		m.log.Warn("list containers", "err", err)
		return
	}
	for _, l := range listed {
		if !ours[l.Name] {
			m.log.Warn("container looks like ours and is left alone", "container", l.ID, "name", l.Name, "epoch", l.BootEpoch)
		}
	}
}

// haltWithin is what background work gets to notice that it has to end.
const haltWithin = 2 * time.Second

// Shutdown retires every sandbox in parallel and waits within ctx (30 s when it has no
// bound), and at most 2 s longer for background work to end. An error names what is left; its
// records stay for the next start. After a nil error nothing of the Manager runs any more.
func (m *Manager) Shutdown(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.lim.DisposeDeadline)
		defer cancel()
	}
	m.mu.Lock()
	m.closing = true
	all := make([]*sandbox, 0, len(m.live))
	for _, s := range m.live {
		all = append(all, s)
		m.retireLocked(s, reasonShutdown)
	}
	m.mu.Unlock()
	var errs []error
	for _, s := range all {
		if err := m.settled(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	m.halt()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		m.wg.Wait()
	}()
	grace := time.NewTimer(haltWithin)
	defer grace.Stop()
	select {
	case <-idle:
	case <-grace.C:
		errs = append(errs, errors.New("background work does not end"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("shutdown left: %w", errors.Join(errs...))
	}
	return nil
}
