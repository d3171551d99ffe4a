// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
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
	var expired []string
	for _, w := range batch {
		if w.run != nil {
			w.result <- w.run()
			continue
		}
		if w.nonce != nil {
			now, err := s.now()
			if err == nil {
				expired = append(expired, s.nonces.expire(now.UnixMilli())...)
				err = s.nonces.consume(*w.nonce, now.UnixMilli())
			}
			if err != nil {
				w.result <- err
				continue
			}
		}
		live = append(live, w)
	}
	if len(live) == 0 && len(expired) == 0 {
		return
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		nb := tx.Bucket([]byte(nonceBucket))
		for _, id := range expired {
			if err := nb.Delete([]byte(id)); err != nil {
				return fmt.Errorf("drop expired nonce: %w", err)
			}
		}
		for _, w := range live {
			if err := w.apply(tx, nb); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("commit state: %w", err)
	}
	for _, w := range live {
		w.result <- err
	}
}

func (w *write) apply(tx *bolt.Tx, nonces *bolt.Bucket) error {
	if w.nonce != nil {
		return nonces.Put([]byte(w.nonce.id), w.nonce.encode())
	}
	b, err := tx.CreateBucketIfNotExists([]byte(w.bucket))
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", w.bucket, err)
	}
	for _, c := range w.changes {
		if c.Delete {
			err = b.Delete([]byte(c.Key))
		} else {
			err = b.Put([]byte(c.Key), c.Value)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", w.bucket, err)
		}
	}
	return nil
}
