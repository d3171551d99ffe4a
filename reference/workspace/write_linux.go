// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Modes of Write.
const (
	Create  = "create"  // the name must not exist: ErrExists
	Replace = "replace" // a regular file of that name is replaced; without one it is created
)

// chunk is how much of a body is in memory, in bytes.
const chunk = 256 << 10

// cleanupTimeout bounds the recorder's call after a cancelled write.
const cleanupTimeout = 5 * time.Second

var digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Write stores body under path, all or nothing, and returns its size and digest. The
// body streams into an inode without a name (O_TMPFILE), under the workspace's quota; when
// its digest is wantDigest (sha256:<64 hex>, required) and it is on disk, it gets its name: by
// link for create, by link to an unguessable name and rename for replace. On any error
// the inode is gone and what was at path is untouched. The file belongs to the tenant
// with mode 0644, or 0755 when executable. The parent directory must exist. A symlink,
// directory or special file at path is refused, not replaced.
func (t *Tree) Write(ctx context.Context, path []byte, mode string, body io.Reader, wantDigest string, executable bool) (size int64, digest string, err error) {
	if err := t.begin(ctx); err != nil {
		return 0, "", &Error{"write", path, err}
	}
	defer t.end()
	size, digest, err = t.write(ctx, path, mode, body, wantDigest, executable)
	if err != nil {
		return 0, "", &Error{"write", path, err}
	}
	return size, digest, nil
}

func (t *Tree) write(ctx context.Context, path []byte, mode string, body io.Reader, wantDigest string, executable bool) (int64, string, error) {
	if err := checkPath(path); err != nil {
		return 0, "", err
	}
	if mode != Create && mode != Replace {
		return 0, "", fmt.Errorf("%w: mode", ErrRequest)
	}
	if !digestRE.MatchString(wantDigest) {
		return 0, "", fmt.Errorf("%w: digest is not sha256 and 64 hex digits", ErrRequest)
	}
	th, err := newThread()
	if err != nil {
		return 0, "", err
	}
	defer th.close()

	var file handle
	if err := th.do(func() error { file, err = t.temporary(path, mode); return err }); err != nil {
		return 0, "", err
	}
	defer file.close() // the last reference of an inode that got no name

	perm := uint32(0o644)
	if executable {
		perm = 0o755
	}
	return t.fillAndName(ctx, th, file, path, mode, body, wantDigest, perm)
}

// fillAndName streams body into file, behind what is in it, and gives it its name. The size is body's.
func (t *Tree) fillAndName(ctx context.Context, th *thread, file handle, path []byte, mode string, body io.Reader, wantDigest string, perm uint32) (int64, string, error) {
	size, sum, err := stream(ctx, th, file, body)
	if err != nil {
		return 0, "", err
	}
	digest := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if digest != wantDigest {
		return 0, "", fmt.Errorf("%w: %s", ErrDigest, digest)
	}
	err = th.do(func() error {
		if err := unix.Fchmod(int(file), perm); err != nil {
			return classed("set mode", err)
		}
		// Delayed allocation can meet the quota here.
		return classedOrNil("sync file", retry(func() error { return unix.Fsync(int(file)) }))
	})
	if err == nil {
		err = t.commit(ctx, th, file, path, mode)
	}
	if err != nil {
		return 0, "", err
	}
	return size, digest, nil
}

// temporary checks early that path can be written and returns an inode without a name. It
// has no place in the tree, so a directory that moves meanwhile does not matter.
func (t *Tree) temporary(path []byte, mode string) (handle, error) {
	dir, leaf, err := t.openParent(path)
	if err != nil {
		return -1, err
	}
	defer dir.close()
	if err := checkTarget(dir, leaf, mode); err != nil {
		return -1, err
	}
	h, err := openBeneath(dir, ".", unix.O_TMPFILE|unix.O_WRONLY)
	if err == unix.EISDIR || err == unix.ENOENT { // a filesystem without O_TMPFILE, open(2)
		err = unix.EOPNOTSUPP
	}
	return h, classedOrNil("make temporary", err)
}

// checkTarget refuses what must not be replaced. The tenant can change it afterwards: link
// and rename then act on the name itself, and never follow it.
func checkTarget(dir handle, leaf, mode string) error {
	st, err := lstatAt(dir, leaf)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return classed("look up", err)
	}
	switch k := kindOf(st.Mode); {
	case k == Symlink:
		return fmt.Errorf("look up: %w: a symlink", ErrUnsafe)
	case mode == Create:
		return fmt.Errorf("look up: %w", ErrExists)
	case k == Dir:
		return fmt.Errorf("look up: %w", ErrIsDir)
	case k != File:
		return fmt.Errorf("look up: %w: a %s", ErrUnsafe, k)
	}
	return nil
}

