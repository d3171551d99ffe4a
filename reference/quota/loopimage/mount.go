// SPDX-License-Identifier: Apache-2.0

package loopimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountFlags: noatime besides the promised two, so that reading a workspace changes nothing in it.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME

// Mount checks and mounts the image of id, or finds it mounted. ErrBusy when a loop device
// names the image although it is not mounted here: a second device would corrupt it.
func (s *Store) Mount(ctx context.Context, id string) (Mounted, error) {
	p, lock, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Mounted{}, err
	}
	defer unlock()
	g, err := s.complete(p)
	if err != nil {
		return Mounted{}, err
	}
	if _, err := checkImage(p, g); err != nil {
		return Mounted{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if _, mounted, err := mountRoot(p.mount); err != nil {
		return Mounted{}, err
	} else if mounted {
		// From an earlier, perhaps interrupted, mount: finish it.
		return s.settle(p, g)
	}
	held, err := holders(p.image)
	if err != nil {
		return Mounted{}, err
	}
	if len(held) > 0 {
		return Mounted{}, fmt.Errorf("%w: %v still names it", ErrBusy, held)
	}
	code, out, err := s.run(ctx, lock, "", s.tools.Fsck, "-p", p.image)
	if err != nil {
		return Mounted{}, fmt.Errorf("check filesystem: %w", err)
	}
	if code > 1 { // e2fsck(8): 1 is "errors corrected"
		return Mounted{}, fmt.Errorf("%w: e2fsck exit code %d: %s", ErrCorrupt, code, out)
	}
	if err := sealMountPoint(p.mount); err != nil {
		return Mounted{}, err
	}
	dev, err := attach(p.image)
	if err != nil {
		return Mounted{}, err
	}
	err = unix.Mount(dev.Name(), p.mount, "ext4", mountFlags, "errors=remount-ro")
	dev.Close()
	if err != nil {
		return Mounted{}, fmt.Errorf("mount image: %w", err)
	}
	m, err := s.settle(p, g)
	if err != nil {
		return Mounted{}, errors.Join(err, unix.Unmount(p.mount, unix.UMOUNT_NOFOLLOW))
	}
	return m, nil
}

// Verify asks the kernel whether the image of id is mounted where it should be, as it should be.
func (s *Store) Verify(ctx context.Context, id string) (Mounted, error) {
	p, _, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Mounted{}, err
	}
	defer unlock()
	g, err := s.complete(p)
	if err != nil {
		return Mounted{}, err
	}
	m, st, err := observe(p, g)
	if err != nil {
		return Mounted{}, err
	}
	if want := pool(st, g); want < 0 {
		return Mounted{}, fmt.Errorf("%w: %d blocks are too few", ErrMissingMount, st.Blocks)
	} else if got, err := readPool(m.Minor); err != nil || got != want {
		return Mounted{}, fmt.Errorf("%w: pool of %d blocks instead of %d: %w", ErrMissingMount, got, want, orNone(err))
	}
	return m, nil
}

// Usage returns what the tenant's files take. ErrMissingMount when it is not mounted.
func (s *Store) Usage(ctx context.Context, id string) (Used, error) {
	p, _, unlock, err := s.lockWorkspace(ctx, id)
	if err != nil {
		return Used{}, err
	}
	defer unlock()
	g, err := s.complete(p)
	if err != nil {
		return Used{}, err
	}
	_, st, err := observe(p, g)
	if err != nil {
		return Used{}, err
	}
	return Used{
		Bytes: (int64(st.Blocks-st.Bfree) - 1) * blockSize, BytesLimit: g.bound * blockSize,
		Inodes: g.inodes() - int64(st.Ffree), InodesLimit: g.inodes(),
	}, nil
}

// complete returns the geometry of a workspace whose image was complete once.
func (s *Store) complete(p paths) (geometry, error) {
	rec, err := readRecord(p)
	if err != nil {
		return geometry{}, err
	}
	if !rec.Ready {
		return geometry{}, fmt.Errorf("%w: the image of %s was never complete", ErrNotFound, p.id)
	}
	return planGeometry(rec.Bytes, rec.Inodes)
}

// settle brings a mounted workspace into its promised shape; each step can be repeated.
func (s *Store) settle(p paths, g geometry) (Mounted, error) {
	m, st, err := observe(p, g)
	if err != nil {
		return m, err
	}
	want := pool(st, g)
	if want < 0 {
		return m, fmt.Errorf("%w: %d blocks are too few for %d", ErrCorrupt, st.Blocks, g.bound)
	}
	if err := os.WriteFile(poolFile(m.Minor), []byte(strconv.FormatInt(want, 10)), 0); err != nil {
		return m, fmt.Errorf("%w: set reserved_clusters: %w", ErrTool, err)
	}
	root, err := os.OpenFile(p.mount, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return m, fmt.Errorf("open workspace: %w", err)
	}
	defer root.Close()
	// mkfs and e2fsck make lost+found. Only root's empty one goes: a tenant may use the name.
	var lf unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), "lost+found", &lf, unix.AT_SYMLINK_NOFOLLOW); err == nil && lf.Uid == 0 && lf.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := unix.Unlinkat(int(root.Fd()), "lost+found", unix.AT_REMOVEDIR); err != nil && err != unix.ENOTEMPTY {
			return m, fmt.Errorf("remove lost+found: %w", err)
		}
	}
	var rst unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &rst); err != nil {
		return m, fmt.Errorf("check workspace root: %w", err)
	}
	if rst.Uid != Tenant || rst.Gid != Tenant {
		if err := unix.Fchown(int(root.Fd()), Tenant, Tenant); err != nil {
			return m, fmt.Errorf("own workspace root: %w", err)
		}
	}
	// A tenant may lock itself out of its root; a mount lets it in again, as it repairs the owner.
	if mode := rst.Mode & 0o7777; mode&0o700 != 0o700 {
		if err := unix.Fchmod(int(root.Fd()), mode|0o700); err != nil {
			return m, fmt.Errorf("open workspace root to its owner: %w", err)
		}
	}
	return m, nil
}

