// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Outcome is what one cell came to.
type Outcome string

// The closed set of outcomes. Caught, Green and Excused are as they must be; Blank says nothing.
const (
	Caught     Outcome = "caught"     // a judged failure with the expected reason
	Green      Outcome = "green"      // a case that has nothing to do with the mutant passed
	Excused    Outcome = "excused"    // it did not, exactly as the patch says and explains
	Survived   Outcome = "survived"   // the mutant was not caught, or for another reason
	Unexpected Outcome = "unexpected" // neither green nor excused with this status and reason
	Stale      Outcome = "stale"      // excused, and it passed
	Blank      Outcome = "blank"      // not run: the matrix was narrowed to pairs or rows
)

// Scopes of a matrix.
const (
	Whole    = "whole"    // every mutant against every case
	Pairs    = "pairs"    // only the cells that must be caught
	Narrowed = "narrowed" // some rows
)

// Observation is what a case came to in one run.
type Observation struct {
	Status     conformance.Status `json:"status"`
	Reason     string             `json:"reason"`
	Text       string             `json:"text"`
	DurationMs int64              `json:"durationMs"`
}

func (o Observation) String() string {
	return strings.TrimSuffix(string(o.Status)+" "+o.Reason, " ")
}

// told is String with the text, where there is one.
func (o Observation) told() string {
	return strings.TrimSuffix(fmt.Sprintf("%s (%s)", o, o.Text), " ()")
}

// Cell is one case against one mutant.
type Cell struct {
	Case     string  `json:"case"`
	Outcome  Outcome `json:"outcome"`
	Expected string  `json:"expected"` // reason of the failure or of the excuse, "" for green
	Observation
	Why string `json:"why"` // of an excuse
}

// Row is one mutant against the cases, in the order of the catalogue.
type Row struct {
	Mutant     string   `json:"mutant"`
	Title      string   `json:"title"`
	Layers     string   `json:"layers"`
	Seed       int64    `json:"seed"`
	Procs      int      `json:"procs"` // that the cases ran in
	StartedAt  string   `json:"startedAt"`
	DurationMs int64    `json:"durationMs"`
	Kept       bool     `json:"kept"`    // measured by an earlier command, for exactly the same programs
	Earlier    []string `json:"earlier"` // what earlier runs of the same programs found wrong
	Cells      []Cell   `json:"cells"`
}

// Matrix is the table as it was found.
type Matrix struct {
	Schema          int      `json:"schema"` // 1
	Scope           string   `json:"scope"`
	SuiteDigest     string   `json:"suiteDigest"`
	CatalogueDigest string   `json:"catalogueDigest"`
	PatchesDigest   string   `json:"patchesDigest"`
	CohortID        string   `json:"cohortId"`
	Image           string   `json:"image"` // config digest of the one workload
	Columns         []Column `json:"cases"`
	Rows            []Row    `json:"rows"`
	Totals          Totals   `json:"totals"`
	Problems        []string `json:"problems"`
}

// Totals count cells by outcome.
type Totals struct {
	Caught     int `json:"caught"`
	Green      int `json:"green"`
	Excused    int `json:"excused"`
	Survived   int `json:"survived"`
	Unexpected int `json:"unexpected"`
	Stale      int `json:"stale"`
	Blank      int `json:"blank"`
}

// Judge fills the cells of l. A case that seen does not hold is blank. Only a judged failure with
// the expected reason catches: a crash or a time-out does not.
func (p Plan) Judge(l Line, seen map[string]Observation) []Cell {
	var cells []Cell
	for _, c := range p.Columns {
		o, ran := seen[c.Case]
		cell := Cell{Case: c.Case, Observation: o}
		spoil, excused := l.Spoils[c.Case]
		switch want := l.Kills[c.Case]; {
		case want != "":
			cell.Expected = want
			cell.Outcome = Survived
			if o.Status == conformance.Fail && o.Reason == want {
				cell.Outcome = Caught
			}
		case excused:
			cell.Expected, cell.Why = spoil.Reason, spoil.Why
			switch {
			case o.Status == conformance.Pass:
				cell.Outcome = Stale
			case string(o.Status) == spoil.Status && o.Reason == spoil.Reason:
				cell.Outcome = Excused
			default:
				cell.Outcome = Unexpected
			}
		case o.Status == conformance.Pass:
			cell.Outcome = Green
		default:
			cell.Outcome = Unexpected
		}
		if !ran {
			cell.Outcome = Blank
		}
		cells = append(cells, cell)
	}
	return cells
}

