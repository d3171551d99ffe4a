// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
)

// Create makes a sandbox, or joins the create of the same lease that is in flight, or
// returns the lease that the same request made before. digest is the digest of the
// canonical request. It runs to its end under its own deadline even when ctx ends first:
// the caller may come back with the same request.
func (m *Manager) Create(ctx context.Context, req api.CreateRequest, digest string) (api.Receipt, error) {
	s, err := m.claim(req, digest)
	if err != nil {
		return api.Receipt{}, err
	}
	select {
	case <-s.created:
	case <-ctx.Done():
		return api.Receipt{}, api.E(api.Timeout, fmt.Errorf("wait for create: %w", ctx.Err()))
	}
	if s.failure != nil {
		return api.Receipt{}, s.failure
	}
	return s.receipt, nil
}

// claim returns the sandbox of the lease, a new one when there is none.
func (m *Manager) claim(req api.CreateRequest, digest string) (*sandbox, error) {
	if err := m.acceptable(req); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing || !m.reconciled {
		return nil, api.E(api.Unavailable, errors.New("not serving"))
	}
	if s, ok := m.leases[req.ClientLeaseID]; ok {
		switch {
		case s.rec.RequestDigest != digest:
			return nil, api.E(api.IdempotencyConflict, nil)
		case s.rec.State == stateRetiring:
			return nil, api.E(api.IncompleteCleanup, errors.New("lease is retiring"))
		}
		return s, nil
	}
	if r, ok := m.gone.lease(req.ClientLeaseID); ok {
		if r.RequestDigest != digest {
			return nil, api.E(api.IdempotencyConflict, nil)
		}
		return nil, api.E(api.SandboxDisposed, nil)
	}
	// What was asked before has its answer, whatever has changed since.
	if req.Expected.CohortID != m.cfg.Gate.CohortID() || req.Expected.PinsDigest != m.cfg.Gate.PinsDigest() {
		return nil, api.E(api.Unqualified, errors.New("expected cohort or pins do not hold here"))
	}
	m.outlived = append(m.outlived, m.gone.forget(time.Now())...)
	of := 0 // their names may still be in flight
	for _, s := range m.live {
		if s.rec.WorkspaceID == req.WorkspaceID {
			of++
		}
	}
	if m.gone.shareUsed(req.WorkspaceID, of, time.Now()) {
		return nil, api.E(api.Unavailable, errors.New("too many disposed ids of this workspace are less than 24 h old"))
	}
	if m.gone.full(len(m.live)) {
		return nil, api.E(api.Unavailable, errors.New("too many disposed ids are less than 24 h old"))
	}
	if held, ok := m.workspaces[req.WorkspaceID]; ok {
		if held.rec.State == stateRetiring {
			return nil, api.E(api.IncompleteCleanup, errors.New("workspace is held by a retiring sandbox"))
		}
		return nil, api.E(api.CreateConcurrencyExhausted, errors.New("workspace has a sandbox"))
	}
	if m.purging[req.WorkspaceID] {
		return nil, api.E(api.IncompleteCleanup, errors.New("workspace is being purged"))
	}
	if m.creating >= m.lim.Creates {
		return nil, api.E(api.CreateConcurrencyExhausted, nil)
	}
	s := newSandbox(record{
		SandboxID: "sb-" + randomHex(), WorkspaceID: req.WorkspaceID, SessionID: req.SessionID,
		ClientLeaseID: req.ClientLeaseID, RequestDigest: digest, ImageDigest: req.Image,
		Resources: req.Resources, IdleMs: req.IdleTimeoutMs, Generation: 1,
		Epoch: m.cfg.Identity.BootEpoch, Container: "hallmark-" + randomHex(),
	})
	s.hard = time.Now().Add(time.Duration(req.HardTimeoutMs) * time.Millisecond)
	s.lastUse = time.Now()
	m.creating++
	m.moveLocked(s, onClaim)
	m.wg.Add(1)
	go m.create(s)
	return s, nil
}

