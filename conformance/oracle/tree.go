// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree maps each path below a root, "." for the root itself, to a digest over its kind, mode,
// owner, link count, size, modification time, symlink target, extended attributes and content.
// Access times are left out: reading changes them.
type Tree map[string]string

// HashTree walks root on the host. It follows no symlink and opens regular files only. A file
// that vanishes during the walk is left out.
func HashTree(root string) (Tree, error) {
	t := Tree{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		digest, err := hashEntry(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hash %s: %w", rel, err)
		}
		t[rel] = digest
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("hash tree: %w", err)
	}
	return t, nil
}

func hashEntry(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	h := sha256.New()
	size := st.Size
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0 // the size of a directory is the filesystem's business
	}
	fmt.Fprintf(h, "%o %d %d %d %d %d.%d\n", st.Mode, st.Uid, st.Gid, st.Nlink, size, st.Mtim.Sec, st.Mtim.Nsec)
	names := make([]byte, 64<<10)
	if n, err := unix.Llistxattr(path, names); err == nil {
		list := strings.Split(strings.TrimRight(string(names[:n]), "\x00"), "\x00")
		sort.Strings(list)
		for _, name := range list {
			value := make([]byte, 64<<10)
			if n, err := unix.Lgetxattr(path, name, value); err == nil && name != "" {
				fmt.Fprintf(h, "%q=%q\n", name, value[:n])
			}
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		link, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "-> %q\n", link)
	case unix.S_IFREG:
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		if _, err := io.Copy(h, f); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Diff lists what differs between two trees, sorted: "+ path", "- path", "! path".
func (t Tree) Diff(after Tree) []string {
	var d []string
	for path, digest := range t {
		switch now, ok := after[path]; {
		case !ok:
			d = append(d, "- "+path)
		case now != digest:
			d = append(d, "! "+path)
		}
	}
	for path := range after {
		if _, ok := t[path]; !ok {
			d = append(d, "+ "+path)
		}
	}
	sort.Strings(d)
	return d
}
