// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// resolution is the only way in which a path is walked.
const resolution = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// againTries bounds repetition of EAGAIN, which openat2(2) gives when a rename or mount ran meanwhile.
const againTries = 128

// handle is an owned descriptor.
type handle int

func (h handle) close() { _ = unix.Close(int(h)) }

// openBeneath opens path below dir. O_CLOEXEC and O_NOFOLLOW are added; flags with O_CREAT or
// O_TRUNC are never given by this package, since such an open can act before the kernel
// notices that the path has moved out.
func openBeneath(dir handle, path string, flags uint64) (handle, error) {
	if len(path) >= unix.PathMax { // the kernel counts the NUL: MaxPath bytes take two steps
		i := strings.LastIndexByte(path[:len(path)/2], '/')
		if i < 0 {
			return -1, unix.ENAMETOOLONG
		}
		half, err := openBeneath(dir, path[:i], unix.O_PATH)
		if err != nil {
			return -1, err
		}
		defer half.close()
		if st, err := half.stat(); err != nil || kindOf(st.Mode) == Symlink {
			return -1, errors.Join(unix.ELOOP, err)
		}
		return openBeneath(half, path[i+1:], flags)
	}
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: resolution}
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		how.Mode = 0o600
	}
	var err error
	for range againTries {
		var fd int
		fd, err = unix.Openat2(int(dir), path, &how)
		if err == nil {
			return handle(fd), nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return -1, err
}

// openParent opens the directory that holds path's leaf, for use as a place only.
func (t *Tree) openParent(path []byte) (handle, string, error) {
	parent, leaf := split(path)
	if len(leaf) > unix.NAME_MAX {
		return -1, "", classed("look at name", unix.ENAMETOOLONG)
	}
	// Without O_DIRECTORY, which would make a symlink and a file the same error.
	h, err := openBeneath(t.root, parent, unix.O_PATH)
	if err != nil {
		return -1, "", classed("open parent", err)
	}
	st, err := h.stat()
	if err == nil {
		switch kindOf(st.Mode) {
		case Dir:
		case Symlink:
			err = unix.ELOOP
		default:
			err = unix.ENOTDIR
		}
	}
	if err != nil {
		h.close()
		return -1, "", classed("open parent", err)
	}
	return h, leaf, nil
}

// statPath returns what is at path without opening it.
func (t *Tree) statPath(path string) (unix.Stat_t, error) {
	h, err := openBeneath(t.root, path, unix.O_PATH)
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer h.close()
	return h.stat()
}

func (h handle) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	for {
		if err := unix.Fstat(int(h), &st); err != unix.EINTR {
			return st, err
		}
	}
}

// lstatAt looks at one name in an open directory. leaf has no slash.
func lstatAt(dir handle, leaf string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir), leaf, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	return st, err
}

// reopen opens the inode behind an O_PATH descriptor itself; no name is resolved again.
func (t *Tree) reopen(h handle, flags int) (handle, error) {
	for {
		fd, err := unix.Openat(int(t.procfd), strconv.Itoa(int(h)), flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return handle(fd), err
		}
	}
}

// openProcFD opens this process's descriptor directory and proves that it is procfs.
func openProcFD() (handle, error) {
	fd, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: /proc/self/fd: %w", ErrPrimitive, err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%w: /proc/self/fd is not procfs", ErrPrimitive)
	}
	return handle(fd), nil
}

// Probe tries what this package cannot do without: root's right to become the tenant,
// openat2 with every flag, and procfs. ErrPrimitive when one is missing.
func Probe() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: root is needed to become the tenant", ErrPrimitive)
	}
	p, err := openProcFD()
	if err != nil {
		return err
	}
	p.close()
	err = asTenant(func() error {
		root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open root: %w", err)
		}
		defer unix.Close(root)
		h, err := openBeneath(handle(root), ".", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("openat2: %w", err)
		}
		h.close()
		// A kernel or filter that ignored the flags would let this one out.
		h, err = openBeneath(handle(root), "..", unix.O_PATH|unix.O_DIRECTORY)
		if err == nil {
			h.close()
			return errors.New("openat2 does not confine")
		}
		if err != unix.EXDEV {
			return fmt.Errorf("openat2: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPrimitive, err)
	}
	return nil
}
