// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
)

// sum covers every record but its own: the exclusive or of the SHA-256 of each. It is stored in
// the transaction that changes a record, so that bytes which changed on the disk, and records that
// are not there any more, are seen at the next open; bbolt itself has checksums for two pages
// only. It is against accidents: whoever can write the file can write the sum.
type sum [sha256.Size]byte

// toggle takes a record in, or out again.
func (s *sum) toggle(bucket, key, value []byte) {
	h := sha256.New()
	for _, part := range [][]byte{bucket, key} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	h.Write(value)
	subtle.XORBytes(s[:], s[:], h.Sum(nil))
}

// verify walks the file and compares what is in it with its sum, which it returns.
func verify(file io.ReaderAt, bytes int64) (sum, error) {
	var got sum
	var want []byte
	err := walkFile(file, bytes, func(bucket, key, value []byte) error {
		if string(bucket) == metaBucket && string(key) == sumKey {
			want = value
			return nil
		}
		got.toggle(bucket, key, value)
		return nil
	})
	if err == nil && string(want) != string(got[:]) {
		err = errors.Join(ErrDamaged, errors.New("the records are not those that were stored"))
	}
	return got, err
}
