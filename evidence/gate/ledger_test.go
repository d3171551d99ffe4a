// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/archive"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/evidence/translog"
)

// ledgerWorld is a world whose policy demands a log, and bundles of it on disk.
type ledgerWorld struct {
	t   *testing.T
	w   *evidencetest.World
	dir string
	key *signing.Signer
}

func newLedgerWorld(t *testing.T) *ledgerWorld {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := signing.Throwaway()
	if err != nil {
		t.Fatal(err)
	}
	l := &ledgerWorld{t, w, t.TempDir(), key}
	vkey, err := translog.Create(l.path("log"), l.path("writer"), "log.example", key)
	if err != nil {
		t.Fatal(err)
	}
	w.Policy.Log = &evidence.PolicyLog{Key: vkey, Witnesses: []string{}}
	return l
}

func (l *ledgerWorld) path(name string) string { return filepath.Join(l.dir, name) }

// bundle writes w's bundle, and its evidence file into the log with a proof, when logged.
func (l *ledgerWorld) bundle(name string, w *evidencetest.World, logged bool) string {
	l.t.Helper()
	b, err := w.Bundle()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := b.Write(l.path(name)); err != nil {
		l.t.Fatal(err)
	}
	if !logged {
		return l.path(name)
	}
	log, err := translog.Open(l.path("log"), l.path("writer"), "log.example", l.key)
	if err != nil {
		l.t.Fatal(err)
	}
	file, _ := b.File("evidence.sigstore.json")
	_, err = log.Append(file)
	p, perr := log.Prove(file)
	if err := errors.Join(err, perr, log.Close()); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(translog.ProofPath(l.path(name), "evidence.sigstore.json"), p.Marshal(), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return l.path(name)
}

func (l *ledgerWorld) question() evidence.Question {
	l.t.Helper()
	q, err := l.w.Question()
	if err != nil {
		l.t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	return q
}

// TestProofOfWhatWasJudged: another bundle of the same run is in the log, and its proof lies beside this one.
func TestProofOfWhatWasJudged(t *testing.T) {
	l := newLedgerWorld(t)
	other, err := l.w.Another(func(p *evidence.Predicate) { p.Run.Sequence++ })
	if err != nil {
		t.Fatal(err)
	}
	unlogged, logged := l.bundle("unlogged", l.w, false), l.bundle("logged", other, true)
	ledger, err := FollowLog(l.question().Policy, l.path("log"), t.TempDir(), evidence.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	const file = "evidence.sigstore.json"
	if err := os.Link(translog.ProofPath(logged, file), translog.ProofPath(unlogged, file)); err != nil {
		t.Fatal(err)
	}
	d, err := Decide(l.question(), unlogged, ledger)
	if err != nil || d.Reason != evidence.ReasonLogProof {
		t.Errorf("with another's proof: admitted %v, reason %q, %v", d.Admitted, d.Reason, err)
	}
	d, err = Decide(l.question(), logged, ledger)
	if err != nil || !d.Admitted {
		t.Errorf("the logged one: %v, %v", err, d.Detail)
	}
}

// TestArchiveIsABundle: what travelled as one file is judged as it is, its proof beside it.
func TestArchiveIsABundle(t *testing.T) {
	l := newLedgerWorld(t)
	dir := l.bundle("bundle", l.w, true)
	b, err := evidence.ReadBundle(dir, evidence.AuditDepth)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := archive.Write(&text, b); err != nil {
		t.Fatal(err)
	}
	ledger, err := FollowLog(l.question().Policy, l.path("log"), t.TempDir(), evidence.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	decide := func(name string, data []byte) evidence.Decision {
		t.Helper()
		if err := os.WriteFile(l.path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Decide(l.question(), l.path(name), ledger)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := decide("alone.tar", text.Bytes()); d.Reason != evidence.ReasonLogMissing {
		t.Errorf("without a proof: %q %s", d.Reason, d.Detail)
	}
	const file = "evidence.sigstore.json"
	if err := os.Link(translog.ProofPath(dir, file), translog.ProofPath(l.path("bundle.tar"), file)); err != nil {
		t.Fatal(err)
	}
	if d := decide("bundle.tar", text.Bytes()); !d.Admitted || !slices.Equal(d.Evidence, []string{evidence.Digest(must(b.File(file)))}) {
		t.Errorf("an archive: %s", d.Detail)
	}
	for i := 0; i < text.Len(); i += 97 { // all of them are flipped by the test of package archive
		changed := bytes.Clone(text.Bytes())
		changed[i] ^= 1
		if d := decide("bundle.tar", changed); d.Admitted {
			t.Fatalf("admitted with a bit of byte %d flipped", i)
		}
	}
	if d := decide("bundle.tar", text.Bytes()[:text.Len()-1]); d.Reason != evidence.ReasonArchive {
		t.Errorf("cut: %q", d.Reason)
	}
	pipe := l.path("pipe.tar")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Decide(l.question(), pipe, ledger); err != nil || d.Reason != evidence.ReasonFileKind {
		t.Errorf("a FIFO: %q, %v", d.Reason, err)
	}
}

func must(b []byte, ok bool) []byte {
	if !ok {
		panic("no such file")
	}
	return b
}

// TestProofThatWaits: a FIFO in the place of a proof holds nobody up.
func TestProofThatWaits(t *testing.T) {
	l := newLedgerWorld(t)
	dir := l.bundle("bundle", l.w, true)
	proof := translog.ProofPath(dir, "evidence.sigstore.json")
	if err := errors.Join(os.Remove(proof), unix.Mkfifo(proof, 0o600)); err != nil {
		t.Fatal(err)
	}
	ledger, err := FollowLog(l.question().Policy, l.path("log"), t.TempDir(), evidence.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan evidence.Decision, 1)
	go func() {
		d, _ := Decide(l.question(), dir, ledger)
		done <- d
	}()
	select {
	case d := <-done:
		if d.Reason != evidence.ReasonLogProof {
			t.Errorf("reason %q", d.Reason)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the gate waits for a writer")
	}
}

// TestPinsNeedTheLog: a decision that skipped the log pins nothing under a policy that demands it.
func TestPinsNeedTheLog(t *testing.T) {
	l := newLedgerWorld(t)
	dir := l.bundle("bundle", l.w, true)
	d, err := evidence.DecideDir(l.question(), dir)
	if err != nil || !d.Admitted {
		t.Fatal(err, d.Detail)
	}
	policy := l.question().Policy
	if _, _, err := evidence.MakePins(policy, []evidence.Decision{d}, l.w.Gate, l.w.Now); evidence.ReasonOf(err) != evidence.ReasonPinsEvidence {
		t.Errorf("without the log: %v", err)
	}
	ledger, err := FollowLog(policy, l.path("log"), t.TempDir(), evidence.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	if d, err = Decide(l.question(), dir, ledger); err != nil || !d.Admitted {
		t.Fatal(err, d.Detail)
	}
	if _, _, err := evidence.MakePins(policy, []evidence.Decision{d}, l.w.Gate, l.w.Now); err != nil {
		t.Errorf("with it: %v", err)
	}
}

// TestMemoryOfALog: another log of another key has a memory of its own; a memory that is lost is no first look.
func TestMemoryOfALog(t *testing.T) {
	l, mem, state := newLedgerWorld(t), evidence.NewMemory(), t.TempDir()
	follow := func(l *ledgerWorld) evidence.Reason {
		t.Helper()
		ledger, err := FollowLog(l.question().Policy, l.path("log"), state, mem)
		if err != nil {
			t.Fatal(err)
		}
		return ledger.Refusal()
	}
	other := newLedgerWorld(t)
	if a, b, c := follow(l), follow(other), follow(l); a != "" || b != "" || c != "" {
		t.Fatalf("two logs in turn: %q, %q, %q", a, b, c)
	}
	if err := os.Remove(LogFile(state, l.w.Policy.Log.Key)); err != nil {
		t.Fatal(err)
	}
	if a, b := follow(l), follow(other); a != evidence.ReasonLogFork || b != "" {
		t.Errorf("with a lost memory: %q, and the other log %q", a, b)
	}
}

// TestNonceIsForOneRun: whoever signs it, and whatever becomes of it, the first run that answers a nonce is the one.
func TestNonceIsForOneRun(t *testing.T) {
	const nonce = "0123456789abcdef"
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.Statement.Predicate.Run.Nonce = nonce
	answer := func(edit func(p *evidence.Predicate)) *evidence.Bundle {
		t.Helper()
		o, err := w.Another(func(p *evidence.Predicate) {
			p.Run.Nonce = nonce
			edit(p)
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := o.Bundle()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Nonce, q.Memory = nonce, evidence.NewMemory()
	ask := func(b *evidence.Bundle) evidence.Reason {
		d := evidence.Decide(q, b)
		q.Memory.SeeNonce(d)
		return d.Reason
	}
	first := answer(func(p *evidence.Predicate) { p.Suite.TreeState = "dirty" })
	second := answer(func(p *evidence.Predicate) { p.Run.Sequence += 10 })
	if got := ask(first); got != evidence.ReasonTree {
		t.Fatalf("the first answer: %q", got)
	}
	for range 2 {
		if got := ask(second); got != evidence.ReasonNonceReused {
			t.Errorf("a second try at one nonce: %q", got)
		}
		if got := ask(first); got != evidence.ReasonTree {
			t.Errorf("the first answer again: %q", got)
		}
	}
}
