// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"fmt"
	"strings"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// controlFile is the cohort file of the control: what runc must and may do otherwise.
const controlFile = "runc-control.yaml"

// control runs the same cases on runc. It succeeds when exactly the expected cases fail, with
// the expected reasons, and the gate denies the bundle.
func (j *job) control(ctx context.Context) error {
	return j.within(ctx, func(ctx context.Context) error {
		cohort, err := j.measure(ctx, lab.RuntimeRunc)
		if err != nil {
			return err
		}
		file, err := j.cohortFile(controlFile)
		if err != nil {
			return err
		}
		// No mutation evidence: the denial must come from the cases.
		res, err := j.evidenceRun(ctx, file, cohort, conformance.Full, nil)
		if err != nil {
			return err
		}
		if res.Bundle == "" {
			return &exit.Error{Status: exit.Incomplete, Sentence: "the control has no bundle: " + res.Unsigned, Remedy: "read " + j.relative(j.out) + "/raw/child.log"}
		}
		decision, err := j.gate(cohort)
		if err != nil {
			return err
		}
		if decision.Admitted {
			return &exit.Error{Status: exit.Negative, Sentence: "the gate admits the control: plain runc passed for a sandbox", Remedy: "find the case that no longer fails"}
		}
		if len(res.Differences) > 0 || res.Report.Verdict != evidence.NonConformant {
			return &exit.Error{Status: exit.Negative,
				Sentence: fmt.Sprintf("the control differs from ci/cohorts/%s (verdict %s): %s", controlFile, res.Report.Verdict, strings.Join(res.Differences, "; ")),
				Remedy:   "read " + j.relative(j.out) + "/report.html"}
		}
		var b strings.Builder
		fmt.Fprintf(&b, "verdict   %s, as expected\ncohort    %s\n", res.Report.Verdict, res.Cohort.ID)
		for _, c := range res.Report.Cases {
			if c.Status == conformance.Fail {
				fmt.Fprintf(&b, "fails     %s %s: %s\n", c.ID, c.Title, c.Reason)
			}
		}
		out := j.relative(j.out)
		fmt.Fprintf(&b, "denied    %s\nreports   %s/report.html, report.json, junit.xml\n", decision.Detail, out)
		_, err = fmt.Fprint(j.answer, b.String())
		return err
	})
}
