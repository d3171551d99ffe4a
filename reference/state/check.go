// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Check returns every violation of the stored state, joined: pages, mode mark, nonce records
// and their count. It changes nothing, walks the whole file, and holds writes back meanwhile.
func (s *Store) Check(ctx context.Context) error {
	// bbolt's check reads the free list without its lock: only the writer may run it.
	return s.submit(ctx, &write{run: s.check, result: make(chan error, 1)})
}

func (s *Store) check() error {
	var bad []error
	err := s.db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			bad = append(bad, err)
		}
		mode := api.Mode(tx.Bucket([]byte(metaBucket)).Get([]byte(modeKey)))
		if mode != api.Qualification && mode != api.Production {
			bad = append(bad, fmt.Errorf("mode mark is %q", mode))
		}
		count := 0
		if err := tx.Bucket([]byte(nonceBucket)).ForEach(func(k, v []byte) error {
			count++
			if len(k) == 0 || len(v) < 8 || int64(binary.BigEndian.Uint64(v)) <= 0 {
				bad = append(bad, fmt.Errorf("nonce %q has a bad record of %d bytes", k, len(v)))
			}
			return nil
		}); err != nil {
			return err
		}
		if count > s.nonces.capacity {
			bad = append(bad, fmt.Errorf("%d nonces, capacity %d", count, s.nonces.capacity))
		}
		return nil
	})
	return errors.Join(append(bad, s.readError(err))...)
}
