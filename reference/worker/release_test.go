// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// unable fails what takes names away.
type unable struct{ *calls }

var errRefused = errors.New("refused")

func (r unable) Remove(context.Context, []byte) error         { return errRefused }
func (r unable) Rename(context.Context, []byte, []byte) error { return errRefused }

// A name is looked up when it was taken from what it named, after that, and only then.
func TestReleaseNames(t *testing.T) {
	ctx := t.Context()
	c := &calls{}
	look := func(_ context.Context, paths ...[]byte) { c.did("look " + string(bytes.Join(paths, []byte(" ")))) }
	f, bad := ReleaseNames(c, look), ReleaseNames(unable{c}, look)
	for _, tt := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"remove", func() error { return f.Remove(ctx, []byte("a")) }, []string{"Remove", "look a"}},
		{"rename", func() error { return f.Rename(ctx, []byte("a"), []byte("b")) }, []string{"Rename", "look a b"}},
		{"replace", func() error {
			_, _, err := f.Write(ctx, api.FileCall{Path: []byte("a"), Mode: api.WriteReplace}, nil, "")
			return err
		}, []string{"Write", "look a"}},
		{"append", func() error {
			_, _, err := f.Write(ctx, api.FileCall{Path: []byte("a"), Mode: api.WriteAppend}, nil, "")
			return err
		}, []string{"Write", "look a"}},
		{"create", func() error {
			_, _, err := f.Write(ctx, api.FileCall{Path: []byte("a"), Mode: api.WriteCreate}, nil, "")
			return err
		}, []string{"Write"}},
		{"mkdir", func() error { return f.Mkdir(ctx, []byte("a")) }, []string{"Mkdir"}},
		{"failed remove", func() error { return bad.Remove(ctx, []byte("a")) }, nil},
		{"failed rename", func() error { return bad.Rename(ctx, []byte("a"), []byte("b")) }, nil},
	} {
		c.seen = nil
		if err := tt.do(); (err != nil) != (tt.want == nil) || !slices.Equal(c.seen, tt.want) {
			t.Errorf("%s: %q, %v", tt.name, c.seen, err)
		}
	}
}
