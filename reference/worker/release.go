// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"io"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// ReleaseNames calls look with the names that an operation has taken from what they named, at most two: what held on to
// that by its name can let go. It is called once, before the operation is over, and cannot fail it. Its time is
// the operation's, so look has to bound it.
func ReleaseNames(f Files, look func(ctx context.Context, paths ...[]byte)) Files {
	return releasing{f, look}
}

type releasing struct {
	Files
	look func(ctx context.Context, paths ...[]byte)
}

func (r releasing) Remove(ctx context.Context, path []byte) error {
	err := r.Files.Remove(ctx, path)
	if err == nil {
		r.look(ctx, path)
	}
	return err
}

func (r releasing) Rename(ctx context.Context, from, to []byte) error {
	err := r.Files.Rename(ctx, from, to)
	if err == nil {
		r.look(ctx, from, to)
	}
	return err
}

func (r releasing) Write(ctx context.Context, call api.FileCall, body io.Reader, want string) (int64, string, error) {
	size, digest, err := r.Files.Write(ctx, call, body, want)
	if err == nil && call.Mode != api.WriteCreate { // an append makes another inode, too
		r.look(ctx, call.Path)
	}
	return size, digest, err
}
