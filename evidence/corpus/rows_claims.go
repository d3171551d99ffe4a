// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// features changes what the suite saw, in a record that is sealed like any other.
func features(f func(p *evidence.Predicate, claimed int)) func(*draft) {
	return func(d *draft) {
		p := &d.st.Predicate
		if len(p.Target.Claims) == 0 {
			d.errs = append(d.errs, fmt.Errorf("the target of the bundle claims nothing"))
			return
		}
		i := slices.IndexFunc(p.Run.Arming.Features, func(s evidence.SeenFeature) bool { return s.Feature == p.Target.Claims[0] })
		if i < 0 {
			d.errs = append(d.errs, fmt.Errorf("the suite of the bundle did not look at %s", p.Target.Claims[0]))
			return
		}
		f(p, i)
		d.reseal()
	}
}

func claimRows() []row {
	const g = "Results"
	seen := func(word string) func(*evidence.Predicate, int) {
		return func(p *evidence.Predicate, i int) { p.Run.Arming.Features[i].Observed = word }
	}
	return []row{
		{"claim-seen-absent", g, evidence.ReasonClaimAbsent, features(seen(evidence.FeatureAbsent))},
		{"claim-seen-unknown", g, evidence.ReasonClaimUnchecked, features(seen(evidence.FeatureUnknown))},
		{"claim-not-looked-at", g, evidence.ReasonClaimUnchecked, features(func(p *evidence.Predicate, i int) {
			p.Run.Arming.Features = slices.Delete(p.Run.Arming.Features, i, i+1)
		})},
		{"claims-none-looked-at", g, evidence.ReasonClaimUnchecked, features(func(p *evidence.Predicate, _ int) { p.Run.Arming.Features = nil })},
		{"claim-dropped-after-arming", g, evidence.ReasonArming, pred(func(p *evidence.Predicate) {
			p.Target.Claims = p.Target.Claims[:len(p.Target.Claims)-1]
		})},
		{"feature-word-unknown", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Run.Arming.Features[0].Observed = "maybe" })},
		{"feature-name-not-a-word", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Run.Arming.Features[0].Feature = "A b" })},
		{"feature-twice", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) {
			p.Run.Arming.Features = slices.Insert(p.Run.Arming.Features, 0, p.Run.Arming.Features[0])
		})},
		{"feature-order", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { slices.Reverse(p.Run.Arming.Features) })},
		{"feature-changed-after-arming", g, evidence.ReasonSeal, pred(func(p *evidence.Predicate) {
			p.Run.Arming.Features = append(p.Run.Arming.Features, evidence.SeenFeature{Feature: "zz", Observed: evidence.FeaturePresent})
		})},
	}
}

// waiver is one of the policy for the first case and the reason "known".
func waiver(d *draft, f func(*evidence.Waiver)) {
	c := d.st.Predicate.Cases[0]
	w := evidence.Waiver{Case: c.ID, Revision: c.Revision, Reason: "known", Bug: "example#1", Expires: evidence.At(d.now.AddDate(0, 1, 0))}
	f(&w)
	d.policy.Waivers = []evidence.Waiver{w}
}

// ended gives case i another end, in rows, records, the runner's report and the summary, as an
// honest producer would.
func (d *draft) ended(i int, status, reason string) {
	p := &d.st.Predicate
	c := &p.Cases[i]
	c.Status, c.Reason = status, reason
	d.reseal()
	report, err := failedSpec(d.blob(evidence.ArtifactGinkgo), c.ID)
	if err != nil {
		d.errs = append(d.errs, err)
		return
	}
	d.setBlob(evidence.ArtifactGinkgo, report)
	p.Suite.Ginkgo.Succeeded = false
	need := evidence.Need{Profiles: p.Profiles, Claims: p.Target.Claims, Features: p.Run.Arming.Features, Oracles: p.Run.Arming.Oracles}
	for _, m := range p.Images {
		if m.Role == evidence.ImageWorkload {
			need.Images = append(need.Images, m.ConfigDigest)
		}
	}
	p.Summary = evidence.Verdict(d.policy.Catalogue, p.Cases, need).Summary()
}

// failedSpec is the runner's report as it would be had the specs of one case failed.
func failedSpec(report []byte, id string) ([]byte, error) {
	var suites []map[string]any
	dec := json.NewDecoder(bytes.NewReader(report))
	dec.UseNumber()
	if err := dec.Decode(&suites); err != nil || len(suites) != 1 {
		return nil, fmt.Errorf("runner's report of %d suites: %w", len(suites), err)
	}
	suites[0]["SuiteSucceeded"] = false
	specs, _ := suites[0]["SpecReports"].([]any)
	n := 0
	for _, s := range specs {
		spec, _ := s.(map[string]any)
		if text, _ := spec["LeafNodeText"].(string); strings.HasPrefix(text, id+" ") {
			spec["State"] = "failed"
			n++
		}
	}
	if n == 0 {
		return nil, fmt.Errorf("runner's report has no spec of %s", id)
	}
	return json.Marshal(suites)
}

// excused is a bundle whose first case failed, under a policy that waives it.
func excused(status string, f func(*evidence.Waiver)) func(*draft) {
	return func(d *draft) {
		d.ended(0, status, "known")
		waiver(d, f)
	}
}

