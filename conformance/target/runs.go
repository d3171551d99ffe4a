// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// RunLock is a file in a run's work folder. The run's processes hold the lock on it (flock(2)) as
// long as one of them lives; the kernel drops it with the last.
//
// The work folder holds one folder for each process of the run, which that process's driver is
// opened with. The folders of other runs lie beside it.
const RunLock = "run.lock"

// LockRun makes the file in the folder work and locks it. A sweep that came between the two has
// removed what it took for a dead run: then both are made once more.
func LockRun(work string) (*os.File, error) {
	path := filepath.Join(work, RunLock)
	for range lockTries {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			if err = os.Mkdir(work, 0o711); err == nil || errors.Is(err, os.ErrExist) {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("lock work folder: %w", err)
		}
		if made != nil {
			made()
		}
		// Only a sweep can hold it, and for as long as it looks.
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock work folder: %w", err)
		}
		if there, err := os.Lstat(path); err == nil && sameFile(f, there) {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("lock work folder: it was removed %d times meanwhile", lockTries)
}

const lockTries = 10

var made func() // tests come between the file and its lock with it

func sameFile(f *os.File, there os.FileInfo) bool {
	st, err := f.Stat()
	return err == nil && os.SameFile(st, there)
}

// RemoveRun removes a run's work folder, when its drivers have left nothing in it: folders that
// are empty, and the lock. What holds anything else stays, and is an error.
func RemoveRun(work string) error {
	d, err := os.OpenFile(work, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := emptyRun(d); err != nil {
		return err
	}
	return ignoringGone(os.Remove(work))
}

// emptyRun goes through the descriptor: whatever becomes of the path, it stays in that folder.
func emptyRun(d *os.File) error {
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeAt(d, e.Name(), unix.AT_REMOVEDIR))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAt(d, RunLock, 0)
}

func removeAt(d *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(d.Fd()), name, flags); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "remove", Path: filepath.Join(d.Name(), name), Err: err}
	}
	return nil
}

func ignoringGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Dead is the folder of a process whose run has ended without removing it. It is held open: Dir
// names it through the descriptor, so that nobody can put another in its place, and is good until
// the function that was given it returns.
type Dead struct {
	Dir    string
	Path   string // for people
	Record []byte // what the driver has written about it
}

// maxRecord bounds what is read of a record.
const maxRecord = 64 << 10

// SweepRuns calls sweep with the folder of each process of a dead run below parent that has a file
// named record, and removes those folders and runs in which nothing is left. A run is dead when
// nobody holds its lock; the sweep holds it meanwhile. What is not this user's alone is passed
// over, parent included, and so are links, and whatever has no lock: somebody else made it.
func SweepRuns(parent, record string, sweep func(Dead) error) error {
	p, err := os.OpenFile(parent, unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if st, err := p.Stat(); err != nil || !Own(st) {
		return err
	}
	runs, err := p.ReadDir(-1)
	errs := []error{err}
	for _, r := range runs {
		if run := openOwn(p, r.Name(), unix.O_DIRECTORY); run != nil {
			if lock := lockDead(run); lock != nil {
				errs = append(errs, sweepRun(p, run, r.Name(), record, sweep))
				lock.Close()
			}
			run.Close()
		}
	}
	return errors.Join(errs...)
}

// RemoveDeadRuns removes the work folders below parent of runs that have ended without: those
// with a lock file of this user's that nobody holds. What is in them is left to its driver's sweep.
func RemoveDeadRuns(parent string) error { return SweepRuns(parent, "", nil) }

// sweepRun is for a run whose lock is held.
func sweepRun(parent, run *os.File, name, record string, sweep func(Dead) error) error {
	var errs []error
	if sweep != nil {
		processes, err := run.ReadDir(-1)
		errs = append(errs, err)
		for _, e := range processes {
			if dir := openOwn(run, e.Name(), unix.O_DIRECTORY); dir != nil {
				errs = append(errs, sweepProcess(dir, record, sweep))
				dir.Close()
			}
		}
		if _, err := run.Seek(0, io.SeekStart); err != nil {
			errs = append(errs, err)
		}
	}
	// What is left in it waits for an engine, or for another driver.
	err := emptyRun(run)
	if err == nil {
		err = removeAt(parent, name, unix.AT_REMOVEDIR)
	}
	if !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func sweepProcess(dir *os.File, record string, sweep func(Dead) error) error {
	f := openOwn(dir, record, 0)
	if f == nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = sweep(Dead{Dir: fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), Path: dir.Name(), Record: b})
	}
	if err != nil {
		return fmt.Errorf("sweep %s: %w", dir.Name(), err)
	}
	return nil
}

// openOwn opens a folder, or a plain file, that is this user's alone; nil is for any other. It
// follows no link, and waits for no pipe.
func openOwn(d *os.File, name string, flags int) *os.File {
	access := unix.O_RDONLY
	if name == RunLock {
		access = unix.O_RDWR
	}
	fd, err := unix.Openat(int(d.Fd()), name, access|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.Name(), name))
	if st, err := f.Stat(); err != nil || !Own(st) || !st.IsDir() && !st.Mode().IsRegular() {
		f.Close()
		return nil
	}
	return f
}

// lockDead takes the lock of a run that nobody holds, and that is still the run's.
func lockDead(run *os.File) *os.File {
	f := openOwn(run, RunLock, 0)
	if f == nil {
		return nil
	}
	var there unix.Stat_t
	st, err := f.Stat()
	if err == nil && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil &&
		unix.Fstatat(int(run.Fd()), RunLock, &there, unix.AT_SYMLINK_NOFOLLOW) == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Ino == there.Ino && sys.Dev == there.Dev {
			return f
		}
	}
	f.Close()
	return nil
}

// MountsBelow are the mounts on dir and below it, in the order in which they were made. The
// kernel names them by paths without links, so dir's are followed.
func MountsBelow(dir string) ([]*mountinfo.Info, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir && !strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(dir, "/")+"/"), false
	})
}

// Own reports whether a file belongs to this process's user and nobody else may write it. What a
// driver is to believe about an earlier run must.
func Own(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid() && st.Mode().Perm()&0o022 == 0
}
