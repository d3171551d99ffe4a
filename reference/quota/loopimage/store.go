// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

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

// readRecord returns ErrNotFound when the workspace has none.
func readRecord(p paths) (record, error) {
	b, err := os.ReadFile(p.record)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("%w: %s", ErrNotFound, p.id)
	}
	if err != nil {
		return record{}, fmt.Errorf("read record: %w", err)
	}
	r, err := decodeRecord(b)
	if err == nil && r.WorkspaceID != p.id {
		err = errors.New("it names another workspace")
	}
	if err != nil {
		return record{}, fmt.Errorf("%w: record of %s: %w", ErrCorrupt, p.id, err)
	}
	return r, nil
}

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

func decodeRecord(b []byte) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if !durable.ValidID(r.WorkspaceID) || r.Bytes <= 0 || r.Inodes <= 0 {
		return r, errors.New("a member is out of range")
	}
	return r, nil
}

// writeRecord makes r durable under its name.
func writeRecord(p paths, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	return durable.Replace(p.record, append(b, '\n'))
}

// List returns the ids of all workspaces with a record, half-made ones included. A
// record that cannot be read is an error beside the rest, never an omission in silence.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir + "/records")
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	ids, errs := []string{}, []error(nil)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		b, err := os.ReadFile(s.dir + "/records/" + e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // purged meanwhile
		}
		var r record
		if err == nil {
			r, err = decodeRecord(b)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: record %s: %w", ErrCorrupt, e.Name(), err))
			continue
		}
		ids = append(ids, r.WorkspaceID)
	}
	slices.Sort(ids)
	return ids, errors.Join(errs...)
}
