// SPDX-License-Identifier: Apache-2.0

package translog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ErrProof means that a proof does not show that the entry is in the log.
var ErrProof = errors.New("not a proof that this evidence is logged")

const (
	proofHeader = "c2sp.org/tlog-proof@v1"
	maxHashes   = 63 // levels of a tree of int64 entries
	maxProof    = maxNote + 8<<10
)

// Entry is what the log holds of an evidence file.
func Entry(file []byte) []byte {
	return []byte("hallmark evidence v1\n" + evidence.Digest(file) + "\n")
}

// Proof is a tlog-proof without extra data:
//
//	c2sp.org/tlog-proof@v1
//	index 7
//	<base64 of a hash>        one line for each, from the leaf to the root
//
//	<the signed checkpoint>
type Proof struct {
	Index      int64
	Hashes     []tlog.Hash
	Checkpoint []byte // signed note
}

// ProofPath is where the proof of an evidence file of a bundle lies: beside the bundle's directory, whatever that
// is called here. That of evidence.2.sigstore.json in DIR is DIR.tlog-proof.2.
func ProofPath(bundle, file string) string {
	if whole, err := filepath.Abs(bundle); err == nil && !strings.HasPrefix(filepath.Base(bundle), filepath.Base(whole)) {
		bundle = whole // "." and ".." name no directory that something could lie beside
	}
	number := strings.TrimSuffix(strings.TrimPrefix(file, "evidence"), ".sigstore.json")
	return filepath.Clean(bundle) + ".tlog-proof" + number
}

// ReadProof reads a proof file: a regular one of a bounded size, by no link. What is none is [ErrProof]; one that
// is not there is fs.ErrNotExist.
func ReadProof(path string) (Proof, error) {
	text, err := directory(filepath.Dir(path)).read(filepath.Base(path), maxProof)
	if errors.Is(err, fs.ErrNotExist) {
		return Proof{}, err
	}
	if err != nil {
		return Proof{}, fmt.Errorf("%w: %w", ErrProof, err)
	}
	return ParseProof(text)
}

// Marshal returns the bytes of a proof file.
func (p Proof) Marshal() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\nindex %d\n", proofHeader, p.Index)
	for _, h := range p.Hashes {
		fmt.Fprintln(&b, base64.StdEncoding.EncodeToString(h[:]))
	}
	b.WriteByte('\n')
	b.Write(p.Checkpoint)
	return b.Bytes()
}

// ParseProof reads a proof file, which must be its own re-encoding. It verifies nothing.
func ParseProof(text []byte) (Proof, error) {
	if len(text) > maxProof {
		return Proof{}, fmt.Errorf("%w: %d bytes", ErrProof, len(text))
	}
	head, checkpoint, ok := strings.Cut(string(text), "\n\n")
	lines := strings.Split(head, "\n")
	if !ok || len(lines) < 2 || len(lines) > 2+maxHashes {
		return Proof{}, fmt.Errorf("%w: %d lines before the checkpoint", ErrProof, len(lines))
	}
	p := Proof{Checkpoint: []byte(checkpoint)}
	var err error
	if p.Index, err = strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64); err != nil || p.Index < 0 {
		return Proof{}, fmt.Errorf("%w: index line %q", ErrProof, lines[1])
	}
	for _, l := range lines[2:] {
		var h tlog.Hash
		raw, err := base64.StdEncoding.DecodeString(l)
		if err != nil || len(raw) != len(h) {
			return Proof{}, fmt.Errorf("%w: hash line %q", ErrProof, l)
		}
		copy(h[:], raw)
		p.Hashes = append(p.Hashes, h)
	}
	if !bytes.Equal(p.Marshal(), text) {
		return Proof{}, fmt.Errorf("%w: not the encoding of its contents", ErrProof)
	}
	return p, nil
}

// Verify says whether p shows that the log of t holds the evidence file, and returns the size of the
// tree that shows it. It is offline and knows no other tree: whether this tree is part of the log that
// others see, [View.Contains] says.
func (p Proof) Verify(t *Trust, file []byte) (tlog.Tree, error) {
	c, _, err := t.open(p.Checkpoint)
	if err != nil {
		return tlog.Tree{}, err
	}
	if p.Index >= c.N {
		return tlog.Tree{}, fmt.Errorf("%w: index %d in a tree of %d", ErrProof, p.Index, c.N)
	}
	if err := tlog.CheckRecord(p.Hashes, c.N, c.Hash, p.Index, tlog.RecordHash(Entry(file))); err != nil {
		return tlog.Tree{}, fmt.Errorf("%w: index %d: %w", ErrProof, p.Index, err)
	}
	return c.Tree, nil
}
