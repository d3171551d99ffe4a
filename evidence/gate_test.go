// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

func world(t testing.TB) *evidencetest.World {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func bundleAndQuestion(t testing.TB, w *evidencetest.World) (*evidence.Bundle, evidence.Question) {
	t.Helper()
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	return b, q
}

func TestSyntheticBundleIsAdmittedAtBothDepths(t *testing.T) {
	w := world(t)
	b, q := bundleAndQuestion(t, w)
	for _, depth := range []evidence.Depth{evidence.AuditDepth, evidence.AdmitDepth} {
		q.Depth = depth
		d := evidence.Decide(q, b)
		if !d.Admitted || d.Reason != "" || d.Verdict != evidence.Conformant {
			t.Errorf("depth %d: %+v", depth, d)
		}
		if len(d.Subjects) != 6 || d.Cohort != w.Statement.Predicate.Cohort.ID || len(d.Evidence) != 1 {
			t.Errorf("depth %d: %d subjects, cohort %s, evidence %v", depth, len(d.Subjects), d.Cohort, d.Evidence)
		}
	}
}

func TestPAEAgreesWithDSSELibrary(t *testing.T) {
	for _, p := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{0xff, 0}, 5000)} {
		if got, want := evidence.PAE(evidence.InTotoType, p), dsse.PAE(evidence.InTotoType, p); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %q, library %q", len(p), got, want)
		}
	}
}

func TestFlipSweep(t *testing.T) {
	b, q := bundleAndQuestion(t, world(t))
	r, err := evidence.FlipSweep(q, b, 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Missed) > 0 {
		t.Errorf("%d of %d flips admitted or without a code, first %+v", len(r.Missed), r.Flips, r.Missed[0])
	}
	if r.Files != len(b.Names()) || r.Flips < 10000 || len(r.Reasons) < 5 {
		t.Errorf("sweep looked at little: %d files, %d flips, reasons %v", r.Files, r.Flips, r.Reasons)
	}
	t.Logf("%d files, %d flips: %v", r.Files, r.Flips, r.Reasons)
}

func TestFlipSweepNeedsAnAdmittedBundle(t *testing.T) {
	b, q := bundleAndQuestion(t, world(t))
	q.Cohort = evidence.Digest(nil)
	if _, err := evidence.FlipSweep(q, b, 1, 10); evidence.ReasonOf(err) != evidence.ReasonCohortOther {
		t.Errorf("error %v", err)
	}
}

