// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Read opens a regular file and returns it with its size in bytes at that moment. The
// caller must close it, and before the Tree's workspace is unmounted. Reading stops at that size, so a
// file that grows meanwhile ends where it was announced to; one that shrinks ends early.
// A symlink or a special file is ErrUnsafe and is never opened.
//
// The open has the tenant's authority; later reads need none.
func (t *Tree) Read(ctx context.Context, path []byte) (io.ReadCloser, int64, error) {
	var (
		f    *os.File
		size int64
	)
	err := t.run(ctx, "read", path, func() error {
		if err := checkPath(path); err != nil {
			return err
		}
		h, st, err := t.openRegular(path)
		if err != nil {
			return err
		}
		size = st.Size
		f = os.NewFile(uintptr(h), "workspace file")
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return &reader{io.LimitReader(f, size), f}, size, nil
}

// openRegular opens what is at path for reading, if it is a regular file: first as a place, so that
// nothing else is ever opened.
func (t *Tree) openRegular(path []byte) (handle, unix.Stat_t, error) {
	place, err := openBeneath(t.root, string(path), unix.O_PATH)
	if err != nil {
		return -1, unix.Stat_t{}, classed("open file", err)
	}
	defer place.close()
	st, err := place.stat()
	if err != nil {
		return -1, st, classed("open file", err)
	}
	if err := wantRegular(st); err != nil {
		return -1, st, err
	}
	// The inode itself, whatever its name is now. O_NONBLOCK although it cannot be a FIFO.
	h, err := t.reopen(place, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return -1, st, classed("open file", err)
	}
	st, err = h.stat()
	if err == nil {
		err = wantRegular(st)
	}
	if err != nil {
		h.close()
		return -1, st, err
	}
	return h, st, nil
}

type reader struct {
	io.Reader
	f *os.File
}

func (r *reader) Close() error { return r.f.Close() }

func wantRegular(st unix.Stat_t) error {
	switch k := kindOf(st.Mode); k {
	case File:
		return nil
	case Dir:
		return fmt.Errorf("open file: %w", ErrIsDir)
	default:
		return fmt.Errorf("open file: %w: a %s", ErrUnsafe, k)
	}
}