// acceptable refuses what needs no state to refuse.
func (m *Manager) acceptable(req api.CreateRequest) error {
	r, c := req.Resources, m.cfg.Ceilings
	if r.CPUs <= 0 || r.MemoryBytes <= 0 || r.PIDs <= 0 || r.WorkspaceBytes <= 0 || r.WorkspaceInodes <= 0 ||
		r.CPUs > c.CPUs || r.MemoryBytes > c.MemoryBytes || r.PIDs > c.PIDs ||
		r.WorkspaceBytes > c.WorkspaceBytes || r.WorkspaceInodes > c.WorkspaceInodes {
		return api.E(api.RequestInvalid, errors.New("resources are outside the ceilings"))
	}
	if req.IdleTimeoutMs <= 0 || req.HardTimeoutMs <= 0 {
		return api.E(api.RequestInvalid, errors.New("timeouts are not positive"))
	}
	return nil
}

func newSandbox(r record) *sandbox {
	s := &sandbox{
		rec: r, created: make(chan struct{}), dead: make(chan struct{}), retired: make(chan struct{}),
		attempt: make(chan struct{}), quiet: make(chan struct{}), invocations: map[string]*invocation{},
	}
	close(s.quiet)
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// create drives one sandbox from intended to ready, or into retirement.
func (m *Manager) create(s *sandbox) {
	defer m.wg.Done()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.life, m.lim.CreateDeadline)
	defer cancel()
	err := m.build(ctx, s)

	m.mu.Lock()
	m.creating--
	if err == nil && s.life.Err() != nil {
		err = api.E(api.Unavailable, errors.New("retired while it was created"))
	}
	if err == nil {
		s.lastUse = time.Now()
		m.moveLocked(s, onServe)
		m.log.Info("sandbox ready", "sandbox", s.rec.SandboxID, "generation", s.rec.Generation,
			"took", time.Since(began).Round(time.Millisecond))
		close(s.created)
		m.mu.Unlock()
		return
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = api.E(api.Timeout, err)
	}
	s.failure = err
	m.log.Warn("create failed", "sandbox", s.rec.SandboxID, "err", err)
	attempt := s.attempt
	if s.stored {
		m.moveLocked(s, onFail)
	} else {
		m.moveLocked(s, onRefuse)
	}
	m.mu.Unlock()
	select { // so that the caller's next try finds nothing in its way, if that can be had
	case <-s.retired:
	case <-attempt:
	}
	close(s.created)
}

// build makes everything of s. Whatever it leaves behind on an error, retirement removes.
func (m *Manager) build(ctx context.Context, s *sandbox) error {
	start, image, err := m.admitted(ctx, s)
	if err != nil {
		return err
	}

	known, err := m.cfg.Quota.Known(ctx, s.rec.WorkspaceID)
	if err != nil {
		return workspaceError(err)
	}
	// The intent comes before any effect.
	if err := m.advance(ctx, s, "", func(r *record) { r.Fresh = !known }); err != nil {
		return err
	}
	mount, err := m.cfg.Quota.Prepare(ctx, quota.Spec{
		WorkspaceID: s.rec.WorkspaceID, Bytes: s.rec.Resources.WorkspaceBytes, Inodes: s.rec.Resources.WorkspaceInodes,
	})
	if err != nil {
		return workspaceError(err)
	}
	s.mount = mount

	instance, err := m.cfg.Engine.Instance(ctx)
	if err != nil {
		return fail(api.EngineFailed, "identify engine", err)
	}
	if err := m.advance(ctx, s, onAsk, func(r *record) { r.EngineInstance, r.Sent = instance, true }); err != nil {
		return err
	}
	c, err := m.container(ctx, s, image, false)
	if err != nil {
		return err
	}
	return m.launch(ctx, s, c, start)
}

// admitted asks the gate before any effect, and resolves the image that it admits.
func (m *Manager) admitted(ctx context.Context, s *sandbox) (admission.Start, engine.Image, error) {
	id := m.cfg.Identity
	start := admission.Start{
		ImageDigest: s.rec.ImageDigest, SupervisorDigest: id.SupervisorDigest,
		QuotaDigest: id.QuotaDigest, SandboxBinaryDigest: id.SandboxBinaryDigest,
	}
	if err := m.cfg.Gate.Precheck(ctx, start); err != nil {
		return start, engine.Image{}, fail(api.Unqualified, "admission", err)
	}
	image, err := m.cfg.Engine.Image(ctx, s.rec.ImageDigest, m.cfg.Gate.ManifestDigest(s.rec.ImageDigest))
	if err != nil {
		return start, image, fail(api.EngineFailed, "resolve image", err)
	}
	if len(image.Volumes) > 0 {
		return start, image, api.E(api.Unqualified, fmt.Errorf("image declares volumes %q", image.Volumes))
	}
	return start, image, nil
}

