// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// RunLock is a file in a run's work folder. The run's processes hold the lock on it (flock(2)) as
// long as one of them lives; the kernel drops it with the last.
//
// The work folder holds one folder for each process of the run, which that process's driver is
// opened with. The folders of other runs lie beside it.
const RunLock = "run.lock"

// LockRun makes the file in the folder work and locks it.
func LockRun(work string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(work, RunLock), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock work folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock work folder: %w", err)
	}
	return f, nil
}

// RemoveRun removes a run's work folder, when its drivers have left nothing in it: folders that
// are empty, and the lock. What holds anything else stays, and is an error.
func RemoveRun(work string) error {
	entries, err := os.ReadDir(work)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, ignoringGone(os.Remove(filepath.Join(work, e.Name()))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := ignoringGone(os.Remove(filepath.Join(work, RunLock))); err != nil {
		return err
	}
	return ignoringGone(os.Remove(work))
}

func ignoringGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveDeadRuns removes the work folders below parent of runs that have ended without: those
// with a lock file of this user's that nobody holds. Drivers sweep what is in them before; what is
// another driver's stays for that one.
func RemoveDeadRuns(parent string) error {
	locks, err := filepath.Glob(filepath.Join(parent, "*", RunLock))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // removed in between
		}
		if st, err := f.Stat(); err == nil && Own(st) && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := RemoveRun(filepath.Dir(path)); !errors.Is(err, unix.ENOTEMPTY) {
				errs = append(errs, err)
			}
		}
		f.Close()
	}
	return errors.Join(errs...)
}

// Own reports whether a file belongs to this process's user and nobody else may write it. What a
// driver is to believe about an earlier run must.
func Own(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid() && st.Mode().Perm()&0o022 == 0
}
