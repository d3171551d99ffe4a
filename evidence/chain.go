// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Chain seals a run. Its digest starts with the arming record and takes in every case record
// in the order of finishing, so that a row can be neither dropped, added nor changed after it:
//
//	h0 = sha256("hallmark-seal-v1\n" || canonical JSON of the arming record)
//	hi = sha256(h(i-1) || line i, without its newline)
//
// The lines, each ended by one newline, are the artifact of role [ArtifactRecords].
// A Chain is not safe for concurrent use.
type Chain struct {
	sum   [sha256.Size]byte
	count int64
}

// NewChain starts a chain on the arming record, which must have been written and fsynced.
func NewChain(a Arming) (*Chain, error) {
	b, err := strictjson.Canonical(a)
	if err != nil {
		return nil, fmt.Errorf("arming record: %w", err)
	}
	return &Chain{sum: sha256.Sum256(append([]byte("hallmark-seal-v1\n"), b...))}, nil
}

// Add takes the next finished row in and returns its line, ended by a newline.
func (c *Chain) Add(r CaseRow) (line []byte, err error) {
	line, err = strictjson.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("case record: %w", err)
	}
	c.take(line)
	return append(line, '\n'), nil
}

func (c *Chain) take(line []byte) {
	h := sha256.New()
	h.Write(c.sum[:])
	h.Write(line)
	h.Sum(c.sum[:0])
	c.count++
}

// Seal closes the chain.
func (c *Chain) Seal(at time.Time) Seal {
	return Seal{Digest: digestPrefix + hex.EncodeToString(c.sum[:]), Count: c.count, FinishedAt: At(at)}
}
