// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Tree is one open workspace. Safe for concurrent use; Close waits for operations.
type Tree struct {
	root   handle
	procfd handle
	rec    Recorder

	mu     sync.RWMutex // held for reading by each operation
	closed bool
}

// Recorder makes the names of temporaries durable, so that a start-up after a crash can
// remove them by record. Both calls are made without holding a lock and may come
// concurrently; Record must be durable when it returns.
type Recorder interface {
	Record(ctx context.Context, path []byte) error
	Forget(ctx context.Context, path []byte) error
}

// Open opens the workspace mounted at mountPath, a trusted absolute path. Replacing a file
// needs a temporary name for an instant; without a recorder a crash in that instant leaves it.
func Open(mountPath string) (*Tree, error) { return OpenRecorded(mountPath, nil) }

// OpenRecorded is Open with a recorder of temporary names.
func OpenRecorded(mountPath string, rec Recorder) (*Tree, error) {
	procfd, err := openProcFD()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(mountPath, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		procfd.close()
		return nil, &Error{"open", []byte(mountPath), classed("open workspace", err)}
	}
	return &Tree{root: handle(fd), procfd: procfd, rec: rec}, nil
}

// Close gives the descriptors back. Until then the workspace cannot be unmounted.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.procfd.close()
	if err := unix.Close(int(t.root)); err != nil {
		return fmt.Errorf("close workspace: %w", err)
	}
	return nil
}

// begin checks context and state; end must be called when it returns nil.
func (t *Tree) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.RLock()
	if t.closed {
		t.mu.RUnlock()
		return ErrClosed
	}
	return nil
}

func (t *Tree) end() { t.mu.RUnlock() }

// run does one operation with the tenant's authority.
func (t *Tree) run(ctx context.Context, op string, path []byte, f func() error) error {
	if err := t.begin(ctx); err != nil {
		return &Error{op, path, err}
	}
	defer t.end()
	if err := asTenant(f); err != nil {
		return &Error{op, path, err}
	}
	return nil
}

// Kind is what an inode is.
type Kind string

// The kinds of the wire. Device is a character or block device.
const (
	File    Kind = "file"
	Dir     Kind = "dir"
	Symlink Kind = "symlink"
	FIFO    Kind = "fifo"
	Socket  Kind = "socket"
	Device  Kind = "device"
	Unknown Kind = "unknown" // an entry that could not be looked at
)

func kindOf(mode uint32) Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return FIFO
	case unix.S_IFSOCK:
		return Socket
	case unix.S_IFCHR, unix.S_IFBLK:
		return Device
	}
	return Unknown
}

// Entry describes one name, never what a symlink points to.
type Entry struct {
	Name    []byte // the last component; empty for the workspace itself
	Kind    Kind
	Size    int64 // bytes
	Mode    int64 // permission bits, with setuid, setgid and sticky
	MtimeMs int64 // Unix time
	Links   int64
}

func entry(name string, st unix.Stat_t) Entry {
	return Entry{
		Name: []byte(name), Kind: kindOf(st.Mode), Size: st.Size, Mode: int64(st.Mode & 0o7777),
		MtimeMs: st.Mtim.Sec*1000 + st.Mtim.Nsec/1e6, Links: int64(st.Nlink),
	}
}

// Stat describes path. The empty path is the workspace itself.
func (t *Tree) Stat(ctx context.Context, path []byte) (Entry, error) {
	var e Entry
	err := t.run(ctx, "stat", path, func() error {
		name, leaf := ".", ""
		if len(path) > 0 {
			if err := checkPath(path); err != nil {
				return err
			}
			name = string(path)
			_, leaf = split(path)
		}
		st, err := t.statPath(name)
		if err != nil {
			return classed("look up", err)
		}
		e = entry(leaf, st)
		return nil
	})
	return e, err
}

// Mkdir makes one directory with mode 0755; its parent must exist.
func (t *Tree) Mkdir(ctx context.Context, path []byte) error {
	return t.inParent(ctx, "mkdir", path, func(dir handle, leaf string) error {
		return classedOrNil("make directory", unix.Mkdirat(int(dir), leaf, 0o755))
	})
}

// Remove removes a file, a special file, a symlink itself, or an empty directory.
func (t *Tree) Remove(ctx context.Context, path []byte) error {
	return t.inParent(ctx, "remove", path, func(dir handle, leaf string) error {
		st, err := lstatAt(dir, leaf)
		if err != nil {
			return classed("look up", err)
		}
		flags := 0
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
		}
		return classedOrNil("remove", unix.Unlinkat(int(dir), leaf, flags))
	})
}

// Rename moves path to a name that must not exist, atomically.
func (t *Tree) Rename(ctx context.Context, path, to []byte) error {
	return t.inParent(ctx, "rename", path, func(dir handle, leaf string) error {
		if err := checkPath(to); err != nil {
			return fmt.Errorf("target: %w", err)
		}
		toDir, toLeaf, err := t.openParent(to)
		if err != nil {
			return fmt.Errorf("target: %w", err)
		}
		defer toDir.close()
		return classedOrNil("rename", unix.Renameat2(int(dir), leaf, int(toDir), toLeaf, unix.RENAME_NOREPLACE))
	})
}

// Readlink returns the target of a symlink, as bytes, at most 4,096 of them.
func (t *Tree) Readlink(ctx context.Context, path []byte) ([]byte, error) {
	var target []byte
	err := t.inParent(ctx, "readlink", path, func(dir handle, leaf string) error {
		buf := make([]byte, MaxPath+1)
		n, err := unix.Readlinkat(int(dir), leaf, buf)
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("read link: %w", ErrNotLink)
		}
		if err != nil {
			return classed("read link", err)
		}
		target = buf[:n]
		return nil
	})
	return target, err
}

// inParent runs f with the directory of path and its leaf.
func (t *Tree) inParent(ctx context.Context, op string, path []byte, f func(dir handle, leaf string) error) error {
	return t.run(ctx, op, path, func() error {
		if err := checkPath(path); err != nil {
			return err
		}
		dir, leaf, err := t.openParent(path)
		if err != nil {
			return err
		}
		defer dir.close()
		return f(dir, leaf)
	})
}

func classedOrNil(step string, err error) error {
	if err == nil {
		return nil
	}
	return classed(step, err)
}
