// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Counted is what a walk has found in a workspace, its root included.
type Counted struct {
	Inodes      int64 `json:"inodes"`
	Directories int64 `json:"directories"`
	// Linked have several names, all of them inside.
	Linked int64 `json:"linked"`
	// Special are symlinks, FIFOs and sockets: inodes that are never opened.
	Special int64 `json:"special"`
	// Unset of them keep the id that they have, since neither kernel nor filesystem can change or
	// read it: Linux before 6.17, and ext4.
	Unset int64 `json:"unset"`
	// Set is how many inodes had another id, or lacked the inherit flag.
	Set int64 `json:"set"`
}

// snapshot records every inode and changes nothing.
type snapshot struct {
	tree   *tree
	mu     sync.Mutex
	inodes *table
	count  Counted
	// devices are taken in too, for repair, and else refused.
	devices bool
}

func (s *snapshot) directory(path, _ int, st *unix.Statx_t) error {
	h, _, err := handleAt(path, &empty[0], unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("make file handle: %w", err)
	}
	_, generation, err := h.read()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, isNew, err := s.inodes.insert(st.Ino)
	if err != nil {
		return err
	}
	if !isNew {
		return fmt.Errorf("%w: it was seen before", ErrChanged)
	}
	i.kind, i.nlink, i.generation = unix.DT_DIR, st.Nlink, generation
	s.count.Inodes++
	s.count.Directories++
	return nil
}

