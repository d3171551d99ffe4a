// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// maxBatch bounds how many writes share a transaction, and so how long the first one waits.
const maxBatch = 512

// write is one queued request: changes to a bucket, one nonce, or a step to run on its own.
type write struct {
	bucket  string
	changes []Change
	nonce   *nonce
	run     func() error
	result  chan error // buffered: the committer never waits for a caller
}

func (s *Store) submit(ctx context.Context, w *write) error {
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	select {
	case s.queue <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return ErrClosed
	}
	select {
	case err := <-w.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		// The committer drains the queue before it ends, so a result may be there.
		select {
		case err := <-w.result:
			return err
		default:
			return ErrClosed
		}
	}
}

// commit is the only writer. bbolt's own Batch waits 10 ms for company; draining a queue
// gives the same grouping with no wait when the worker is idle.
func (s *Store) commit() {
	defer close(s.done)
	for {
		select {
		case w := <-s.queue:
			s.flush(s.drain(w))
		case <-s.stop:
			for {
				select {
				case w := <-s.queue:
					s.flush(s.drain(w))
				default:
					return
				}
			}
		}
	}
}

func (s *Store) drain(first *write) []*write {
	batch := []*write{first}
	for len(batch) < maxBatch {
		select {
		case w := <-s.queue:
			batch = append(batch, w)
		default:
			return batch
		}
	}
	return batch
}

// flush decides every nonce in memory, then makes all effects durable in one transaction.
// When the commit fails nobody is told of success; nonces decided in it stay consumed in
// memory, which fails closed.
func (s *Store) flush(batch []*write) {
	var live []*write
	for _, w := range batch {
		if s.broken != nil {
			w.result <- s.broken
			continue
		}
		if w.run != nil {
			w.result <- w.run()
			continue
		}
		if w.nonce != nil {
			now, err := s.now()
			if err == nil {
				s.expired = append(s.expired, s.nonces.expire(now.UnixMilli())...)
				err = s.nonces.consume(*w.nonce, now.UnixMilli())
			}
			if err != nil {
				w.result <- err
				continue
			}
		}
		live = append(live, w)
	}
	s.live.Store(int64(len(s.nonces.live)))
	if len(live) == 0 && len(s.expired) == 0 || s.broken != nil {
		return
	}
	start := time.Now()
	err := s.transact(live)
	if s.observe != nil {
		s.observe(Commit{Writes: len(live), Took: time.Since(start), Err: err})
	}
	for _, w := range live {
		w.result <- err
	}
}

// transact makes the effects of live durable, and drops what has expired. It alone decides
// whether a failure is final.
func (s *Store) transact(live []*write) (err error) {
	next, txid := s.sum, 0
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s.stuck.Store(true)
			err = damaged("%v", p)
		}
		if err == nil {
			s.sum, s.expired = next, nil
			return
		}
		err = fmt.Errorf("commit state: %w", err)
		if !full(err) || s.advanced(txid) {
			s.broken = fmt.Errorf("%w: %w", ErrBroken, err)
			err = s.broken
		}
	}()
	return s.db.Update(func(tx *bolt.Tx) error {
		txid = tx.ID()
		nb := tx.Bucket([]byte(nonceBucket))
		for _, id := range s.expired {
			if err := change(nb, nonceBucket, Change{Key: id, Delete: true}, &next); err != nil {
				return fmt.Errorf("drop expired nonce: %w", err)
			}
		}
		for _, w := range live {
			if err := w.apply(tx, nb, &next); err != nil {
				return err
			}
		}
		return tx.Bucket([]byte(metaBucket)).Put([]byte(sumKey), next[:])
	})
}

// full says whether the disk, a quota or a size limit had no room: what may pass by itself.
func full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// advanced says whether the transaction is the newest of the file although its commit failed.
// bbolt has then rolled its free list back, and would overwrite what it now reads.
func (s *Store) advanced(txid int) bool {
	newest := 0
	err := s.view(func(tx *bolt.Tx) error { newest = tx.ID(); return nil })
	return err != nil || newest >= txid
}

func (w *write) apply(tx *bolt.Tx, nonces *bolt.Bucket, of *sum) error {
	if w.nonce != nil {
		return change(nonces, nonceBucket, Change{Key: w.nonce.id, Value: w.nonce.encode()}, of)
	}
	b, err := tx.CreateBucketIfNotExists([]byte(w.bucket))
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", w.bucket, err)
	}
	for _, c := range w.changes {
		if err := change(b, w.bucket, c, of); err != nil {
			return fmt.Errorf("write %s: %w", w.bucket, err)
		}
	}
	return nil
}

// change makes one change and keeps the sum.
func change(b *bolt.Bucket, name string, c Change, of *sum) error {
	key := []byte(c.Key)
	if old := b.Get(key); old != nil {
		of.toggle([]byte(name), key, old)
	}
	if c.Delete {
		return b.Delete(key)
	}
	of.toggle([]byte(name), key, c.Value)
	return b.Put(key, c.Value)
}
