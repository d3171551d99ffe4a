// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// files works on the workspace's host folder through an [os.Root], which nothing that the tenant does
// leads out of: it resolves name by name, relative to descriptors. A link anywhere on a path is
// refused where it is seen; one that is swapped in at that moment leads elsewhere in the same
// workspace at most.
type files struct{ *sandbox }

func (s *sandbox) Files() target.Files { return files{s} }

// maxRead bounds the content of a file that is read, in bytes.
const maxRead = 64 << 20

// checkPath refuses what is not a plain relative path.
func checkPath(name string) error {
	if name == "" || strings.ContainsRune(name, 0) || path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../") {
		return refusal(CodePathUnsafe, target.KindPathUnsafe, fmt.Errorf("%.100q is not a plain relative path", name))
	}
	return nil
}

// at opens the folder that holds name's last component.
func (f files) at(name string) (dir *os.Root, leaf string, err error) {
	if err := checkPath(name); err != nil {
		return nil, "", err
	}
	if name == "." {
		return nil, "", refusal(CodeNotRegular, target.KindPathUnsafe, errors.New("that is the workspace itself"))
	}
	f.mu.Lock()
	disposed := f.disposed
	f.mu.Unlock()
	if disposed {
		return nil, "", refusal(CodeGone, target.KindGone, errors.New("the sandbox was disposed"))
	}
	if dir, err = os.OpenRoot(f.dir); err != nil {
		return nil, "", fmt.Errorf("open workspace: %w", err)
	}
	parts := strings.Split(name, "/")
	for _, p := range parts[:len(parts)-1] {
		next, err := descend(dir, p)
		dir.Close()
		if err != nil {
			return nil, "", pathError(err)
		}
		dir = next
	}
	return dir, parts[len(parts)-1], nil
}

func descend(dir *os.Root, name string) (*os.Root, error) {
	st, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, refusal(CodePathUnsafe, target.KindPathUnsafe, fmt.Errorf("%.100q on the path is no folder", name))
	}
	next, err := dir.OpenRoot(name)
	return next, escaped(err)
}

func (f files) Read(_ context.Context, name string) ([]byte, error) {
	dir, leaf, err := f.at(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := regular(dir.Lstat(leaf)); err != nil {
		return nil, pathError(err)
	}
	// Not blocking: a FIFO may have taken the file's place.
	file, err := dir.OpenFile(leaf, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, pathError(escaped(err))
	}
	defer file.Close()
	if err := regular(file.Stat()); err != nil {
		return nil, pathError(err)
	}
	body, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	if len(body) > maxRead {
		return nil, refusal(CodeUnsupported, target.KindUnsupported, fmt.Errorf("the file is longer than %d bytes", maxRead))
	}
	return body, nil
}

// Write makes a new file beside the old one and puts it in its place, whatever that is but a folder.
func (f files) Write(_ context.Context, name string, body []byte) (err error) {
	dir, leaf, err := f.at(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	tmp := ".hallmark-" + random()
	file, err := dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return pathError(escaped(err))
	}
	defer func() {
		if err != nil {
			dir.Remove(tmp) // a second error says nothing more
		}
	}()
	_, err = file.Write(body)
	err = errors.Join(err, file.Chmod(0o755), file.Chown(f.uid, f.gid), file.Close())
	if err != nil {
		return pathError(err)
	}
	return pathError(dir.Rename(tmp, leaf))
}

func (f files) Stat(_ context.Context, name string) (target.Entry, error) {
	dir, leaf, err := f.at(name)
	if err != nil {
		return target.Entry{}, err
	}
	defer dir.Close()
	st, err := dir.Lstat(leaf)
	if err != nil {
		return target.Entry{}, pathError(err)
	}
	kind := "file"
	switch m := st.Mode(); {
	case m.IsDir():
		kind = "dir"
	case m&fs.ModeSymlink != 0:
		kind = "symlink"
	case m&fs.ModeNamedPipe != 0:
		kind = "fifo"
	case m&fs.ModeSocket != 0:
		kind = "socket"
	case !m.IsRegular():
		kind = "device"
	}
	return target.Entry{Name: st.Name(), Kind: kind, Size: st.Size()}, nil
}

// Remove removes a file, a link itself, or an empty folder.
func (f files) Remove(_ context.Context, name string) error {
	dir, leaf, err := f.at(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return pathError(dir.Remove(leaf))
}

// regular refuses everything but a regular file.
func regular(st fs.FileInfo, err error) error {
	if err == nil && !st.Mode().IsRegular() {
		return refusal(CodeNotRegular, target.KindPathUnsafe, fmt.Errorf("%.100q is %s", st.Name(), st.Mode().Type()))
	}
	return err
}

// escaped marks what [os.Root] refuses without an errno: a link, swapped in, that leads out.
func escaped(err error) error {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
		return refusal(CodePathUnsafe, target.KindPathUnsafe, err)
	}
	return err
}
