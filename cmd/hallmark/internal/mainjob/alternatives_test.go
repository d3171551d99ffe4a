// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
)

// Every file of ci/cohorts can be read and speaks of cases of the catalogue, in their order; every
// alternative has one, of its name and with the driver that it is run by.
func TestCohortFilesFitTheCatalogueAndTheAlternatives(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(repo, "ci", "cohorts", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d cohort files, %v", len(paths), err)
	}
	named := map[string]runcmd.CohortFile{}
	for _, path := range paths {
		f, err := runcmd.ReadCohortFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		named[filepath.Base(path)] = f
		for _, e := range f.Expected {
			for _, id := range e.Cases {
				i := slices.IndexFunc(cases.All(), func(c conformance.Case) bool { return c.ID == id })
				if i < 0 {
					t.Errorf("%s expects something of %s, which is no case", path, id)
				}
			}
		}
		for _, e := range f.Unproven {
			for _, id := range e.Cases {
				if !slices.ContainsFunc(cases.Unproven(), func(c conformance.Case) bool { return c.ID == id }) {
					t.Errorf("%s foresees something of %s, which is no unproven case", path, id)
				}
			}
		}
		for _, p := range f.Profiles {
			if !slices.Contains(conformance.Profiles(), p) {
				t.Errorf("%s: unknown profile %q", path, p)
			}
		}
	}
	for _, a := range alternatives() {
		f, ok := named[a.file]
		if !ok || f.Name != a.name || (a.target == nil) != (f.Driver == "") {
			t.Errorf("%s has the file %s: there %v, named %q, driver %q", a.name, a.file, ok, f.Name, f.Driver)
		}
	}
}

// results are of three alternatives: as expected, with a surprise, and not measured.
func results() ([]conformance.Case, []alternativeResult) {
	list := []conformance.Case{{ID: "AA-01", Title: "One"}, {ID: "AA-02", Title: "Two | more"}}
	file := runcmd.CohortFile{Verdict: "non-conformant", Expected: []runcmd.Expected{{Cases: []string{"AA-02"}, Status: "fail", Reason: "known", Why: "It is known."}}}
	report := func(first, second conformance.ReportCase) *conformance.Report {
		first.ID, second.ID = "AA-01", "AA-02"
		return &conformance.Report{Verdict: "non-conformant", Cases: []conformance.ReportCase{first, second}}
	}
	pass := conformance.ReportCase{Status: conformance.Pass}
	as := alternativeResult{alternative: alternative{name: "as-expected"}, file: file, report: report(pass, conformance.ReportCase{Status: conformance.Fail, Reason: "known"})}
	surprise := alternativeResult{alternative: alternative{name: "surprise"}, file: file, report: report(conformance.ReportCase{Status: conformance.Errored, Reason: "new"}, pass)}
	surprise.report.Features = []conformance.FeatureRecord{{Feature: "exec", Claimed: true, Observed: conformance.Absent}}
	surprise.differences = file.Differences(*surprise.report)
	return list, []alternativeResult{as, surprise, {alternative: alternative{name: "absent"}, file: file, missing: "no package"}}
}

func TestTablesSayEveryCellAndEveryDifference(t *testing.T) {
	list, got := results()
	for format, want := range map[string][]string{
		"table": {"CASE     AS-EXPECTED     SURPRISE        ABSENT", "AA-01    pass            error new       not measured", "AA-02    fail known      pass            not measured", "untrue   none            exec            not measured", "verdict  non-conformant  non-conformant  not measured"},
		"md": {"| Case | Title | as-expected | surprise | absent |", "| AA-01 | One | pass | error `new` | not measured |", `| AA-02 | Two \| more | fail ` + "`known` | pass | not measured |",
			"|  | claims that are not true | none | exec | not measured |", "|  | verdict | non-conformant | non-conformant | not measured |", "| as-expected | AA-02 | fail `known` | It is known. |", "| surprise | AA-01 | error `new` | Not expected, and not explained. |", "| absent | all | not measured `not-here` | no package |"},
	} {
		text := tables()[format](list, got)
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("%s lacks %q:\n%s", format, line, text)
			}
		}
	}
	if text := markdownTable(list, got); strings.Contains(text, "| surprise | AA-02 |") {
		t.Errorf("a pass is explained as a difference:\n%s", text)
	}
}

// A result that is not the expected one fails the command, an unexpected pass too; a result that
// is missing leaves it incomplete.
func TestAlternativesFailOnADifference(t *testing.T) {
	_, got := results()
	j := &job{repo: "/r", out: "/r/out"}
	status := func(err error) int {
		var typed *exit.Error
		if errors.As(err, &typed) {
			return typed.Status
		}
		return exit.OK
	}
	if err := j.compareAlternatives(got[:1]); status(err) != exit.OK {
		t.Errorf("the expected results: %v", err)
	}
	err := j.compareAlternatives(got)
	if status(err) != exit.Negative || !strings.Contains(err.Error(), "surprise: AA-01") || !strings.Contains(err.Error(), "surprise: AA-02 is expected to come to fail known and came to pass") {
		t.Errorf("a surprise: %v", err)
	}
	if err := j.compareAlternatives([]alternativeResult{got[0], got[2]}); status(err) != exit.Incomplete || !strings.Contains(err.Error(), "absent: no package") {
		t.Errorf("not measured: %v", err)
	}
}
