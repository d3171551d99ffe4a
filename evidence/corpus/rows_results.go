// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// status gives the first case another status, in rows, records and summary alike: only the
// verdict can refuse it.
func status(s, reason string) func(*draft) {
	return func(d *draft) {
		d.st.Predicate.Cases[0].Status, d.st.Predicate.Cases[0].Reason = s, reason
		d.reseal()
	}
}

func firstRow(f func(*evidence.CaseRow)) func(*draft) {
	return func(d *draft) {
		f(&d.st.Predicate.Cases[0])
		d.reseal()
	}
}

func resultRows() []row {
	const g = "Results"
	return []row{
		{"case-failed", g, evidence.ReasonCaseFailed, status(evidence.StatusFail, "escaped")},
		{"case-inconclusive", g, evidence.ReasonCaseInconclusive, status(evidence.StatusInconclusive, "no-witness")},
		{"case-error", g, evidence.ReasonCaseError, status(evidence.StatusError, "panic")},
		{"case-not-run", g, evidence.ReasonCaseNotRun, status(evidence.StatusNotRun, "part-missing")},
		{"case-not-applicable", g, evidence.ReasonCaseNotApplicable, status(evidence.StatusNotApplicable, "not-claimed")},
		{"case-status-unknown", g, evidence.ReasonCaseStatus, status("passed", "")},
		{"case-pass-with-reason", g, evidence.ReasonCaseStatus, status(evidence.StatusPass, "but")},
		{"case-missing", g, evidence.ReasonCaseMissing, func(d *draft) {
			d.st.Predicate.Cases = d.st.Predicate.Cases[1:]
			d.st.Predicate.Run.Arming.PlannedCases = d.st.Predicate.Run.Arming.PlannedCases[1:]
			d.reseal()
		}},
		{"case-none", g, evidence.ReasonCaseMissing, func(d *draft) {
			d.st.Predicate.Cases, d.st.Predicate.Run.Arming.PlannedCases = nil, nil
			d.reseal()
		}},
		{"setup-failed-with-no-case", g, evidence.ReasonCaseMissing, func(d *draft) {
			p := &d.st.Predicate
			p.Cases, p.Run.Arming.PlannedCases = nil, nil
			p.Suite.Ginkgo.Succeeded, p.Suite.Ginkgo.SpecialFailures = false, []string{"SynchronizedBeforeSuite failed"}
			d.reseal()
		}},
		{"case-duplicate", g, evidence.ReasonCaseDuplicate, pred(func(p *evidence.Predicate) { p.Cases = slices.Insert(p.Cases, 0, p.Cases[0]) })},
		{"case-id-case", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Cases[0].ID = strings.ToLower(p.Cases[0].ID) })},
		{"case-id-space", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.Cases[0].ID += " " })},
		{"case-order", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { slices.Reverse(p.Cases) })},
		{"case-older-revision", g, evidence.ReasonCaseRevision, func(d *draft) {
			cases := d.st.Predicate.Cases
			i := slices.IndexFunc(cases, func(r evidence.CaseRow) bool { return r.Revision > 1 })
			if i < 0 {
				d.errs = append(d.errs, fmt.Errorf("each case of the bundle is in its first revision: there is no older one to claim"))
				return
			}
			cases[i].Revision--
			d.reseal()
		}},
		{"case-newer-revision", g, evidence.ReasonCaseRevision, firstRow(func(r *evidence.CaseRow) { r.Revision++ })},
		{"case-unknown-extra", g, evidence.ReasonCaseUnknown, func(d *draft) {
			extra := d.st.Predicate.Cases[len(d.st.Predicate.Cases)-1]
			extra.ID = "ZZZ-99"
			d.st.Predicate.Cases = append(d.st.Predicate.Cases, extra)
			d.st.Predicate.Run.Arming.PlannedCases = append(d.st.Predicate.Run.Arming.PlannedCases, extra.ID)
			d.reseal()
		}},
		{"case-attempts-2", g, evidence.ReasonCaseAttempts, firstRow(func(r *evidence.CaseRow) { r.Attempts = 2 })},
		{"case-attempts-0", g, evidence.ReasonCaseAttempts, firstRow(func(r *evidence.CaseRow) { r.Attempts = 0 })},
		{"case-without-witness", g, evidence.ReasonCaseWitness, firstRow(func(r *evidence.CaseRow) { r.Witness = map[string]int64{"hits": 0} })},
		{"case-in-no-image", g, evidence.ReasonCaseImages, firstRow(func(r *evidence.CaseRow) { r.Images = nil })},
		{"case-in-other-image", g, evidence.ReasonCaseImages, firstRow(func(r *evidence.CaseRow) { r.Images = []string{otherDigest("image")} })},
		{"image-that-no-case-saw", g, evidence.ReasonCaseImages, func(d *draft) {
			d.st.Predicate.Images = append(d.st.Predicate.Images, evidence.Image{
				Name: "unseen", Role: evidence.ImageWorkload, ConfigDigest: otherDigest("unseen"), ManifestDigest: otherDigest("unseen manifest"),
			})
			slices.SortFunc(d.st.Predicate.Images, func(a, b evidence.Image) int { return strings.Compare(a.ConfigDigest, b.ConfigDigest) })
		}},
		{"catalogue-other", g, evidence.ReasonCatalogue, pred(func(p *evidence.Predicate) { p.Suite.CatalogueDigest = otherDigest("catalogue") })},
		{"catalogue-smaller-in-policy", g, evidence.ReasonPolicyCatalogue, func(d *draft) {
			c := &d.policy.Catalogue
			c.Cases = slices.Clone(c.Cases)
			c.Cases[0].Revision++
		}},
		{"profile-without-a-case", g, evidence.ReasonProfile, func(d *draft) {
			for _, p := range d.policy.Catalogue.Profiles {
				if len(d.policy.Catalogue.Lacks(p)) > 0 {
					d.policy.Profiles, d.st.Predicate.Profiles = []string{p.Name}, []string{p.Name}
					return
				}
			}
			d.errs = append(d.errs, fmt.Errorf("each profile of the catalogue has its cases: there is no empty one to demand"))
		}},
		{"profile-not-claimed", g, evidence.ReasonProfile, pred(func(p *evidence.Predicate) { p.Profiles = []string{"another"} })},
		{"summary-verdict", g, evidence.ReasonSummary, pred(func(p *evidence.Predicate) { p.Summary.Verdict = evidence.NonConformant })},
		{"summary-count", g, evidence.ReasonSummary, pred(func(p *evidence.Predicate) { p.Summary.Counts.Pass++ })},
		{"summary-finding", g, evidence.ReasonSummary, pred(func(p *evidence.Predicate) {
			p.Summary.Findings = []evidence.Finding{{Case: p.Cases[0].ID, Code: evidence.ReasonCaseFailed, Text: "hidden"}}
		})},
	}
}

