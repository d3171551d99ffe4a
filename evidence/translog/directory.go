// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrRewritten means that a log's directory does not hold the entries that its checkpoint signs.
var ErrRewritten = errors.New("the log does not hold what its checkpoint says")

const (
	checkpointFile = "checkpoint"
	width          = 1 << torchwood.TileHeight // entries in a full bundle, hashes in a full tile
	maxEntry       = 1 << 10                   // bytes; ours have 93
)

// directory is a log in the form of tlog-tiles.
type directory string

func (d directory) read(name string, limit int64) (_ []byte, err error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return evidence.ReadRegular(root, name, limit)
}

// write replaces a file durably, and its folders with it.
func (d directory) write(name string, data []byte) error {
	path := filepath.Join(string(d), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := evidence.WriteDurable(path, data, 0o644); err != nil {
		return err
	}
	for dir := filepath.Dir(filepath.Dir(path)); len(dir) >= len(filepath.Clean(string(d))); dir = filepath.Dir(dir) {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return nil
}

// errReplaced means that the published checkpoint is not the one that was read.
var errReplaced = errors.New("the checkpoint was replaced meanwhile")

// publish replaces the checkpoint, if it is still before; nil replaces any. Writer and witnesses are different
// processes that write one file.
func (d directory) publish(text, before []byte) (err error) {
	unlock, err := evidence.LockDirectory(string(d))
	if err != nil {
		return fmt.Errorf("lock log: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if before != nil {
		now, err := d.read(checkpointFile, maxNote)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, before) {
			return errReplaced
		}
	}
	return d.write(checkpointFile, text)
}

// Height, ReadTiles and SaveTiles make directory a tlog.TileReader.
func (d directory) Height() int { return torchwood.TileHeight }

func (d directory) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var out [][]byte
	for _, t := range tiles {
		data, err := d.read(torchwood.TilePath(t), width*tlog.HashSize)
		if err != nil {
			return nil, err
		}
		if len(data) != t.W*tlog.HashSize {
			return nil, fmt.Errorf("tile %s has %d bytes", torchwood.TilePath(t), len(data))
		}
		out = append(out, data)
	}
	return out, nil
}

func (d directory) SaveTiles([]tlog.Tile, [][]byte) {}

func bundlePath(n, size int64) string {
	w := min(size-n*width, width)
	return torchwood.TilePath(tlog.Tile{H: torchwood.TileHeight, L: -1, N: n, W: int(w)})
}

// entries reads entry bundle n of a log of size entries, n*width < size.
func (d directory) entries(n, size int64) ([][]byte, error) {
	data, err := d.read(bundlePath(n, size), width*(2+maxEntry))
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for len(data) > 0 {
		var e []byte
		if e, data, err = torchwood.ReadTileEntry(data); err != nil {
			return nil, fmt.Errorf("bundle %d: %w", n, err)
		}
		out = append(out, e)
	}
	if want := min(size-n*width, width); int64(len(out)) != want {
		return nil, fmt.Errorf("bundle %d has %d entries, want %d", n, len(out), want)
	}
	return out, nil
}

// tree is a log in memory: its entries, and every hash in the order of package tlog.
type tree struct {
	entries [][]byte
	hashes  []tlog.Hash
}

// ReadHashes makes tree a tlog.HashReader.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	var out []tlog.Hash
	for _, i := range indexes {
		if i < 0 || i >= int64(len(t.hashes)) {
			return nil, fmt.Errorf("hash %d of %d", i, len(t.hashes))
		}
		out = append(out, t.hashes[i])
	}
	return out, nil
}

func (t *tree) add(entry []byte) error {
	more, err := tlog.StoredHashes(int64(len(t.entries)), entry, t)
	if err != nil {
		return err
	}
	t.entries, t.hashes = append(t.entries, entry), append(t.hashes, more...)
	return nil
}

// root is the hash of the tree of the first n entries.
func (t *tree) root(n int64) (tlog.Hash, error) {
	if n < 0 || n > int64(len(t.entries)) {
		return tlog.Hash{}, fmt.Errorf("tree of %d entries has no first %d", len(t.entries), n)
	}
	return tlog.TreeHash(n, t)
}

// load reads every entry of a log, computes every hash again, and holds the root against want and
// each tile of hashes against what was computed.
func (d directory) load(want tlog.Tree) (*tree, error) {
	t := &tree{}
	for n := int64(0); n*width < want.N; n++ {
		entries, err := d.entries(n, want.N)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRewritten, err)
		}
		for _, e := range entries {
			if err := t.add(e); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrRewritten, err)
			}
		}
	}
	root, err := t.root(want.N)
	if err != nil || root != want.Hash {
		return nil, fmt.Errorf("%w: %d entries give root %s, signed is %s", ErrRewritten, want.N, root, want.Hash)
	}
	for _, tile := range tlog.NewTiles(torchwood.TileHeight, 0, want.N) {
		own, err := tlog.ReadTileData(tile, t)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRewritten, err)
		}
		stored, err := d.ReadTiles([]tlog.Tile{tile})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRewritten, err)
		}
		if string(stored[0]) != string(own) {
			return nil, fmt.Errorf("%w: %s", ErrRewritten, torchwood.TilePath(tile))
		}
	}
	return t, nil
}
