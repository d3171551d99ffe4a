// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"fmt"
	"slices"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

// notSelected is the reason of a case that the run was narrowed away from.
const notSelected = "not-selected"

// Differences compares a run with what the file expects: the verdict when the file names one,
// the claims that are not true, the listed cases with their statuses and reasons, and a pass of
// every other case. An unexpected pass is a difference too; a case that was not selected is none.
func (f CohortFile) Differences(report conformance.Report) []string {
	var out []string
	narrowed := slices.ContainsFunc(report.Cases, func(c conformance.ReportCase) bool { return c.Reason == notSelected })
	if f.Verdict != "" && f.Verdict != string(report.Verdict) && !narrowed {
		out = append(out, fmt.Sprintf("the verdict is expected to be %s and is %s", f.Verdict, report.Verdict))
	}
	if absent := AbsentClaims(report); !slices.Equal(absent, f.AbsentClaims) {
		out = append(out, fmt.Sprintf("claimed and absent are expected to be %q and are %q", f.AbsentClaims, absent))
	}
	listed := map[string]bool{}
	for _, e := range f.Expected {
		for _, id := range e.Cases {
			listed[id] = true
			c, ok := report.Case(id)
			switch {
			case !ok:
				out = append(out, fmt.Sprintf("%s is expected to come to %s and is not in the catalogue", id, e.Status))
			case c.Reason == notSelected:
			case c.Status != conformance.Status(e.Status) || c.Reason != e.Reason:
				out = append(out, fmt.Sprintf("%s is expected to come to %s %s and came to %s", id, e.Status, e.Reason, came(c)))
			}
		}
	}
	for _, c := range report.Cases {
		// not-applicable too: a claim that was dropped must not pass for success.
		if !listed[c.ID] && c.Status != conformance.Pass && c.Reason != notSelected {
			out = append(out, fmt.Sprintf("%s is expected to pass and came to %s", c.ID, came(c)))
		}
	}
	return out
}

// AbsentClaims are the features that the target claims and that the suite saw not to be there,
// sorted; nil when there is none.
func AbsentClaims(report conformance.Report) []string {
	var out []string
	for _, f := range report.Features {
		if f.Claimed && f.Observed == conformance.Absent {
			out = append(out, string(f.Feature))
		}
	}
	slices.Sort(out)
	return out
}

func came(c conformance.ReportCase) string {
	if c.Reason == "" {
		return string(c.Status)
	}
	return string(c.Status) + " " + c.Reason
}
