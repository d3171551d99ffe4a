// SPDX-License-Identifier: Apache-2.0

// Package state is the worker's durable store: the boot epoch, the mode mark, consumed
// nonces, and named buckets in which the session manager keeps leases, intents and outcomes.
//
// It owns one directory, held with flock(2) on the directory itself besides bbolt's own lock,
// since bbolt's follows the inode when its file is renamed. One goroutine commits: it drains
// a queue, so that callers that arrive together share one fsync. A write has been synced to
// the disk when its call returns nil. The store never evicts a live nonce, never opens a
// directory of the other mode, and never waits for a lock without a bound.
//
// Read next: reference/session.
package state

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Sentinels of opening.
var (
	ErrLocked = errors.New("state directory is in use by another process")
	ErrMode   = errors.New("state directory belongs to the other mode")
	ErrUnsafe = errors.New("state directory is open to other users")
)

// Sentinels of use.
var (
	ErrNotFound  = errors.New("no such record")
	ErrClosed    = errors.New("state store is closed")
	ErrReplay    = errors.New("nonce was consumed before")
	ErrExpired   = errors.New("nonce ended before it was consumed")
	ErrExhausted = errors.New("nonce store is full")
)

// Defaults of PROTOCOL.md, section Limits.
const (
	DefaultNonces             = 100_000
	DefaultNoncesPerWorkspace = 10_000
	DefaultTimeout            = 2 * time.Second
)

// Options of [Open]. Zero fields mean the defaults above.
type Options struct {
	Mode               api.Mode      // required
	Timeout            time.Duration // how long to wait for the locks
	Nonces             int           // live nonces in all
	NoncesPerWorkspace int           // live nonces of one workspace; the health token has a share of its own
	// Now is the clock of the tokens; an error refuses the nonce. Nil means wall time.
	Now func() (time.Time, error)
}

const (
	fileName    = "worker.db"
	metaBucket  = "hallmark.meta"
	nonceBucket = "hallmark.nonces"
	modeKey     = "mode"
)

// Store is one open state directory. All methods are safe for concurrent use.
type Store struct {
	dir    *os.File // holds the flock
	db     *bolt.DB
	epoch  string
	now    func() (time.Time, error)
	queue  chan *write
	stop   chan struct{}
	done   chan struct{} // closed when the committer has returned
	closed sync.Once
	nonces *nonces // owned by the committer once it runs
}

// Open takes the directory, creating it with mode 0700 when it is absent, and starts the
// committer. Errors match [ErrLocked], [ErrMode] or [ErrUnsafe]; a damaged file is an error
// of bbolt and is left as it is.
func Open(dir string, o Options) (*Store, error) {
	if o.Mode != api.Qualification && o.Mode != api.Production {
		return nil, fmt.Errorf("open state: unknown mode %q", o.Mode)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Nonces == 0 {
		o.Nonces = DefaultNonces
	}
	if o.NoncesPerWorkspace == 0 {
		o.NoncesPerWorkspace = DefaultNoncesPerWorkspace
	}
	if o.Now == nil {
		o.Now = func() (time.Time, error) { return time.Now(), nil }
	}
	d, err := lockDir(dir, o.Timeout)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: d, now: o.Now, queue: make(chan *write, 1024), stop: make(chan struct{}), done: make(chan struct{})}
	if err := s.load(dir, o); err != nil {
		if s.db != nil {
			err = errors.Join(err, s.db.Close())
		}
		return nil, errors.Join(err, d.Close())
	}
	go s.commit()
	return s, nil
}

func (s *Store) load(dir string, o Options) error {
	path := filepath.Join(dir, fileName)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: o.Timeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("open state file: %w", ErrLocked)
	}
	if err != nil {
		return fmt.Errorf("open state file: %w", err)
	}
	s.db = db
	// The new file's directory entry must survive a crash as surely as what is in it.
	if err := s.dir.Sync(); err != nil {
		return fmt.Errorf("sync state directory: %w", err)
	}
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return fmt.Errorf("choose boot epoch: %w", err)
	}
	s.epoch = hex.EncodeToString(raw[:])
	s.nonces = newNonces(o.Nonces, o.NoncesPerWorkspace)
	return db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
		if err != nil {
			return fmt.Errorf("open state meta: %w", err)
		}
		switch mark := meta.Get([]byte(modeKey)); {
		case mark == nil:
			if err := meta.Put([]byte(modeKey), []byte(o.Mode)); err != nil {
				return fmt.Errorf("mark state mode: %w", err)
			}
		case string(mark) != string(o.Mode):
			return fmt.Errorf("marked %s, opened for %s: %w", mark, o.Mode, ErrMode)
		}
		b, err := tx.CreateBucketIfNotExists([]byte(nonceBucket))
		if err != nil {
			return fmt.Errorf("open nonces: %w", err)
		}
		return s.nonces.load(b)
	})
}

// lockDir opens dir and takes an exclusive flock(2) on it within timeout.
func lockDir(dir string, timeout time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
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

// Epoch is 128 random bits in hex, new at every [Open].
func (s *Store) Epoch() string { return s.epoch }

// Close commits what is queued, then gives the directory up. Repeating it is harmless.
func (s *Store) Close() error {
	var err error
	s.closed.Do(func() {
		close(s.stop)
		<-s.done
		err = errors.Join(s.db.Close(), s.dir.Close())
	})
	return err
}

// Put stores value under key. bucket is created when it is absent.
func (s *Store) Put(ctx context.Context, bucket, key string, value []byte) error {
	return s.Update(ctx, bucket, Change{Key: key, Value: value})
}

// Delete removes key; absent is success.
func (s *Store) Delete(ctx context.Context, bucket, key string) error {
	return s.Update(ctx, bucket, Change{Key: key, Delete: true})
}

// Change is one step of [Store.Update].
type Change struct {
	Key    string
	Value  []byte
	Delete bool
}

// Update makes all changes to one bucket, or none. A cancelled ctx stops the waiting; what was
// queued may still be committed, so the caller must treat the outcome as unknown.
func (s *Store) Update(ctx context.Context, bucket string, changes ...Change) error {
	if bucket == metaBucket || bucket == nonceBucket {
		return fmt.Errorf("write state: bucket %q is reserved", bucket)
	}
	w := &write{bucket: bucket, changes: changes, result: make(chan error, 1)}
	return s.submit(ctx, w)
}

// Get returns a copy of the value of key, or [ErrNotFound].
func (s *Store) Get(ctx context.Context, bucket, key string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []byte
	err := s.db.View(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			if v := b.Get([]byte(key)); v != nil {
				out = append([]byte{}, v...) // bbolt's memory ends with the transaction
				return nil
			}
		}
		return ErrNotFound
	})
	return out, s.readError(err)
}

// Each calls fn with a copy of every record of bucket, in key order, over one consistent view.
// fn may call the store. An absent bucket is empty. An error of fn ends the walk.
func (s *Store) Each(bucket string, fn func(key string, value []byte) error) error {
	type record struct {
		k string
		v []byte
	}
	var all []record // collected first: a write from inside a view can deadlock bbolt
	err := s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			all = append(all, record{string(k), append([]byte{}, v...)})
			return nil
		})
	})
	if err != nil {
		return s.readError(err)
	}
	for _, r := range all {
		if err := fn(r.k, r.v); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) readError(err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}
