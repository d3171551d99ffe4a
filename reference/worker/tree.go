// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
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
	if call.Mode == api.WriteAppend {
		return t.Tree.Append(ctx, call.Path, call.ExpectedSize, body, want)
	}
	return t.Tree.Write(ctx, call.Path, call.Mode, body, want, call.Executable)
}

// WatchTree gives the changes of a tree the shape of the wire, until life ends or the returned release is
// called, which calls the given one too. That is called on an error as well.
func WatchTree(life context.Context, t *workspace.Tree, release func()) (Changes, func(), error) {
	w, err := t.Watch(life, workspace.WatchLimits{})
	if err != nil {
		release()
		if life.Err() != nil || errors.Is(err, workspace.ErrClosed) {
			err = errors.Join(context.Cause(life), err) // the reason first: it decides the code
		}
		return nil, nil, err
	}
	return treeChanges{w}, func() {
		w.Close()
		release()
	}, nil
}

type treeChanges struct{ w *workspace.Watcher }

func (t treeChanges) Next(ctx context.Context) (api.ChangeEvent, error) {
	c, err := t.w.Next(ctx)
	if err != nil {
		return api.ChangeEvent{}, err
	}
	ev := api.ChangeEvent{Type: c.Type, Kind: string(c.Kind)}
	ev.Path, ev.PathBytes = name(c.Path)
	ev.From, ev.FromBytes = name(c.From)
	return ev, nil
}

// name gives bytes that are not UTF-8 as bytes, so that nothing is lost.
func name(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

func row(e workspace.Entry) api.FSEntry {
	out := api.FSEntry{Kind: string(e.Kind), Size: e.Size, Mode: e.Mode, MtimeMs: e.MtimeMs, Links: e.Links}
	out.Name, out.NameBytes = name(e.Name)
	return out
}
