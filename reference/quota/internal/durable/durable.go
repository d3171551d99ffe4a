// SPDX-License-Identifier: Apache-2.0

// Package durable keeps the records of the quota backends: private directories, files that are
// replaced whole, and locks between processes. It owns no file of its own, and promises that what it
// reports as written is on the disk. Read reference/quota/loopimage or reference/quota/project next.
package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
)

// lockPoll is how often a held lock is tried again: flock(2) has no timed form.
const lockPoll = 5 * time.Millisecond

var idRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// ValidID says whether id is a workspace id: an identifier of at most 128 bytes.
func ValidID(id string) bool { return idRE.MatchString(id) }

// Name is what a workspace's files are called: the first 32 hex digits of SHA-256 of its id. No path
// is ever made from an id.
func Name(id string) (string, error) {
	if !ValidID(id) {
		return "", fmt.Errorf("%w: workspace id is not an identifier", exitcode.ErrUsage)
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16]), nil
}

// Directories makes what is missing of dir and the named ones in it, with mode 0700, and checks the
// rest. dir must be absolute, clean and without symlinks; its parent must exist.
func Directories(dir string, names ...string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("%w: %q is not an absolute, clean path", exitcode.ErrUsage, dir)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: workspaces need root", exitcode.ErrTool)
	}
	all := []string{dir}
	for _, n := range names {
		all = append(all, dir+"/"+n)
	}
	for _, d := range all {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make store directory: %w", err)
		}
		st, err := os.Lstat(d)
		if err != nil {
			return fmt.Errorf("check store directory: %w", err)
		}
		if sys := st.Sys().(*syscall.Stat_t); st.Mode() != fs.ModeDir|0o700 || sys.Uid != 0 || sys.Gid != 0 {
			return fmt.Errorf("%w: %s must be a directory of root with mode 0700", exitcode.ErrTool, d)
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || real != dir {
		return fmt.Errorf("%w: %s has a symlink in it", exitcode.ErrUsage, dir)
	}
	return nil
}

// Lock takes an exclusive lock on path, which it creates, within ctx; ErrBusy afterwards. The lock
// lives as long as any descriptor of the returned file, children included.
func Lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// A purge removes the file while it holds the lock: take the one that has the name.
			held, err1 := f.Stat()
			named, err2 := os.Lstat(path)
			if err1 == nil && err2 == nil && os.SameFile(held, named) {
				return f, nil
			}
			f.Close()
			continue
		}
		f.Close()
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, fmt.Errorf("lock %s: %w", filepath.Base(path), err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: another operation holds the lock", exitcode.ErrBusy)
		case <-time.After(lockPoll):
		}
	}
}

// Replace makes text durable under path, which ends in .json. A reader, and a start after a crash,
// sees the old text or the new one.
func Replace(path string, text []byte) error {
	tmp := Temporary(path)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return SyncDir(filepath.Dir(path))
}

// Temporary is the name under which Replace writes; what is left of an interrupted one.
func Temporary(path string) string { return strings.TrimSuffix(path, ".json") + ".new" }

// Remove removes a file that may not be there.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove file: %w", err)
	}
	return nil
}

// SyncDir makes the names in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
