// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage is what the kernel says of the filesystem below a path, in bytes and inodes.
type Usage struct {
	Bytes, BytesTotal, BytesFree    int64
	Inodes, InodesTotal, InodesFree int64
	Device                          uint64 // st_dev
	Magic                           int64  // statfs f_type
}

// StatUsage asks statfs(2) and stat(2) for path on the host.
func StatUsage(path string) (Usage, error) {
	var fs unix.Statfs_t
	if err := ignoreEINTR(func() error { return unix.Statfs(path, &fs) }); err != nil {
		return Usage{}, fmt.Errorf("statfs: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Usage{}, fmt.Errorf("stat: %w", err)
	}
	size := fs.Frsize
	if size == 0 {
		size = fs.Bsize
	}
	return Usage{
		Bytes: int64(fs.Blocks-fs.Bfree) * size, BytesTotal: int64(fs.Blocks) * size, BytesFree: int64(fs.Bfree) * size,
		Inodes: int64(fs.Files - fs.Ffree), InodesTotal: int64(fs.Files), InodesFree: int64(fs.Ffree),
		Device: st.Dev, Magic: int64(fs.Type),
	}, nil
}

// TreeUsage is what a walk finds below a root, on one device: allocated bytes (st_blocks) and
// distinct inodes, the root included.
type TreeUsage struct{ Bytes, Inodes int64 }

// WalkUsage sums st_blocks over every distinct inode below root. Entries on another device are
// not entered. What vanishes during the walk is left out.
func WalkUsage(root string) (TreeUsage, error) {
	var u TreeUsage
	var device uint64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			if err == unix.ENOENT {
				return nil
			}
			return err
		}
		if path == root {
			device = st.Dev
		}
		if st.Dev != device {
			return filepath.SkipDir
		}
		if !seen[st.Ino] {
			seen[st.Ino] = true
			u.Bytes += st.Blocks * 512
			u.Inodes++
		}
		return nil
	})
	if err != nil {
		return TreeUsage{}, fmt.Errorf("walk usage: %w", err)
	}
	return u, nil
}

// Backing is the host file behind the loop device that holds path, and the bytes allocated to it.
// found is false when path is not on a loop device, or its file is not to be seen from here.
func Backing(path string) (file string, bytes int64, found bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", 0, false, fmt.Errorf("backing file: %w", err)
	}
	name, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, fmt.Errorf("backing file: %w", err)
	}
	file = strings.TrimSuffix(string(name), "\n")
	if err := unix.Stat(file, &st); err == unix.ENOENT {
		return file, 0, false, nil
	} else if err != nil {
		return file, 0, false, fmt.Errorf("backing file: %w", err)
	}
	return file, st.Blocks * 512, true, nil
}

func ignoreEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
