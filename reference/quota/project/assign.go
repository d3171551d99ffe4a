// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// barriers are where a walk can be met: between its passes and before each change. The production
// code has none.
type barriers struct {
	snapshot func()           // after it
	change   func(ino uint64) // before it, concurrently
	applied  func()           // after the pass
	verified func()           // after the pass
}

func (b *barriers) fill() {
	for _, f := range []*func(){&b.snapshot, &b.applied, &b.verified} {
		if *f == nil {
			*f = func() {}
		}
	}
	if b.change == nil {
		b.change = func(uint64) {}
	}
}

// assign gives every inode of the tree the project id: a snapshot without changes, the changes, each
// against the snapshot, and a look at every inode afterwards. On any error every id is as it was,
// or the error says which is not.
func (t *tree) assign(ctx context.Context, projid uint32, at barriers) (Counted, error) {
	at.fill()
	taken, err := t.take(ctx)
	if err != nil {
		return Counted{}, err
	}
	at.snapshot()

	pass := &apply{compare: compare{tree: t, inodes: taken.inodes, projid: projid}, before: at.change}
	err = pass.pass(ctx, pass, taken)
	at.applied()
	check := &verify{compare{tree: t, inodes: taken.inodes, projid: projid}}
	if err == nil {
		err = check.pass(ctx, check, taken)
	}
	if err != nil {
		return Counted{}, errors.Join(err, t.restore(taken, projid))
	}
	at.verified()
	taken.count.Set, taken.count.Unset = pass.set.Load(), max(pass.unset.Load(), check.unset.Load())
	return taken.count, nil
}

// audit says whether every inode of the tree has the project id. It changes nothing.
func (t *tree) audit(ctx context.Context, projid uint32) (Counted, error) {
	taken, err := t.take(ctx)
	if err != nil {
		return Counted{}, err
	}
	check := &verify{compare{tree: t, inodes: taken.inodes, projid: projid}}
	if err := check.pass(ctx, check, taken); err != nil {
		return Counted{}, err
	}
	taken.count.Unset = check.unset.Load()
	return taken.count, nil
}

// take makes the snapshot, and refuses a file with a name outside.
func (t *tree) take(ctx context.Context) (*snapshot, error) {
	s := &snapshot{tree: t, inodes: newTable()}
	if err := t.walk(ctx, s); err != nil {
		return nil, err
	}
	first, n, err := s.outside()
	if err != nil {
		return nil, err
	}
	if first == nil {
		return s, nil
	}
	why := fmt.Errorf("%w: %d of its %d names are inside; files like it: %d", ErrOutsideLink, first.names, first.nlink, n)
	return nil, &FileError{Path: t.where(ctx, first.ino), Err: why}
}

// where returns a path of an inode that is not a directory.
func (t *tree) where(ctx context.Context, ino uint64) string {
	f := finder{ino: ino}
	err := t.walk(ctx, &f)
	var found *FileError
	if errors.As(err, &found) && errors.Is(err, errFound) {
		return found.Path
	}
	return fmt.Sprintf("inode %d", ino) // it is gone
}

var errFound = errors.New("found")

type finder struct{ ino uint64 }

func (f *finder) directory(int, int, *unix.Statx_t) error { return nil }
func (f *finder) left(uint64, uint64) error               { return nil }
func (f *finder) file(_ int, d dirent) error {
	if d.ino == f.ino {
		return errFound
	}
	return nil
}

// restore puts the ids back that a failed walk has changed, by file handle: names may have moved,
// out of the tree too. What was removed meanwhile needs nothing. The error says what could not be
// put back.
func (t *tree) restore(taken *snapshot, projid uint32) error {
	var first error
	failed := 0
	taken.inodes.each(func(i *inode) {
		if i.flags&changed == 0 {
			return
		}
		if err := t.putBack(i, projid); err != nil {
			if failed++; first == nil {
				first = fmt.Errorf("inode %d: %w", i.ino, err)
			}
		}
	})
	if first != nil {
		return fmt.Errorf("project ids of %d inodes are not put back: %w", failed, first)
	}
	return nil
}

func (t *tree) putBack(i *inode, projid uint32) error {
	flags := unix.O_PATH | unix.O_NOFOLLOW
	if opens(i.kind) {
		flags = readFlags
	}
	fd, err := makeHandle(t.form, i.ino, i.generation).open(t.mount, flags)
	if err == unix.ESTALE || err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open file handle: %w", err)
	}
	defer unix.Close(fd)
	// With another id it was never set, or was set by somebody else since.
	if !opens(i.kind) {
		f, err := t.getSpecial(fd)
		if err != nil || f.projid != projid {
			return err
		}
		return t.setSpecial(fd, f, i.projid)
	}
	x, err := getOpen(fd)
	if err != nil || x.projid != projid {
		return err
	}
	return setOpen(fd, x, i.projid, i.flags&inherits != 0)
}
