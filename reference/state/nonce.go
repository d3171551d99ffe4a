// SPDX-License-Identifier: Apache-2.0

package state

import (
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// A nonce record is 8 bytes big-endian expiry in Unix milliseconds, then the workspace id.
type nonce struct {
	id        string
	workspace string // "" for a health token
	expMs     int64
}

func (n nonce) encode() []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(n.expMs)), n.workspace...)
}

// nonces is the index of what the bucket holds. The bucket is its durable copy; the index
// decides. Records of earlier boots are kept until they expire too: the epoch already refuses
// their tokens, except health tokens, which have none.
type nonces struct {
	capacity, share int
	live            map[string]struct{}
	perWorkspace    map[string]int
	byExpiry        expiryHeap
}

func newNonces(capacity, share int) *nonces {
	return &nonces{capacity: capacity, share: share, live: map[string]struct{}{}, perWorkspace: map[string]int{}}
}

func (n *nonces) load(b *bolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if len(v) < 8 {
			return fmt.Errorf("read nonces: record of %d bytes", len(v))
		}
		n.add(nonce{id: string(k), expMs: int64(binary.BigEndian.Uint64(v)), workspace: string(v[8:])})
		return nil
	})
}

func (n *nonces) add(e nonce) {
	n.live[e.id] = struct{}{}
	n.perWorkspace[e.workspace]++
	heap.Push(&n.byExpiry, e)
}

// expire forgets what ended before nowMs and returns its ids. The token verifier refuses such
// a token with the same clock, so forgetting reopens nothing.
func (n *nonces) expire(nowMs int64) []string {
	var out []string
	for len(n.byExpiry) > 0 && n.byExpiry[0].expMs < nowMs {
		e := heap.Pop(&n.byExpiry).(nonce)
		delete(n.live, e.id)
		if n.perWorkspace[e.workspace]--; n.perWorkspace[e.workspace] == 0 {
			delete(n.perWorkspace, e.workspace)
		}
		out = append(out, e.id)
	}
	return out
}

// consume records e. A full store or share refuses; nothing live is ever evicted.
func (n *nonces) consume(e nonce, nowMs int64) error {
	if _, seen := n.live[e.id]; seen {
		return ErrReplay
	}
	if e.expMs < nowMs {
		return ErrExpired
	}
	if len(n.live) >= n.capacity || n.perWorkspace[e.workspace] >= n.share {
		return ErrExhausted
	}
	n.add(e)
	return nil
}

// ConsumeNonce records jti durably until expUnixMs and charges it to workspace ("" is the
// share of health tokens). It returns nil once in the life of a jti, afterwards [ErrReplay];
// [ErrExpired] when that life is over. [ErrExhausted] means that the store or the workspace's share is full. On any other error the
// nonce may be consumed; the caller must refuse.
func (s *Store) ConsumeNonce(ctx context.Context, jti, workspace string, expUnixMs int64) error {
	if jti == "" || len(jti) > 256 || len(workspace) > 256 {
		return fmt.Errorf("consume nonce: id of %d bytes, workspace of %d", len(jti), len(workspace))
	}
	w := &write{nonce: &nonce{id: jti, workspace: workspace, expMs: expUnixMs}, result: make(chan error, 1)}
	return s.submit(ctx, w)
}

type expiryHeap []nonce

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expMs < h[j].expMs }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *expiryHeap) Push(x any) { *h = append(*h, x.(nonce)) }

// Pop implements [heap.Interface].
func (h *expiryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}
