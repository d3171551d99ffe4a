// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Files of the directory. The mark says that there has been a database: one that is gone is not
// replaced by an empty one, which would let nonces in again and forget sandboxes.
const (
	fileName = "worker.db"
	newName  = "worker.db.new"
	markName = "worker.db.made"
)

// Open takes the directory, creating it with mode 0700 when it is absent, checks the whole file,
// and starts the committer. Errors match [ErrLocked], [ErrMode], [ErrUnsafe], [ErrDamaged] or
// [ErrLost], or are those of the system; what is refused is left as it is.
func Open(dir string, o Options) (*Store, error) {
	if o.Mode != api.Qualification && o.Mode != api.Production {
		return nil, fmt.Errorf("open state: unknown mode %q", o.Mode)
	}
	o = o.withDefaults()
	d, err := lockDir(dir, o.Timeout)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: d, now: o.Now, observe: o.Observe, nonces: newNonces(o.Nonces, o.NoncesPerWorkspace),
		queue: make(chan *write, 1024), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if err := s.load(dir, o); err != nil {
		return nil, errors.Join(err, s.release())
	}
	s.live.Store(int64(len(s.nonces.live)))
	go s.commit()
	return s, nil
}

func (s *Store) load(dir string, o Options) (err error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return fmt.Errorf("choose boot epoch: %w", err)
	}
	s.epoch = hex.EncodeToString(raw[:])
	path, mark := filepath.Join(dir, fileName), filepath.Join(dir, markName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(mark); err == nil {
			return fmt.Errorf("open state file: %s: %w", path, ErrLost)
		}
		if err := s.make(dir, o); err != nil {
			return fmt.Errorf("make state file: %w", err)
		}
	}
	if err := s.openChecked(path, o.Timeout); err != nil {
		return fmt.Errorf("open state file: %w", err)
	}
	err = s.view(func(tx *bolt.Tx) error {
		// About 35 ms for 100,000 nonces; safe only now, since bbolt's check follows every page.
		if err := pagesHold(tx); err != nil {
			return damaged("%w", err)
		}
		if mark := tx.Bucket([]byte(metaBucket)).Get([]byte(modeKey)); string(mark) != string(o.Mode) {
			return fmt.Errorf("marked %s, opened for %s: %w", mark, o.Mode, ErrMode)
		}
		return s.nonces.load(tx.Bucket([]byte(nonceBucket)))
	})
	if err != nil {
		return fmt.Errorf("read state file: %w", err)
	}
	m, err := os.OpenFile(mark, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = errors.Join(m.Close(), s.dir.Sync())
	}
	if err != nil {
		return fmt.Errorf("mark state directory: %w", err)
	}
	return nil
}

// make builds the first file under another name, so that a start that is cut off leaves none.
func (s *Store) make(dir string, o Options) error {
	path := filepath.Join(dir, newName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: o.Timeout})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		if _, err := tx.CreateBucket([]byte(nonceBucket)); err != nil {
			return err
		}
		var of sum
		of.toggle([]byte(metaBucket), []byte(modeKey), []byte(o.Mode))
		return errors.Join(meta.Put([]byte(modeKey), []byte(o.Mode)), meta.Put([]byte(sumKey), of[:]))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(dir, fileName)); err != nil {
		return err
	}
	return s.dir.Sync() // the entry must survive a crash as surely as what is in it
}

// openChecked has bbolt open and lock the file, but map it only after all of it has been read
// and found whole. What bbolt panics or faults on all the same becomes an error.
func (s *Store) openChecked(path string, timeout time.Duration) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged("%v", p)
		}
	}()
	var refused error
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: timeout, OpenFile: func(path string, flag int, _ os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, flag&^os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		// Under the lock of the directory nobody else writes; bbolt's own lock comes later.
		if refused = s.inspect(f); refused != nil {
			return nil, errors.Join(refused, f.Close())
		}
		s.file = f
		return f, nil
	}})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrLocked
	case err != nil && refused == nil && s.file != nil:
		return damaged("%w", err)
	}
	s.db = db
	return err
}

// inspect checks kind, owner, mode and every page.
func (s *Store) inspect(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return fmt.Errorf("%s: owner %d, mode %#o, %d names: %w", f.Name(), st.Uid, st.Mode&0o7777, st.Nlink, ErrUnsafe)
	}
	var err error
	s.sum, err = verify(f, st.Size)
	return err
}

// lockDir opens dir and takes an exclusive flock(2) on it within timeout.
func lockDir(dir string, timeout time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open state directory %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("stat state directory: %w", err), f.Close())
	}
	if st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, errors.Join(fmt.Errorf("%s: owner %d, mode %#o: %w", dir, st.Uid, st.Mode&0o777, ErrUnsafe), f.Close())
	}
	deadline := time.Now().Add(timeout)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock state directory: %w", err), f.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, ErrLocked), f.Close())
		}
		time.Sleep(20 * time.Millisecond) // flock has no timed form
	}
}
