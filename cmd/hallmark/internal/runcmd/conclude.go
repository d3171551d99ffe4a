// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// maxDifferences bounds how many differences from the cohort file the last lines list.
const maxDifferences = 12

// Conclude prints the last lines of a run and returns its exit status as an error.
func Conclude(w io.Writer, out string, res Result) error {
	r := res.Report
	lines := [][2]string{{"verdict", string(r.Verdict) + " (" + counts(r.Counts) + ")"}, {"cohort", cohort(r)}}
	if seen := unclaimed(r.Features); seen != "" {
		lines = append(lines, [2]string{"unclaimed", seen})
	}
	for i, d := range res.Differences {
		if res.Interrupted { // all that did not run differs
			break
		}
		if i == maxDifferences {
			lines = append(lines, [2]string{"differs", fmt.Sprintf("and %d more, see the reports", len(res.Differences)-i)})
			break
		}
		lines = append(lines, [2]string{"differs", d})
	}
	if res.Bundle != "" {
		lines = append(lines, [2]string{"bundle", res.Bundle})
	} else {
		lines = append(lines, [2]string{"unsigned", res.Unsigned})
	}
	lines = append(lines, [2]string{"reports", out + "/report.html, report.json, junit.xml"})
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%-9s  %s\n", l[0], conformance.Line(l[1]))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return status(out, res)
}

func status(out string, res Result) error {
	r := res.Report
	failed := r.Failures()
	switch {
	case res.Interrupted:
		return &exit.Error{Status: exit.Incomplete, Sentence: "the run was interrupted; nothing was signed", Remedy: "run it again: it starts from the beginning"}
	case r.Verdict == evidence.Conformant:
		return nil
	case r.Verdict == evidence.NonConformant:
		sentence := "non-conformant: " + strings.Join(failed, ", ") + " failed"
		if len(failed) == 0 { // for example a claim that is not kept
			sentence = "non-conformant: " + reason(r)
		}
		return &exit.Error{Status: exit.Negative, Sentence: sentence, Remedy: "read " + out + "/report.html for expected against observed"}
	}
	remedy := "read " + out + "/report.html and " + out + "/raw/child.log"
	if res.Narrowed {
		remedy = "run it without --case"
	}
	return &exit.Error{Status: exit.Incomplete, Sentence: "the run is incomplete: " + reason(r), Remedy: remedy}
}

func reason(r conformance.Report) string {
	if why := r.Why(); why != "" {
		return conformance.Line(why)
	}
	return "a case is missing or proves nothing"
}

// counts says what occurred; passes always.
func counts(c evidence.Counts) string {
	words := []string{fmt.Sprintf("%d of %d pass", c.Pass, c.Total)}
	for _, s := range []struct {
		n    int64
		word string
	}{{c.Fail, "fail"}, {c.Inconclusive, "inconclusive"}, {c.Error, "error"}, {c.Waived, "waived"}, {c.NotApplicable, "not applicable"}, {c.NotRun, "not run"}} {
		if s.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", s.n, s.word))
		}
	}
	return strings.Join(words, ", ")
}

func cohort(r conformance.Report) string {
	if r.Cohort == "" {
		return "not measured"
	}
	return r.Cohort
}

// unclaimed are the features that are there although the target does not claim them.
func unclaimed(features []conformance.FeatureRecord) string {
	var names []string
	for _, f := range features {
		if f.Observed == conformance.Present && !f.Claimed {
			names = append(names, string(f.Feature))
		}
	}
	return strings.Join(names, ", ")
}
