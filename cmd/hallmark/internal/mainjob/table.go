// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
)

// tables are the forms in which the alternatives' results are printed: a row for each case, a
// column for each alternative.
func tables() map[string]func([]conformance.Case, []alternativeResult) string {
	return map[string]func([]conformance.Case, []alternativeResult) string{"table": plainTable, "md": markdownTable}
}

const notMeasured = "not measured"

// cell is what a case came to on an alternative: the status, and the reason when it is no pass.
func (r alternativeResult) cell(id string) (status, reason string) {
	if r.report == nil {
		return notMeasured, ""
	}
	c, ok := r.report.Case(id)
	if !ok {
		return notMeasured, ""
	}
	return string(c.Status), c.Reason
}

// claims names the claims that are not true.
func (r alternativeResult) claims() string {
	if r.report == nil {
		return notMeasured
	}
	if absent := runcmd.AbsentClaims(*r.report); len(absent) > 0 {
		return strings.Join(absent, ", ")
	}
	return "none"
}

func (r alternativeResult) verdict() string {
	if r.report == nil {
		return notMeasured
	}
	return string(r.report.Verdict)
}

func plainTable(cases []conformance.Case, results []alternativeResult) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "CASE")
	for _, r := range results {
		fmt.Fprint(t, "\t", strings.ToUpper(r.name))
	}
	for _, c := range cases {
		fmt.Fprint(t, "\n", c.ID)
		for _, r := range results {
			status, reason := r.cell(c.ID)
			fmt.Fprint(t, "\t", strings.TrimSpace(status+" "+reason))
		}
	}
	fmt.Fprint(t, "\nuntrue")
	for _, r := range results {
		fmt.Fprint(t, "\t", r.claims())
	}
	fmt.Fprint(t, "\nverdict")
	for _, r := range results {
		fmt.Fprint(t, "\t", r.verdict())
	}
	fmt.Fprintln(t)
	t.Flush() // into a strings.Builder: cannot fail
	return b.String()
}

func markdownTable(cases []conformance.Case, results []alternativeResult) string {
	var b strings.Builder
	b.WriteString("| Case | Title |")
	for _, r := range results {
		b.WriteString(" " + r.name + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(results)) + "\n")
	for _, c := range cases {
		fmt.Fprintf(&b, "| %s | %s |", c.ID, strings.ReplaceAll(c.Title, "|", `\|`))
		for _, r := range results {
			status, reason := r.cell(c.ID)
			if reason != "" {
				reason = " `" + reason + "`"
			}
			b.WriteString(" " + status + reason + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("|  | claims that are not true |")
	for _, r := range results {
		b.WriteString(" " + r.claims() + " |")
	}
	b.WriteString("\n|  | verdict |")
	for _, r := range results {
		b.WriteString(" " + r.verdict() + " |")
	}
	b.WriteString("\n\n| Alternative | Case | Observed instead of a pass | Meaning |\n|---|---|---|---|\n")
	for _, r := range results {
		for _, row := range r.explained(cases) {
			fmt.Fprintf(&b, "| %s | %s | %s `%s` | %s |\n", r.name, strings.Join(row.Cases, ", "), row.Status, row.Reason, strings.ReplaceAll(row.Why, "|", `\|`))
		}
	}
	return b.String()
}

// explained are the results that are no pass, in the words of the cohort file where it expected
// them; what it did not expect nobody has explained yet.
func (r alternativeResult) explained(cases []conformance.Case) []runcmd.Expected {
	var out []runcmd.Expected
	seen := map[string]bool{}
	for _, e := range r.file.Expected {
		row := runcmd.Expected{Status: e.Status, Reason: e.Reason, Why: e.Why}
		for _, id := range e.Cases {
			if status, reason := r.cell(id); status == e.Status && reason == e.Reason {
				row.Cases, seen[id] = append(row.Cases, id), true
			}
		}
		if len(row.Cases) > 0 {
			out = append(out, row)
		}
	}
	for _, c := range cases {
		status, reason := r.cell(c.ID)
		if !seen[c.ID] && status != string(conformance.Pass) && status != notMeasured {
			out = append(out, runcmd.Expected{Cases: []string{c.ID}, Status: status, Reason: reason, Why: "Not expected, and not explained."})
		}
	}
	if r.missing != "" {
		out = append(out, runcmd.Expected{Cases: []string{"all"}, Status: notMeasured, Reason: "not-here", Why: r.missing})
	}
	return out
}
