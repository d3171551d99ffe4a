// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrMemory means that the log is not the one that its writer left: it is older or newer than what the
// writer remembers, or the memory is not there.
var ErrMemory = errors.New("the log is not as its writer left it")

// Log is a log open for writing, by one process at a time. It holds all entries in memory: it is made
// for the evidence of a fleet, thousands of bundles, not for a public log.
type Log struct {
	dir    directory
	memory string
	signer logSigner
	tree   *tree
	note   []byte // the published checkpoint, with the cosignatures that it got
	unlock func() error
}

// Create makes an empty log named origin in dir, which must be absent or empty, and the writer's memory
// of it in a file, which must not exist. It returns the log's verifier key.
func Create(dir, memory, origin string, s evidence.Signer) (string, error) {
	signer, err := newLogSigner(origin, s)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", fmt.Errorf("make log: %s is not empty: %w", dir, fs.ErrExist)
	}
	if _, err := os.Lstat(memory); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("make log: %s: %w", memory, errors.Join(err, fs.ErrExist))
	}
	empty, err := (&tree{}).root(0)
	if err != nil {
		return "", err
	}
	text, err := signer.sign(tlog.Tree{Hash: empty})
	if err != nil {
		return "", err
	}
	if err := directory(dir).write(checkpointFile, text); err != nil {
		return "", fmt.Errorf("make log: %w", err)
	}
	if err := evidence.WriteDurable(memory, text, 0o600); err != nil {
		return "", fmt.Errorf("make log: %w", err)
	}
	return signer.vkey, nil
}

func (s logSigner) sign(t tlog.Tree) ([]byte, error) {
	text, err := note.Sign(&note.Note{Text: torchwood.Checkpoint{Origin: s.Name(), Tree: t}.String()}, s)
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	return text, nil
}

// Open opens a log for writing, with the memory that [Create] made. It computes every hash again. A
// crash between two steps of [Log.Append] is mended here: what the memory holds is published.
func Open(dir, memory, origin string, s evidence.Signer) (_ *Log, err error) {
	signer, err := newLogSigner(origin, s)
	if err != nil {
		return nil, err
	}
	l := &Log{dir: directory(dir), memory: memory, signer: signer}
	remembered, err := os.ReadFile(memory)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	if l.unlock, err = evidence.LockFile(memory + ".lock"); err != nil {
		return nil, fmt.Errorf("lock log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.unlock())
		}
	}()
	trust := &Trust{log: signer.Verifier}
	last, _, err := trust.open(remembered)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	if l.note, err = l.dir.read(checkpointFile, maxNote); err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	published, _, err := trust.open(l.note)
	if err != nil {
		return nil, err
	}
	if published.N > last.N {
		return nil, fmt.Errorf("%w: %d entries are published, %d remembered", ErrMemory, published.N, last.N)
	}
	if l.tree, err = l.dir.load(last.Tree); err != nil {
		return nil, err
	}
	root, err := l.tree.root(published.N)
	if err != nil || root != published.Hash {
		return nil, fmt.Errorf("%w: the published %d entries are others", ErrMemory, published.N)
	}
	if published.N < last.N {
		if err := l.dir.publish(remembered, nil); err != nil {
			return nil, fmt.Errorf("publish checkpoint: %w", err)
		}
		l.note = remembered
	}
	return l, nil
}

// Close ends the writing.
func (l *Log) Close() error { return l.unlock() }

// Append adds the evidence files that the log does not hold yet and publishes a new checkpoint. It
// returns the index of each. What it returned without an error survives a crash.
func (l *Log) Append(files ...[]byte) ([]int64, error) {
	old := int64(len(l.tree.entries))
	next := &tree{entries: l.tree.entries[:old:old], hashes: l.tree.hashes[:len(l.tree.hashes):len(l.tree.hashes)]}
	var indexes []int64
	for _, f := range files {
		e := Entry(f)
		i := next.find(e)
		if i < 0 {
			i = int64(len(next.entries))
			if err := next.add(e); err != nil {
				return nil, fmt.Errorf("append: %w", err)
			}
		}
		indexes = append(indexes, i)
	}
	size := int64(len(next.entries))
	if size == old {
		return indexes, nil
	}
	root, err := next.root(size)
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	text, err := l.signer.sign(tlog.Tree{N: size, Hash: root})
	if err != nil {
		return nil, err
	}
	if err := l.store(next, old); err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	// Remembered before it is published: a checkpoint that somebody has seen is never forgotten.
	if err := evidence.WriteDurable(l.memory, text, 0o600); err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	l.tree = next
	if err := l.dir.publish(text, nil); err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	l.note = text
	return indexes, nil
}

// Prove makes the proof of an evidence file against the published checkpoint.
func (l *Log) Prove(file []byte) (Proof, error) { return l.tree.prove(file, l.note) }

// store writes the entry bundles and tiles that are new since there were old entries.
func (l *Log) store(t *tree, old int64) error {
	size := int64(len(t.entries))
	for n := old / width; n*width < size; n++ {
		var data []byte
		var err error
		for _, e := range t.entries[n*width : min(size, (n+1)*width)] {
			if data, err = torchwood.AppendTileEntry(data, e); err != nil {
				return err
			}
		}
		if err := l.dir.write(bundlePath(n, size), data); err != nil {
			return err
		}
	}
	for _, tile := range tlog.NewTiles(torchwood.TileHeight, old, size) {
		data, err := tlog.ReadTileData(tile, t)
		if err != nil {
			return err
		}
		if err := l.dir.write(torchwood.TilePath(tile), data); err != nil {
			return err
		}
	}
	return nil
}

// find returns the index of an entry, or -1.
func (t *tree) find(entry []byte) int64 {
	for i, e := range t.entries {
		if bytes.Equal(e, entry) {
			return int64(i)
		}
	}
	return -1
}

// MemoryPath is where the memory of a key's log goes: beside the key, as its sequence does.
func MemoryPath(keyPath string) string { return filepath.Clean(keyPath) + ".checkpoint" }
