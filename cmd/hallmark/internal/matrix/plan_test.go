// SPDX-License-Identifier: Apache-2.0

package matrix_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// root is the module's root folder.
const root = "../../../.."

// TestNoEmptyRowOrColumn is about the real patches and the real catalogue: every case has a mutant
// that it must catch, every mutant a case that must catch it.
func TestNoEmptyRowOrColumn(t *testing.T) {
	patches, err := mutants.All(root)
	if err != nil {
		t.Fatal(err)
	}
	patches = matrix.About(cases.All(), slices.Concat(cases.All(), cases.Unproven()), patches)
	p, err := matrix.New(cases.All(), patches)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Columns) != len(cases.All()) || len(p.Lines) != len(patches)+2 {
		t.Errorf("%d columns of %d cases, %d lines of %d patches", len(p.Columns), len(cases.All()), len(p.Lines), len(patches))
	}
}

// TestControlAgreesWithItsCohortFile: `make control` and the matrix's last row expect the
// same failures.
func TestControlAgreesWithItsCohortFile(t *testing.T) {
	file, err := runcmd.ReadCohortFile(filepath.Join(root, "ci", "cohorts", "runc-control.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	patches, err := mutants.All(root)
	if err != nil {
		t.Fatal(err)
	}
	patches = matrix.About(cases.All(), slices.Concat(cases.All(), cases.Unproven()), patches)
	p, err := matrix.New(cases.All(), patches)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := p.Line(matrix.Control)
	want := map[string]string{}
	for _, e := range file.Expected {
		for _, id := range e.Cases {
			if e.Status == string(conformance.Fail) {
				want[id] = e.Reason
			}
		}
	}
	if !maps.Equal(l.Kills, want) {
		t.Errorf("the cases say %v, the cohort file %v", l.Kills, want)
	}
}

func TestExcuseOfTheControl(t *testing.T) {
	for spoiled, want := range map[string]string{"AA-02": "", "ZZ-01": "unknown case ZZ-01", "AA-01": "must catch it"} {
		p, err := matrix.New(values())
		if err != nil {
			t.Fatal(err)
		}
		s := mutants.Spoil{Case: spoiled, Status: "inconclusive", Reason: "too-slow", Why: "it is."}
		if err := p.Excuse([]mutants.Spoil{s}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spoiled, err)
		}
		l, _ := p.Line(matrix.Control)
		cells := p.Judge(l, map[string]matrix.Observation{spoiled: {Status: conformance.Inconclusive, Reason: "too-slow"}})
		for _, c := range cells {
			if c.Case == "AA-02" && want == "" && c.Outcome != matrix.Excused {
				t.Errorf("the excused cell is %s", c.Outcome)
			}
		}
	}
}

// Two cases and two patches that fit together.
func values() ([]conformance.Case, []mutants.Mutant) {
	return []conformance.Case{
			{ID: "AA-01", Title: "First", Kills: []conformance.Kill{{Mutant: "m01", Reason: "got-out"}, {Mutant: "runc", Reason: "host-seen"}}},
			{ID: "AA-02", Title: "Second", Kills: []conformance.Kill{{Mutant: "m02", Reason: "too-much"}}},
		}, []mutants.Mutant{
			{ID: "m01", About: "The door is open.", Layers: "the door", Kills: []mutants.Kill{{Case: "AA-01", Reason: "got-out"}},
				Spoils: []mutants.Spoil{{Case: "AA-02", Status: "error", Reason: "suite-error", Why: "nothing stays inside."}}},
			{ID: "m02", About: "There is no bound.", Layers: "the bound", Kills: []mutants.Kill{{Case: "AA-02", Reason: "too-much"}}},
		}
}

// A tier leaves cases out, and with them the mutants that only they catch; a case that nobody knows is no tier's.
func TestAboutCasesOfATier(t *testing.T) {
	all, patches := values()
	patches[1].Kills = append(patches[1].Kills, mutants.Kill{Case: "ZZ-01", Reason: "x"})
	got := matrix.About(all[:1], all, patches[:1])
	if len(got) != 1 || len(got[0].Kills) != 1 || len(got[0].Spoils) != 0 {
		t.Errorf("m01 without AA-02: %+v", got)
	}
	if _, err := matrix.New(all[:1], got); err != nil {
		t.Errorf("the smaller table: %v", err)
	}
	if got := matrix.About(all[:1], all, patches[1:]); len(got) != 1 || got[0].Kills[0].Case != "ZZ-01" {
		t.Errorf("m02, which speaks of an unknown case: %+v", got)
	}
	patches[1].Kills = patches[1].Kills[:1]
	if got := matrix.About(all[:1], all, patches[1:]); len(got) != 0 {
		t.Errorf("m02, whose case is left out: %+v", got)
	}
	if len(patches[0].Spoils) != 1 {
		t.Error("the patches were changed")
	}
}

func TestPlanFindsEveryFault(t *testing.T) {
	if _, err := matrix.New(values()); err != nil {
		t.Fatalf("the good values: %v", err)
	}
	for name, row := range map[string]struct {
		change func(c []conformance.Case, m []mutants.Mutant)
		want   string
	}{
		"empty column": {func(c []conformance.Case, m []mutants.Mutant) { c[1].Kills = nil }, "no mutant shows that AA-02 can fail"},
		"empty row": {func(c []conformance.Case, m []mutants.Mutant) {
			c[1].Kills, m[1].Kills = []conformance.Kill{{Mutant: "m01", Reason: "x"}}, nil
		}, "no case catches m02"},
		"control without a case": {func(c []conformance.Case, m []mutants.Mutant) { c[0].Kills = c[0].Kills[:1] }, "no case catches runc"},
		"unknown mutant":         {func(c []conformance.Case, m []mutants.Mutant) { c[0].Kills[0].Mutant = "m09" }, `unknown mutant "m09"`},
		"base as a mutant":       {func(c []conformance.Case, m []mutants.Mutant) { c[0].Kills[0].Mutant = "none" }, `unknown mutant "none"`},
		"kill twice": {func(c []conformance.Case, m []mutants.Mutant) {
			c[1].Kills = append(c[1].Kills, conformance.Kill{Mutant: "m02", Reason: "other"})
		}, "AA-02 names m02 twice"},
		"reasons differ": {func(c []conformance.Case, m []mutants.Mutant) { m[1].Kills[0].Reason = "other" }, `the case says "too-much"`},
		"only the patch": {func(c []conformance.Case, m []mutants.Mutant) {
			m[1].Kills = append(m[1].Kills, mutants.Kill{Case: "AA-01", Reason: "x"})
		}, "m02 says that AA-01 catches it"},
		"only the case": {func(c []conformance.Case, m []mutants.Mutant) {
			c[0].Kills = append(c[0].Kills, conformance.Kill{Mutant: "m02", Reason: "x"})
		}, "AA-01 says that it catches m02"},
		"excuse of no case": {func(c []conformance.Case, m []mutants.Mutant) { m[0].Spoils[0].Case = "ZZ-01" }, "excuses the unknown case ZZ-01"},
		"excuse of a kill":  {func(c []conformance.Case, m []mutants.Mutant) { m[0].Spoils[0].Case = "AA-01" }, "excuses AA-01, which must catch it"},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := values()
			row.change(c, m)
			if _, err := matrix.New(c, m); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}
