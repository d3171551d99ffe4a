// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sentinels, matched with errors.Is.
var (
	ErrUnsafe    = errors.New("unsafe path")            // path rules, a symlink or mount on the way, a special file
	ErrNotFound  = errors.New("no such path")           // ENOENT
	ErrExists    = errors.New("path exists")            // EEXIST
	ErrQuota     = errors.New("quota exceeded")         // ENOSPC, EDQUOT, EFBIG
	ErrNotDir    = errors.New("not a directory")        // ENOTDIR
	ErrIsDir     = errors.New("is a directory")         // EISDIR
	ErrNotEmpty  = errors.New("directory not empty")    // ENOTEMPTY
	ErrAccess    = errors.New("access denied")          // EACCES, EPERM, EROFS, ETXTBSY: the tenant itself may not
	ErrPrimitive = errors.New("path primitive missing") // openat2, O_TMPFILE or /proc is not there
	ErrDigest    = errors.New("content digest differs") // the body is not what was announced
	ErrSize      = errors.New("file has another size")  // of an append
	ErrRequest   = errors.New("invalid request")        // mode, cursor, limit or digest; ENAMETOOLONG
	ErrMoved     = errors.New("tree moved meanwhile")   // the tenant won the race every time; nothing was done
	ErrNotLink   = errors.New("not a symlink")          // readlink of something else
	ErrBody      = errors.New("body could not be read") // the caller's reader failed
	ErrClosed    = errors.New("workspace tree is closed")
)

// Error says which operation failed on which path. Path is the caller's, as bytes.
type Error struct {
	Op   string
	Path []byte
	Err  error
}

// Error leaves the path out: it is the caller's or the tenant's text, may hold anything, and goes to
// the log with whoever wraps this.
func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause, which matches a sentinel where one fits.
func (e *Error) Unwrap() error { return e.Err }

// kinds maps what the kernel says; the errno stays in the chain.
var kinds = map[unix.Errno]error{
	unix.ELOOP: ErrUnsafe, unix.EXDEV: ErrUnsafe, unix.EINVAL: ErrUnsafe,
	unix.ENXIO: ErrUnsafe, unix.ENODEV: ErrUnsafe, unix.EBUSY: ErrUnsafe,
	unix.ENOENT: ErrNotFound, unix.EEXIST: ErrExists,
	unix.ENOSPC: ErrQuota, unix.EDQUOT: ErrQuota, unix.EFBIG: ErrQuota, unix.EMLINK: ErrQuota,
	unix.ENOTDIR: ErrNotDir, unix.EISDIR: ErrIsDir, unix.ENOTEMPTY: ErrNotEmpty,
	unix.EACCES: ErrAccess, unix.EPERM: ErrAccess, unix.EROFS: ErrAccess, unix.ETXTBSY: ErrAccess,
	unix.ENAMETOOLONG: ErrRequest, unix.ENOSYS: ErrPrimitive, unix.EOPNOTSUPP: ErrPrimitive, unix.EAGAIN: ErrMoved, unix.ESTALE: ErrMoved,
}

// classed joins an errno with its sentinel and the step.
func classed(step string, err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		if kind, ok := kinds[errno]; ok {
			return fmt.Errorf("%s: %w: %w", step, kind, err)
		}
	}
	return fmt.Errorf("%s: %w", step, err)
}
