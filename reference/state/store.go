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
// Every record is covered by one sum, and the whole file is read and checked before bbolt maps
// it: a damaged file is refused at the start, with nothing changed. While it runs, a commit for
// which there is no room fails, and so does its caller; the next one is tried again, so that the
// store serves as soon as there is room. Any other failure of a commit closes the store for good
// ([ErrBroken]): after a failed sync nobody knows what is on the disk, and a start finds out.
//
// Read next: reference/session.
package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
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
	ErrUnsafe = errors.New("state directory or file is not the worker's alone")
	// ErrDamaged: the file is not what this package wrote.
	ErrDamaged = errors.New("state file is damaged")
	// ErrLost: the directory has held a file, and it is gone.
	ErrLost = errors.New("state file is missing from a directory that had one")
)

// Sentinels of use.
var (
	ErrNotFound  = errors.New("no such record")
	ErrClosed    = errors.New("state store is closed")
	ErrReplay    = errors.New("nonce was consumed before")
	ErrExpired   = errors.New("nonce ended before it was consumed")
	ErrExhausted = errors.New("nonce store is full")
	// ErrBroken: a commit failed for another reason than room; only a new start helps.
	ErrBroken = errors.New("state store has failed and needs a restart")
)

// Defaults of PROTOCOL.md, section Limits.
const (
	DefaultNonces             = 100_000
	DefaultNoncesPerWorkspace = 10_000
	DefaultTimeout            = 2 * time.Second

	MaxValueBytes = 64 << 20 // of one record
)

// Options of [Open]. Zero fields mean the defaults above.
type Options struct {
	Mode               api.Mode      // required
	Timeout            time.Duration // how long to wait for the locks
	Nonces             int           // live nonces in all
	NoncesPerWorkspace int           // live nonces of one workspace; the health token has a share of its own
	// Now is the clock of the tokens; an error refuses the nonce. Nil means wall time.
	Now func() (time.Time, error)
	// Observe is called by the committer after every transaction; it must not block. May be nil.
	Observe func(Commit)
}

// Commit is one transaction of the committer.
type Commit struct {
	Writes int           // callers that shared it
	Took   time.Duration // with its syncs
	Err    error         // all of them failed
}

const (
	metaBucket  = "hallmark.meta"
	nonceBucket = "hallmark.nonces"
	modeKey     = "mode"
	sumKey      = "sum"
)

// Store is one open state directory. All methods are safe for concurrent use.
type Store struct {
	dir     *os.File // holds the flock
	file    *os.File // bbolt's, also closed by it
	db      *bolt.DB
	epoch   string
	now     func() (time.Time, error)
	observe func(Commit)
	queue   chan *write
	stop    chan struct{}
	done    chan struct{} // closed when the committer has returned
	closed  sync.Once
	live    atomic.Int64 // nonces in the index
	stuck   atomic.Bool  // bbolt panicked in a commit and may hold its locks for ever

	// Owned by the committer once it runs.
	nonces  *nonces
	sum     sum
	expired []string // out of the index, still on the disk
	broken  error    // set once
}

func (o Options) withDefaults() Options {
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
	return o
}

// Epoch is 128 random bits in hex, new at every [Open].
func (s *Store) Epoch() string { return s.epoch }

// Close commits what is queued, then gives the directory up. Repeating it is harmless.
func (s *Store) Close() error {
	var err error
	s.closed.Do(func() {
		close(s.stop)
		<-s.done
		err = s.release()
	})
	return err
}

// release gives file and directory up. Of a broken store only the descriptors are closed.
func (s *Store) release() error {
	var err error
	switch {
	case s.db != nil && s.broken == nil:
		err = s.db.Close()
	case s.file != nil:
		// The map, which stays, keeps the lock alive beyond the descriptor. Closed already: by bbolt.
		if err = errors.Join(unix.Flock(int(s.file.Fd()), unix.LOCK_UN), s.file.Close()); errors.Is(err, os.ErrClosed) {
			err = nil
		}
	}
	return errors.Join(err, s.dir.Close())
}

// Nonces returns how many are in the index; those whose time is over count until the next one
// is consumed.
func (s *Store) Nonces() int { return int(s.live.Load()) }

// view reads. Bytes that changed under the map, or a file that got shorter, are an error.
func (s *Store) view(fn func(*bolt.Tx) error) (err error) {
	if s.stuck.Load() {
		return ErrBroken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = damaged("%v", p)
		}
	}()
	if err = s.db.View(fn); errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		err = ErrClosed
	}
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
	// Refused here: in the transaction it would fail everybody who shares it.
	for _, c := range changes {
		if bucket == "" || c.Key == "" || len(c.Key) > bolt.MaxKeySize || len(c.Value) > MaxValueBytes {
			return fmt.Errorf("write state: bucket %q, key of %d bytes, value of %d", bucket, len(c.Key), len(c.Value))
		}
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
	err := s.view(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			if v := b.Get([]byte(key)); v != nil {
				out = append([]byte{}, v...) // bbolt's memory ends with the transaction
				return nil
			}
		}
		return ErrNotFound
	})
	return out, err
}

// Each calls fn with a copy of every record of bucket, in key order, over one consistent view.
// fn may call the store. An absent bucket is empty. An error of fn ends the walk.
func (s *Store) Each(bucket string, fn func(key string, value []byte) error) error {
	type record struct {
		k string
		v []byte
	}
	var all []record // collected first: a write from inside a view can deadlock bbolt
	err := s.view(func(tx *bolt.Tx) error {
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
		return err
	}
	for _, r := range all {
		if err := fn(r.k, r.v); err != nil {
			return err
		}
	}
	return nil
}

// Keys returns the first keys of bucket that begin with prefix, in order, at most so many. It reads
// nothing else of the bucket. An absent bucket is empty.
func (s *Store) Keys(bucket, prefix string, most int) (keys []string, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, _ := c.Seek([]byte(prefix)); k != nil && len(keys) < most && strings.HasPrefix(string(k), prefix); k, _ = c.Next() {
			keys = append(keys, string(k))
		}
		return nil
	})
	return keys, err
}
