// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"crypto/ed25519"
	"errors"
	"fmt"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
)

// ErrCheckpoint means that a checkpoint is not one of this log, signed and cosigned as demanded.
var ErrCheckpoint = errors.New("checkpoint not acceptable")

// maxNote bounds a checkpoint with its signatures, in bytes.
const maxNote = 64 << 10

// Trust says whose checkpoints count. Only [NewTrust] makes one.
type Trust struct {
	log       note.Verifier
	witnesses []note.Verifier
	threshold int
}

// NewTrust takes the verifier key of one log, those of witnesses, and how many of them, from 0 to all,
// must have cosigned. Two keys with one public key are refused: they would count twice.
func NewTrust(logKey string, witnesses []string, threshold int) (*Trust, error) {
	log, public, err := parse(logKey, typeNote)
	if err != nil {
		return nil, fmt.Errorf("key of the log: %w", err)
	}
	t := &Trust{log: log, threshold: threshold}
	seen := []ed25519.PublicKey{public}
	for _, w := range witnesses {
		v, public, err := parse(w, typeCosignature)
		if err != nil {
			return nil, fmt.Errorf("key of a witness: %w", err)
		}
		for _, s := range seen {
			if public.Equal(s) {
				return nil, fmt.Errorf("%w: %q has the public key of another", ErrKey, w)
			}
		}
		seen = append(seen, public)
		t.witnesses = append(t.witnesses, v)
	}
	if threshold < 0 || threshold > len(witnesses) {
		return nil, fmt.Errorf("%d cosignatures of %d witnesses are demanded", threshold, len(witnesses))
	}
	return t, nil
}

// Origin is the name of the log.
func (t *Trust) Origin() string { return t.log.Name() }

// open verifies a checkpoint and its signatures. A signature of a key that t does not know is passed
// over, as signed-note demands; a wrong one of a key that it knows is an error.
func (t *Trust) open(text []byte) (torchwood.Checkpoint, *note.Note, error) {
	if len(text) > maxNote {
		return torchwood.Checkpoint{}, nil, fmt.Errorf("%w: %d bytes", ErrCheckpoint, len(text))
	}
	n, err := note.Open(text, note.VerifierList(append([]note.Verifier{t.log}, t.witnesses...)...))
	if err != nil {
		return torchwood.Checkpoint{}, nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	signed, cosigned := false, 0
	for _, s := range n.Sigs {
		if s.Name == t.log.Name() && s.Hash == t.log.KeyHash() {
			signed = true
		} else {
			cosigned++ // note.Open keeps one signature of each key
		}
	}
	c, err := torchwood.ParseCheckpoint(n.Text)
	switch {
	case err != nil:
		return c, nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	case !signed:
		return c, nil, fmt.Errorf("%w: not signed by %s", ErrCheckpoint, t.log.Name())
	case c.Origin != t.log.Name():
		return c, nil, fmt.Errorf("%w: origin %q, want %q", ErrCheckpoint, c.Origin, t.log.Name())
	case c.Extension != "" || c.String() != n.Text:
		return c, nil, fmt.Errorf("%w: not the encoding of its contents", ErrCheckpoint)
	case cosigned < t.threshold:
		return c, nil, fmt.Errorf("%w: %d cosignatures, %d are demanded", ErrCheckpoint, cosigned, t.threshold)
	}
	return c, n, nil
}