func suite(f func(*evidence.Suite)) func(*draft) {
	return pred(func(p *evidence.Predicate) { f(&p.Suite) })
}

func ginkgo(f func(*evidence.Ginkgo)) func(*draft) {
	return suite(func(s *evidence.Suite) { f(&s.Ginkgo) })
}

// others gives the first mutant of the matrix a case that it leaves green, and changes that in the
// copy of the predicate.
func others(f func(m *evidence.MutationResults, o *evidence.MutationOthers)) func(*draft) {
	return pred(func(p *evidence.Predicate) {
		m := &p.MutationEvidence.MutationResults
		m.Others = []evidence.MutationOthers{leftGreen(*p)}
		f(m, &m.Others[0])
	})
}

// leftGreen names a case that has no row with the first mutant.
func leftGreen(p evidence.Predicate) evidence.MutationOthers {
	o := evidence.MutationOthers{Mutant: p.MutationEvidence.Rows[0].Mutant, Passed: []string{}, Excused: []evidence.MutationExcused{}}
	for _, c := range p.Cases {
		if !slices.ContainsFunc(p.MutationEvidence.Rows, func(r evidence.MutationRow) bool { return r.Mutant == o.Mutant && r.Case == c.ID }) {
			o.Passed = []string{c.ID}
			break
		}
	}
	return o
}

func excuse(status, reason, why string) func(*evidence.MutationResults, *evidence.MutationOthers) {
	return func(_ *evidence.MutationResults, o *evidence.MutationOthers) {
		o.Excused = []evidence.MutationExcused{{Case: o.Passed[0], Status: status, Reason: reason, Why: why}}
		o.Passed = []string{}
	}
}

// mutants changes the mutation results and signs them again.
func mutants(f func(*evidence.MutationResults)) func(*draft) {
	return func(d *draft) {
		m := d.st.Predicate.MutationEvidence
		if m == nil {
			d.errs = append(d.errs, fmt.Errorf("the bundle has no mutation evidence to change"))
			return
		}
		d.policy.MutationEvidence = evidence.MutationRequired
		f(&m.MutationResults)
		file, err := evidence.SealMutation(m.MutationResults, d.ring.mutation)
		if err != nil {
			d.errs = append(d.errs, err)
		}
		m.Digest = evidence.Digest(file)
		d.setBlob(evidence.ArtifactMutation, file)
	}
}

