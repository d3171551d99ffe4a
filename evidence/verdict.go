// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Outcome is what a whole run came to.
type Outcome string

// The closed set of outcomes. Only Conformant can be admitted.
const (
	Conformant    Outcome = "conformant"
	NonConformant Outcome = "non-conformant" // something that must hold was seen not to hold
	Incomplete    Outcome = "incomplete"     // nothing is shown
)

// Finding is one reason why a run is not conformant.
type Finding struct {
	Case string `json:"case"` // "" when it is about the run
	Code Reason `json:"code"`
	Text string `json:"text"`
}

// Need is what the judge demands, and from whom nothing is taken on trust: the producer
// passes what it wants to claim, the verifier what its policy requires.
type Need struct {
	Profiles []string      // at least one
	Claims   []string      // features of the target
	Features []SeenFeature // of this run, whatever the target claims
	Images   []string      // config digests of all workload images; at least one
	Oracles  []ArmedOracle // of this run
	Waivers  []Waiver      // of the verifier's policy only; nil for a producer
	Now      time.Time     // for the expiry of waivers
}

// Judgement is what [Verdict] returns.
type Judgement struct {
	Verdict  Outcome
	Counts   Counts
	Findings []Finding // run first, then in the order of case ids
	Waived   []Waiver  // of Need.Waivers, those that excused a row; in the order of case ids
}

// Summary returns j in the form of the predicate.
func (j Judgement) Summary() Summary {
	return Summary{Verdict: j.Verdict, Counts: j.Counts, Findings: j.Findings}
}

// Verdict computes what rows show against the judge's own catalogue. Producer and verifier
// both call it; there is no other way to a verdict.
//
// A required case counts only as exactly one row of its revision with status pass, one
// attempt, a witness, armed oracles, and every image that it had to run in. not-applicable
// counts only for a case that no required profile demands and whose feature the target does
// not claim. A case whose features are all claimed must be there too, in the tiers of the
// profiles: what a run leaves out cannot fail in it. A failing case outside the profiles makes the run non-conformant all the same.
//
// A claimed feature that the suite saw absent makes the run non-conformant, one of the
// catalogue that it did not see present makes it incomplete.
//
// A waiver excuses a row of its case, revision and reason with status fail or inconclusive, in
// whatever profile, until it expires, if the case came to nothing else beside it. It excuses what was observed and not what was not: a case that is
// missing, was not run, had an unarmed oracle, left out an image, broke the suite, ran in another revision or says that it does not apply
// stays a finding. Counts are of the rows and know no waivers.
func Verdict(cat Catalogue, rows []CaseRow, need Need) Judgement {
	v := &judge{cat: cat, need: need, armed: map[string]bool{}}
	if err := cat.Check(); err != nil {
		v.add("", ReasonCatalogue, "the judge's own catalogue is not valid")
	}
	if len(need.Profiles) == 0 {
		v.add("", ReasonProfile, "no profile is required")
	}
	for _, name := range need.Profiles {
		p, ok := cat.Profile(name)
		if !ok {
			v.add("", ReasonProfile, fmt.Sprintf("profile %q is not in the catalogue", name))
			continue
		}
		if lacks := cat.Lacks(p); len(lacks) > 0 {
			v.add("", ReasonProfile, fmt.Sprintf("profile %q requires no case of %s", name, strings.Join(lacks, ", ")))
		}
		v.profiles = append(v.profiles, p)
	}
	if len(need.Images) == 0 {
		v.add("", ReasonCaseImages, "no workload image was tested")
	}
	for _, o := range need.Oracles {
		v.armed[o.Oracle] = o.Detected
	}
	v.count(rows)
	v.claims(rows)
	v.strangers(rows)
	for _, ref := range cat.Cases {
		var mine []CaseRow
		for _, r := range rows {
			if r.ID == ref.ID {
				mine = append(mine, r)
			}
		}
		v.one(ref, mine)
	}
	out := Judgement{Verdict: Conformant, Counts: v.counts, Findings: v.findings, Waived: v.waived}
	if len(v.findings) > 0 {
		out.Verdict = Incomplete
	}
	if slices.ContainsFunc(v.findings, Finding.failure) {
		out.Verdict = NonConformant
	}
	if out.Findings == nil {
		out.Findings = []Finding{}
	}
	return out
}

