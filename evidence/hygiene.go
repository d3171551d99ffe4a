// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"reflect"
	"slices"
)

// hygiene is step 12: nothing in the way that the suite ran makes its rows worth less.
func (x *examination) hygiene() error {
	p := x.statement.Predicate
	if p.Suite.TreeState != "clean" || !validHex(p.Suite.Commit, 40) {
		return deny(ReasonTree, "tree %q, commit %q", p.Suite.TreeState, p.Suite.Commit)
	}
	if err := checkGinkgo(p.Suite.Ginkgo, x.excused()); err != nil {
		return err
	}
	if err := checkArming(p); err != nil {
		return err
	}
	return x.mutation(p)
}

// excused says that the policy's waivers cover a row: then the runner has reported a failure,
// and rightly. That no other case failed follows from the rows, which were judged before, and
// from the report, which the audit holds against them; any other node that failed stands among the
// special failures, which nothing excuses.
func (x *examination) excused() bool { return x.judgement != nil && len(x.judgement.Waived) > 0 }

func checkGinkgo(g Ginkgo, excused bool) error {
	switch {
	case len(g.FocusStrings)+len(g.SkipStrings)+len(g.FocusFiles)+len(g.SkipFiles) > 0 || g.LabelFilter != "" || g.SemVerFilter != "":
		return deny(ReasonFilter, "focus, skip or label")
	case g.ProgrammaticFocus:
		return deny(ReasonFocus, "")
	case g.DryRun:
		return deny(ReasonDryRun, "")
	case g.FlakeAttempts > 1 || g.MustPassRepeatedly > 1:
		return deny(ReasonRetries, "flakeAttempts %d, mustPassRepeatedly %d", g.FlakeAttempts, g.MustPassRepeatedly)
	case g.FailFast:
		return deny(ReasonFailFast, "")
	case !g.Succeeded && !excused || len(g.SpecialFailures) > 0:
		return deny(ReasonSuite, "%q", g.SpecialFailures)
	}
	return nil
}

func checkArming(p Predicate) error {
	a, s := p.Run.Arming, p.Run.Seal
	ids := make([]string, len(p.Cases))
	for i, c := range p.Cases {
		ids[i] = c.ID
	}
	switch {
	case a.RunID != p.Run.ID:
		return deny(ReasonArming, "armed for run %s", a.RunID)
	case a.CatalogueDigest != p.Suite.CatalogueDigest:
		return deny(ReasonArming, "armed for catalogue %s", a.CatalogueDigest)
	case a.CohortID != p.Cohort.ID:
		return deny(ReasonArming, "armed on cohort %s", a.CohortID)
	case !reflect.DeepEqual(a.Target, p.Target):
		return deny(ReasonArming, "armed for another target")
	case a.StartedAt != p.Run.StartedAt:
		return deny(ReasonArming, "armed at %s", a.StartedAt)
	case !slices.Equal(a.PlannedCases, ids):
		return deny(ReasonArming, "%d cases planned, %d rows, or others", len(a.PlannedCases), len(ids))
	case s.Count != int64(len(p.Cases)):
		return deny(ReasonSeal, "%d records sealed, %d rows", s.Count, len(p.Cases))
	case s.FinishedAt != p.Run.FinishedAt:
		return deny(ReasonSeal, "sealed at %s", s.FinishedAt)
	}
	return nil
}

// mutation checks the copy in the predicate; the signed original is checked by audit.
func (x *examination) mutation(p Predicate) error {
	m := p.MutationEvidence
	required := x.q.Policy.doc.MutationEvidence == MutationRequired
	if m == nil {
		if required {
			return deny(ReasonMutation, "none")
		}
		return nil
	}
	switch {
	case m.SuiteDigest != p.Suite.BinaryDigest:
		return deny(ReasonMutation, "of suite %s", m.SuiteDigest)
	case m.CatalogueDigest != p.Suite.CatalogueDigest:
		return deny(ReasonMutation, "of catalogue %s", m.CatalogueDigest)
	case !required:
		return nil
	case m.CohortID != p.Cohort.ID:
		return deny(ReasonMutation, "of cohort %s", m.CohortID)
	}
	for i, r := range m.Rows {
		if i > 0 && compareMutation(m.Rows[i-1], r) == 0 {
			return deny(ReasonMutation, "%s and %s twice", r.Mutant, r.Case)
		}
		if r.Observed != r.Expected || r.Expected == "" {
			return deny(ReasonMutant, "%s by %s: %q, want %q", r.Mutant, r.Case, r.Observed, r.Expected)
		}
	}
	// Every case that the policy relies on was shown to be able to fail.
	for _, ref := range x.q.Policy.doc.Catalogue.Cases {
		covered := slices.ContainsFunc(m.Rows, func(r MutationRow) bool { return r.Case == ref.ID })
		if !covered && x.requires(ref) {
			return deny(ReasonMutation, "%s has no mutant", ref.ID)
		}
	}
	return nil
}

func (x *examination) requires(ref CaseRef) bool {
	for _, name := range x.place.Profiles {
		if p, ok := x.q.Policy.doc.Catalogue.Profile(name); ok && p.Requires(ref) {
			return true
		}
	}
	return false
}
