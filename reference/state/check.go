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

// Check returns every violation of the stored state, joined: pages by bbolt and by our own walk, sum, mode mark, nonce
// records, and an index that is not what is stored. It changes nothing, walks the whole file, and holds writes back meanwhile.
func (s *Store) Check(ctx context.Context) error {
	// bbolt's check reads the free list without its lock: only the writer may run it.
	return s.submit(ctx, &write{run: s.check, result: make(chan error, 1)})
}

func (s *Store) check() error {
	var bad []error
	err := s.view(func(tx *bolt.Tx) error {
		if err := pagesHold(tx); err != nil {
			bad = append(bad, err)
		}
		mode := api.Mode(tx.Bucket([]byte(metaBucket)).Get([]byte(modeKey)))
		if mode != api.Qualification && mode != api.Production {
			bad = append(bad, fmt.Errorf("mode mark is %q", mode))
		}
		count, stale := 0, map[string]bool{}
		for _, id := range s.expired {
			stale[id] = true
		}
		if err := tx.Bucket([]byte(nonceBucket)).ForEach(func(k, v []byte) error {
			count++
			if len(k) == 0 || len(v) < 8 || int64(binary.BigEndian.Uint64(v)) <= 0 {
				bad = append(bad, fmt.Errorf("nonce %q has a bad record of %d bytes", k, len(v)))
			}
			if _, known := s.nonces.live[string(k)]; !known && !stale[string(k)] {
				bad = append(bad, fmt.Errorf("nonce %q is stored, and would be accepted", k))
			}
			return nil
		}); err != nil {
			return err
		}
		if count > len(s.nonces.live)+len(s.expired) {
			bad = append(bad, fmt.Errorf("%d nonces are stored, %d known", count, len(s.nonces.live)))
		}
		return nil
	})
	if st, serr := s.file.Stat(); serr != nil {
		bad = append(bad, serr)
	} else if got, verr := verify(s.file, st.Size()); verr != nil || got != s.sum {
		bad = append(bad, fmt.Errorf("walk of the file: %w", errors.Join(verr, errors.New("sum is another"))))
	}
	return errors.Join(append(bad, err)...)
}

// pagesHold is bbolt's own check, which must be read to its end.
func pagesHold(tx *bolt.Tx) error {
	var bad []error
	for err := range tx.Check() {
		bad = append(bad, err)
	}
	return errors.Join(bad...)
}
