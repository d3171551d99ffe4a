// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// File is the provider of kind file: a directory of this process's user, mode 0700, with one
// payload per binding in BINDING.json, a regular file with one link, of the same user, mode 0600.
// Whoever writes there replaces a file by rename(2), so that a payload is read whole or not at all.
type File struct{ dir *os.File }

// OpenFile opens and checks dir. No component of it may be a symlink.
func OpenFile(dir string) (*File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	p := &File{dir: os.NewFile(uintptr(fd), dir)}
	if err := p.check(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close gives the directory back.
func (p *File) Close() error { return p.dir.Close() }

// check is repeated before each payload: the mode of an open directory can change.
func (p *File) check() error { return private(int(p.dir.Fd()), unix.S_IFDIR|0o700) }

// private refuses what is not of this mode and this user.
func private(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if st.Mode != mode || int(st.Uid) != os.Geteuid() || mode&unix.S_IFMT == unix.S_IFREG && st.Nlink != 1 {
		return fmt.Errorf("%w: mode %#o, owner %d, %d links", ErrUnsafe, st.Mode, st.Uid, st.Nlink)
	}
	return nil
}

// Lease implements [Provider].
func (p *File) Lease(ctx context.Context, r Request) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	// O_NONBLOCK: a FIFO in the place of a payload holds nobody up.
	fd, err := unix.Openat2(int(p.dir.Fd()), r.BindingID+".json", &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, ErrNoPayload
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, ErrUnsafe
	case err != nil:
		return nil, fmt.Errorf("%w: open payload: %w", ErrFailed, err)
	}
	f := os.NewFile(uintptr(fd), "payload")
	defer f.Close()
	if err := private(fd, unix.S_IFREG|0o600); err != nil {
		return nil, err
	}
	return readPayload(f)
}

// readPayload reads all of f into one buffer, which never moves: a grown buffer would leave its
// earlier self behind. On an error the buffer is zeroed.
func readPayload(f io.Reader) ([]byte, error) {
	b := make([]byte, MaxPayloadBytes+1)
	n, err := io.ReadFull(f, b)
	switch {
	case err == nil:
		clear(b)
		return nil, ErrTooLarge
	case err != io.EOF && err != io.ErrUnexpectedEOF:
		clear(b)
		return nil, fmt.Errorf("%w: read payload: %w", ErrFailed, err)
	}
	return b[:n:n], nil
}

// Dispose implements [Provider]: a file has nothing to give back.
func (*File) Dispose(context.Context, Request) error { return nil }
