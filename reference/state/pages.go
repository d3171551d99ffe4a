// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// Layout of a bbolt file, version 2, in the byte order of the machine (bbolt v1.5.0, internal/common):
//
//	page     id u64, flags u16, count u16, overflow u32; then elements, then their bytes
//	meta     magic u32, version u32, page size u32, flags u32, root page u64, root sequence u64,
//	         free list page u64, high water mark u64, transaction u64, FNV-1a of the above u64
//	branch   position u32, key size u32, page u64
//	leaf     flags u32, position u32, key size u32, value size u32
//	bucket   root page u64, sequence u64; root 0: a leaf page follows in the value itself
//
// A position counts from its own element.
const (
	pageHead    = 16
	elementSize = 16
	bucketHead  = 16
	metaSize    = 64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf element

	metaMagic   = 0xED0CDAED
	metaVersion = 2
)

// walker reads a database file as plain bytes. bbolt maps the file and trusts it: a damaged page
// makes it panic, fault, loop, or overwrite what a damaged free list calls free. So the file is
// walked first, in bounded time and memory, and bbolt sees only what passed.
type walker struct {
	file io.ReaderAt
	size int64 // of a page
	high uint64
	seen []bool // pages that something names
	// record is called for each record, in order.
	record func(bucket, key, value []byte) error
}

var native = binary.NativeEndian

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// walkFile visits every record of the newest transaction. An error matches [ErrDamaged], or is
// one of reading or of record.
func walkFile(file io.ReaderAt, bytes int64, record func(bucket, key, value []byte) error) error {
	w := &walker{file: file, record: record}
	newest, err := w.metas(bytes)
	if err != nil {
		return err
	}
	if w.high < 3 || w.high > uint64(bytes/w.size) {
		return damaged("%d pages are said to be in use, the file has %d", w.high, bytes/w.size)
	}
	w.seen = make([]bool, w.high)
	w.seen[0], w.seen[1] = true, true
	if err := w.freelist(native.Uint64(newest[32:])); err != nil {
		return err
	}
	if err := w.tree(native.Uint64(newest[16:]), nil, nil, nil, 0); err != nil {
		return err
	}
	for id, seen := range w.seen {
		if !seen {
			return damaged("page %d belongs to nothing", id)
		}
	}
	return nil
}

// metas checks both meta pages and returns the newer one. bbolt contents itself with one valid
// page and would go back by a transaction, to before what was acknowledged last. A meta fits into
// one sector, so that a crash leaves no half of one.
func (w *walker) metas(bytes int64) ([]byte, error) {
	var head [pageHead + metaSize]byte
	if _, err := w.file.ReadAt(head[:], 0); err != nil {
		return nil, damaged("read page 0: %w", err)
	}
	w.size = int64(native.Uint32(head[pageHead+8:]))
	if w.size < 1024 || w.size > 64<<10 || w.size&(w.size-1) != 0 {
		return nil, damaged("page size %d", w.size)
	}
	var both [2][]byte
	for i := range both {
		page := make([]byte, pageHead+metaSize)
		if _, err := w.file.ReadAt(page, int64(i)*w.size); err != nil {
			return nil, damaged("read page %d: %w", i, err)
		}
		m := page[pageHead:]
		sum := fnv.New64a()
		sum.Write(m[:metaSize-8])
		switch {
		case native.Uint64(page) != uint64(i) || native.Uint16(page[8:]) != flagMeta:
			return nil, damaged("page %d is no meta page", i)
		case native.Uint32(m) != metaMagic || native.Uint32(m[4:]) != metaVersion || int64(native.Uint32(m[8:])) != w.size:
			return nil, damaged("meta page %d is of another format", i)
		case native.Uint64(m[56:]) != sum.Sum64():
			return nil, damaged("meta page %d does not have its checksum", i)
		}
		both[i] = m
	}
	newest, older := both[0], both[1]
	if native.Uint64(newest[48:]) < native.Uint64(older[48:]) {
		newest, older = older, newest
	}
	if native.Uint64(newest[48:])-native.Uint64(older[48:]) != 1 {
		return nil, damaged("the meta pages are of the transactions %d and %d", native.Uint64(newest[48:]), native.Uint64(older[48:]))
	}
	w.high = native.Uint64(newest[40:])
	return newest, nil
}

// page reads the page id with its overflow and claims all of it.
func (w *walker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.high {
		return nil, damaged("page %d is named, there are %d", id, w.high)
	}
	var head [pageHead]byte
	if _, err := w.file.ReadAt(head[:], int64(id)*w.size); err != nil {
		return nil, damaged("read page %d: %w", id, err)
	}
	more := uint64(native.Uint32(head[12:]))
	if native.Uint64(head[:]) != id || more >= w.high-id {
		return nil, damaged("page %d says that it is page %d with %d more", id, native.Uint64(head[:]), more)
	}
	for i := id; i <= id+more; i++ {
		if w.seen[i] {
			return nil, damaged("page %d is named twice", i)
		}
		w.seen[i] = true
	}
	out := make([]byte, int64(more+1)*w.size)
	if _, err := w.file.ReadAt(out, int64(id)*w.size); err != nil {
		return nil, damaged("read page %d: %w", id, err)
	}
	return out, nil
}