func TestDecisionsAreRemembered(t *testing.T) {
	w := world(t)
	b, q := bundleAndQuestion(t, w)
	first := evidence.Decide(q, b)
	q.Memory.See(first)
	if d := evidence.Decide(q, b); !d.Admitted {
		t.Errorf("the same bundle again: %s", d.Detail)
	}
	again := func(edit func(p *evidence.Predicate)) evidence.Reason {
		st := w.Statement
		edit(&st.Predicate)
		order := []int{0, 1, 2, 3}
		records, err := evidencetest.Reseal(&st, order)
		if err != nil {
			t.Fatal(err)
		}
		blobs := append([]evidence.Blob(nil), w.Blobs...)
		blobs[0].Body = records
		nb, _, err := evidence.MakeBundle(st, blobs, w.Evidence)
		if err != nil {
			t.Fatal(err)
		}
		return evidence.Decide(q, nb).Reason
	}
	other := evidence.Digest([]byte("another run"))[7:39]
	for _, tt := range []struct {
		name string
		run  string
		seq  int64
		want evidence.Reason
	}{
		{"older", other, 6, evidence.ReasonRollback},
		{"same sequence", other, 7, evidence.ReasonFork},
		{"same run", w.Statement.Predicate.Run.ID, 8, evidence.ReasonRunReused},
		{"newer", other, 8, ""},
	} {
		if got := again(func(p *evidence.Predicate) {
			p.Run.ID, p.Run.Arming.RunID, p.Run.Sequence = tt.run, tt.run, tt.seq
		}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Whatever makes a newer run non-conformant outweighs an older pass; what only leaves it incomplete does not.
func TestFailuresAreRemembered(t *testing.T) {
	fails := func(p *evidence.Predicate) { p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "escaped" }
	absent := func(p *evidence.Predicate) {
		p.Run.Arming.Features = saw(p.Run.Arming.Features, "quota", evidence.FeatureAbsent)
	}
	for _, tt := range []struct {
		name  string
		edits []func(p *evidence.Predicate)
		want  evidence.Reason // of the older pass
	}{
		{"a case fails", []func(*evidence.Predicate){fails}, evidence.ReasonRollback},
		{"a claim is false", []func(*evidence.Predicate){absent}, evidence.ReasonRollback},
		{"both", []func(*evidence.Predicate){fails, absent}, evidence.ReasonRollback},
		{"a case did not run", []func(*evidence.Predicate){func(p *evidence.Predicate) {
			p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusNotRun, "part-unavailable"
		}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := world(t)
			older, q := bundleAndQuestion(t, w)
			p := &w.Statement.Predicate
			p.Run.ID = evidence.Digest([]byte("another run"))[7:39]
			p.Run.Arming.RunID, p.Run.Sequence = p.Run.ID, p.Run.Sequence+1
			for _, edit := range tt.edits {
				edit(p)
			}
			records, err := evidencetest.Reseal(&w.Statement, []int{0, 1, 2, 3})
			if err != nil {
				t.Fatal(err)
			}
			w.Blobs[0].Body = records
			newer, err := w.Bundle()
			if err != nil {
				t.Fatal(err)
			}
			d := evidence.Decide(q, newer)
			if d.Admitted || d.Reason.Step() != 11 {
				t.Fatalf("the newer run: %s", d.Detail)
			}
			q.Memory.See(d)
			if got := evidence.Decide(q, older); got.Reason != tt.want {
				t.Errorf("the older pass: %q, want %q", got.Reason, tt.want)
			}
		})
	}
}

// While one key of an issuer follows another, what the old one signed before does not answer for what the new
// one saw fail. A failure that claims to come from the future is one of now.
func TestFailuresAreOfTheIssuer(t *testing.T) {
	w := world(t)
	var keys [2]*signing.Signer
	for i := range keys {
		k, err := signing.Throwaway()
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k
	}
	other, stranger := keys[0], keys[1]
	w.Policy.Keys = append(w.Policy.Keys,
		evidencetest.Key(other, evidence.RoleCI, "ci.example", w.Now), evidencetest.Key(stranger, evidence.RoleCI, "lab.example", w.Now))
	evidence.SortPolicyKeys(w.Policy.Keys)
	run := func(key *signing.Signer, issuer string, finished time.Time, sequence int64, fails bool) *evidence.Bundle {
		t.Helper()
		as := *w
		as.Evidence = key
		o, err := as.Another(func(p *evidence.Predicate) {
			p.Issuer.ID, p.Run.Sequence, p.Run.FinishedAt = issuer, sequence, evidence.At(finished)
			if fails {
				p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "escaped"
			}
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
	first, _ := w.Statement.Predicate.Run.FinishedAt.Time()
	older := run(w.Evidence, "ci.example", first, 7, false)
	for name, failed := range map[string]time.Time{"a second later": first.Add(time.Second), "in half a year": w.Now.AddDate(0, 6, 0)} {
		q, err := w.Question()
		if err != nil {
			t.Fatal(err)
		}
		if d := evidence.Decide(q, older); !d.Admitted {
			t.Fatal(d.Detail)
		}
		d := evidence.Decide(q, run(other, "ci.example", failed, 1, true))
		if d.Reason != evidence.ReasonCaseFailed {
			t.Fatalf("%s: %s", name, d.Detail)
		}
		q.Memory.See(d)
		if d := evidence.Decide(q, older); d.Reason != evidence.ReasonRollback {
			t.Errorf("a failure %s: the older pass of the other key: %q", name, d.Reason)
		}
		if d := evidence.Decide(q, run(stranger, "lab.example", first, 1, false)); !d.Admitted {
			t.Errorf("a failure %s: another issuer: %s", name, d.Detail)
		}
		q.Now = w.Now.Add(time.Minute)
		if d := evidence.Decide(q, run(w.Evidence, "ci.example", w.Now.Add(2*time.Second), 8, false)); !d.Admitted {
			t.Errorf("a failure %s: a run after it: %s", name, d.Detail)
		}
	}
}

// What the mutation evidence repeats is looked up again and again: it has bounds of its own.
func TestMutationEvidenceIsBounded(t *testing.T) {
	w := world(t)
	for name, edit := range map[string]func(m *evidence.MutationResults){
		"rows": func(m *evidence.MutationResults) {
			m.Rows = slices.Repeat(m.Rows[:1], 4*evidence.MaxCases+1)
		},
		"others": func(m *evidence.MutationResults) {
			m.Others = slices.Repeat([]evidence.MutationOthers{{Mutant: m.Rows[0].Mutant}}, evidence.MaxCases+1)
		},
	} {
		m := w.Statement.Predicate.MutationEvidence.MutationResults
		edit(&m)
		if _, err := evidence.SealMutation(m, w.Mutation); err == nil || !strings.Contains(err.Error(), "mutationEvidence: ") {
			t.Errorf("too many %s: %v", name, err)
		}
	}
}

func TestReasonTable(t *testing.T) {
	seen, last := map[evidence.Reason]bool{}, 0
	for _, r := range evidence.Reasons() {
		if seen[r.Code] || r.Sentence == "" || r.Remedy == "" || strings.HasSuffix(r.Remedy, ".") || r.Step < last {
			t.Errorf("row %+v: twice, without a sentence or remedy, or out of order", r)
		}
		seen[r.Code], last = true, r.Step
	}
	if evidence.Reason("no-such-code").Step() >= 0 || evidence.Reason("").Step() >= 0 {
		t.Error("codes outside the table have a step")
	}
}
