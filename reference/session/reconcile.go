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
// keeps the rest from being tried. From then on it looks again every minute (survey.go). It must
// return nil before anything is served; an error
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
	looking, stop := context.WithTimeout(ctx, m.lim.DisposeDeadline) // the removals go on meanwhile
	m.survey(looking, true)
	stop()
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
	if m.closing {
		return errors.New("reconcile: the worker ends")
	}
	m.reconciled = true
	m.wg.Add(1)
	go m.surveys()
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
		err := json.Unmarshal(v, &r)
		if err == nil && r.SandboxID != k {
			err = fmt.Errorf("it is of sandbox %q", r.SandboxID)
		}
		if err = errors.Join(err, errRecord(r)); err != nil {
			return fmt.Errorf("record %q is damaged: %w", k, err)
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
	if m.reconciled || m.closing || len(m.live) > 0 {
		return nil, errors.New("reconcile runs once, before anything is served or ended")
	}
	for _, r := range gone {
		m.moveLocked(&sandbox{rec: r}, onLoad)
	}
	left := make([]*sandbox, 0, len(owned))
	for _, r := range owned {
		// Merged: an earlier start has perhaps dropped the rows, and not yet said so in the record.
		for id, digest := range unknown[r.SandboxID] {
			if r.Unknown == nil {
				r.Unknown = map[string]string{}
			}
			r.Unknown[id] = digest
		}
		s := newSandbox(r)
		close(s.created)
		s.failure = errors.New("made by an earlier process")
		s.unsure = true // when that one read it, its create had not left
		m.moveLocked(s, onLoad)
		left = append(left, s)
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		ctx, cancel := context.WithTimeout(m.stop, storeDeadline)
		defer cancel()
		m.drop(ctx)
	}()
	return left, nil
}

func errRecord(r record) error {
	if r.SandboxID == "" {
		return errors.New("no sandbox id")
	}
	if _, ok := moves[r.State][onLoad]; !ok {
		return fmt.Errorf("no state %q", r.State)
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

// tombstonesWithin is how long a shutdown waits for creates that nobody has an answer to.
const tombstonesWithin = 5 * time.Second

// tombstones waits a little for what is settled and not gone, and names what stays.
func (m *Manager) tombstones(ctx context.Context, all []*sandbox) (errs []error) {
	ctx, cancel := context.WithTimeout(ctx, tombstonesWithin)
	defer cancel()
	for _, s := range all {
		m.mu.Lock()
		id, entombed := s.rec.SandboxID, s.rec.Released
		m.mu.Unlock()
		if !entombed {
			continue
		}
		select {
		case <-s.retired:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("sandbox %s: %w", id, errTombstone))
		}
	}
	return errs
}

// haltWithin is what background work gets to notice that it has to end.
const haltWithin = 2 * time.Second

// Shutdown retires every sandbox in parallel and waits within ctx (30 s when it has no
// bound), and at most 2 s longer for background work to end. An error names what is left, names
// under which a container may still appear too; its records stay for the next start. After a nil error
// nothing of the Manager runs any more.
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
	errs = append(errs, m.tombstones(ctx, all)...)
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
