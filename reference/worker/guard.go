// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"io"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// GuardWrites asks claim before each operation that changes the workspace, and calls what it
// returned when the operation has ended. An error of claim is the operation's. Operations that only
// look are passed on.
func GuardWrites(f Files, claim func() (done func(), err error)) Files { return guarded{f, claim} }

type guarded struct {
	Files
	claim func() (func(), error)
}

func (g guarded) change(do func() error) error {
	done, err := g.claim()
	if err != nil {
		return err
	}
	defer done()
	return do()
}

func (g guarded) Mkdir(ctx context.Context, path []byte) error {
	return g.change(func() error { return g.Files.Mkdir(ctx, path) })
}

func (g guarded) Remove(ctx context.Context, path []byte) error {
	return g.change(func() error { return g.Files.Remove(ctx, path) })
}

func (g guarded) Rename(ctx context.Context, from, to []byte) error {
	return g.change(func() error { return g.Files.Rename(ctx, from, to) })
}

func (g guarded) Write(ctx context.Context, call api.FileCall, body io.Reader, want string) (size int64, digest string, err error) {
	err = g.change(func() error {
		size, digest, err = g.Files.Write(ctx, call, body, want)
		return err
	})
	return size, digest, err
}
