// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// bucketTemporaries holds the names that a file write gave an inode before it was renamed
// into place: workspace id "/" hex of the path. They are removed by these records only,
// never by how a name looks.
const bucketTemporaries = "temporaries"

// recorder makes the temporaries of one workspace durable.
type recorder struct {
	store     Store
	workspace string
}

var _ workspace.Recorder = recorder{}

func (r recorder) key(path []byte) string { return r.workspace + "/" + hex.EncodeToString(path) }

// Record implements workspace.Recorder.
func (r recorder) Record(ctx context.Context, path []byte) error {
	return r.store.Put(ctx, bucketTemporaries, r.key(path), nil)
}

// Forget implements workspace.Recorder.
func (r recorder) Forget(ctx context.Context, path []byte) error {
	return r.store.Update(ctx, bucketTemporaries, state.Change{Key: r.key(path), Delete: true})
}

// sweep removes what a crash left in a populated workspace, before anyone can see it. A
// name that cannot be removed is an entry that the tenant has changed; it stays recorded
// and does not keep the workspace from being used.
func (m *Manager) sweep(ctx context.Context, ws string, tree *workspace.Tree) error {
	var paths [][]byte
	err := m.cfg.Store.Each(bucketTemporaries, func(k string, _ []byte) error {
		if name, ok := strings.CutPrefix(k, ws+"/"); ok {
			path, err := hex.DecodeString(name)
			if err != nil {
				return fmt.Errorf("temporary %q: %w", k, err)
			}
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list temporaries: %w", err)
	}
	for _, path := range paths {
		err := tree.RemoveTemporary(ctx, path)
		if err != nil && !errors.Is(err, workspace.ErrNotDir) && !errors.Is(err, workspace.ErrUnsafe) {
			m.log.WarnContext(ctx, "remove temporary", "workspace", ws, "err", err)
			continue
		}
		if err := (recorder{m.cfg.Store, ws}).Forget(ctx, path); err != nil {
			return fmt.Errorf("forget temporary: %w", err)
		}
	}
	return nil
}
