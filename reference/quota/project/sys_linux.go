// SPDX-License-Identifier: Apache-2.0

package project

import (
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of this file take names as pointers to bytes that end in NUL, as getdents64(2) has
// left them in its buffer: a walk of a million names copies none of them.

// Requests of ioctl_xfs_fsgetxattr(2): linux/fs.h, _IOR('X', 31, struct fsxattr), _IOW('X', 32,
// struct fsxattr) and _IOR('v', 1, long). The directions have these bits on every architecture that
// Go has, but for mips, ppc64 and sparc64.
const (
	fsIocFSGetXattr = 2<<30 | 28<<16 | 'X'<<8 | 31
	fsIocFSSetXattr = 1<<30 | 28<<16 | 'X'<<8 | 32
	fsIocGetVersion = 2<<30 | uint(unsafe.Sizeof(uintptr(0)))<<16 | 'v'<<8 | 1

	xflagImmutable   = 0x8   // FS_XFLAG_IMMUTABLE
	xflagAppend      = 0x10  // FS_XFLAG_APPEND
	xflagProjInherit = 0x200 // FS_XFLAG_PROJINHERIT
)

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	xflags, extsize, nextents, projid, cowextsize uint32
	_                                             [8]byte
}

// fileAttr is struct file_attr of linux/fs.h, FILE_ATTR_SIZE_VER0, Linux 6.17.
type fileAttr struct {
	xflags                                uint64
	extsize, nextents, projid, cowextsize uint32
}

// resolveChild is how a name in a directory is opened: it is that name, on this mount, and no link.
const resolveChild = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// resolveParent is how ".." is opened, which RESOLVE_BENEATH refuses; what it leads to is compared
// with the inode that it must be.
const resolveParent = unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// againLimit bounds the tries of openat2(2) that a rename elsewhere on the host made end in EAGAIN.
const againLimit = 128

func openat2(dir int, name *byte, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: resolve}
	for try := 0; ; try++ {
		fd, _, e := unix.Syscall6(unix.SYS_OPENAT2, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0, 0)
		switch {
		case e == 0:
			return int(fd), nil
		case e == unix.EINTR, e == unix.EAGAIN && try < againLimit:
		default:
			return -1, e
		}
	}
}

func statxAt(dir int, name *byte, flags int, st *unix.Statx_t) error {
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_INO
	for {
		_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(flags), mask, uintptr(unsafe.Pointer(st)), 0)
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

var empty = [1]byte{}

// statxOf looks at an open descriptor, O_PATH ones included. fstat(2) is half the price of statx(2), and
// tells what is asked here.
func statxOf(fd int, st *unix.Statx_t) error {
	var s unix.Stat_t
	for {
		err := unix.Fstat(fd, &s)
		if err == unix.EINTR {
			continue
		}
		*st = unix.Statx_t{
			Ino: s.Ino, Mode: uint16(s.Mode), Nlink: uint32(s.Nlink), Dev_major: unix.Major(uint64(s.Dev)), Dev_minor: unix.Minor(uint64(s.Dev)),
		}
		return err
	}
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

// number writes n and a NUL into b, and returns it as a name.
func number(b *[24]byte, n int) *byte {
	s := strconv.AppendInt(b[:0], int64(n), 10)
	b[len(s)] = 0
	return &b[0]
}

// procfs is an O_PATH descriptor of /proc/self/fd. A name in it is a magic link to the very inode
// that a descriptor stands for, whatever has become of its path.
type procfs int

// reopen opens the inode of an O_PATH descriptor.
func (p procfs) reopen(fd, flags int) (int, error) {
	var b [24]byte
	name := number(&b, fd)
	for {
		n, _, e := unix.Syscall6(unix.SYS_OPENAT, uintptr(p), uintptr(unsafe.Pointer(name)), uintptr(flags|unix.O_CLOEXEC|unix.O_NOCTTY), 0, 0, 0)
		if e == 0 {
			return int(n), nil
		}
		if e != unix.EINTR {
			return -1, e
		}
	}
}

// attr calls file_getattr(2) or file_setattr(2) on the inode of an O_PATH descriptor. The calls
// refuse such a descriptor itself with EBADF, so that it goes by its magic link.
func (p procfs) attr(call uintptr, fd int, a *fileAttr) error {
	var b [24]byte
	name := number(&b, fd)
	for {
		_, _, e := unix.Syscall6(call, uintptr(p), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a), 0, 0)
		runtime.KeepAlive(a)
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

// attrAt calls file_getattr(2) for a name in a directory, a link itself included.
func attrAt(dir int, name *byte, a *fileAttr) error {
	for {
		_, _, e := unix.Syscall6(unix.SYS_FILE_GETATTR, uintptr(dir), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a), unix.AT_SYMLINK_NOFOLLOW, 0)
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}