func (w *walker) freelist(id uint64) error {
	p, err := w.page(id)
	if err != nil {
		return err
	}
	if native.Uint16(p[8:]) != flagFreelist {
		return damaged("page %d is no free list", id)
	}
	count, at := uint64(native.Uint16(p[10:])), pageHead
	if count == 0xFFFF && len(p) >= at+8 { // more than fit: the first entry counts them
		count, at = native.Uint64(p[at:]), at+8
	}
	if count > uint64(len(p)-at)/8 {
		return damaged("the free list names %d pages", count)
	}
	last := uint64(1)
	for range count {
		free := native.Uint64(p[at:])
		if at += 8; free <= last || free >= w.high || w.seen[free] {
			return damaged("the free list names page %d", free)
		}
		w.seen[free], last = true, free
	}
	return nil
}

// maxTree is far above what 2^32 records need.
const maxTree = 24

// tree visits the pages from id down. bucket is nil in the root, which holds buckets and nothing
// else. All keys are in [low, high); nil is no bound.
func (w *walker) tree(id uint64, bucket, low, high []byte, depth int) error {
	p, err := w.page(id)
	if err != nil {
		return err
	}
	if depth > maxTree {
		return damaged("page %d is %d pages deep", id, depth)
	}
	switch native.Uint16(p[8:]) {
	case flagLeaf:
		return w.leaf(id, p, bucket, low, high)
	case flagBranch:
	default:
		return damaged("page %d has the flags %#x in a tree", id, native.Uint16(p[8:]))
	}
	count := int(native.Uint16(p[10:]))
	if count == 0 || pageHead+count*elementSize > len(p) {
		return damaged("page %d has %d branches", id, count)
	}
	keys, children := make([][]byte, count+1), make([]uint64, count)
	for i := range count {
		e := p[pageHead+i*elementSize:]
		children[i] = native.Uint64(e[8:])
		if keys[i], err = part(e, native.Uint32(e), 0, native.Uint32(e[4:])); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		if i > 0 && bytes.Compare(keys[i-1], keys[i]) >= 0 || !within(keys[i], low, high) {
			return damaged("page %d has its keys in another order", id)
		}
	}
	keys[count] = high
	for i, child := range children {
		if err := w.tree(child, bucket, keys[i], keys[i+1], depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) leaf(id uint64, p, bucket, low, high []byte) error {
	count := int(native.Uint16(p[10:]))
	if pageHead+count*elementSize > len(p) {
		return damaged("page %d has %d records", id, count)
	}
	var last []byte
	for i := range count {
		e := p[pageHead+i*elementSize:]
		pos, ksize, vsize := native.Uint32(e[4:]), native.Uint32(e[8:]), native.Uint32(e[12:])
		key, kerr := part(e, pos, 0, ksize)
		value, verr := part(e, pos, ksize, vsize)
		if err := errors.Join(kerr, verr); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		if i > 0 && bytes.Compare(last, key) >= 0 || !within(key, low, high) {
			return damaged("page %d has its keys in another order", id)
		}
		last = key
		flags := native.Uint32(e)
		if flags&^uint32(flagBucket) != 0 || (flags == flagBucket) != (bucket == nil) {
			return damaged("page %d has a record of kind %#x", id, flags)
		}
		if bucket != nil {
			if err := w.record(bucket, key, value); err != nil {
				return err
			}
			continue
		}
		if err := w.bucket(id, key, value); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) bucket(id uint64, name, value []byte) error {
	if len(value) < bucketHead || len(name) == 0 {
		return damaged("page %d has a bucket of %d bytes", id, len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return w.tree(root, name, nil, nil, 0)
	}
	inline := value[bucketHead:]
	if len(inline) < pageHead || native.Uint16(inline[8:]) != flagLeaf {
		return damaged("page %d has a bucket that is no leaf", id)
	}
	return w.leaf(id, inline, name, nil, nil)
}

// part is the bytes at a position of element e, which is the rest of its page.
func part(e []byte, position, skip, size uint32) ([]byte, error) {
	from := uint64(position) + uint64(skip)
	if to := from + uint64(size); from < elementSize || to > uint64(len(e)) {
		return nil, damaged("an element reaches from byte %d to %d, of %d", from, to, len(e))
	}
	return e[from : from+uint64(size)], nil
}

func within(key, low, high []byte) bool {
	return (low == nil || bytes.Compare(key, low) >= 0) && (high == nil || bytes.Compare(key, high) < 0)
}
