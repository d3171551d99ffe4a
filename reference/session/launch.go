// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
)

// launch boots the first container of s and opens its workspace on the host.
func (m *Manager) launch(ctx context.Context, s *sandbox, c engine.Created, start admission.Start) error {
	if err := m.boot(ctx, s, c, start); err != nil {
		return err
	}
	tree, err := m.cfg.OpenTree(s.mount.Path, recorder{m.cfg.Store, s.rec.WorkspaceID})
	if err != nil {
		return fail(api.PathPrimitiveUnavailable, "open workspace", err)
	}
	m.mu.Lock()
	s.tree = tree
	s.receipt = m.receiptLocked(s)
	m.mu.Unlock()
	if err := m.sweep(ctx, s.rec.WorkspaceID, tree); err != nil {
		return fail(api.Unavailable, "sweep workspace", err)
	}
	return m.advance(ctx, s, onServe, func(*record) {})
}

// boot admits and starts a created container, whichever of its sandbox, and connects to its
// supervisor, which is s's from then on, also when what follows fails.
func (m *Manager) boot(ctx context.Context, s *sandbox, c engine.Created, start admission.Start) error {
	if m.cfg.Profile != nil {
		if err := m.cfg.Profile(c.ProfileDigest, c.Profile); err != nil {
			return fail(api.Unqualified, "launch profile", err)
		}
	}
	start.LaunchProfileDigest = c.ProfileDigest
	if err := m.cfg.Gate.Admit(ctx, start); err != nil {
		return fail(api.Unqualified, "admission", err)
	}
	if err := m.cfg.Quota.Verify(ctx, s.rec.WorkspaceID); err != nil {
		return fail(api.Unavailable, "verify workspace mount", err)
	}
	pid, err := m.cfg.Engine.Start(ctx, c.ID)
	if err != nil {
		return engineError("start container", err)
	}
	if err := m.cfg.Engine.VerifyBinary(ctx, c.ID, pid, m.cfg.Identity.SandboxBinaryDigest); err != nil {
		return engineError("verify sandbox binary", err)
	}
	killed, err := m.cfg.Engine.OOMKills(pid)
	if err != nil { // the engine's word is left
		m.log.Warn("no counter of OOM kills", "sandbox", s.rec.SandboxID, "err", err)
		killed = nil
	}
	rw, err := m.cfg.Engine.Bridge(ctx, c.ID)
	if err != nil {
		return engineError("open bridge", err)
	}
	ctl, err := m.cfg.Connect(ctx, rw)
	if err != nil {
		return fail(api.EngineFailed, "connect to supervisor", err)
	}
	m.mu.Lock()
	s.control, s.killed = ctl, killed
	m.mu.Unlock()
	// The bound must hold where the tenant will write, not only where we mounted it.
	fs, err := ctl.Statfs(ctx)
	if err != nil {
		return fail(api.EngineFailed, "statfs in sandbox", err)
	}
	if err := sameBound(fs, s.mount); err != nil {
		return api.E(api.Unavailable, err)
	}
	return nil
}

// sameBound compares what the sandbox's own kernel says of /workspace with what the host's
// said when it was mounted.
func sameBound(inside control.Statfs, outside quota.Mount) error {
	if inside.Blocks == 0 || inside.Inodes == 0 || inside.Blocks != outside.StatfsBlocks ||
		inside.BlockSize != outside.StatfsBlockSize || inside.Inodes != outside.StatfsInodes {
		return fmt.Errorf("sandbox sees a workspace of %d blocks of %d bytes and %d inodes; the bounded one has %d of %d and %d",
			inside.Blocks, inside.BlockSize, inside.Inodes, outside.StatfsBlocks, outside.StatfsBlockSize, outside.StatfsInodes)
	}
	return nil
}

// engineError maps an engine error: a launch difference is UNQUALIFIED.
func engineError(step string, err error) error {
	if errors.Is(err, engine.ErrLaunch) {
		return fail(api.Unqualified, step, err)
	}
	return fail(api.EngineFailed, step, err)
}
