// SPDX-License-Identifier: Apache-2.0

// Package matrix is the table of mutants and cases: which case must catch which mutant and with
// what reason, which other case may be spoiled and why, and what a run found in each cell. It owns
// the judgement of a cell and the forms in which the table is shown. It never runs, builds or signs
// anything.
package matrix

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// Rows that are not patches.
const (
	Base    = "none" // the worker as it is, in the sandbox: every case must pass
	Control = "runc" // the worker as it is, on a weaker runtime
)

// Plan is what must be found, by row.
type Plan struct {
	Columns []Column
	Lines   []Line // [Base] first, then the patches by id, then [Control]
}

// Column is one case of the catalogue.
type Column struct {
	Case  string `json:"case"`
	Title string `json:"title"`
}

// Line is one worker and what is expected of each case against it: green, when nothing is said.
type Line struct {
	ID     string
	Title  string // one sentence that says what is broken
	Layers string
	Kills  map[string]string // reason, by case
	Spoils map[string]mutants.Spoil
}

// New compares cases and patches in both directions and returns every fault: a column that nothing
// fills (a case without a mutant), a row that nothing fills (a mutant without a case), a pair that
// only one side knows, an excuse of an unknown case.
func New(cases []conformance.Case, patches []mutants.Mutant) (Plan, error) {
	var p Plan
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	p.Lines = append(p.Lines, Line{ID: Base, Title: "The worker as it is."})
	for _, m := range patches {
		l := Line{ID: m.ID, Title: m.About, Layers: m.Layers, Kills: map[string]string{}, Spoils: map[string]mutants.Spoil{}}
		for _, s := range m.Spoils {
			l.Spoils[s.Case] = s
		}
		p.Lines = append(p.Lines, l)
	}
	p.Lines = append(p.Lines, Line{ID: Control, Title: "The worker as it is, on plain runc: no sandbox.", Kills: map[string]string{}})
	for _, c := range cases {
		p.Columns = append(p.Columns, Column{c.ID, c.Title})
		if len(c.Kills) == 0 {
			fault("no mutant shows that %s can fail", c.ID)
		}
		for _, k := range c.Kills {
			l, ok := p.Line(k.Mutant)
			switch {
			case !ok || l.Kills == nil:
				fault("%s is to catch the unknown mutant %q", c.ID, k.Mutant)
			case l.Kills[c.ID] != "" || k.Reason == "":
				fault("%s names %s twice, or without a reason", c.ID, k.Mutant)
			default:
				l.Kills[c.ID] = k.Reason
			}
		}
	}
	for _, m := range patches {
		l, _ := p.Line(m.ID)
		for _, k := range m.Kills {
			if l.Kills[k.Case] != k.Reason {
				fault("%s says that %s catches it with %s, and the case says %q", m.ID, k.Case, k.Reason, l.Kills[k.Case])
			}
		}
		for id := range l.Kills {
			if !slices.ContainsFunc(m.Kills, func(k mutants.Kill) bool { return k.Case == id }) {
				fault("%s says that it catches %s, and the patch does not say so", id, m.ID)
			}
		}
		for _, s := range m.Spoils {
			if !slices.ContainsFunc(cases, func(c conformance.Case) bool { return c.ID == s.Case }) {
				fault("%s excuses the unknown case %s", m.ID, s.Case)
			}
			if l.Kills[s.Case] != "" {
				fault("%s excuses %s, which must catch it", m.ID, s.Case)
			}
		}
	}
	for _, l := range p.Lines {
		if l.ID != Base && len(l.Kills) == 0 {
			fault("no case catches %s", l.ID)
		}
	}
	return p, errors.Join(errs...)
}

// Line returns the row of id.
func (p Plan) Line(id string) (Line, bool) {
	i := slices.IndexFunc(p.Lines, func(l Line) bool { return l.ID == id })
	if i < 0 {
		return Line{}, false
	}
	return p.Lines[i], true
}

// Cases are the ids of all columns, in the order of the catalogue.
func (p Plan) Cases() []string {
	var ids []string
	for _, c := range p.Columns {
		ids = append(ids, c.Case)
	}
	return ids
}

// Pairs are the cases that must catch l, in the order of the catalogue; of [Base], all.
func (p Plan) Pairs(l Line) []string {
	var ids []string
	for _, c := range p.Columns {
		if l.ID == Base || l.Kills[c.Case] != "" {
			ids = append(ids, c.Case)
		}
	}
	return ids
}
