// SPDX-License-Identifier: Apache-2.0

package evidencecmd

import (
	"fmt"
	"io"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

// explanation prints how the gate came to its answer: every step about every bundle, in order, with
// what can be done about a denial.
func explanation(out io.Writer, g gate.Config, r gate.Result) {
	if r.Policy != "" {
		fmt.Fprintf(out, "policy %s: held\n", r.Policy)
	}
	for i, d := range r.Decisions {
		fmt.Fprintf(out, "bundle %s\n", g.Bundles[i])
		if d.Cohort != "" {
			place := ""
			if d.Place != "" {
				place = ", " + d.Place + " of the fleet"
			}
			fmt.Fprintf(out, "  cohort %s%s\n", d.Cohort, place)
		}
		for _, s := range d.Steps {
			fmt.Fprintf(out, "  %2d %-11s  %s\n", s.Step, s.State, s.Title)
			if s.State == evidence.StepDenied {
				fmt.Fprintf(out, "     %s\n     remedy: %s\n", d.Detail, d.Reason.Remedy())
			}
		}
	}
	if r.Policy != "" {
		fmt.Fprintln(out, "release")
		for _, c := range r.Fleet.Cohorts {
			name := c.Name
			if name == "" {
				name = "the one that was given"
			}
			if c.Admitted {
				fmt.Fprintf(out, "  cohort %s: held by %d measured, until %s\n", name, len(c.Cohorts), c.NotAfter)
				continue
			}
			fmt.Fprintf(out, "  cohort %s: %s\n     remedy: %s\n", name, c.Reason, c.Reason.Remedy())
		}
	}
}