// Bad returns one line for each cell that is not as it must be.
func (r Row) Bad() []string {
	var out []string
	for _, c := range r.Cells {
		switch c.Outcome {
		case Survived:
			out = append(out, fmt.Sprintf("SURVIVED %s by %s: want fail %s, got %s", r.Mutant, c.Case, c.Expected, c.told()))
		case Unexpected:
			want := "pass"
			if c.Why != "" {
				want = "the excused " + c.Expected
			}
			out = append(out, fmt.Sprintf("UNEXPECTED %s under %s: want %s, got %s", c.Case, r.Mutant, want, c.told()))
		case Stale:
			out = append(out, fmt.Sprintf("STALE excuse of %s under %s: it passes; remove the Spoils line", c.Case, r.Mutant))
		}
	}
	return out
}

// Finish counts the cells and collects the problems, an empty row or column among them.
func (m *Matrix) Finish() {
	m.Schema, m.Totals, m.Problems = 1, Totals{}, []string{}
	filled := map[string]bool{}
	for _, r := range m.Rows {
		m.Problems = append(m.Problems, r.Bad()...)
		caught := 0
		for _, c := range r.Cells {
			*m.Totals.of(c.Outcome)++
			if c.Outcome == Caught {
				caught++
				filled[c.Case] = true
			}
		}
		if caught == 0 && r.Mutant != Base {
			m.Problems = append(m.Problems, "EMPTY row: no case caught "+r.Mutant)
		}
	}
	if m.Scope == Narrowed {
		return
	}
	for _, c := range m.Columns {
		if !filled[c.Case] {
			m.Problems = append(m.Problems, "EMPTY column: no mutant was caught by "+c.Case)
		}
	}
}

func (t *Totals) of(o Outcome) *int {
	return map[Outcome]*int{Caught: &t.Caught, Green: &t.Green, Excused: &t.Excused, Survived: &t.Survived,
		Unexpected: &t.Unexpected, Stale: &t.Stale, Blank: &t.Blank}[o]
}

// Results is the matrix as evidence spells it: a row for each pair, and the other cases when the
// matrix is whole. The row of [Base] is left out: the bundle itself shows it.
func (m Matrix) Results() evidence.MutationResults {
	out := evidence.MutationResults{
		SuiteDigest: m.SuiteDigest, CatalogueDigest: m.CatalogueDigest, PatchesDigest: m.PatchesDigest, CohortID: m.CohortID,
		Rows: []evidence.MutationRow{}, Others: []evidence.MutationOthers{},
	}
	for _, r := range m.Rows {
		if r.Mutant == Base {
			continue
		}
		others := evidence.MutationOthers{Mutant: r.Mutant, Passed: []string{}, Excused: []evidence.MutationExcused{}}
		for _, c := range r.Cells {
			switch c.Outcome {
			case Caught:
				out.Rows = append(out.Rows, evidence.MutationRow{Mutant: r.Mutant, Case: c.Case, Expected: c.Expected, Observed: c.Reason})
			case Survived:
				row := evidence.MutationRow{Mutant: r.Mutant, Case: c.Case, Expected: c.Expected}
				if c.Status == conformance.Fail {
					row.Observed = c.Reason
				}
				out.Rows = append(out.Rows, row)
			case Green:
				others.Passed = append(others.Passed, c.Case)
			case Excused:
				others.Excused = append(others.Excused, evidence.MutationExcused{Case: c.Case, Status: string(c.Status), Reason: c.Reason, Why: c.Why})
			}
		}
		slices.Sort(others.Passed)
		slices.SortFunc(others.Excused, func(a, b evidence.MutationExcused) int { return strings.Compare(a.Case, b.Case) })
		if m.Scope == Whole {
			out.Others = append(out.Others, others)
		}
	}
	slices.SortFunc(out.Rows, func(a, b evidence.MutationRow) int { return strings.Compare(a.Mutant+" "+a.Case, b.Mutant+" "+b.Case) })
	slices.SortFunc(out.Others, func(a, b evidence.MutationOthers) int { return strings.Compare(a.Mutant, b.Mutant) })
	return out
}

// Covers reports whether seen holds every one of ids.
func Covers(seen map[string]Observation, ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { _, ok := seen[id]; return !ok })
}
