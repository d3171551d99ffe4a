// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
)

// Record is what a backend keeps of one workspace: a JSON object in a file of its own.
type Record interface {
	ID() string  // of the workspace
	Valid() bool // that every other member is within its bounds
}

// Decode reads a record. Unknown members, no workspace id, and a member out of range are errors.
func Decode[R Record](b []byte) (r R, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if !ValidID(r.ID()) || !r.Valid() {
		return r, errors.New("a member is out of range")
	}
	return r, nil
}

// Read returns the record of workspace id at path: ErrNotFound when there is none, ErrCorrupt when it cannot
// be decoded or names another.
func Read[R Record](path, id string) (none R, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, fmt.Errorf("%w: %s", exitcode.ErrNotFound, id)
	}
	if err != nil {
		return none, fmt.Errorf("read record: %w", err)
	}
	r, err := Decode[R](b)
	if err == nil && r.ID() != id {
		err = errors.New("it names another workspace")
	}
	if err != nil {
		return none, fmt.Errorf("%w: record of %s: %w", exitcode.ErrCorrupt, id, err)
	}
	return r, nil
}

// ReadAll returns the records in dir in the order of workspace ids. One that cannot be read is an error beside the
// rest, never an omission in silence. None, and not even an empty list, when dir cannot be read.
func ReadAll[R Record](dir string) ([]R, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	all := []R{}
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		b, err := os.ReadFile(dir + "/" + e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		var r R
		if err == nil {
			r, err = Decode[R](b)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: record %s: %w", exitcode.ErrCorrupt, e.Name(), err))
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b R) int { return strings.Compare(a.ID(), b.ID()) })
	return all, errors.Join(errs...)
}

// Write makes r durable under path as [Replace] does.
func Write(path string, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	return Replace(path, append(b, '\n'))
}
