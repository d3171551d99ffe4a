// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// TestWaivers is the whole rule: which waiver excuses what. Every row starts from a run in which
// all cases pass and one waiver of the verifier for IM-05, revision 2, reason known, that has an hour to live.
func TestWaivers(t *testing.T) {
	const waived, other = 1, 2 // IM-05 and PR-01
	ends := func(status string) func(p *evidence.Predicate, n *evidence.Need) {
		return func(p *evidence.Predicate, n *evidence.Need) {
			p.Cases[waived].Status, p.Cases[waived].Reason = status, "known"
		}
	}
	failed := ends(evidence.StatusFail)
	with := func(f func(w *evidence.Waiver, n *evidence.Need)) func(p *evidence.Predicate, n *evidence.Need) {
		return func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			f(&n.Waivers[0], n)
		}
	}
	tests := []struct {
		name string
		edit func(p *evidence.Predicate, n *evidence.Need)
		want evidence.Outcome
		code evidence.Reason // of the first finding
		used int             // waivers that excused a row
	}{
		{"nothing to excuse", func(p *evidence.Predicate, n *evidence.Need) {}, evidence.Conformant, "", 0},
		{"fail", failed, evidence.Conformant, "", 1},
		{"inconclusive", ends(evidence.StatusInconclusive), evidence.Conformant, "", 1},
		{"error: the suite broke, so nothing is known", ends(evidence.StatusError), evidence.Incomplete, evidence.ReasonCaseError, 0},
		{"not run: nothing was observed", ends(evidence.StatusNotRun), evidence.Incomplete, evidence.ReasonCaseNotRun, 0},
		{"not applicable though required", ends(evidence.StatusNotApplicable), evidence.Incomplete, evidence.ReasonCaseNotApplicable, 0},
		{"waived by the producer as well", ends(evidence.StatusWaived), evidence.Incomplete, evidence.ReasonCaseWaived, 0},
		{"status outside the closed set", ends("passed"), evidence.Incomplete, evidence.ReasonCaseStatus, 0},
		{"pass without a witness", func(p *evidence.Predicate, n *evidence.Need) { p.Cases[waived].Witness = nil }, evidence.Incomplete, evidence.ReasonCaseWitness, 0},
		{"missing: a waiver does not make it present", func(p *evidence.Predicate, n *evidence.Need) {
			p.Cases = slices.Delete(p.Cases, waived, waived+1)
		}, evidence.Incomplete, evidence.ReasonCaseMissing, 0},
		{"twice", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases = slices.Insert(p.Cases, waived, p.Cases[waived])
		}, evidence.Incomplete, evidence.ReasonCaseDuplicate, 1},
		{"expired", with(func(w *evidence.Waiver, n *evidence.Need) { w.Expires = evidence.At(n.Now) }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"a second before its end", with(func(w *evidence.Waiver, n *evidence.Need) { w.Expires = evidence.At(n.Now.Add(time.Second)) }), evidence.Conformant, "", 1},
		{"no end", with(func(w *evidence.Waiver, n *evidence.Need) { w.Expires = "" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"an end that is no time", with(func(w *evidence.Waiver, n *evidence.Need) { w.Expires = "2999" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"no bug", with(func(w *evidence.Waiver, n *evidence.Need) { w.Bug = "" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"other reason", with(func(w *evidence.Waiver, n *evidence.Need) { w.Reason = "unknown" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"no reason", with(func(w *evidence.Waiver, n *evidence.Need) { w.Reason = "" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"no reason, and none in the row", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases[waived].Reason, n.Waivers[0].Reason = "", ""
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"a leak behind the failure", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases[waived].Also = []string{"fail:container-leaked"}
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"an error in another image", func(p *evidence.Predicate, n *evidence.Need) {
			ends(evidence.StatusInconclusive)(p, n)
			p.Cases[waived].Also = []string{"error:timeout"}
		}, evidence.Incomplete, evidence.ReasonCaseInconclusive, 0},
		{"other case", with(func(w *evidence.Waiver, n *evidence.Need) { w.Case = "PR-01" }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"older revision", with(func(w *evidence.Waiver, n *evidence.Need) { w.Revision-- }), evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"row of an older revision than the catalogue's", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases[waived].Revision--
		}, evidence.NonConformant, evidence.ReasonCaseRevision, 0},
		{"another case fails too", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases[other].Status, p.Cases[other].Reason = evidence.StatusFail, "escaped"
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 1},
		{"failing case outside the required profiles", func(p *evidence.Predicate, n *evidence.Need) {
			p.Cases[other].Status, p.Cases[other].Reason = evidence.StatusFail, "known"
			n.Profiles, n.Waivers[0].Case, n.Waivers[0].Revision = []string{"small"}, "PR-01", 1
		}, evidence.Conformant, "", 1},
		{"claimed feature is absent", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			n.Features = saw(n.Features, "quota", evidence.FeatureAbsent)
		}, evidence.NonConformant, evidence.ReasonClaimAbsent, 1},
		{"inconclusive because an oracle was not armed: nothing was executed", func(p *evidence.Predicate, n *evidence.Need) {
			r := &p.Cases[waived]
			r.Status, r.Reason, r.Images, r.Witness = evidence.StatusInconclusive, "oracle-unarmed.process", nil, nil
			n.Oracles = unarmed(n.Oracles, "process")
		}, evidence.Incomplete, evidence.ReasonCaseInconclusive, 0},
		{"fail that an unarmed oracle saw", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			n.Oracles = unarmed(n.Oracles, "process")
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"fail with an oracle that nobody tried", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			n.Oracles = nil
		}, evidence.NonConformant, evidence.ReasonOracleUnarmed, 0},
		{"inconclusive in no image", func(p *evidence.Predicate, n *evidence.Need) {
			ends(evidence.StatusInconclusive)(p, n)
			p.Cases[waived].Images = nil
		}, evidence.Incomplete, evidence.ReasonCaseInconclusive, 0},
		{"fail in an image of another bundle", func(p *evidence.Predicate, n *evidence.Need) {
			failed(p, n)
			p.Cases[waived].Images = []string{evidence.Digest([]byte("elsewhere"))}
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"fail in one of the images that it is for", func(p *evidence.Predicate, n *evidence.Need) {
			p.Cases[other].Status, p.Cases[other].Reason = evidence.StatusFail, "known"
			p.Cases[other].Images = p.Cases[other].Images[:1]
			n.Waivers[0].Case, n.Waivers[0].Revision = "PR-01", 1
		}, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
		{"no waiver", func(p *evidence.Predicate, n *evidence.Need) { failed(p, n); n.Waivers = nil }, evidence.NonConformant, evidence.ReasonCaseFailed, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := world(t)
			p := w.Statement.Predicate
			need := evidence.Need{
				Profiles: p.Profiles, Claims: p.Target.Claims, Features: p.Run.Arming.Features, Oracles: p.Run.Arming.Oracles, Now: w.Now,
				Images:  []string{p.Images[0].ConfigDigest, p.Images[1].ConfigDigest},
				Waivers: []evidence.Waiver{{Case: "IM-05", Revision: 2, Reason: "known", Bug: "example#1", Expires: evidence.At(w.Now.Add(time.Hour))}},
			}
			tt.edit(&p, &need)
			j := evidence.Verdict(w.Catalogue, p.Cases, need)
			var code evidence.Reason
			if len(j.Findings) > 0 {
				code = j.Findings[0].Code
			}
			if j.Verdict != tt.want || code != tt.code || len(j.Waived) != tt.used {
				t.Errorf("%s, first finding %q, %d waivers used; want %s, %q, %d: %+v", j.Verdict, code, len(j.Waived), tt.want, tt.code, tt.used, j.Findings)
			}
			// Counts are of the rows: a waiver turns no failure into a pass.
			need.Waivers = nil
			if c := evidence.Verdict(w.Catalogue, p.Cases, need).Counts; c != j.Counts {
				t.Errorf("counts %+v with the waiver, %+v without", j.Counts, c)
			}
		})
	}
}

// unarmed is list with one oracle that did not detect what was planted for it.
func unarmed(list []evidence.ArmedOracle, oracle string) []evidence.ArmedOracle {
	list = slices.Clone(list)
	for i := range list {
		list[i].Detected = list[i].Detected && list[i].Oracle != oracle
	}
	return list
}

// failing makes w an honest record of a run in which IM-05 failed.
func failing(t *testing.T, w *evidencetest.World) {
	t.Helper()
	p := &w.Statement.Predicate
	p.Cases[1].Status, p.Cases[1].Reason = evidence.StatusFail, "known"
	records, err := evidencetest.Reseal(&w.Statement, []int{2, 0, 3, 1})
	if err != nil {
		t.Fatal(err)
	}
	report := evidencetest.GinkgoReport(p.Cases)
	if p.Suite.Ginkgo, err = evidence.ReportGinkgo(report, "2.34.0"); err != nil {
		t.Fatal(err)
	}
	w.Blobs[0].Body, w.Blobs[1].Body = records, report
	p.Summary = evidencetest.Summary(w.Catalogue, *p)
}

// The producer knows no waivers, so its summary says that the run failed; the gate computes the
// same, and admits by its own policy all the same. The pins end with the waiver.
func TestWaivedBundleIsAdmittedByGateAndWorker(t *testing.T) {
	w := world(t)
	failing(t, w)
	if s := w.Statement.Predicate.Summary; s.Verdict != evidence.NonConformant || len(s.Findings) != 1 || s.Counts.Fail != 1 {
		t.Fatalf("the producer's summary is %+v", s)
	}
	b, q := bundleAndQuestion(t, w)
	if d := evidence.Decide(q, b); d.Reason != evidence.ReasonCaseFailed {
		t.Fatalf("without a waiver: %q, want %q", d.Reason, evidence.ReasonCaseFailed)
	}
	waiver := evidence.Waiver{Case: "IM-05", Revision: 2, Reason: "known", Bug: "example#1", Expires: evidence.At(w.Now.Add(time.Hour))}
	w.Policy.Waivers = []evidence.Waiver{waiver}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	for _, depth := range []evidence.Depth{evidence.AuditDepth, evidence.AdmitDepth} {
		q.Depth = depth
		d := evidence.Decide(q, b)
		if !d.Admitted || d.Verdict != evidence.Conformant || !slices.Equal(d.Waivers, q.Policy.Document().Waivers) {
			t.Errorf("depth %d: admitted %v, %s, waivers %+v: %s", depth, d.Admitted, d.Verdict, d.Waivers, d.Detail)
		}
	}
	c := pinned(t, w)
	a, err := evidence.Admit(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := evidence.At(a.NotAfter()); got != waiver.Expires {
		t.Errorf("the pins end at %s, the waiver at %s", got, waiver.Expires)
	}
	c.Now = w.Now.Add(time.Hour)
	if _, err := evidence.Admit(c); evidence.ReasonOf(err) != evidence.ReasonCaseFailed {
		t.Errorf("after the waiver's end: %v, want %s", err, evidence.ReasonCaseFailed)
	}
}

// A waiver is for a case. What the run as a whole left behind is denied at every depth.
func TestWaiverDoesNotCoverALeakingRun(t *testing.T) {
	w := world(t)
	failing(t, w)
	w.Policy.Waivers = []evidence.Waiver{{Case: "IM-05", Revision: 2, Reason: "known", Bug: "example#1", Expires: evidence.At(w.Now.Add(time.Hour))}}
	nodes := `"SpecReports":[{"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"},{"LeafNodeType":"SynchronizedAfterSuite","State":"failed"},`
	w.Blobs[1].Body = bytes.Replace(w.Blobs[1].Body, []byte(`"SpecReports":[`), []byte(nodes), 1)
	g, err := evidence.ReportGinkgo(w.Blobs[1].Body, "2.34.0")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"SynchronizedAfterSuite failed"}; !slices.Equal(g.SpecialFailures, want) {
		t.Errorf("special failures %q, want %q", g.SpecialFailures, want)
	}
	w.Statement.Predicate.Suite.Ginkgo = g
	conformant := w.Statement
	conformant.Predicate.Summary.Verdict = evidence.Conformant
	if text, err := evidence.TestResult(conformant); err != nil || !bytes.Contains(text, []byte(`"result":"FAILED"`)) {
		t.Errorf("other tools are told %s (%v)", text, err)
	}
	b, q := bundleAndQuestion(t, w)
	for _, depth := range []evidence.Depth{evidence.AuditDepth, evidence.AdmitDepth} {
		q.Depth = depth
		if d := evidence.Decide(q, b); d.Reason != evidence.ReasonSuite {
			t.Errorf("depth %d: %q, want %q", depth, d.Reason, evidence.ReasonSuite)
		}
	}
}

// With a waiver the runner need not have succeeded, so a failed spec must be of a row that says so.
func TestWaiverDoesNotCoverASpecThatItsRowHides(t *testing.T) {
	w := world(t)
	p := &w.Statement.Predicate
	p.Cases[3].Status, p.Cases[3].Reason = evidence.StatusNotApplicable, "feature-not-claimed"
	p.Target.Claims, p.Profiles, w.Policy.Profiles = []string{"exec", "files"}, []string{"small"}, []string{"small"}
	p.Run.Arming.Target = p.Target
	failing(t, w)
	w.Policy.Waivers = []evidence.Waiver{{Case: "IM-05", Revision: 2, Reason: "known", Bug: "example#1", Expires: evidence.At(w.Now.Add(time.Hour))}}
	b, q := bundleAndQuestion(t, w)
	if d := evidence.Decide(q, b); !d.Admitted {
		t.Fatalf("an honest report: %s", d.Detail)
	}
	w.Blobs[1].Body = bytes.Replace(w.Blobs[1].Body, []byte(`"skipped"`), []byte(`"failed"`), 1)
	b, q = bundleAndQuestion(t, w)
	if d := evidence.Decide(q, b); d.Reason != evidence.ReasonReport {
		t.Errorf("a failed spec of a row that did not apply: %q, want %q", d.Reason, evidence.ReasonReport)
	}
}

// A producer that claims more than the policy requires may have failed to show the rest: its
// summary is recomputed for what it claims, and the policy judges what it requires.
func TestSummaryIsOfTheProducersProfiles(t *testing.T) {
	w := world(t)
	w.Statement.Predicate.Profiles = []string{"credentials", "quota"}
	w.Statement.Predicate.Summary = evidencetest.Summary(w.Catalogue, w.Statement.Predicate)
	if s := w.Statement.Predicate.Summary; s.Verdict != evidence.Incomplete || s.Findings[0].Code != evidence.ReasonProfile {
		t.Fatalf("the producer's summary is %+v", s)
	}
	b, q := bundleAndQuestion(t, w)
	if d := evidence.Decide(q, b); !d.Admitted {
		t.Errorf("denied: %s", d.Detail)
	}
	w.Statement.Predicate.Summary.Findings = nil
	b, q = bundleAndQuestion(t, w)
	if d := evidence.Decide(q, b); d.Reason != evidence.ReasonSummary {
		t.Errorf("a summary without its finding: %q, want %q", d.Reason, evidence.ReasonSummary)
	}
}
