// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// releasePoll is how often the kernel is asked again, while a release waits. XFS frees inodes in the
// background, and a file that is still open is charged until it is closed.
const releasePoll = 10 * time.Millisecond

// Release removes the workspace with everything in it, waits for at most that long until the kernel
// counts nothing of its project id, and gives the id back. ErrBusy when something is still charged: the
// record then keeps the id, and the next call goes on. Releasing what does not exist succeeds.
func (s *Store) Release(ctx context.Context, id string, wait time.Duration) (Done, error) {
	p, unlock, err := s.lock(ctx, id)
	if err != nil {
		return Done{}, err
	}
	defer unlock()
	rec, err := readRecord(p)
	if errors.Is(err, ErrNotFound) {
		return Done{}, durable.Remove(durable.Temporary(p.record))
	}
	if err != nil {
		return Done{}, err
	}
	done := Done{Found: true}
	if rec.State != releasing {
		rec.State = releasing
		if err := writeRecord(p, rec); err != nil {
			return done, err
		}
		s.step("releasing")
	}
	if err := s.discard(ctx, p); err != nil {
		return done, err
	}
	s.step("removed")
	trees, err := os.Open(s.dir + "/trees")
	if err != nil {
		return done, fmt.Errorf("open store: %w", err)
	}
	defer trees.Close()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := s.waitUncharged(ctx, int(trees.Fd()), rec.ProjectID); err != nil {
		return done, err
	}
	if err := s.kernel.setLimits(int(trees.Fd()), rec.ProjectID, 0, 0); err != nil {
		return done, fmt.Errorf("clear limits: %w", err)
	}
	s.step("cleared")
	err = errors.Join(durable.Remove(durable.Temporary(p.record)), durable.Remove(p.record))
	if err == nil {
		err = durable.SyncDir(s.dir + "/records")
	}
	return done, err
}

// waitUncharged returns nil only when the kernel counts nothing of the id. Whether it also holds
// limits does not matter here.
func (s *Store) waitUncharged(ctx context.Context, fd int, id uint32) error {
	st, err := s.kernel.state(fd)
	if err != nil {
		return err
	}
	if !st.Accounted {
		return fmt.Errorf("%w: what is charged to project id %d cannot be known", ErrNotEnforced, id)
	}
	for {
		q, err := s.kernel.quota(fd, id)
		if err != nil {
			return err
		}
		if q.Bytes == 0 && q.Inodes == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d bytes and %d inodes are still charged to project id %d", ErrBusy, q.Bytes, q.Inodes, id)
		case <-time.After(releasePoll):
		}
	}
}

// discard moves the workspace's directory out of the way, and removes it and what earlier calls left.
func (s *Store) discard(ctx context.Context, p paths) error {
	trash, err := os.Open(s.dir + "/trash")
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer trash.Close()
	r := remover{trash: int(trash.Fd()), prefix: p.name + "-"}
	first, err := r.fresh()
	if err != nil {
		return err
	}
	if err := unix.Rename(p.tree, s.dir+"/trash/"+first); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move workspace: %w", err)
	}
	if err := durable.SyncDir(s.dir + "/trees"); err != nil {
		return err
	}
	s.step("moved")
	for {
		names, err := r.left()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return durable.SyncDir(s.dir + "/trash")
		}
		for _, n := range names {
			if err := r.remove(ctx, r.trash, n, 0); err != nil {
				return err
			}
		}
	}
}

// remover removes trees below trash whose names have the prefix. What lies deeper than openWindow is
// moved up beside them first, so that a deep tree costs no descriptors.
type remover struct {
	trash  int
	prefix string
	next   int
}

// left are the trees that are to be removed.
func (r *remover) left() ([]string, error) {
	fd, err := unix.Openat(r.trash, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("list trash: %w", err)
	}
	d := os.NewFile(uintptr(fd), "trash")
	defer d.Close()
	all, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list trash: %w", err)
	}
	var out []string
	for _, n := range all {
		if strings.HasPrefix(n, r.prefix) {
			out = append(out, n)
		}
	}
	return out, nil
}

// fresh returns a name with the prefix that nothing has.
func (r *remover) fresh() (string, error) {
	for ; ; r.next++ {
		name := r.prefix + strconv.Itoa(r.next)
		var st unix.Stat_t
		switch err := unix.Fstatat(r.trash, name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
		case nil:
		case unix.ENOENT:
			r.next++
			return name, nil
		default:
			return "", fmt.Errorf("look into trash: %w", err)
		}
	}
}

func (r *remover) remove(ctx context.Context, dir int, name string, depth int) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	err = unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // unlink(2) of a directory is EISDIR on Linux
		return removing(name, err)
	}
	fd, oerr := openat2(dir, p, unix.O_RDONLY|unix.O_DIRECTORY, resolveChild)
	if oerr == unix.ENOTDIR {
		return removing(name, err) // an immutable file
	}
	if oerr != nil {
		return &FileError{Path: name, Err: opening(oerr)}
	}
	defer unix.Close(fd)
	if depth == openWindow {
		up, err := r.fresh()
		if err == nil {
			err = unix.Renameat(dir, name, r.trash, up)
		}
		return removing(name, err)
	}
	for {
		names, err := firstNames(ctx, fd)
		if err != nil {
			return &FileError{Path: name, Err: err}
		}
		if len(names) == 0 {
			break
		}
		for _, n := range names {
			if err := r.remove(ctx, fd, n, depth+1); err != nil {
				return err
			}
		}
	}
	return removing(name, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
}

// readDirent is unix.ReadDirent, but in tests.
var readDirent = unix.ReadDirent

// firstNames are some of the names in an open directory; none says that there are none. A piece that holds no
// name is not the end of a directory, getdents64(2): a signal may end one behind the first entry, which is ".".
func firstNames(ctx context.Context, dir int) (names []string, err error) {
	if _, err := unix.Seek(dir, 0, unix.SEEK_SET); err != nil {
		return nil, fmt.Errorf("list directory: %w", err)
	}
	buf := make([]byte, direntBuffer)
	for len(names) == 0 {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%w: the next call goes on with the removal: %w", ErrBusy, err)
		}
		n, err := readDirent(dir, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list directory: %w", err)
		}
		if n == 0 {
			return nil, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			d, _, n := parse(rest)
			rest = rest[n:]
			if d.name != nil {
				names = append(names, d.text())
			}
		}
	}
	return names, nil
}

func removing(name string, err error) error {
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EBUSY:
		err = fmt.Errorf("%w: a mount point", ErrForeign)
	case unix.EPERM:
		err = fmt.Errorf("%w: it is immutable: %w", ErrForeign, err)
	case unix.ENOTEMPTY:
		err = fmt.Errorf("%w: somebody makes files in it", ErrChanged)
	}
	return &FileError{Path: name, Err: err}
}
