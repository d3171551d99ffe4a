// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Append stores the file at path with body behind its content, all or nothing, and returns the
// whole size and the digest of body. The file must be regular and have exactly expectedSize bytes: ErrSize, so
// that an append whose answer was lost is not done twice. The digest that is required is
// body's. The result is another inode, as for [Tree.Write] in mode Replace: the content is copied under
// the workspace's quota, which must hold both for a moment; holes become blocks; other hard links keep what
// they had; mode bits are kept, setuid and setgid are not. On any error what was at path is untouched.
//
// What was opened decides: a file that the tenant truncates while it is copied is ErrSize; bytes that it changes
// meanwhile are copied or not; what it does to the file, or to its name, after that is
// lost when the result is put in place.
func (t *Tree) Append(ctx context.Context, path []byte, expectedSize int64, body io.Reader, wantDigest string) (size int64, digest string, err error) {
	if err := t.begin(ctx); err != nil {
		return 0, "", &Error{"append", path, err}
	}
	defer t.end()
	size, digest, err = t.append(ctx, path, expectedSize, body, wantDigest)
	if err != nil {
		return 0, "", &Error{"append", path, err}
	}
	return expectedSize + size, digest, nil
}

func (t *Tree) append(ctx context.Context, path []byte, expectedSize int64, body io.Reader, wantDigest string) (int64, string, error) {
	if err := checkPath(path); err != nil {
		return 0, "", err
	}
	if expectedSize < 0 {
		return 0, "", fmt.Errorf("%w: size %d", ErrRequest, expectedSize)
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
	var perm uint32
	err = th.do(func() error {
		file, perm, err = t.copyOf(ctx, path, expectedSize)
		return err
	})
	if err != nil {
		return 0, "", err
	}
	defer file.close()
	return t.fillAndName(ctx, th, file, path, Replace, body, wantDigest, perm)
}

// copyOf returns an inode without a name that has the content of the file at path.
func (t *Tree) copyOf(ctx context.Context, path []byte, size int64) (_ handle, perm uint32, err error) {
	old, st, err := t.openRegular(path)
	if err != nil {
		return -1, 0, err
	}
	defer old.close()
	if st.Size != size {
		return -1, 0, fmt.Errorf("%w: %d bytes, not %d", ErrSize, st.Size, size)
	}
	file, err := t.temporary(path, Replace)
	if err != nil {
		return -1, 0, err
	}
	defer func() {
		if err != nil {
			file.close()
		}
	}()
	buf := make([]byte, chunk)
	for left := size; left > 0; {
		if err := ctx.Err(); err != nil {
			return -1, 0, err
		}
		n, err := unix.Read(int(old), buf[:min(left, chunk)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return -1, 0, classed("read file", err)
		case n == 0:
			return -1, 0, fmt.Errorf("%w: it ended %d bytes early", ErrSize, left)
		}
		if err := writeAll(file, buf[:n]); err != nil {
			return -1, 0, classed("write file", err)
		}
		left -= int64(n)
	}
	return file, st.Mode & 0o777, nil
}