func (f Finding) failure() bool { return f.Code.Failure() }

type judge struct {
	cat      Catalogue
	need     Need
	profiles []Profile
	armed    map[string]bool
	counts   Counts
	findings []Finding
	waived   []Waiver
}

func (v *judge) add(id string, code Reason, text string) {
	v.findings = append(v.findings, Finding{Case: id, Code: code, Text: text})
}

func (v *judge) count(rows []CaseRow) {
	v.counts.Total = int64(len(rows))
	for _, r := range rows {
		switch r.Status {
		case StatusPass:
			v.counts.Pass++
		case StatusFail:
			v.counts.Fail++
		case StatusInconclusive:
			v.counts.Inconclusive++
		case StatusError:
			v.counts.Error++
		case StatusNotApplicable:
			v.counts.NotApplicable++
		case StatusNotRun:
			v.counts.NotRun++
		case StatusWaived:
			v.counts.Waived++
		}
	}
}

// strangers finds rows that the catalogue does not have: an unknown case may stand in for a
// missing one in a reader's eyes.
func (v *judge) strangers(rows []CaseRow) {
	for i, r := range rows {
		if !slices.ContainsFunc(v.cat.Cases, func(c CaseRef) bool { return c.ID == r.ID }) {
			v.add("", ReasonCaseUnknown, fmt.Sprintf("row %d is of no case of the catalogue", i))
		}
	}
}

// claims holds what the target says of itself against what the suite saw. A claim outside the
// catalogue's vocabulary says nothing here.
func (v *judge) claims(rows []CaseRow) {
	seen := map[string]string{}
	for _, f := range v.need.Features {
		if had, ok := seen[f.Feature]; ok && had != f.Observed {
			f.Observed = FeatureUnknown // two answers are none
		}
		seen[f.Feature] = f.Observed
	}
	for _, claim := range slices.Compact(slices.Sorted(slices.Values(v.need.Claims))) {
		switch seen[claim] {
		case FeaturePresent:
		case FeatureAbsent:
			v.add("", ReasonClaimAbsent, fmt.Sprintf("the target claims %s, and the suite saw that it is not there", claim))
		default:
			if v.cat.knows(claim) && !v.idle(claim, rows) {
				v.add("", ReasonClaimUnchecked, fmt.Sprintf("the target claims %s, and the suite did not see it", claim))
			}
		}
	}
}

// idle says that cases of a feature are there and none of them could run: their rows say so
// already, and more than that nobody can know of the feature.
func (v *judge) idle(feature string, rows []CaseRow) bool {
	any := false
	for _, r := range rows {
		i := slices.IndexFunc(v.cat.Cases, func(c CaseRef) bool { return c.ID == r.ID })
		if i < 0 || !slices.Contains(v.cat.Cases[i].Features, feature) {
			continue
		}
		if any = true; r.Status != StatusNotRun {
			return false
		}
	}
	return any
}

func (v *judge) required(ref CaseRef) bool {
	return slices.ContainsFunc(v.profiles, func(p Profile) bool { return p.Requires(ref) })
}

// claimed says that a case is of a tier that the profiles run, and that the target claims all of
// what it needs.
func (v *judge) claimed(ref CaseRef) bool {
	return subset(ref.Features, v.need.Claims) &&
		slices.ContainsFunc(v.profiles, func(p Profile) bool { return slices.Contains(p.Tiers, ref.Tier) })
}

func (v *judge) one(ref CaseRef, rows []CaseRow) {
	required := v.required(ref)
	if len(rows) == 0 {
		switch {
		case required:
			v.add(ref.ID, ReasonCaseMissing, "required and absent")
		case v.claimed(ref):
			// Left out, its failure would be too; what ran and failed counts whatever the profile.
			v.add(ref.ID, ReasonCaseMissing, "its features are claimed, and it is absent")
		}
		return
	}
	if len(rows) > 1 {
		v.add(ref.ID, ReasonCaseDuplicate, fmt.Sprintf("%d rows", len(rows)))
	}
	for _, r := range rows {
		v.row(ref, r, required)
	}
}