// mutationBy lets another key sign the mutation results.
func (d *draft) mutationBy(k key) {
	m := d.st.Predicate.MutationEvidence
	file, err := evidence.SealMutation(m.MutationResults, k)
	if err != nil {
		d.errs = append(d.errs, err)
	}
	m.Digest = evidence.Digest(file)
	d.setBlob(evidence.ArtifactMutation, file)
}

func runRows() []row {
	const g = "Results"
	return []row{
		{"tree-dirty", g, evidence.ReasonTree, suite(func(s *evidence.Suite) { s.TreeState = "dirty" })},
		{"commit-unknown", g, evidence.ReasonTree, suite(func(s *evidence.Suite) { s.Commit = "unknown" })},
		{"filter-focus", g, evidence.ReasonFilter, ginkgo(func(r *evidence.Ginkgo) { r.FocusStrings = []string{"FS"} })},
		{"filter-skip", g, evidence.ReasonFilter, ginkgo(func(r *evidence.Ginkgo) { r.SkipStrings = []string{"QT"} })},
		{"filter-file", g, evidence.ReasonFilter, ginkgo(func(r *evidence.Ginkgo) { r.SkipFiles = []string{"x.go"} })},
		{"filter-label", g, evidence.ReasonFilter, ginkgo(func(r *evidence.Ginkgo) { r.LabelFilter = "!slow" })},
		{"programmatic-focus", g, evidence.ReasonFocus, ginkgo(func(r *evidence.Ginkgo) { r.ProgrammaticFocus = true })},
		{"dry-run", g, evidence.ReasonDryRun, ginkgo(func(r *evidence.Ginkgo) { r.DryRun = true })},
		{"flake-attempts", g, evidence.ReasonRetries, ginkgo(func(r *evidence.Ginkgo) { r.FlakeAttempts = 2 })},
		{"fail-fast", g, evidence.ReasonFailFast, ginkgo(func(r *evidence.Ginkgo) { r.FailFast = true })},
		{"suite-not-succeeded", g, evidence.ReasonSuite, ginkgo(func(r *evidence.Ginkgo) { r.Succeeded = false })},
		{"suite-interrupted", g, evidence.ReasonSuite, ginkgo(func(r *evidence.Ginkgo) { r.SpecialFailures = []string{"Interrupted by User"} })},
		{"arming-missing", g, evidence.ReasonPayloadJSON, edPayload(replace(`"arming":{`, `"armed":{`))},
		{"arming-of-another-run", g, evidence.ReasonArming, func(d *draft) { d.st.Predicate.Run.Arming.RunID = strings.Repeat("0", 32); d.reseal() }},
		{"arming-of-another-plan", g, evidence.ReasonArming, func(d *draft) {
			d.st.Predicate.Run.Arming.PlannedCases = d.st.Predicate.Run.Arming.PlannedCases[1:]
			d.reseal()
		}},
		{"arming-after-start", g, evidence.ReasonArming, pred(func(p *evidence.Predicate) { p.Run.Arming.StartedAt = p.Validity.NotAfter })},
		{"oracle-unarmed", g, evidence.ReasonOracleUnarmed, func(d *draft) {
			for i := range d.st.Predicate.Run.Arming.Oracles {
				d.st.Predicate.Run.Arming.Oracles[i].Detected = false
			}
			d.reseal()
		}},
		{"oracles-missing", g, evidence.ReasonOracleUnarmed, func(d *draft) { d.st.Predicate.Run.Arming.Oracles = nil; d.reseal() }},
		{"seal-missing", g, evidence.ReasonPayloadJSON, edPayload(replace(`"seal":{`, `"sealed":{`))},
		{"seal-count", g, evidence.ReasonSeal, pred(func(p *evidence.Predicate) { p.Run.Seal.Count-- })},
		{"seal-digest", g, evidence.ReasonSeal, pred(func(p *evidence.Predicate) { p.Run.Seal.Digest = otherDigest("seal") })},
		{"mutation-evidence-missing", g, evidence.ReasonMutation, func(d *draft) {
			d.policy.MutationEvidence = evidence.MutationRequired
			d.st.Predicate.MutationEvidence = nil
		}},
		{"mutation-other-suite", g, evidence.ReasonMutation, mutants(func(m *evidence.MutationResults) { m.SuiteDigest = otherDigest("suite") })},
		{"mutation-other-catalogue", g, evidence.ReasonMutation, mutants(func(m *evidence.MutationResults) { m.CatalogueDigest = otherDigest("catalogue") })},
		{"mutation-other-cohort", g, evidence.ReasonMutation, mutants(func(m *evidence.MutationResults) { m.CohortID = otherDigest("cohort") })},
		{"mutation-of-unnamed-patches", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.MutationEvidence.PatchesDigest = "" })},
		{"mutation-survivor", g, evidence.ReasonMutant, mutants(func(m *evidence.MutationResults) { m.Rows[0].Observed = "" })},
		{"mutation-other-reason", g, evidence.ReasonMutant, mutants(func(m *evidence.MutationResults) { m.Rows[0].Observed = "setup-failed" })},
		{"mutation-none-for-a-case", g, evidence.ReasonMutation, mutants(func(m *evidence.MutationResults) { m.Rows, m.Others = nil, nil })},
		{"mutants-leave-others-green", "Base", "", func(d *draft) {
			mutants(func(m *evidence.MutationResults) { m.Others = []evidence.MutationOthers{leftGreen(d.st.Predicate)} })(d)
		}},
		{"mutation-others-excused-pass", g, evidence.ReasonSchema, others(excuse(evidence.StatusPass, "spoilt", "it passes"))},
		{"mutation-others-excused-waived", g, evidence.ReasonSchema, others(excuse(evidence.StatusWaived, "spoilt", "nobody cares"))},
		{"mutation-others-excused-without-reason", g, evidence.ReasonSchema, others(excuse(evidence.StatusFail, "", "it fails"))},
		{"mutation-others-excused-without-why", g, evidence.ReasonSchema, others(excuse(evidence.StatusFail, "spoilt", ""))},
		{"mutation-others-no-case", g, evidence.ReasonSchema, others(func(_ *evidence.MutationResults, o *evidence.MutationOthers) { o.Passed = nil })},
		{"mutation-others-case-id", g, evidence.ReasonSchema, others(func(_ *evidence.MutationResults, o *evidence.MutationOthers) { o.Passed[0] += " " })},
		{"mutation-others-case-twice", g, evidence.ReasonSchema, others(func(_ *evidence.MutationResults, o *evidence.MutationOthers) {
			o.Passed = append(o.Passed, o.Passed[0])
		})},
		{"mutation-others-passed-and-excused", g, evidence.ReasonSchema, others(func(_ *evidence.MutationResults, o *evidence.MutationOthers) {
			o.Excused = []evidence.MutationExcused{{Case: o.Passed[0], Status: evidence.StatusFail, Reason: "spoilt", Why: "both"}}
		})},
		{"mutation-others-caught-too", g, evidence.ReasonSchema, others(func(m *evidence.MutationResults, o *evidence.MutationOthers) {
			o.Passed = []string{m.Rows[0].Case}
		})},
		{"mutation-others-mutant-twice", g, evidence.ReasonSchema, others(func(m *evidence.MutationResults, o *evidence.MutationOthers) { m.Others = append(m.Others, *o) })},
		{"mutation-others-mutant-unknown", g, evidence.ReasonSchema, others(func(_ *evidence.MutationResults, o *evidence.MutationOthers) { o.Mutant = "zz" })},
		{"mutation-others-unsigned", g, evidence.ReasonMutation, others(func(*evidence.MutationResults, *evidence.MutationOthers) {})},
		{"mutation-unsigned-copy", g, evidence.ReasonMutation, pred(func(p *evidence.Predicate) { p.MutationEvidence.Digest = otherDigest("mutation") })},
		{"mutation-signed-by-stranger", g, evidence.ReasonMutation, func(d *draft) { d.mutationBy(d.ring.stranger) }},
		{"mutation-signed-by-a-role-without-threshold", g, evidence.ReasonMutation, func(d *draft) {
			d.policyKey(d.ring.implementer, evidence.RoleImplementer, "implementer")
			delete(d.policy.Thresholds, evidence.RoleImplementer)
			d.mutationBy(d.ring.implementer)
		}},
		{"mutation-signed-by-the-gate", g, evidence.ReasonMutation, func(d *draft) { d.mutationBy(d.ring.gate) }},
		{"mutation-row-of-no-case", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.MutationEvidence.Rows[0].Case = "FS-02\x1b[2J" })},
		{"mutation-row-of-no-mutant", g, evidence.ReasonSchema, pred(func(p *evidence.Predicate) { p.MutationEvidence.Rows[0].Mutant = "" })},
	}
}
