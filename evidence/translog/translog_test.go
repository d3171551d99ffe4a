// SPDX-License-Identifier: Apache-2.0

package translog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

const origin = "log.example/hallmark"

// party is a log with its writer and one follower.
type party struct {
	dir, memory, seen string
	key               *signing.Signer
	vkey              string
}

func throwaway(t *testing.T) *signing.Signer {
	t.Helper()
	s, err := signing.Throwaway()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newParty(t *testing.T) *party {
	t.Helper()
	base := t.TempDir()
	p := &party{dir: filepath.Join(base, "log"), memory: filepath.Join(base, "log.key.checkpoint"), seen: filepath.Join(base, "seen"), key: throwaway(t)}
	var err error
	if p.vkey, err = translog.Create(p.dir, p.memory, origin, p.key); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *party) add(t *testing.T, files ...[]byte) []int64 {
	t.Helper()
	l, err := translog.Open(p.dir, p.memory, origin, p.key)
	if err != nil {
		t.Fatal(err)
	}
	indexes, err := l.Append(files...)
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	return indexes
}

func (p *party) trust(t *testing.T, threshold int, witnesses ...string) *translog.Trust {
	t.Helper()
	trust, err := translog.NewTrust(p.vkey, witnesses, threshold)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

func (p *party) follow(t *testing.T) (*translog.View, error) {
	t.Helper()
	return translog.Follow(p.trust(t, 0), p.dir, p.seen)
}

func (p *party) copy(t *testing.T) *party {
	t.Helper()
	c := *p
	c.dir, c.memory = filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "memory")
	if err := os.CopyFS(c.dir, os.DirFS(p.dir)); err != nil {
		t.Fatal(err)
	}
	put(t, c.memory, get(t, p.memory))
	return &c
}

func get(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func file(n int) []byte { return fmt.Appendf(nil, "evidence %d", n) }

func files(from, to int) [][]byte {
	var out [][]byte
	for n := from; n < to; n++ {
		out = append(out, file(n))
	}
	return out
}

func TestEveryEntryIsProvedAtEverySize(t *testing.T) {
	p := newParty(t)
	if v, err := p.follow(t); err != nil || v.Size() != 0 {
		t.Fatalf("empty log: %v", err)
	}
	// Across the edges of bundles and tiles, in batches of uneven sizes.
	for _, size := range []int{1, 2, 3, 255, 256, 257, 511, 512, 700} {
		v, err := p.follow(t)
		if err != nil {
			t.Fatal(err)
		}
		p.add(t, files(int(v.Size()), size)...)
		if v, err = p.follow(t); err != nil || v.Size() != int64(size) {
			t.Fatalf("size %d: %v", size, err)
		}
		for _, n := range []int{0, size / 2, size - 1} {
			proof, err := v.Prove(file(n))
			if err != nil {
				t.Fatal(err)
			}
			again, err := translog.ParseProof(proof.Marshal())
			if err != nil || again.Index != int64(n) {
				t.Fatalf("size %d, entry %d: %+v, %v", size, n, again, err)
			}
			if err := v.Contains(again, file(n)); err != nil {
				t.Errorf("size %d, entry %d: %v", size, n, err)
			}
		}
	}
	// Twice the same is one entry, in one call and in two.
	if got := p.add(t, file(3), file(900), file(900)); fmt.Sprint(got) != "[3 700 700]" {
		t.Errorf("indexes %v", got)
	}
	// An old proof stays one.
	v, err := p.follow(t)
	if err != nil {
		t.Fatal(err)
	}
	old, err := v.Prove(file(5))
	if err != nil {
		t.Fatal(err)
	}
	p.add(t, files(1000, 1300)...)
	if v, err = p.follow(t); err != nil {
		t.Fatal(err)
	}
	if err := v.Contains(old, file(5)); err != nil {
		t.Errorf("old proof: %v", err)
	}
	if _, err := v.Prove([]byte("other")); !errors.Is(err, translog.ErrNotLogged) {
		t.Errorf("proof of what is not logged: %v", err)
	}
}

// reader serves a log's directory to torchwood's client, which is not ours.
type reader string

func (r reader) ReadTiles(_ context.Context, tiles []tlog.Tile) ([][]byte, error) {
	var out [][]byte
	for _, t := range tiles {
		data, err := os.ReadFile(filepath.Join(string(r), torchwood.TilePath(t)))
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}

func (r reader) SaveTiles([]tlog.Tile, [][]byte) {}

func (r reader) ReadEndpoint(_ context.Context, path string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(r), path))
}

func TestOtherClientsReadTheLog(t *testing.T) {
	p := newParty(t)
	p.add(t, files(0, 300)...)
	p.add(t, files(300, 600)...)
	v, err := note.NewVerifier(p.vkey)
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open(get(t, filepath.Join(p.dir, "checkpoint")), note.VerifierList(v))
	if err != nil {
		t.Fatal(err)
	}
	c, err := torchwood.ParseCheckpoint(n.Text)
	if err != nil || c.N != 600 || c.Origin != origin {
		t.Fatalf("%+v, %v", c, err)
	}
	client, err := torchwood.NewClient(reader(p.dir))
	if err != nil {
		t.Fatal(err)
	}
	seen := int64(0)
	for i, e := range client.Entries(t.Context(), c.Tree, 0) {
		if i != seen || !bytes.Equal(e, translog.Entry(file(int(i)))) {
			t.Fatalf("entry %d is %q", i, e)
		}
		seen++
	}
	if err := client.Err(); err != nil {
		t.Fatal(err)
	}
	if seen < 512 { // the client leaves a partial bundle for later
		t.Errorf("%d entries were read", seen)
	}
	if _, _, err := client.Entry(t.Context(), c.Tree, 599); err != nil {
		t.Error(err)
	}
}

// What a follower has seen, no other log can take back.
func TestFollowerRefuses(t *testing.T) {
	p := newParty(t)
	p.add(t, files(0, 300)...)
	early := p.copy(t)
	if _, err := p.follow(t); err != nil {
		t.Fatal(err)
	}
	p.add(t, files(300, 520)...)
	if _, err := p.follow(t); err != nil {
		t.Fatal(err)
	}
	before := get(t, p.seen)

	forked := early.copy(t)
	forked.add(t, files(2000, 2220)...)
	longer := early.copy(t)
	longer.add(t, files(2000, 2500)...)
	other := newParty(t)
	other.add(t, files(0, 600)...)
	renamed := p.copy(t)
	vkey, err := translog.LogVerifierKey("log.example/other", p.key)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(name string, f func([]byte) []byte) *party {
		c := p.copy(t)
		path := filepath.Join(c.dir, name)
		old := get(t, path)
		changed := f(bytes.Clone(old))
		if bytes.Equal(changed, old) {
			t.Fatalf("%s was not changed", name)
		}
		put(t, path, changed)
		return c
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	gone := p.copy(t)
	if err := os.Remove(filepath.Join(gone.dir, "tile/entries/000")); err != nil {
		t.Fatal(err)
	}
	// All of another history, and the checkpoint that everybody saw.
	whole := forked.copy(t)
	put(t, filepath.Join(whole.dir, "checkpoint"), get(t, filepath.Join(p.dir, "checkpoint")))
	for name, tt := range map[string]struct {
		log  *party
		key  string
		want error
	}{
		"rewritten whole":        {whole, p.vkey, translog.ErrRewritten},
		"truncated":              {early, p.vkey, translog.ErrShrunk},
		"forked, same size":      {forked, p.vkey, translog.ErrForked},
		"forked, longer":         {longer, p.vkey, translog.ErrForked},
		"of another key":         {other, p.vkey, translog.ErrCheckpoint},
		"of another name":        {renamed, vkey, translog.ErrCheckpoint},
		"entry rewritten":        {edit("tile/entries/000", flip), p.vkey, translog.ErrRewritten},
		"entry cut":              {edit("tile/entries/000", func(b []byte) []byte { return b[:len(b)-1] }), p.vkey, translog.ErrRewritten},
		"entry added":            {edit("tile/entries/000", func(b []byte) []byte { return append(b, 0, 1, 'x') }), p.vkey, translog.ErrRewritten},
		"entries removed":        {gone, p.vkey, translog.ErrRewritten},
		"hash rewritten":         {edit("tile/0/001", flip), p.vkey, translog.ErrRewritten},
		"hash above rewritten":   {edit("tile/1/000.p/2", flip), p.vkey, translog.ErrRewritten},
		"checkpoint size":        {edit("checkpoint", func(b []byte) []byte { return bytes.Replace(b, []byte("\n520\n"), []byte("\n519\n"), 1) }), p.vkey, translog.ErrCheckpoint},
		"checkpoint signature":   {edit("checkpoint", func(b []byte) []byte { b[len(b)-5] ^= 1; return b }), p.vkey, translog.ErrCheckpoint},
		"checkpoint too large":   {edit("checkpoint", func(b []byte) []byte { return append(b, bytes.Repeat([]byte("x"), 1<<20)...) }), p.vkey, nil},
		"checkpoint without any": {edit("checkpoint", func([]byte) []byte { return []byte("x") }), p.vkey, translog.ErrCheckpoint},
	} {
		trust, err := translog.NewTrust(tt.key, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = translog.Follow(trust, tt.log.dir, p.seen)
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if !bytes.Equal(get(t, p.seen), before) {
			t.Fatalf("%s: it was remembered", name)
		}
	}
	if _, err := p.follow(t); err != nil {
		t.Errorf("the log itself: %v", err)
	}
	// A fork of which this follower saw neither end is told by a proof from it.
	proof := prove(t, forked, file(2001))
	v, err := p.follow(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proof.Verify(p.trust(t, 0), file(2001)); err != nil {
		t.Fatalf("the fork's proof by itself: %v", err)
	}
	if err := v.Contains(proof, file(2001)); !errors.Is(err, translog.ErrForked) {
		t.Errorf("a proof of a fork: %v", err)
	}
	p2 := prove(t, longer, file(2400))
	if err := v.Contains(p2, file(2400)); !errors.Is(err, translog.ErrShrunk) {
		t.Errorf("a proof of a longer log than this: %v", err)
	}
}

func prove(t *testing.T, p *party, f []byte) translog.Proof {
	t.Helper()
	v, err := translog.Follow(p.trust(t, 0), p.dir, filepath.Join(t.TempDir(), "seen"))
	if err != nil {
		t.Fatal(err)
	}
	proof, err := v.Prove(f)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// The writer refuses a log that is not as it left it, and mends what a crash of its own left.
func TestWriterRefuses(t *testing.T) {
	p := newParty(t)
	p.add(t, files(0, 10)...)
	early := p.copy(t)
	p.add(t, files(10, 20)...)
	open := func(dir, memory, name string, key evidence.Signer) error {
		l, err := translog.Open(dir, memory, name, key)
		if err == nil {
			err = l.Close()
		}
		return err
	}
	if err := open(early.dir, p.memory, origin, p.key); !errors.Is(err, translog.ErrRewritten) {
		t.Errorf("a log from a backup: %v", err)
	}
	if err := open(p.dir, early.memory, origin, p.key); !errors.Is(err, translog.ErrMemory) {
		t.Errorf("a memory from a backup: %v", err)
	}
	if err := open(p.dir, filepath.Join(t.TempDir(), "none"), origin, p.key); !errors.Is(err, translog.ErrMemory) {
		t.Errorf("no memory: %v", err)
	}
	if err := open(p.dir, p.memory, origin, throwaway(t)); !errors.Is(err, translog.ErrMemory) {
		t.Errorf("another key: %v", err)
	}
	if err := open(p.dir, p.memory, "other.example", p.key); !errors.Is(err, translog.ErrMemory) {
		t.Errorf("another name: %v", err)
	}
	forked := early.copy(t)
	forked.add(t, file(99))
	swapped := p.copy(t)
	put(t, filepath.Join(swapped.dir, "checkpoint"), get(t, filepath.Join(forked.dir, "checkpoint")))
	if err := open(swapped.dir, swapped.memory, origin, p.key); !errors.Is(err, translog.ErrMemory) {
		t.Errorf("a published fork: %v", err)
	}
	if _, err := translog.Create(p.dir, p.memory+"2", origin, p.key); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made over a log: %v", err)
	}
	if _, err := translog.Create(filepath.Join(t.TempDir(), "log"), p.memory, origin, p.key); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made over a memory: %v", err)
	}
	l, err := translog.Open(p.dir, p.memory, origin, p.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := open(p.dir, p.memory, origin, p.key); err == nil {
		t.Error("two writers")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A crash after remembering: the tiles are there, the checkpoint is the older one.
	put(t, filepath.Join(p.dir, "checkpoint"), get(t, filepath.Join(early.dir, "checkpoint")))
	if err := open(p.dir, p.memory, origin, p.key); err != nil {
		t.Fatalf("after a crash: %v", err)
	}
	if !bytes.Equal(get(t, filepath.Join(p.dir, "checkpoint")), get(t, p.memory)) {
		t.Error("after a crash: what was remembered is not published")
	}
	// A crash before remembering: what was written beyond the checkpoint is written again.
	put(t, filepath.Join(p.dir, "tile/entries/000.p/21"), []byte("cut short"))
	if got := p.add(t, file(77)); fmt.Sprint(got) != "[20]" {
		t.Errorf("indexes %v", got)
	}
	if v, err := p.follow(t); err != nil || v.Size() != 21 {
		t.Errorf("after a crash: %v", err)
	}
}

// signingAfter does something, once, before it signs.
type signingAfter struct {
	evidence.Signer
	first func()
}

func (s *signingAfter) Sign(message []byte) ([]byte, error) {
	if do := s.first; do != nil {
		s.first = nil
		do()
	}
	return s.Signer.Sign(message)
}

// What is published between a witness's look and its writing is not lost: neither the writer's newer
// checkpoint, nor another witness's cosignature.
func TestWitnessBesideOthers(t *testing.T) {
	for what, meanwhile := range map[string]func(p *party, trust *translog.Trust){
		"an entry": func(p *party, _ *translog.Trust) { p.add(t, file(5)) },
		"a witness": func(p *party, trust *translog.Trust) {
			if _, err := translog.Cosign(trust, p.dir, filepath.Join(t.TempDir(), "b"), "b.example", throwaway(t)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		p := newParty(t)
		p.add(t, files(0, 5)...)
		trust := p.trust(t, 0)
		key := &signingAfter{Signer: throwaway(t)}
		key.first = func() { meanwhile(p, trust) }
		v, err := translog.Cosign(trust, p.dir, filepath.Join(t.TempDir(), "a"), "a.example", key)
		if err != nil {
			t.Fatal(err)
		}
		text := string(get(t, filepath.Join(p.dir, "checkpoint")))
		if want := map[string]int64{"an entry": 6, "a witness": 5}[what]; v.Size() != want || !strings.Contains(text, fmt.Sprintf("\n%d\n", want)) {
			t.Errorf("%s meanwhile: %d entries\n%s", what, v.Size(), text)
		}
		if !strings.Contains(text, "\n— a.example ") || strings.Contains(text, "\n— b.example ") != (what == "a witness") {
			t.Errorf("%s meanwhile:\n%s", what, text)
		}
	}
}

func TestWitnesses(t *testing.T) {
	p := newParty(t)
	p.add(t, files(0, 5)...)
	a, b := throwaway(t), throwaway(t)
	vkey := func(name string, s evidence.Signer) string {
		k, err := translog.WitnessVerifierKey(name, s)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	witnesses := []string{vkey("a.example", a), vkey("b.example", b)}
	seenA, seenB := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	two := p.trust(t, 2, witnesses...)
	demand := func(want bool, when string) {
		t.Helper()
		_, err := translog.Follow(two, p.dir, filepath.Join(t.TempDir(), "seen"))
		if (err == nil) != want || err != nil && !errors.Is(err, translog.ErrCheckpoint) {
			t.Errorf("%s: %v", when, err)
		}
	}
	cosign := func(log *party, seen, name string, s evidence.Signer) error {
		_, err := translog.Cosign(two, log.dir, seen, name, s)
		return err
	}
	demand(false, "no cosignature")
	for range 2 {
		if err := cosign(p, seenA, "a.example", a); err != nil {
			t.Fatal(err)
		}
		demand(false, "one witness, however often")
	}
	if err := cosign(p, seenB, "b.example", b); err != nil {
		t.Fatal(err)
	}
	demand(true, "two witnesses")
	proof := prove(t, p, file(2))
	if _, err := proof.Verify(two, file(2)); err != nil {
		t.Errorf("a proof carries the cosignatures: %v", err)
	}
	if n := strings.Count(string(get(t, filepath.Join(p.dir, "checkpoint"))), "\n— "); n != 3 {
		t.Errorf("%d signatures", n)
	}
	// A cosignature does not pass to the next checkpoint, nor to a fork that the witness did not see.
	forked := p.copy(t)
	p.add(t, file(5))
	demand(false, "a new checkpoint")
	for seen, w := range map[string]struct {
		name string
		key  evidence.Signer
	}{seenA: {"a.example", a}, seenB: {"b.example", b}} {
		if err := cosign(p, seen, w.name, w.key); err != nil {
			t.Fatal(err)
		}
	}
	demand(true, "cosigned again")
	forked.add(t, file(6))
	if err := cosign(forked, seenA, "a.example", a); !errors.Is(err, translog.ErrForked) {
		t.Errorf("a witness cosigns a fork: %v", err)
	}
	// A stranger's line is passed over.
	if err := cosign(p, filepath.Join(t.TempDir(), "c"), "c.example", throwaway(t)); err != nil {
		t.Fatal(err)
	}
	demand(true, "a stranger's cosignature beside")

	for name, err := range map[string]error{
		"one key twice":      second(translog.NewTrust(p.vkey, []string{witnesses[0], vkey("other.example", a)}, 1)),
		"the log as witness": second(translog.NewTrust(p.vkey, []string{vkey("x.example", p.key)}, 1)),
		"too many demanded":  second(translog.NewTrust(p.vkey, witnesses, 3)),
		"negative":           second(translog.NewTrust(p.vkey, witnesses, -1)),
		"log key as witness": second(translog.NewTrust(p.vkey, []string{p.vkey}, 0)),
		"witness as log":     second(translog.NewTrust(witnesses[0], nil, 0)),
		"no key":             second(translog.NewTrust("", nil, 0)),
		"changed hash":       second(translog.NewTrust(p.vkey, []string{strings.Replace(witnesses[0], "+", "+0", 1)}, 0)),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	path := filepath.Join(t.TempDir(), "ecdsa")
	ecdsa, err := signing.Generate(path, path+".pub", evidence.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := translog.LogVerifierKey(origin, ecdsa); !errors.Is(err, translog.ErrKey) {
		t.Errorf("ECDSA: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestProofsThatProveNothing(t *testing.T) {
	p, other := newParty(t), newParty(t)
	p.add(t, files(0, 7)...)
	other.add(t, files(0, 7)...)
	good, foreign := prove(t, p, file(3)), prove(t, other, file(3))
	trust := p.trust(t, 0)
	if tree, err := good.Verify(trust, file(3)); err != nil || tree.N != 7 {
		t.Fatal(err)
	}
	edit := func(f func(*translog.Proof)) translog.Proof {
		c := good
		c.Hashes = append([]tlog.Hash(nil), good.Hashes...)
		f(&c)
		return c
	}
	for name, tt := range map[string]struct {
		proof translog.Proof
		file  []byte
	}{
		"another leaf":       {good, file(4)},
		"another index":      {edit(func(p *translog.Proof) { p.Index = 4 }), file(3)},
		"index past size":    {edit(func(p *translog.Proof) { p.Index = 7 }), file(3)},
		"index far past":     {edit(func(p *translog.Proof) { p.Index = 1<<63 - 1 }), file(3)},
		"hash missing":       {edit(func(p *translog.Proof) { p.Hashes = p.Hashes[1:] }), file(3)},
		"hash more":          {edit(func(p *translog.Proof) { p.Hashes = append(p.Hashes, p.Hashes[0]) }), file(3)},
		"no hash":            {edit(func(p *translog.Proof) { p.Hashes = nil }), file(3)},
		"log of another key": {foreign, file(3)},
		"their checkpoint":   {edit(func(p *translog.Proof) { p.Checkpoint = foreign.Checkpoint }), file(3)},
		"no checkpoint":      {edit(func(p *translog.Proof) { p.Checkpoint = nil }), file(3)},
	} {
		if _, err := tt.proof.Verify(trust, tt.file); !errors.Is(err, translog.ErrProof) && !errors.Is(err, translog.ErrCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	text := string(good.Marshal())
	for name, bad := range map[string]string{
		"empty":          "",
		"header":         strings.Replace(text, "@v1", "@v2", 1),
		"extra data":     strings.Replace(text, "index", "extra eA==\nindex", 1),
		"index missing":  strings.Replace(text, "index 3\n", "", 1),
		"index with 0":   strings.Replace(text, "index 3", "index 03", 1),
		"index signed":   strings.Replace(text, "index 3", "index +3", 1),
		"index negative": strings.Replace(text, "index 3", "index -3", 1),
		"carriage":       strings.ReplaceAll(text, "\n", "\r\n"),
		"hash cut":       strings.Replace(text, "=\n", "\n", 1),
		"hash padded":    strings.Replace(text, "=\n", "= \n", 1),
		"64 hashes":      strings.Replace(text, "index 3\n", "index 3\n"+strings.Repeat(strings.Repeat("A", 43)+"=\n", 64), 1),
		"too large":      text + strings.Repeat("x", 1<<20),
	} {
		if _, err := translog.ParseProof([]byte(bad)); !errors.Is(err, translog.ErrProof) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// signer signs notes of any text with the key of a log.
type signer struct {
	note.Verifier
	key evidence.Signer
}

func (s signer) Sign(message []byte) ([]byte, error) { return s.key.Sign(message) }

// Checkpoints that the log's key signed, and that are none of the log's.
func TestSignedAndNoCheckpoint(t *testing.T) {
	p := newParty(t)
	p.add(t, file(0))
	good := prove(t, p, file(0))
	text, _, _ := strings.Cut(string(good.Checkpoint), "\n\n")
	text += "\n"
	v, err := note.NewVerifier(p.vkey)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		text string
		good bool
	}{
		"the log's own":   {text, true},
		"another origin":  {strings.Replace(text, origin, "log.example/other", 1), false},
		"an extension":    {text + "note\n", false},
		"size with a 0":   {strings.Replace(text, "\n1\n", "\n01\n", 1), false},
		"size with a +":   {strings.Replace(text, "\n1\n", "\n+1\n", 1), false},
		"two lines":       {"a\nb\n", false},
		"base64 with end": {strings.Replace(text, "=\n", "=\r\n", 1), false},
	} {
		signed, err := note.Sign(&note.Note{Text: tt.text}, signer{v, p.key})
		if err != nil {
			t.Fatal(err)
		}
		proof := good
		proof.Checkpoint = signed
		if _, err := proof.Verify(p.trust(t, 0), file(0)); (err == nil) != tt.good || err != nil && !errors.Is(err, translog.ErrCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is parsed is written again as it was, and does not verify unless it is the good proof.
func FuzzParseProof(f *testing.F) {
	f.Add([]byte("c2sp.org/tlog-proof@v1\nindex 0\n\nlog.example\n1\nAAAA\n"))
	f.Add([]byte("c2sp.org/tlog-proof@v1\nindex 1\n" + strings.Repeat("A", 43) + "=\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := translog.ParseProof(text)
		if err == nil && !bytes.Equal(p.Marshal(), text) {
			t.Errorf("read, and not written again as it was: %q", p.Marshal())
		}
	})
}