func (v *judge) row(ref CaseRef, r CaseRow, required bool) {
	if r.Revision != ref.Revision {
		v.add(ref.ID, ReasonCaseRevision, fmt.Sprintf("revision %d, catalogue has %d", r.Revision, ref.Revision))
	}
	if v.excused(ref, r) {
		return
	}
	switch r.Status {
	case StatusPass:
		v.pass(ref, r)
	case StatusFail:
		v.add(ref.ID, ReasonCaseFailed, r.Reason)
	case StatusInconclusive:
		v.add(ref.ID, ReasonCaseInconclusive, r.Reason)
	case StatusError:
		v.add(ref.ID, ReasonCaseError, r.Reason)
	case StatusNotRun:
		v.add(ref.ID, ReasonCaseNotRun, r.Reason)
	case StatusWaived:
		v.add(ref.ID, ReasonCaseWaived, "a waiver of the producer does not count")
	case StatusNotApplicable:
		if required || subset(ref.Features, v.need.Claims) {
			v.add(ref.ID, ReasonCaseNotApplicable, "required, or its features are claimed")
		}
	default:
		v.add(ref.ID, ReasonCaseStatus, "status is not of the closed set")
	}
}

func (v *judge) pass(ref CaseRef, r CaseRow) {
	if r.Attempts != 1 {
		v.add(ref.ID, ReasonCaseAttempts, fmt.Sprintf("%d attempts", r.Attempts))
	}
	if r.Reason != "" {
		v.add(ref.ID, ReasonCaseStatus, "a pass with a reason")
	}
	witnessed := false
	for _, n := range r.Witness {
		witnessed = witnessed || n > 0
	}
	if !witnessed {
		v.add(ref.ID, ReasonCaseWitness, "a pass without a witness of the dangerous event")
	}
	for _, o := range v.unarmed(ref) {
		v.add(ref.ID, ReasonOracleUnarmed, fmt.Sprintf("oracle %s did not detect its planted positive", o))
	}
	if text := v.elsewhere(ref, r); text != "" {
		v.add(ref.ID, ReasonCaseImages, text)
	}
}

// unarmed returns the oracles of a case that could have seen nothing in this run.
func (v *judge) unarmed(ref CaseRef) []string {
	return slices.DeleteFunc(slices.Clone(ref.Oracles), func(o string) bool { return v.armed[o] })
}

// elsewhere says what is wrong with the images that a row ran in, or "".
func (v *judge) elsewhere(ref CaseRef, r CaseRow) string {
	want := v.need.Images
	switch {
	case ref.PerImage && !(subset(want, r.Images) && len(r.Images) == len(want)):
		return "did not run in every image, or in others"
	case !ref.PerImage && !(subset(r.Images, want) && len(r.Images) > 0):
		return "ran in no image of this bundle"
	}
	return ""
}

// excused says that a waiver of the verifier covers r as it stands, and notes the waiver.
func (v *judge) excused(ref CaseRef, r CaseRow) bool {
	if r.Status != StatusFail && r.Status != StatusInconclusive {
		return false
	}
	// What the bug does not explain is another's: a second failure, or an image that was not run.
	if len(r.Also) > 0 {
		return false
	}
	// A case that nobody could watch, or that ran where it need not, was not observed.
	if len(v.unarmed(ref)) > 0 || v.elsewhere(ref, r) != "" {
		return false
	}
	i := slices.IndexFunc(v.need.Waivers, func(w Waiver) bool {
		end, ok := w.Expires.Time()
		return w.Case == r.ID && w.Revision == r.Revision && w.Reason == r.Reason && w.Reason != "" && w.Bug != "" && ok && v.need.Now.Before(end)
	})
	if i >= 0 && !slices.Contains(v.waived, v.need.Waivers[i]) {
		v.waived = append(v.waived, v.need.Waivers[i])
	}
	return i >= 0
}
