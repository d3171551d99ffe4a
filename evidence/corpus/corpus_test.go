// SPDX-License-Identifier: Apache-2.0

package corpus_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/corpus"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

func generate(t *testing.T) (*evidencetest.World, string, []corpus.Expect) {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return generateOf(t, w)
}

func generateOf(t *testing.T, w *evidencetest.World) (*evidencetest.World, string, []corpus.Expect) {
	t.Helper()
	dir := t.TempDir()
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(filepath.Join(dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "trust.json"), trust, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "corpus")
	rows, err := corpus.Generate(corpus.Config{
		Bundle: filepath.Join(dir, "bundle"), Trust: filepath.Join(dir, "trust.json"), Out: out, Now: w.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, out, rows
}

func TestEveryRowIsJudgedAsExpected(t *testing.T) {
	w, out, rows := generate(t)
	got := judged(t, w, out)
	if len(got) != len(rows) || len(got) < 100 {
		t.Fatalf("%d rows written, %d judged", len(rows), len(got))
	}
	groups, codes := map[string]int{}, map[evidence.Reason]bool{}
	for _, r := range got {
		groups[r.Group]++
		codes[r.Reason] = true
		if !r.Agrees() {
			t.Errorf("%s: %q, want %q (%s)", r.Row, r.Got, r.Reason, r.Detail)
		}
	}
	for _, g := range []string{"Base", "Envelope", "JSON", "Identity", "Cohort", "Host", "Time", "Results", "Artifacts", "Archive", "Policy", "Fleet", "Log", "Expression"} {
		if groups[g] == 0 {
			t.Errorf("no row of group %s", g)
		}
	}
	// Codes that a gate on one row's folder cannot give: pins are a worker's matter.
	elsewhere := map[evidence.Reason]bool{
		evidence.ReasonPinsInvalid: true, evidence.ReasonPinsPolicy: true, evidence.ReasonPinsEvidence: true,
		evidence.ReasonPinsMode: true, evidence.ReasonPinsRollback: true, evidence.ReasonNotPinned: true,
	}
	for _, r := range evidence.Reasons() {
		if !codes[r.Code] && !elsewhere[r.Code] {
			t.Errorf("no row is denied with %s", r.Code)
		}
	}
	t.Logf("%d rows, %d codes: %v", len(got), len(codes)-1, groups)
}

// A policy may only record mutation evidence, and a bundle may have none: its corpus has every row all the same.
func TestBundleWithoutMutationEvidence(t *testing.T) {
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if w, err = w.Another(func(p *evidence.Predicate) { p.MutationEvidence = nil }); err != nil {
		t.Fatal(err)
	}
	w.Blobs = slices.DeleteFunc(w.Blobs, func(b evidence.Blob) bool { return b.Role == evidence.ArtifactMutation })
	w.Policy.MutationEvidence = evidence.MutationRecorded
	_, out, rows := generateOf(t, w)
	_, _, all := generate(t)
	if len(rows) != len(all) {
		t.Errorf("%d rows, want %d", len(rows), len(all))
	}
	for _, r := range judged(t, w, out) {
		if !r.Agrees() {
			t.Errorf("%s: %q, want %q (%s)", r.Row, r.Got, r.Reason, r.Detail)
		}
	}
}

func judged(t *testing.T, w *evidencetest.World, out string) []corpus.Result {
	t.Helper()
	got, err := corpus.Selftest(out, w.Catalogue, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSelftestNeedsAnAdmittedRow(t *testing.T) {
	w, out, rows := generate(t)
	if _, err := corpus.Selftest(t.TempDir(), w.Catalogue, w.Now); err == nil {
		t.Error("an empty corpus passes")
	}
	// A gate that denies everything must not pass either.
	for _, r := range rows {
		if r.Reason != "" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(out, r.Row)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := corpus.Selftest(out, w.Catalogue, w.Now); err == nil {
		t.Error("a corpus without an admitted row passes")
	}
}

func TestBadBaseIsRefused(t *testing.T) {
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w.Statement.Predicate.Suite.TreeState = "dirty"
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(filepath.Join(dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "trust.json"), trust, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = corpus.Generate(corpus.Config{
		Bundle: filepath.Join(dir, "bundle"), Trust: filepath.Join(dir, "trust.json"), Out: filepath.Join(dir, "corpus"), Now: w.Now,
	})
	if err == nil {
		t.Error("a corpus was made of a bundle that is not admitted")
	}
}
