// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// Tenant is the uid and gid that owns the root directory of every workspace.
const Tenant = 65532

// Store is one directory of images. Operations on one workspace exclude each other,
// between processes too. Lock order: workspace, then directory.
type Store struct {
	dir   string
	tools Tools
}

// record is the durable intent of one workspace.
type record struct {
	WorkspaceID string `json:"workspaceId"`
	Bytes       int64  `json:"bytes"`  // as requested
	Inodes      int64  `json:"inodes"` // as requested
	Ready       bool   `json:"ready"`  // the image was complete once; without it now, data is lost
}

// Open checks dir, which must be absolute and without symlinks, and creates what is
// missing in it. dir itself is created with mode 0700; an existing one must have it.
func Open(dir string, tools Tools) (*Store, error) {
	if err := durable.Directories(dir, "records", "images", "mnt"); err != nil {
		return nil, err
	}
	return &Store{dir: dir, tools: tools}, nil
}

// paths are the names of one workspace's files.
type paths struct{ id, record, lock, tmp, image, mount string }

func (s *Store) paths(id string) (paths, error) {
	h, err := durable.Name(id)
	if err != nil {
		return paths{}, err
	}
	return paths{
		id: id, record: s.dir + "/records/" + h + ".json", lock: s.dir + "/records/" + h + ".lock",
		tmp: s.dir + "/images/" + h + ".tmp", image: s.dir + "/images/" + h + ".img", mount: s.dir + "/mnt/" + h,
	}, nil
}

// lockWorkspace returns the names and the lock of id. unlock leaves no file behind
// when there is no record.
func (s *Store) lockWorkspace(ctx context.Context, id string) (p paths, lock *os.File, unlock func(), err error) {
	if p, err = s.paths(id); err != nil {
		return p, nil, nil, err
	}
	lock, err = durable.Lock(ctx, p.lock)
	if err != nil {
		return p, nil, nil, err
	}
	return p, lock, func() {
		if _, err := os.Lstat(p.record); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(p.lock) // still held: nobody else can take this inode for the lock
		}
		lock.Close()
	}, nil
}

func (s *Store) lockDir(ctx context.Context) (*os.File, error) {
	return durable.Lock(ctx, s.dir+"/lock")
}

func (r record) ID() string { return r.WorkspaceID }

func (r record) Valid() bool { return r.Bytes > 0 && r.Inodes > 0 }

// readRecord returns ErrNotFound when the workspace has none.
func readRecord(p paths) (record, error) { return durable.Read[record](p.record, p.id) }

func writeRecord(p paths, r record) error { return durable.Write(p.record, r) }

// Known reports whether the workspace id has an image in dir that was complete once: only such
// a one can hold anything of a tenant. It needs no privilege beyond reading dir.
func Known(dir, id string) (bool, error) {
	p, err := (&Store{dir: dir}).paths(id)
	if err != nil {
		return false, err
	}
	rec, err := readRecord(p)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if rec.Ready {
		return true, nil
	}
	// The rename of the finished image comes before the record says so.
	switch _, err := os.Lstat(p.image); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("look for image: %w", err)
	}
}

// List returns the ids of all workspaces with a record, half-made ones included. A
// record that cannot be read is an error beside the rest, never an omission in silence.
func (s *Store) List() ([]string, error) {
	all, err := durable.ReadAll[record](s.dir + "/records")
	if all == nil {
		return nil, err
	}
	ids := []string{}
	for _, r := range all {
		ids = append(ids, r.WorkspaceID)
	}
	return ids, err
}
