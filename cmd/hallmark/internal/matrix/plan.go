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

// About are the patches without what they say of those of all cases that are not among cases; one that
// speaks of no other is left out. What they say of a case that is not among all stays, for [New] to refuse.
func About(cases, all []conformance.Case, patches []mutants.Mutant) []mutants.Mutant {
	holds := func(list []conformance.Case, id string) bool {
		return slices.ContainsFunc(list, func(c conformance.Case) bool { return c.ID == id })
	}
	without := func(id string) bool { return holds(all, id) && !holds(cases, id) }
	out := slices.Clone(patches)
	for i, m := range out {
		out[i].Kills = slices.DeleteFunc(slices.Clone(m.Kills), func(k mutants.Kill) bool { return without(k.Case) })
		out[i].Spoils = slices.DeleteFunc(slices.Clone(m.Spoils), func(s mutants.Spoil) bool { return without(s.Case) })
	}
	return slices.DeleteFunc(out, func(m mutants.Mutant) bool { return len(m.Kills) == 0 })
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
	p.Lines = append(p.Lines, Line{ID: Control, Title: "The worker as it is, on plain runc: no sandbox.", Kills: map[string]string{}, Spoils: map[string]mutants.Spoil{}})
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
			if err := p.excusable(l, s.Case); err != nil {
				errs = append(errs, err)
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

// Excuse says what the row [Control] finds besides what its cases must catch.
func (p Plan) Excuse(spoils []mutants.Spoil) error {
	l, _ := p.Line(Control)
	for _, s := range spoils {
		if err := p.excusable(l, s.Case); err != nil {
			return err
		}
		l.Spoils[s.Case] = s
	}
	return nil
}

// excusable refuses an excuse of l for a case that is none, or that must catch it.
func (p Plan) excusable(l Line, id string) error {
	switch {
	case !slices.ContainsFunc(p.Columns, func(c Column) bool { return c.Case == id }):
		return fmt.Errorf("%s excuses the unknown case %s", l.ID, id)
	case l.Kills[id] != "":
		return fmt.Errorf("%s excuses %s, which must catch it", l.ID, id)
	}
	return nil
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
