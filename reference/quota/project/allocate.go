// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// hostFiles is how many inodes one workspace takes of the host beside its own: record, lock, a temporary.
const hostFiles = 3

// allocate checks the reserve, takes a project id unless rec has one, and records the intent, all
// under the directory's lock: two workspaces cannot be promised the same room, or the same id.
func (s *Store) allocate(ctx context.Context, at *place, p paths, rec record, ids Range, reserve Reserve) (record, error) {
	lock, err := durable.Lock(ctx, s.dir+"/lock")
	if err != nil {
		return rec, err
	}
	defer lock.Close()
	all, err := records(s.dir)
	if err != nil {
		return rec, err // a record that cannot be read may have any id
	}
	if err := s.checkReserve(at, all, rec, reserve); err != nil {
		return rec, err
	}
	if rec.ProjectID == 0 {
		if rec.ProjectID, err = s.freeID(int(at.Fd()), all, ids); err != nil {
			return rec, err
		}
	}
	if err := writeRecord(p, rec); err != nil {
		return rec, err
	}
	s.step("intended")
	return rec, nil
}

// freeID returns the lowest id that no record has and the kernel has nothing of: no limit, and nothing
// that is charged to it, by whomever.
func (s *Store) freeID(fd int, all []record, ids Range) (uint32, error) {
	taken := map[uint32]bool{}
	for _, r := range all {
		taken[r.ProjectID] = true
	}
	id := ids.First
	for {
		q, err := s.kernel.next(fd, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, fmt.Errorf("look for a free project id: %w", err)
		}
		end := q.ID // the kernel has nothing of the ids before
		if err != nil || end > ids.Last {
			end = ids.Last + 1
		}
		for ; id < end; id++ {
			if !taken[id] {
				return id, nil
			}
		}
		if err != nil || id > ids.Last {
			return 0, fmt.Errorf("%w: of %d to %d", ErrExhausted, ids.First, ids.Last)
		}
		if q.ID != id {
			return 0, fmt.Errorf("look for a free project id: the kernel names %d after %d", q.ID, id)
		}
		if q == (Quota{ID: id}) && !taken[id] { // known to the kernel, and empty
			return id, nil
		}
		id++
		if id > ids.Last {
			return 0, fmt.Errorf("%w: of %d to %d", ErrExhausted, ids.First, ids.Last)
		}
	}
}

// checkReserve compares what is free with what workspaces may still take of it.
func (s *Store) checkReserve(at *place, all []record, rec record, r Reserve) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(at.Fd()), &st); err != nil {
		return fmt.Errorf("ask host filesystem: %w", err)
	}
	promised, promisedInodes := at.limits(rec)
	for _, other := range all {
		if other.WorkspaceID == rec.WorkspaceID {
			continue
		}
		q, err := s.kernel.quota(int(at.Fd()), other.ProjectID)
		if err != nil {
			return err
		}
		bytes, inodes := at.limits(other)
		promised += bytes - min(q.Bytes, bytes)
		promisedInodes += inodes - min(q.Inodes, inodes)
	}
	free, keep := int64(st.Bavail)*st.Frsize, max(int64(st.Blocks)*st.Frsize/10, r.Bytes)
	if free-int64(promised) < keep {
		return fmt.Errorf("%w: %d bytes free, workspaces may take %d and %d stay reserved", ErrReserve, free, promised, keep)
	}
	freeFiles, keepFiles := int64(st.Ffree), max(int64(st.Files)/10, r.Inodes)
	if freeFiles-int64(promisedInodes)-hostFiles < keepFiles {
		return fmt.Errorf("%w: %d inodes free, workspaces may take %d and %d stay reserved", ErrReserve, freeFiles, promisedInodes, keepFiles)
	}
	return nil
}
