// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"io"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// TreeFiles gives a workspace tree the shape of the wire.
func TreeFiles(t *workspace.Tree) Files { return treeFiles{t} }

type treeFiles struct{ *workspace.Tree }

func (t treeFiles) Stat(ctx context.Context, path []byte) (api.FSEntry, error) {
	e, err := t.Tree.Stat(ctx, path)
	return row(e), err
}

func (t treeFiles) List(ctx context.Context, path []byte, cursor string, rows int) ([]api.FSEntry, string, error) {
	page, err := t.Tree.List(ctx, path, cursor, rows)
	if err != nil {
		return nil, "", err
	}
	out := make([]api.FSEntry, len(page.Entries))
	for i, e := range page.Entries {
		out[i] = row(e)
	}
	return out, page.Cursor, nil
}

func (t treeFiles) Write(ctx context.Context, call api.FileCall, body io.Reader, want string) (int64, string, error) {
	return t.Tree.Write(ctx, call.Path, call.Mode, body, want, call.Executable)
}

// row gives a name that is not UTF-8 as bytes, so that nothing is lost.
func row(e workspace.Entry) api.FSEntry {
	out := api.FSEntry{Kind: string(e.Kind), Size: e.Size, Mode: e.Mode, MtimeMs: e.MtimeMs, Links: e.Links}
	if utf8.Valid(e.Name) {
		out.Name = string(e.Name)
	} else {
		out.NameBytes = e.Name
	}
	return out
}