// answerWithin is how much longer than its create an engine may take to answer it. Without the answer
// nobody knows whether the container will still come.
const answerWithin = 5 * time.Second

// container asks the engine for the container that the durable record names. When ctx ends meanwhile,
// it waits a little longer for the answer.
func (m *Manager) container(ctx context.Context, s *sandbox, image engine.Image, readOnly bool) (engine.Created, error) {
	id, grace := m.cfg.Identity, min(answerWithin, m.lim.CreateDeadline)
	asking, giveUp := context.WithTimeout(context.WithoutCancel(ctx), m.lim.CreateDeadline+grace)
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			giveUp()
		case <-asking.Done():
		}
	})()
	m.mu.Lock()
	rec := s.rec
	m.mu.Unlock()
	c, err := m.cfg.Engine.Create(asking, engine.Spec{
		Name: rec.Container, Image: image, Workspace: s.mount.Path, Supervisor: id.SupervisorPath,
		Resources: rec.Resources, ReadOnly: readOnly, WorkerID: id.WorkerID, BootEpoch: id.BootEpoch,
		SandboxID: rec.SandboxID, Generation: rec.Generation, Mode: id.Mode,
	})
	settled := c.ID != "" || errors.Is(err, engine.ErrNotCreated)
	unsure := false
	if !settled { // the engine may have been another one than just before
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		now, ierr := m.cfg.Engine.Instance(asking)
		unsure = ierr != nil || now != rec.EngineInstance
	}
	m.mu.Lock()
	s.rec.ContainerID, s.rec.Settled, s.unsure = c.ID, settled, unsure
	m.mu.Unlock()
	if err != nil {
		return c, engineError("create container", err)
	}
	if err := ctx.Err(); err != nil { // it was only the answer that was waited for
		return c, fail(api.Unavailable, "create container", err)
	}
	return c, nil
}

// workspaceError maps what the quota backend refused.
func workspaceError(err error) error {
	switch {
	case errors.Is(err, quota.ErrReserve), errors.Is(err, quota.ErrExhausted), errors.Is(err, quota.ErrTooLarge):
		return api.E(api.QuotaExceeded, err)
	case errors.Is(err, quota.ErrSpec):
		return api.E(api.RequestInvalid, err)
	case errors.Is(err, quota.ErrMismatch): // the workspace exists with other bounds
		return api.E(api.IdempotencyConflict, err)
	case errors.Is(err, quota.ErrBusy):
		return api.E(api.IncompleteCleanup, err)
	case errors.Is(err, quota.ErrHelper):
		return api.E(api.Unqualified, err)
	}
	return fail(api.Unavailable, "prepare workspace", err)
}

// advance changes the record, durable first. on is what happens with it, if anything. That a create
// serves is only made durable here: it is published by create, when nothing can fail any more.
func (m *Manager) advance(ctx context.Context, s *sandbox, on event, change func(*record)) error {
	m.mu.Lock()
	next := s.rec
	m.mu.Unlock()
	change(&next)
	if on != "" {
		next.step(on)
	}
	s.stored = true // from here on it may be there, whatever the store answers
	if err := m.put(ctx, next); err != nil {
		return fail(api.Unavailable, "store record", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.life.Err() != nil {
		return api.E(api.Unavailable, errors.New("retired while it was created"))
	}
	change(&s.rec)
	if on != "" && on != onServe {
		m.moveLocked(s, on)
	}
	return nil
}

func (m *Manager) receiptLocked(s *sandbox) api.Receipt {
	id, r := m.cfg.Identity, s.rec
	return api.Receipt{
		WorkspaceID: r.WorkspaceID, ClientLeaseID: r.ClientLeaseID, WorkerID: id.WorkerID, SandboxID: r.SandboxID,
		Generation: r.Generation, BootEpoch: id.BootEpoch, Mode: id.Mode, RequestDigest: r.RequestDigest,
		ImageDigest: r.ImageDigest, WorkerDigest: id.WorkerDigest, SandboxBinary: id.SandboxBinaryDigest,
		CohortID: m.cfg.Gate.CohortID(), PinsDigest: m.cfg.Gate.PinsDigest(), ExpiresAtUnixMs: s.hard.UnixMilli(),
	}
}
