// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Repaired is what repair prints.
type Repaired struct {
	// Copied regular files, symlinks and FIFOs had a name outside. Each of their names inside is now a
	// file of its own; what is outside was not touched.
	Copied int64 `json:"copied"`
	// Removed are sockets with a name outside, and devices: their names inside are gone.
	Removed int64 `json:"removed"`
}

// Repair makes a workspace fit for Apply, which does not follow by itself: files with names outside are
// replaced by copies, devices are removed. For an operator, while no sandbox has the workspace. A mount
// point is refused: only its owner can say what it is for. ErrTooLarge, and nothing copied any more,
// when the copies do not fit into the workspace.
func (s *Store) Repair(ctx context.Context, id string) (Repaired, error) {
	p, unlock, err := s.lock(ctx, id)
	if err != nil {
		return Repaired{}, err
	}
	defer unlock()
	rec, err := readRecord(p)
	if err != nil {
		return Repaired{}, err
	}
	if rec.State == releasing {
		return Repaired{}, fmt.Errorf("%w: %s is being released", ErrBusy, id)
	}
	at, err := s.open()
	if err != nil {
		return Repaired{}, err
	}
	defer at.Close()
	q, err := s.holds(at, rec)
	if err != nil {
		return Repaired{}, err
	}
	t, err := s.tree(at, p, rec)
	if err != nil {
		return Repaired{}, err
	}
	defer t.close()
	return t.repair(ctx, int64(q.BytesLimit)-int64(q.Bytes))
}

// repair copies at most room bytes.
func (t *tree) repair(ctx context.Context, room int64) (Repaired, error) {
	found := &snapshot{tree: t, inodes: newTable(), devices: true}
	if err := t.walk(ctx, found); err != nil {
		return Repaired{}, err
	}
	m := &mend{tree: t, inodes: found.inodes}
	m.room.Store(room)
	err := t.walk(ctx, m)
	return Repaired{Copied: m.copied.Load(), Removed: m.removed.Load()}, err
}

// mend is the pass that changes names.
type mend struct {
	tree            *tree
	inodes          *table
	room            atomic.Int64 // bytes
	copied, removed atomic.Int64
}

func (m *mend) directory(int, int, *unix.Statx_t) error { return nil }
func (m *mend) left(uint64, uint64) error               { return nil }

func (m *mend) file(dir int, d dirent) error {
	i := m.inodes.find(d.ino)
	if i == nil || !isDevice(i.kind) && i.names >= i.nlink {
		return nil // fine, or made by this pass
	}
	var st unix.Statx_t
	if err := statxName(dir, d, &st); err != nil {
		return err
	}
	if st.Ino != i.ino || uint8(st.Mode&unix.S_IFMT>>12) != i.kind {
		return fmt.Errorf("%w: it is another file", ErrChanged)
	}
	if isDevice(i.kind) || i.kind == unix.DT_SOCK {
		if err := unix.Unlinkat(dir, d.text(), 0); err != nil {
			return fmt.Errorf("remove: %w", err)
		}
		m.removed.Add(1)
		return nil
	}
	temporary := ".hallmark-repair-" + rand.Text()
	err := m.copy(dir, d.text(), temporary, i)
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, d.text())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy: %w", err), gone(unix.Unlinkat(dir, temporary, 0)))
	}
	m.copied.Add(1)
	return nil
}

func gone(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}

func isDevice(kind uint8) bool { return kind == unix.DT_CHR || kind == unix.DT_BLK }

// copy makes temporary like name. It belongs to the tenant, whosever the other file is.
func (m *mend) copy(dir int, name, temporary string, i *inode) error {
	switch i.kind {
	case unix.DT_LNK:
		target := make([]byte, 4096) // longer than any, PATH_MAX less the NUL
		n, err := unix.Readlinkat(dir, name, target)
		if err == nil {
			err = unix.Symlinkat(string(target[:n]), dir, temporary)
		}
		if err == nil {
			err = unix.Fchownat(dir, temporary, Tenant, Tenant, unix.AT_SYMLINK_NOFOLLOW)
		}
		return err
	case unix.DT_FIFO:
		err := unix.Mknodat(dir, temporary, unix.S_IFIFO|0o600, 0)
		if err == nil {
			err = unix.Fchownat(dir, temporary, Tenant, Tenant, unix.AT_SYMLINK_NOFOLLOW)
		}
		return err
	}
	fd, err := makeHandle(m.tree.form, i.ino, i.generation).open(m.tree.mount, readFlags)
	if err != nil {
		return fmt.Errorf("open file handle: %w", err)
	}
	from := os.NewFile(uintptr(fd), name)
	defer from.Close()
	how := unix.OpenHow{Flags: unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Mode: 0o600, Resolve: resolveChild}
	if fd, err = unix.Openat2(dir, temporary, &how); err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	to := os.NewFile(uintptr(fd), temporary)
	defer to.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return fmt.Errorf("look at file: %w", err)
	}
	if m.room.Add(-st.Blocks*basicBlock) < 0 {
		return fmt.Errorf("%w: there is no room for a copy of %d bytes", ErrTooLarge, st.Blocks*basicBlock)
	}
	if err := contents(to, from, st.Size); err != nil {
		return err
	}
	if err := userAttributes(to, from); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return errors.Join(
		unix.Fchown(int(to.Fd()), Tenant, Tenant),
		unix.Fchmod(int(to.Fd()), st.Mode&0o777), // no set-uid bit of somebody else's program
		unix.UtimesNanoAt(dir, temporary, times, unix.AT_SYMLINK_NOFOLLOW),
		to.Sync())
}

// contents copies what is allocated, see lseek(2), SEEK_DATA.
func contents(to, from *os.File, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // a hole up to the end
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		_, err = from.Seek(data, io.SeekStart)
		if err == nil {
			_, err = to.Seek(data, io.SeekStart)
		}
		if err == nil {
			_, err = io.CopyN(to, from, min(hole, size)-data)
		}
		if err != nil {
			return fmt.Errorf("copy data: %w", err)
		}
		at = hole
	}
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("set size: %w", err)
	}
	return nil
}

// userAttributes copies the extended attributes that belong to the owner, see xattr(7).
func userAttributes(to, from *os.File) error {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(int(from.Fd()), names)
	if err == unix.EOPNOTSUPP {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes: %w", err)
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		size, err := unix.Fgetxattr(int(from.Fd()), name, value)
		if err == nil {
			err = unix.Fsetxattr(int(to.Fd()), name, value[:size], 0)
		}
		if err != nil {
			return fmt.Errorf("copy attribute: %w", err)
		}
	}
	return nil
}
