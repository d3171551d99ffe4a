// SPDX-License-Identifier: Apache-2.0

package project

import (
	"errors"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// Tenant is the uid and gid that owns the root directory of every workspace.
const Tenant = 65532

// What a record says of its workspace. Whatever it says, its project id is taken.
const (
	intended  = "intended"  // never answered for: nothing of a tenant can be in it
	applied   = "applied"   // was verified once
	releasing = "releasing" // is being removed, and holds its id until the kernel counts nothing of it
)

// record is the durable intent of one workspace; it comes before any effect and goes after the last.
type record struct {
	WorkspaceID string `json:"workspaceId"`
	ProjectID   uint32 `json:"projectId"`
	Bytes       int64  `json:"bytes"`  // as requested
	Inodes      int64  `json:"inodes"` // as requested
	State       string `json:"state"`
}

// paths are the names of one workspace's files.
type paths struct {
	id, name     string
	record, lock string
	tree         string
}

func pathsOf(dir, id string) (paths, error) {
	h, err := durable.Name(id)
	if err != nil {
		return paths{}, err
	}
	return paths{id: id, name: h, record: dir + "/records/" + h + ".json", lock: dir + "/records/" + h + ".lock", tree: dir + "/trees/" + h}, nil
}

func (r record) ID() string { return r.WorkspaceID }

func (r record) Valid() bool {
	state := r.State == intended || r.State == applied || r.State == releasing
	return r.Bytes > 0 && r.Inodes > 0 && r.ProjectID >= MinProjectID && r.ProjectID <= MaxProjectID && state
}

// readRecord returns ErrNotFound when the workspace has none.
func readRecord(p paths) (record, error) { return durable.Read[record](p.record, p.id) }

func writeRecord(p paths, r record) error { return durable.Write(p.record, r) }

// Known reports whether the workspace id was verified in dir once: only such a one can hold anything
// of a tenant. It needs no privilege beyond reading dir.
func Known(dir, id string) (bool, error) {
	p, err := pathsOf(dir, id)
	if err != nil {
		return false, err
	}
	rec, err := readRecord(p)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && rec.State != intended, err
}

// records returns all that can be read, in the order of workspace ids; the error is beside them.
func records(dir string) ([]record, error) { return durable.ReadAll[record](dir + "/records") }
