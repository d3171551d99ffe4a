// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// tempPrefix begins the names of the folders in which suite processes keep their temporary files.
const tempPrefix = "hallmark-tmp-"

// takeTemp gives this process, and what it starts, a folder of its own for temporary files, by
// $TMPDIR. The lock in it tells the next run whether anybody still needs it. Others may walk
// through: a case may want a file that only confinement protects.
func takeTemp() (remove func() error, err error) {
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("make folder for temporary files: %w", err)
	}
	lock, err := target.LockRun(dir)
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o711), os.Setenv("TMPDIR", dir))
	}
	if err != nil {
		return nil, fmt.Errorf("make folder for temporary files: %w", err)
	}
	return func() error { defer lock.Close(); return removeTemp(dir) }, nil
}

// removeTemp removes what is in dir, and it, unless something is mounted below. The lock goes last:
// who is killed meanwhile is swept once more.
func removeTemp(dir string) error {
	if err := target.ClearTree(dir, target.RunLock); err != nil {
		return fmt.Errorf("remove temporary files: %w", err)
	}
	return target.RemoveTree(dir)
}

// sweepTemp removes the folders of processes that have ended without.
func sweepTemp() error {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*", target.RunLock))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // removed in between, or another user's
		}
		folder, lerr := os.Lstat(filepath.Dir(path))
		st, err := f.Stat()
		if lerr == nil && err == nil && target.Own(folder) && target.Own(st) && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			// A lock on a file that another sweep has removed says nothing of the one there now.
			if now, err := os.Lstat(path); err == nil && os.SameFile(st, now) {
				errs = append(errs, removeTemp(filepath.Dir(path)))
			}
		}
		f.Close()
	}
	return errors.Join(errs...)
}
