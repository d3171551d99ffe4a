// SPDX-License-Identifier: Apache-2.0

package project

import (
	"bytes"
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

func decodeRecord(b []byte) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	state := r.State == intended || r.State == applied || r.State == releasing
	if !durable.ValidID(r.WorkspaceID) || r.Bytes <= 0 || r.Inodes <= 0 || r.ProjectID < MinProjectID || r.ProjectID > MaxProjectID || !state {
		return r, errors.New("a member is out of range")
	}
	return r, nil
}

func writeRecord(p paths, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	return durable.Replace(p.record, append(b, '\n'))
}

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
func records(dir string) ([]record, error) {
	entries, err := os.ReadDir(dir + "/records")
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var all []record
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		b, err := os.ReadFile(dir + "/records/" + e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		}
		var r record
		if err == nil {
			r, err = decodeRecord(b)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: record %s: %w", ErrCorrupt, e.Name(), err))
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int { return strings.Compare(a.WorkspaceID, b.WorkspaceID) })
	return all, errors.Join(errs...)
}