// excusedBut is such a bundle whose first case came to something else as well.
func excusedBut(also ...string) func(*draft) {
	return func(d *draft) {
		excused(evidence.StatusFail, func(*evidence.Waiver) {})(d)
		d.st.Predicate.Cases[0].Also = also
		d.reseal()
	}
}

// failedAlso is a row that no honest bundle can have.
func failedAlso(also ...string) func(*draft) {
	return pred(func(p *evidence.Predicate) {
		c := &p.Cases[0]
		c.Status, c.Reason, c.Also = evidence.StatusFail, "known", also
	})
}

func waiverRows() []row {
	const g = "Results"
	as := func(*evidence.Waiver) {}
	return []row{
		{"case-failed-and-waived", "Base", "", excused(evidence.StatusFail, as)},
		{"case-inconclusive-and-waived", "Base", "", excused(evidence.StatusInconclusive, as)},
		{"case-error-and-waived", g, evidence.ReasonCaseError, excused(evidence.StatusError, as)},
		{"case-not-run-and-waived", g, evidence.ReasonCaseNotRun, excused(evidence.StatusNotRun, as)},
		{"case-missing-and-waived", g, evidence.ReasonCaseMissing, func(d *draft) {
			waiver(d, as)
			d.st.Predicate.Cases = d.st.Predicate.Cases[1:]
			d.st.Predicate.Run.Arming.PlannedCases = d.st.Predicate.Run.Arming.PlannedCases[1:]
			d.reseal()
		}},
		{"case-waived-and-another-failed", g, evidence.ReasonCaseFailed, func(d *draft) {
			excused(evidence.StatusFail, as)(d)
			d.ended(1, evidence.StatusFail, "unknown")
		}},
		{"case-waiver-of-policy-expired", g, evidence.ReasonCaseFailed, func(d *draft) {
			excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Expires = evidence.At(d.now.AddDate(0, 0, -1)) })(d)
		}},
		{"case-waiver-of-other-revision", g, evidence.ReasonCaseFailed, excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Revision++ })},
		{"case-waiver-of-other-case", g, evidence.ReasonCaseFailed, excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Case = "ZZZ-99" })},
		{"case-waiver-of-other-reason", g, evidence.ReasonCaseFailed, excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Reason = "unknown" })},
		{"case-waiver-without-a-reason", g, evidence.ReasonPolicyInvalid, excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Reason = "" })},
		{"case-waived-and-leaked", g, evidence.ReasonCaseFailed, excusedBut("fail:container-leaked")},
		{"case-waived-and-not-run-elsewhere", g, evidence.ReasonCaseFailed, excusedBut("not-run:part-unavailable")},
		{"case-also-not-a-status", g, evidence.ReasonSchema, failedAlso("failed:container-leaked")},
		{"case-also-not-a-reason", g, evidence.ReasonSchema, failedAlso("fail:")},
		{"case-also-the-same", g, evidence.ReasonSchema, failedAlso("fail:known")},
		{"case-also-order", g, evidence.ReasonSchema, failedAlso("fail:b", "fail:a")},
		{"case-pass-also-failed", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Cases[0].Also = []string{"fail:container-leaked"} })},
		{"case-waiver-without-a-bug", g, evidence.ReasonPolicyInvalid, excused(evidence.StatusFail, func(w *evidence.Waiver) { w.Bug = "" })},
		{"case-waived-by-producer", g, evidence.ReasonCaseWaived, func(d *draft) {
			waiver(d, as)
			d.st.Predicate.Waivers, d.policy.Waivers = d.policy.Waivers, nil
			status(evidence.StatusWaived, "example-1")(d)
		}},
		{"case-failed-and-waived-by-producer", g, evidence.ReasonCaseFailed, func(d *draft) {
			excused(evidence.StatusFail, as)(d)
			d.st.Predicate.Waivers, d.policy.Waivers = d.policy.Waivers, nil
		}},
		{"case-waived-summary-hides-it", g, evidence.ReasonSummary, func(d *draft) {
			good := d.st.Predicate.Summary
			excused(evidence.StatusFail, as)(d)
			d.st.Predicate.Summary = good
		}},
		{"case-waived-run-leaked", g, evidence.ReasonSuite, func(d *draft) {
			excused(evidence.StatusFail, as)(d)
			d.st.Predicate.Suite.Ginkgo.SpecialFailures = []string{"SynchronizedAfterSuite failed"}
		}},
		{"case-waived-run-leaked-unsaid", g, evidence.ReasonReport, func(d *draft) {
			excused(evidence.StatusFail, as)(d)
			report := bytes.Replace(d.blob(evidence.ArtifactGinkgo), []byte(`"SpecReports":[`), []byte(`"SpecReports":[{"LeafNodeType":"SynchronizedAfterSuite","State":"failed"},`), 1)
			d.setBlob(evidence.ArtifactGinkgo, report)
		}},
		{"case-waived-runner-interrupted", g, evidence.ReasonSuite, func(d *draft) {
			excused(evidence.StatusFail, as)(d)
			d.st.Predicate.Suite.Ginkgo.SpecialFailures = []string{"Interrupted by User"}
		}},
	}
}
