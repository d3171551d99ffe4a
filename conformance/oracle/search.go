// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Search looks for a token in everything below root on the host: names, contents, symlink targets and
// extended attributes. It returns where it is, relative to root, with the kind of place, and how many
// entries were searched. It follows no symlink and opens regular files only; what vanishes meanwhile is
// left out.
func Search(root string, token []byte) (places []string, searched int64, err error) {
	if len(token) < 8 {
		return nil, 0, errors.New("search: a token of less than 8 bytes is everywhere")
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		searched++
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		in, err := searchEntry(path, d, token)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", rel, err)
		}
		for _, kind := range in {
			places = append(places, kind+" of "+rel)
		}
		return nil
	})
	if err != nil {
		return nil, searched, fmt.Errorf("search tree: %w", err)
	}
	return places, searched, nil
}

func searchEntry(path string, d fs.DirEntry, token []byte) (in []string, err error) {
	if bytes.Contains([]byte(d.Name()), token) {
		in = append(in, "name")
	}
	names := make([]byte, 64<<10)
	if n, err := unix.Llistxattr(path, names); err == nil {
		for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
			value := make([]byte, 64<<10)
			if n, err := unix.Lgetxattr(path, name, value); err == nil && name != "" && (bytes.Contains(value[:n], token) || strings.Contains(name, string(token))) {
				in = append(in, "attribute")
			}
		}
	}
	switch d.Type() {
	case fs.ModeSymlink:
		link, err := os.Readlink(path)
		if err != nil {
			return in, err
		}
		if strings.Contains(link, string(token)) {
			in = append(in, "target")
		}
	case 0:
		found, err := SearchFile(path, token)
		if err != nil {
			return in, err
		}
		if found {
			in = append(in, "content")
		}
	}
	return in, nil
}

// SearchFile looks for a token in one regular file, of any size, in constant memory.
func SearchFile(path string, token []byte) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	const piece = 1 << 20
	b, kept := make([]byte, piece+len(token)), 0
	for {
		n, err := io.ReadFull(f, b[kept:])
		if bytes.Contains(b[:kept+n], token) {
			return true, nil
		}
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return false, nil
		case err != nil:
			return false, err
		}
		// The end of this piece may be the beginning of the token.
		kept = copy(b, b[len(b)-len(token)+1:])
	}
}

// BackingFile is the image behind the loop device that is mounted at point; "" when something else is
// mounted there. Its bytes are those of the file system, free blocks included, once that is synced.
func BackingFile(point string) (string, error) {
	mounts, err := Mounts(os.Getpid())
	if err != nil {
		return "", err
	}
	for _, m := range mounts {
		name, loop := strings.CutPrefix(m.Source, "/dev/loop")
		if m.Point != point || !loop {
			continue
		}
		d, err := os.Open(point)
		if err != nil {
			return "", err
		}
		err = unix.Syncfs(int(d.Fd()))
		d.Close()
		if err != nil {
			return "", fmt.Errorf("sync %s: %w", point, err)
		}
		b, err := os.ReadFile("/sys/block/loop" + name + "/loop/backing_file")
		return strings.TrimRight(string(b), "\n"), err
	}
	return "", nil
}