func (s *snapshot) file(dir int, d dirent) error {
	// The handle comes before the look: the number may be used again in between, for a device say, but
	// then the handle opens nothing.
	h, mount, err := handleAt(dir, &d.name[0], 0)
	if err != nil {
		var st unix.Statx_t // some filesystems have no handles: it may be a mount of one
		if serr := statxName(dir, d, &st); serr != nil {
			return serr
		}
		return opening(err)
	}
	if mount != s.tree.mountID {
		return fmt.Errorf("%w: a mount point", ErrForeign)
	}
	ino, generation, err := h.read()
	if err != nil {
		return err
	}
	var st unix.Statx_t
	if err := statxName(dir, d, &st); err != nil {
		return err
	}
	kind, err := ordinary(&st)
	if s.devices && isDevice(kind) {
		err = nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, isNew, err := s.inodes.insert(st.Ino)
	switch {
	case err != nil:
		return err
	case st.Ino != d.ino, ino != d.ino, kind != *d.kind:
		return fmt.Errorf("%w: it is another file", ErrChanged)
	case isNew:
		i.kind, i.nlink, i.generation = kind, st.Nlink, generation
		s.count.Inodes++
		if !opens(kind) {
			s.count.Special++
		}
	case i.kind != kind, i.generation != generation, i.nlink != st.Nlink:
		return fmt.Errorf("%w: it was another file, or had %d names, now %d", ErrChanged, i.nlink, st.Nlink)
	}
	i.names++
	if i.names == 2 {
		s.count.Linked++
	}
	return nil
}

func (s *snapshot) left(ino, digest uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inodes.find(ino).digest = digest
	return nil
}

// statxName looks at a name in a directory of the tree.
func statxName(dir int, d dirent, st *unix.Statx_t) error {
	if err := statxAt(dir, &d.name[0], unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, st); err != nil {
		return opening(err)
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return fmt.Errorf("%w: a mount point", ErrForeign)
	}
	return nil
}

// ordinary refuses what no workspace may hold, and returns the kind as d_type.
func ordinary(st *unix.Statx_t) (uint8, error) {
	kind := uint8(st.Mode & unix.S_IFMT >> 12) // IFTODT of dirent.h
	switch kind {
	case unix.DT_REG, unix.DT_DIR, unix.DT_LNK, unix.DT_FIFO, unix.DT_SOCK:
		return kind, nil
	case unix.DT_CHR:
		return kind, fmt.Errorf("%w: a character device", ErrForeign)
	case unix.DT_BLK:
		return kind, fmt.Errorf("%w: a block device", ErrForeign)
	}
	return kind, fmt.Errorf("%w: mode %#o", ErrForeign, st.Mode)
}

// outside returns the first inode with a name outside of the tree, and how many there are.
// An inode with more names than links was renamed or linked while the snapshot was made.
func (s *snapshot) outside() (first *inode, n int, err error) {
	s.inodes.each(func(i *inode) {
		switch {
		case i.kind == unix.DT_DIR:
		case i.names > i.nlink:
			err = fmt.Errorf("%w: a file of %d names was seen under %d", ErrChanged, i.nlink, i.names)
		case i.names < i.nlink:
			if n++; first == nil {
				first = i
			}
		}
	})
	return first, n, err
}

// compare is what the passes after the snapshot have in common: everything is as it was then.
type compare struct {
	tree        *tree
	inodes      *table
	directories int64 // still to be seen
	projid      uint32
	unset       atomic.Int64
}

// same finds what the snapshot has of an inode.
func (c *compare) same(st *unix.Statx_t) (*inode, error) {
	i := c.inodes.find(st.Ino)
	switch {
	case i == nil:
		return nil, fmt.Errorf("%w: it was not there before", ErrChanged)
	case uint8(st.Mode&unix.S_IFMT>>12) != i.kind:
		return nil, fmt.Errorf("%w: it was of another kind", ErrChanged)
	case st.Nlink != i.nlink:
		return nil, fmt.Errorf("%w: it has %d names instead of %d", ErrChanged, st.Nlink, i.nlink)
	}
	return i, nil
}

func (c *compare) left(ino, digest uint64) error {
	i := c.inodes.find(ino)
	if i == nil || i.digest != digest || i.flags&visited != 0 {
		return fmt.Errorf("%w: the directory has other entries", ErrChanged)
	}
	i.flags |= visited
	c.directories--
	return nil
}

// pass walks, and says whether every directory was seen. With their digests that is every name of
// every inode.
func (c *compare) pass(ctx context.Context, v visitor, taken *snapshot) error {
	c.directories = taken.count.Directories
	c.inodes.each(func(i *inode) { i.flags &^= visited })
	if err := c.tree.walk(ctx, v); err != nil {
		return err
	}
	if c.directories != 0 {
		return fmt.Errorf("%w: %d directories are missing", ErrChanged, c.directories)
	}
	return nil
}

// readFlags open a regular file without waiting for a lease to be given up, see fcntl(2).
const readFlags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_NOCTTY

// regular opens a regular file of the snapshot by its handle, so that nothing else can be opened.
func (c *compare) regular(i *inode) (int, error) {
	fd, err := makeHandle(c.tree.form, i.ino, i.generation).open(c.tree.mount, readFlags)
	switch err {
	case nil:
		return fd, nil
	case unix.ESTALE, unix.ENOENT:
		return -1, fmt.Errorf("%w: it was another file", ErrChanged)
	case unix.EWOULDBLOCK:
		return -1, fmt.Errorf("%w: another process has a lease on it", ErrBusy)
	}
	return -1, fmt.Errorf("open file handle: %w", err)
}

// apply gives every inode the project id, and every directory the inherit flag before its entries
// are listed: from then on the kernel gives the id to what is made in it, and refuses what comes in
// with another one (EXDEV of rename(2) and link(2)).
type apply struct {
	compare
	mu     sync.Mutex // of inodes with several names
	set    atomic.Int64
	before func(ino uint64) // called before an inode is changed; for tests
}

func (p *apply) directory(_, fd int, st *unix.Statx_t) error {
	i, err := p.same(st)
	if err != nil {
		return err
	}
	return p.changeOpen(i, fd)
}

func (p *apply) file(dir int, d dirent) error {
	i := p.inodes.find(d.ino)
	if i == nil || i.kind != *d.kind {
		return fmt.Errorf("%w: it was not there before", ErrChanged)
	}
	if i.nlink > 1 {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	var st unix.Statx_t
	if opens(i.kind) {
		fd, err := p.regular(i)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := statxOf(fd, &st); err != nil {
			return fmt.Errorf("look at file: %w", err)
		}
		if _, err := p.same(&st); err != nil {
			return err
		}
		return p.changeOpen(i, fd)
	}
	path, err := openat2(dir, &d.name[0], unix.O_PATH, resolveChild)
	if err != nil {
		return opening(err)
	}
	defer unix.Close(path)
	if err := statxOf(path, &st); err != nil {
		return fmt.Errorf("look at file: %w", err)
	}
	if i, err = p.same(&st); err != nil {
		return err
	}
	return p.changeSpecial(i, path)
}

func (p *apply) changeOpen(i *inode, fd int) error {
	x, err := getOpen(fd)
	if err != nil {
		return err
	}
	now := attr{x.projid, x.xflags}
	inherit := i.kind == unix.DT_DIR || now.inherits()
	if now.projid == p.projid && inherit == now.inherits() {
		return nil
	}
	p.remember(i, now)
	if err := setOpen(fd, x, p.projid, inherit); err != nil {
		return err
	}
	p.set.Add(1)
	return nil
}

func (p *apply) changeSpecial(i *inode, path int) error {
	f, err := p.tree.getSpecial(path)
	if err == nil {
		if f.projid == p.projid {
			return nil
		}
		p.remember(i, attr{f.projid, uint32(f.xflags)})
		err = p.tree.setSpecial(path, f, p.projid)
	}
	switch {
	case err == nil:
		p.set.Add(1)
	case errors.Is(err, errNoAttr):
		p.unset.Add(1)
	default:
		return err
	}
	return nil
}

// remember notes what is to be put back, before it is changed.
func (p *apply) remember(i *inode, now attr) {
	if i.flags&changed == 0 {
		i.projid = now.projid
		if now.inherits() {
			i.flags |= inherits
		}
		i.flags |= changed
	}
	p.before(i.ino)
}

// verify reads every inode's project id and every directory's inherit flag. Two calls by one name may
// meet two inodes; but no inode with another id comes to a name in a directory that passes its id on.
type verify struct{ compare }

func (v *verify) directory(_, fd int, st *unix.Statx_t) error {
	i, err := v.same(st)
	if err != nil {
		return err
	}
	x, err := getOpen(fd)
	if err != nil {
		return err
	}
	return v.check(i, attr{x.projid, x.xflags})
}

func (v *verify) file(dir int, d dirent) error {
	var st unix.Statx_t
	if err := statxName(dir, d, &st); err != nil {
		return err
	}
	i, err := v.same(&st)
	if err != nil {
		return err
	}
	now, err := v.read(dir, d, i)
	if errors.Is(err, errNoAttr) {
		v.unset.Add(1)
		return nil
	}
	if err != nil {
		return err
	}
	return v.check(i, now)
}

func (v *verify) read(dir int, d dirent, i *inode) (attr, error) {
	if v.tree.byName {
		var f fileAttr
		err := none(attrAt(dir, &d.name[0], &f))
		if err == nil || !errors.Is(err, errNoAttr) || !opens(i.kind) {
			return attr{f.projid, uint32(f.xflags)}, err
		}
	}
	if !opens(i.kind) {
		return attr{}, errNoAttr
	}
	fd, err := v.regular(i)
	if err != nil {
		return attr{}, err
	}
	defer unix.Close(fd)
	x, err := getOpen(fd)
	return attr{x.projid, x.xflags}, err
}

func (v *verify) check(i *inode, now attr) error {
	switch {
	case now.projid != v.projid:
		return fmt.Errorf("%w: project id %d instead of %d", ErrChanged, now.projid, v.projid)
	case i.kind == unix.DT_DIR && !now.inherits():
		return fmt.Errorf("%w: the directory does not pass its project id on", ErrChanged)
	}
	return nil
}
