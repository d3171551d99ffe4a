// SPDX-License-Identifier: Apache-2.0

package project

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
)

// MaxInodes is how many inodes one workspace may hold, its root included. A walk remembers 40 bytes
// of each, and 8 to 16 of index: 46 MiB for 1,000,000 (BenchmarkMillion says what the process takes).
const MaxInodes = 1 << 22

// inode is what the snapshot remembers of one inode, and what is to be put back when the walk fails.
type inode struct {
	ino        uint64
	digest     uint64 // of a directory: of its entries
	generation uint32 // with ino: the handle by which an inode is found whatever its names are
	nlink      uint32
	names      uint32 // found in the tree, without the root
	projid     uint32 // before
	kind       uint8  // d_type, see getdents(2)
	flags      uint8
}

const (
	changed  = 1 << iota // the id or the inherit flag was set: to be put back
	inherits             // the directory had the inherit flag before
	visited              // by the pass that runs
)

// table finds inodes by number. Its memory is in pieces that never move, without a pointer in them.
// Inserting excludes everything else; finding does not.
type table struct {
	pieces [][]inode
	index  []uint32 // n+1 of the nth inode; 0 is free
	n      int
	mix    uint64 // so that nobody can choose inode numbers that collide
}

const (
	pieceBits = 14
	firstBits = 12
)

func newTable() *table {
	return &table{index: make([]uint32, 1<<firstBits), mix: rand.Uint64() | 1}
}

func (t *table) at(n int) *inode { return &t.pieces[n>>pieceBits][n&(1<<pieceBits-1)] }

func (t *table) slot(ino uint64) uint64 {
	return ino * t.mix >> (64 - bits.TrailingZeros(uint(len(t.index))))
}

// find returns nil for a number that was not inserted.
func (t *table) find(ino uint64) *inode {
	for s := t.slot(ino); t.index[s] != 0; s = (s + 1) & uint64(len(t.index)-1) {
		if i := t.at(int(t.index[s]) - 1); i.ino == ino {
			return i
		}
	}
	return nil
}

// insert returns the inode of that number, and whether it is new.
func (t *table) insert(ino uint64) (i *inode, isNew bool, err error) {
	if i := t.find(ino); i != nil {
		return i, false, nil
	}
	if t.n == MaxInodes {
		return nil, false, fmt.Errorf("%w: more than %d inodes", ErrTooLarge, MaxInodes)
	}
	if 2*(t.n+1) > len(t.index) {
		t.index = make([]uint32, 2*len(t.index))
		for n := range t.n {
			t.place(n)
		}
	}
	if t.n&(1<<pieceBits-1) == 0 {
		t.pieces = append(t.pieces, make([]inode, 1<<pieceBits))
	}
	i = t.at(t.n)
	i.ino = ino
	t.place(t.n)
	t.n++
	return i, true, nil
}

func (t *table) place(n int) {
	s := t.slot(t.at(n).ino)
	for t.index[s] != 0 {
		s = (s + 1) & uint64(len(t.index)-1)
	}
	t.index[s] = uint32(n) + 1
}

// each calls f for every inode, in the order of insertion.
func (t *table) each(f func(*inode)) {
	for n := range t.n {
		f(t.at(n))
	}
}
