// SPDX-License-Identifier: Apache-2.0

package target

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// process makes the folder of a process of a run, with a record, and returns the run's lock.
func process(t *testing.T, parent, run string) (dir string, lock *os.File) {
	t.Helper()
	dir = filepath.Join(parent, run, "p1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "record"), []byte(run), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := LockRun(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return dir, lock
}

func swept(t *testing.T, parent string) (runs map[string]bool) {
	t.Helper()
	runs = map[string]bool{}
	if err := SweepRuns(parent, "record", func(d Dead) error {
		runs[string(d.Record)] = true
		return os.Remove(filepath.Join(d.Dir, "record"))
	}); err != nil {
		t.Error(err)
	}
	return runs
}

func TestOnlyOwnFoldersOfDeadRunsAreSwept(t *testing.T) {
	parent := t.TempDir()
	dead, lock := process(t, parent, "dead")
	lock.Close()
	// Its process may be in another pid namespace: the lock is all that shows that it lives.
	process(t, parent, "living")
	bare, lock := process(t, parent, "bare")
	lock.Close()
	must(t, os.Remove(filepath.Join(parent, "bare", RunLock)))
	wide, lock := process(t, parent, "wide")
	lock.Close()
	must(t, os.Chmod(filepath.Dir(wide), 0o777))
	foreign, lock := process(t, parent, "foreign")
	lock.Close()
	must(t, os.Chown(filepath.Dir(foreign), 65534, 65534))
	// Links lead to what is the user's own, and somebody else chooses which.
	elsewhere := t.TempDir()
	target, lock := process(t, elsewhere, "target")
	lock.Close()
	must(t, os.Symlink(filepath.Dir(target), filepath.Join(parent, "run-link")))
	for _, run := range []string{"process-link", "record-link", "pipe"} {
		dir, lock := process(t, parent, run)
		lock.Close()
		must(t, os.Remove(filepath.Join(dir, "record")))
		switch run {
		case "process-link":
			must(t, os.Remove(dir))
			must(t, os.Symlink(target, dir))
		case "record-link":
			must(t, os.Symlink(filepath.Join(target, "record"), filepath.Join(dir, "record")))
		case "pipe":
			must(t, unix.Mkfifo(filepath.Join(dir, "record"), 0o600))
		}
	}
	if got := swept(t, parent); len(got) != 1 || !got["dead"] {
		t.Errorf("swept: %v", got)
	}
	if _, err := os.Stat(filepath.Dir(dead)); !os.IsNotExist(err) {
		t.Errorf("the dead run's folder: %v", err)
	}
	for _, path := range []string{bare, wide, foreign, target, filepath.Join(parent, "living", "p1", "record")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// The folder for everybody's temporary files is nobody's folder of runs.
func TestAFolderThatOthersWriteIsNotSwept(t *testing.T) {
	parent := t.TempDir()
	_, lock := process(t, parent, "dead")
	lock.Close()
	must(t, os.Chmod(parent, 0o777|os.ModeSticky))
	if got := swept(t, parent); len(got) > 0 {
		t.Errorf("swept in everybody's folder: %v", got)
	}
	must(t, os.Chmod(parent, 0o700))
	must(t, os.Chown(parent, 65534, 65534))
	if got := swept(t, parent); len(got) > 0 {
		t.Errorf("swept in another user's folder: %v", got)
	}
	if got := swept(t, filepath.Join(parent, "absent")); len(got) > 0 {
		t.Errorf("swept: %v", got)
	}
}

// Whoever puts another folder in the place of the one that is swept moves nothing but its name.
func TestASweepStaysInTheFolderThatItOpened(t *testing.T) {
	parent := t.TempDir()
	dir, lock := process(t, parent, "dead")
	lock.Close()
	other := filepath.Join(t.TempDir(), "p1")
	must(t, os.Mkdir(other, 0o700))
	must(t, os.WriteFile(filepath.Join(other, "record"), nil, 0o600))
	err := SweepRuns(parent, "record", func(d Dead) error {
		must(t, os.Rename(filepath.Dir(dir), filepath.Join(parent, "moved")))
		must(t, os.Symlink(filepath.Dir(other), filepath.Dir(dir)))
		return os.Remove(filepath.Join(d.Dir, "record"))
	})
	if err == nil {
		t.Error("a link in the place of the run's folder is no error")
	}
	if _, err := os.Stat(filepath.Join(other, "record")); err != nil {
		t.Errorf("what the link leads to: %v", err)
	}
	if _, err := os.Stat(filepath.Join(parent, "moved", "p1")); !os.IsNotExist(err) {
		t.Errorf("the folder that was opened: %v", err)
	}
	if err := RemoveRun(filepath.Dir(dir)); err == nil {
		t.Error("a run is removed through a link")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// A sweep between the making of the lock's file and the lock takes the run for dead.
func TestALockIsThatOfTheFileThatIsThere(t *testing.T) {
	parent := t.TempDir()
	work := filepath.Join(parent, "run")
	must(t, os.Mkdir(work, 0o711))
	times := 0
	made = func() {
		if times++; times == 1 {
			must(t, RemoveDeadRuns(parent))
		}
	}
	defer func() { made = nil }()
	lock, err := LockRun(work)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	must(t, RemoveDeadRuns(parent))
	there, err := os.Stat(filepath.Join(work, RunLock))
	if err != nil || !sameFile(lock, there) || times != 2 {
		t.Errorf("the lock is not on the file that others see: %v, made %d times", err, times)
	}
}

func TestMountsAreFoundThroughLinks(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{"run", "run-other"} {
		at := filepath.Join(base, name, "m")
		must(t, os.MkdirAll(at, 0o700))
		must(t, unix.Mount("test", at, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
	}
	link := filepath.Join(base, "link")
	must(t, os.Symlink("run", link))
	for dir, want := range map[string]int{"run": 1, "link": 1, "run/m": 1, "run-other": 1, "ru": 0, "": 2} {
		mounts, err := MountsBelow(filepath.Join(base, dir))
		if err != nil || len(mounts) != want {
			t.Errorf("%q: %d mounts, want %d, %v", dir, len(mounts), want, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
