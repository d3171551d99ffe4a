// SPDX-License-Identifier: Apache-2.0

// Package outside makes folders on the host that no sandbox may reach, and says what was read of them or
// changed in them. It owns those folders only.
package outside

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
)

// Folder is a folder on the host that anybody may read and change, so that only confinement protects it. A
// runtime that fails damages nothing else.
type Folder struct {
	Dir    string
	token  string // in its file
	before oracle.Tree
}

// New makes one with a file of the name, which holds a canary, and looks at it.
func New(t *conformance.T, file string) (*Folder, error) {
	dir, err := os.MkdirTemp("", "hallmark-outside-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	o := &Folder{Dir: dir, token: t.Canary("host file")}
	path := filepath.Join(dir, file)
	if err := errors.Join(os.WriteFile(path, []byte(o.token), 0o666), os.Chmod(path, 0o666), os.Chmod(dir, 0o777)); err != nil {
		return nil, err
	}
	o.before, err = oracle.HashTree(dir)
	return o, err
}

// Read fails the case when bytes that the API returned hold the canary.
func (o *Folder) Read(t *conformance.T, what string, body []byte) {
	if bytes.Contains(body, []byte(o.token)) {
		t.Fail("target-read", "%s returned the canary", what)
	}
}

// Changed fails the case when the folder is not as it was.
func (o *Folder) Changed(t *conformance.T, what string) error {
	after, err := oracle.HashTree(o.Dir)
	if err != nil {
		return err
	}
	if d := o.before.Diff(after); len(d) > 0 {
		t.Fail("target-altered", "the host tree changed by %s: %v", what, d)
	}
	return nil
}