// stream copies body into file. The caller's reader runs on the caller's thread, only the
// writes have the tenant's authority: quotas are checked against the writer's credentials.
func stream(ctx context.Context, th *thread, file handle, body io.Reader) (int64, hash.Hash, error) {
	sum, buf, size := sha256.New(), make([]byte, chunk), int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return 0, nil, err
		}
		n, end, err := fill(body, buf)
		if err != nil {
			return 0, nil, fmt.Errorf("%w: %w", ErrBody, err)
		}
		if n > 0 {
			sum.Write(buf[:n])
			if err := th.do(func() error { return writeAll(file, buf[:n]) }); err != nil {
				return 0, nil, classed("write file", err)
			}
			size += int64(n)
		}
		if end {
			return size, sum, nil
		}
	}
}

// fill reads until b is full or body ends. Unlike io.ReadFull it keeps a reader's own
// io.ErrUnexpectedEOF (a request that broke off) apart from the end.
func fill(body io.Reader, b []byte) (n int, end bool, err error) {
	for empty := 0; n < len(b); {
		m, err := body.Read(b[n:])
		n += m
		if err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
		if m > 0 {
			empty = 0
		} else if empty++; empty == 100 {
			return n, false, io.ErrNoProgress
		}
	}
	return n, false, nil
}

func writeAll(file handle, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(int(file), b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// commit names the finished inode. The parent is resolved again: between then and now a
// tenant may have moved it.
func (t *Tree) commit(ctx context.Context, th *thread, file handle, path []byte, mode string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if mode == Create {
		return th.do(func() error {
			dir, leaf, err := t.openParent(path)
			if err != nil {
				return err
			}
			defer dir.close()
			if err := t.link(file, dir, leaf); err != nil {
				return classed("name file", err)
			}
			t.syncDir(dir)
			return nil
		})
	}
	var random [16]byte
	rand.Read(random[:]) // never fails, see its documentation
	temp := ".hallmark-" + hex.EncodeToString(random[:])
	parent, _ := split(path)
	record := []byte(temp)
	if parent != "." {
		record = []byte(parent + "/" + temp)
	}
	if t.rec != nil {
		if err := t.rec.Record(ctx, record); err != nil {
			return fmt.Errorf("record temporary: %w", err)
		}
	}
	gone := true // whether the temporary name certainly does not exist any more
	err := th.do(func() error {
		dir, leaf, err := t.openParent(path)
		if err != nil {
			return err
		}
		defer dir.close()
		if err := checkTarget(dir, leaf, mode); err != nil {
			return err
		}
		if err := t.link(file, dir, temp); err != nil {
			return classed("name temporary", err)
		}
		if err := unix.Renameat(int(dir), temp, int(dir), leaf); err != nil {
			uerr := unix.Unlinkat(int(dir), temp, 0)
			gone = uerr == nil || uerr == unix.ENOENT
			return classed("rename into place", err)
		}
		t.syncDir(dir)
		return nil
	})
	if t.rec != nil && gone {
		// Not with ctx: the name is settled, whatever became of the request.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		// A record that stays costs start-up one look; it does not undo the write.
		_ = t.rec.Forget(clean, record)
	}
	return err
}

// link gives the inode a name. linkat(2): by /proc, since AT_EMPTY_PATH needs a capability
// before Linux 6.10; the magic link is this process's own.
func (t *Tree) link(file, dir handle, leaf string) error {
	return unix.Linkat(int(t.procfd), strconv.Itoa(int(file)), int(dir), leaf, unix.AT_SYMLINK_FOLLOW)
}

// syncDir makes names in dir durable, as far as the tenant lets its own directory be read.
func (t *Tree) syncDir(dir handle) {
	if d, err := t.reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
		_ = unix.Fsync(int(d))
		d.close()
	}
}

// RemoveTemporary removes a name that a Recorder recorded, after a crash. Only such names
// are accepted; one that does not exist is a success.
func (t *Tree) RemoveTemporary(ctx context.Context, path []byte) error {
	if _, leaf := split(path); !tempRE.MatchString(leaf) {
		return &Error{"remove temporary", path, fmt.Errorf("%w: not a temporary's name", ErrRequest)}
	}
	err := t.Remove(ctx, path)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

var tempRE = regexp.MustCompile(`^\.hallmark-[0-9a-f]{32}$`)