// pool is what ext4 must keep back so that exactly the bound is available.
func pool(st unix.Statfs_t, g geometry) int64 { return int64(st.Blocks) - 1 - g.bound }

func poolFile(minor uint32) string {
	return "/sys/fs/ext4/loop" + strconv.FormatUint(uint64(minor), 10) + "/reserved_clusters"
}

func readPool(minor uint32) (int64, error) {
	b, err := os.ReadFile(poolFile(minor))
	if err != nil {
		return 0, err
	}
	n := len(b)
	for n > 0 && b[n-1] == '\n' {
		n--
	}
	return strconv.ParseInt(string(b[:n]), 10, 64)
}

func orNone(err error) error {
	if err == nil {
		return errors.New("set by somebody else")
	}
	return err
}

// observe returns what is mounted at the workspace's path, or ErrMissingMount when that is
// not this image as ext4 with nosuid and nodev.
func observe(p paths, g geometry) (Mounted, unix.Statfs_t, error) {
	missing := func(format string, a ...any) (Mounted, unix.Statfs_t, error) {
		return Mounted{}, unix.Statfs_t{}, fmt.Errorf("%w: %s", ErrMissingMount, fmt.Sprintf(format, a...))
	}
	sx, mounted, err := mountRoot(p.mount)
	if err != nil {
		return Mounted{}, unix.Statfs_t{}, err
	}
	if !mounted {
		return missing("nothing is mounted")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.mount, &st); err != nil {
		return Mounted{}, st, fmt.Errorf("ask workspace filesystem: %w", err)
	}
	const need = unix.ST_NOSUID | unix.ST_NODEV
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", sx.Dev_major, sx.Dev_minor)
	switch {
	case st.Type != unix.EXT4_SUPER_MAGIC:
		return missing("filesystem type %#x", st.Type)
	case st.Flags&need != need || st.Flags&unix.ST_RDONLY != 0:
		return missing("mount flags %#x", st.Flags)
	case backing(sys) != p.image:
		return missing("device %d:%d is not the image", sx.Dev_major, sx.Dev_minor)
	case st.Bsize != blockSize || int64(st.Files) != g.totalInodes:
		return missing("%d inodes and blocks of %d bytes", st.Files, st.Bsize)
	}
	return Mounted{
		Path: p.mount, Major: sx.Dev_major, Minor: sx.Dev_minor,
		Blocks: st.Blocks, BlockSize: uint64(st.Bsize), Files: st.Files,
		Bytes: g.bound * blockSize, Inodes: g.inodes(),
	}, st, nil
}

// mountRoot reports whether path is the root of a mount (statx(2), STATX_ATTR_MOUNT_ROOT,
// Linux 5.8). A path that does not exist is not one.
func mountRoot(path string) (unix.Statx_t, bool, error) {
	var sx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &sx)
	if errors.Is(err, fs.ErrNotExist) {
		return sx, false, nil
	}
	if err != nil {
		return sx, false, fmt.Errorf("check mount point: %w", err)
	}
	if sx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return sx, false, fmt.Errorf("%w: the kernel does not report mount roots; Linux 5.8 is needed", ErrTool)
	}
	return sx, sx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

const fsImmutable = 0x10 // FS_IMMUTABLE_FL, linux/fs.h

// sealMountPoint makes path a root-owned, empty, immutable directory without any mode
// bit: without a mount on it, nobody can write there, root included.
//
// Preconditions: nothing is mounted at path.
func sealMountPoint(path string) error {
	if err := os.Mkdir(path, 0); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make mount point: %w", err)
	}
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open mount point: %w", err)
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return fmt.Errorf("check mount point: %w", err)
	}
	names, err := d.Readdirnames(1)
	if len(names) > 0 || st.Uid != 0 || st.Mode&0o7777 != 0 {
		return fmt.Errorf("%w: the mount point holds something or is not root's with mode 0000: %w", ErrCorrupt, orNone(err))
	}
	return setImmutable(d, true)
}

func setImmutable(d *os.File, on bool) error {
	flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		want := flags | fsImmutable
		if !on {
			want = flags &^ fsImmutable
		}
		if want == flags {
			return nil
		}
		err = unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, want)
	}
	if err != nil {
		return fmt.Errorf("%w: immutable flag of the mount point: %w; keep workspaces on ext4, XFS or btrfs", ErrTool, err)
	}
	return nil
}
