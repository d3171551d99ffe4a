// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Apply makes the workspace or finds it, gives it a project id and its limits, and proves that every
// inode in it has the id. Idempotent; finishes what an interrupted call began. The first call under
// an id fixes the bounds: ErrMismatch for others.
func (s *Store) Apply(ctx context.Context, id string, bytes, inodes int64, ids Range, reserve Reserve) (Workspace, error) {
	if bytes < MinBytes || bytes > MaxBytes || inodes < MinInodes || inodes > MaxWorkspaceInodes {
		return Workspace{}, fmt.Errorf("%w: %d bytes, %d inodes; %d to %d and %d to %d are possible", ErrSpec, bytes, inodes, MinBytes, int64(MaxBytes), MinInodes, MaxWorkspaceInodes)
	}
	if err := ids.check(); err != nil {
		return Workspace{}, err
	}
	p, unlock, err := s.lock(ctx, id)
	if err != nil {
		return Workspace{}, err
	}
	defer unlock()
	at, err := s.open()
	if err != nil {
		return Workspace{}, err
	}
	defer at.Close()

	rec, err := readRecord(p)
	switch {
	case errors.Is(err, ErrNotFound):
		rec = record{WorkspaceID: id, Bytes: bytes, Inodes: inodes, State: intended}
		if rec, err = s.allocate(ctx, at, p, rec, ids, reserve); err != nil {
			return Workspace{}, err
		}
	case err != nil:
		return Workspace{}, err
	case rec.State == releasing:
		return Workspace{}, fmt.Errorf("%w: %s is being released", ErrBusy, id)
	case rec.Bytes != bytes || rec.Inodes != inodes:
		if rec.State == applied {
			return Workspace{}, fmt.Errorf("%w: %d bytes and %d inodes", ErrMismatch, rec.Bytes, rec.Inodes)
		}
		// Never answered for, so nobody relies on it: the id goes with the new bounds.
		rec.Bytes, rec.Inodes = bytes, inodes
		if rec, err = s.allocate(ctx, at, p, rec, ids, reserve); err != nil {
			return Workspace{}, err
		}
	}
	isNew := rec.State == intended
	w, err := s.settle(ctx, at, p, rec)
	if err != nil {
		return Workspace{}, err
	}
	if isNew {
		rec.State = applied
		if err := writeRecord(p, rec); err != nil {
			return Workspace{}, err
		}
		s.step("recorded")
	}
	w.New = isNew
	return w, nil
}

// settle brings a recorded workspace into its promised shape; each step can be repeated.
func (s *Store) settle(ctx context.Context, at *place, p paths, rec record) (Workspace, error) {
	if rec.State == intended {
		if err := unix.Mkdirat(int(at.Fd()), p.name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return Workspace{}, fmt.Errorf("make workspace: %w", err)
		}
		if err := at.Sync(); err != nil {
			return Workspace{}, fmt.Errorf("make workspace: %w", err)
		}
		s.step("directory")
	}
	// Before any inode has the id: there is no time in which it is not bounded.
	bytes, inodes := at.limits(rec)
	if err := s.kernel.setLimits(int(at.Fd()), rec.ProjectID, bytes, inodes); err != nil {
		return Workspace{}, fmt.Errorf("set limits: %w", err)
	}
	if _, err := s.holds(at, rec); err != nil {
		return Workspace{}, err
	}
	s.step("limits")
	t, err := s.tree(at, p, rec)
	if err != nil {
		return Workspace{}, err
	}
	defer t.close()
	if err := t.own(); err != nil {
		return Workspace{}, err
	}
	count, err := t.assign(ctx, rec.ProjectID, s.at)
	if err != nil {
		return Workspace{}, err
	}
	// What is said to be bounded must be so after a crash too.
	if err := unix.Syncfs(t.mount); err != nil {
		return Workspace{}, fmt.Errorf("sync workspace: %w", err)
	}
	s.step("assigned")
	q, err := s.holds(at, rec)
	if err != nil {
		return Workspace{}, err
	}
	if rec.State == intended && (q.Bytes > q.BytesLimit || q.Inodes > q.InodesLimit) {
		return Workspace{}, fmt.Errorf("%w: %d bytes and %d inodes were there before", ErrTooLarge, q.Bytes, q.Inodes)
	}
	return s.observe(at, t, p, rec, count)
}

// own gives the root to the tenant. A tenant may lock itself out of its root; this lets it in again.
func (t *tree) own() error {
	var st unix.Stat_t
	if err := unix.Fstat(t.mount, &st); err != nil {
		return fmt.Errorf("look at root: %w", err)
	}
	if st.Uid != Tenant || st.Gid != Tenant {
		if err := unix.Fchown(t.mount, Tenant, Tenant); err != nil {
			return fmt.Errorf("own workspace root: %w", err)
		}
	}
	if mode := st.Mode & 0o7777; mode&0o700 != 0o700 {
		if err := unix.Fchmod(t.mount, mode|0o700); err != nil {
			return fmt.Errorf("open workspace root to its owner: %w", err)
		}
	}
	return nil
}
