// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

var (
	// ErrShrunk means that the log has fewer entries than were seen before.
	ErrShrunk = errors.New("the log is smaller than it was")
	// ErrForked means that the log holds other entries than were seen before.
	ErrForked = errors.New("the log is not the one that was seen before")
	// ErrNotLogged means that the log does not hold the evidence.
	ErrNotLogged = errors.New("the evidence is not in the log")
)

// View is a log as it was read once, checked whole.
type View struct {
	trust *Trust
	tree  *tree
	note  *note.Note
	text  []byte
	dir   directory
}

// Follow reads the log in dir: its checkpoint must be signed as trust demands, its entries must give
// what the checkpoint signs, and it must extend what the file memory holds. Then memory holds this
// checkpoint. A memory that does not exist is made: the first look has nothing to compare with.
func Follow(trust *Trust, dir, memory string) (_ *View, err error) {
	unlock, err := evidence.LockFile(memory + ".lock")
	if err != nil {
		return nil, fmt.Errorf("lock memory of the log: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	v, c, err := look(trust, dir)
	if err != nil {
		return nil, err
	}
	before, err := os.ReadFile(memory)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read memory of the log: %w", err)
	default:
		// What was seen counts with the log's signature alone: the demand for witnesses may have risen since.
		last, _, err := (&Trust{log: trust.log, witnesses: trust.witnesses}).open(before)
		if err != nil {
			return nil, fmt.Errorf("memory of the log: %w", err)
		}
		if err := v.extends(last.Tree); err != nil {
			return nil, err
		}
	}
	if err := evidence.WriteDurable(memory, v.text, 0o600); err != nil {
		return nil, fmt.Errorf("remember checkpoint of %d entries: %w", c.N, err)
	}
	return v, nil
}

// Look is [Follow] without a memory: for making proofs, not for relying on the log.
func Look(trust *Trust, dir string) (*View, error) {
	v, _, err := look(trust, dir)
	return v, err
}

func look(trust *Trust, dir string) (*View, tlog.Tree, error) {
	v := &View{trust: trust, dir: directory(dir)}
	var err error
	if v.text, err = v.dir.read(checkpointFile, maxNote); err != nil {
		return nil, tlog.Tree{}, fmt.Errorf("read checkpoint: %w", err)
	}
	c, n, err := trust.open(v.text)
	if err != nil {
		return nil, tlog.Tree{}, err
	}
	v.note = n
	if v.tree, err = v.dir.load(c.Tree); err != nil {
		return nil, tlog.Tree{}, err
	}
	return v, c.Tree, nil
}

// Origin is the name of the log.
func (v *View) Origin() string { return v.trust.Origin() }

// Size is the number of entries.
func (v *View) Size() int64 { return int64(len(v.tree.entries)) }

// extends says whether an earlier tree of the log is the beginning of this one.
func (v *View) extends(earlier tlog.Tree) error {
	if earlier.N > v.Size() {
		return fmt.Errorf("%w: %d entries, %d were seen", ErrShrunk, v.Size(), earlier.N)
	}
	root, err := v.tree.root(earlier.N)
	if err != nil {
		return err
	}
	if root != earlier.Hash {
		return fmt.Errorf("%w: the first %d entries differ", ErrForked, earlier.N)
	}
	return nil
}

// Contains says whether a proof shows the evidence file in this log and in no fork of it: the tree of
// the proof must be the beginning of this one.
func (v *View) Contains(p Proof, file []byte) error {
	t, err := p.Verify(v.trust, file)
	if err != nil {
		return err
	}
	return v.extends(t)
}

// Prove makes the proof of an evidence file against the checkpoint of this view, cosignatures
// included.
func (v *View) Prove(file []byte) (Proof, error) {
	return v.tree.prove(file, v.text)
}

func (t *tree) prove(file, checkpoint []byte) (Proof, error) {
	i := t.find(Entry(file))
	if i < 0 {
		return Proof{}, fmt.Errorf("%w: %s", ErrNotLogged, evidence.Digest(file))
	}
	hashes, err := tlog.ProveRecord(int64(len(t.entries)), i, t)
	if err != nil {
		return Proof{}, fmt.Errorf("prove entry %d: %w", i, err)
	}
	return Proof{Index: i, Hashes: hashes, Checkpoint: checkpoint}, nil
}

// Cosign follows the log as a witness of this name, with its own memory, and puts its cosignature into
// the log's checkpoint, in the place of an earlier one of its own. It says that the witness has seen
// this tree and no other of its size, now; not that the entries are good. A checkpoint that its writer, or
// another witness, has replaced meanwhile is never written over: the newer one is followed and cosigned.
func Cosign(trust *Trust, dir, memory, name string, s evidence.Signer) (*View, error) {
	w, err := newWitness(name, s)
	if err != nil {
		return nil, err
	}
	// Whoever cosigns first finds no cosignature yet.
	trust = &Trust{log: trust.log, witnesses: trust.witnesses}
	for range cosignTries {
		v, err := Follow(trust, dir, memory)
		if err != nil {
			return nil, err
		}
		// note.Sign keeps the signatures of others, known or not, and replaces an earlier one of this key.
		text, err := note.Sign(v.note, w)
		if err != nil {
			return nil, fmt.Errorf("cosign: %w", err)
		}
		switch err := v.dir.publish(text, v.text); {
		case err == nil:
			return Look(trust, dir)
		case !errors.Is(err, errReplaced):
			return nil, fmt.Errorf("cosign: %w", err)
		}
	}
	return nil, fmt.Errorf("cosign: %w, %d times", errReplaced, cosignTries)
}

// cosignTries bounds how often a checkpoint is cosigned again because it was replaced. More evidence than this
// in the time of so many signatures is no log of ours.
const cosignTries = 8
