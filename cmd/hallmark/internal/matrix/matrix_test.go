// SPDX-License-Identifier: Apache-2.0

package matrix_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	pass   = matrix.Observation{Status: conformance.Pass}
	spoilt = matrix.Observation{Status: conformance.Errored, Reason: "suite-error", Text: "no | pipe"}
)

func fail(reason string) matrix.Observation {
	return matrix.Observation{Status: conformance.Fail, Reason: reason, Text: "text"}
}

// found is a matrix of the values of the plan's test, from what each row's cases came to.
func found(t *testing.T, scope string, rows map[string][2]matrix.Observation) matrix.Matrix {
	t.Helper()
	p, err := matrix.New(values())
	if err != nil {
		t.Fatal(err)
	}
	m := matrix.Matrix{Scope: scope, Columns: p.Columns, SuiteDigest: "sha256:s"}
	for _, l := range p.Lines {
		seen, ok := rows[l.ID]
		if !ok {
			continue
		}
		by := map[string]matrix.Observation{}
		for i, id := range p.Cases() {
			if seen[i] != (matrix.Observation{}) {
				by[id] = seen[i]
			}
		}
		m.Rows = append(m.Rows, matrix.Row{Mutant: l.ID, Title: l.Title, Layers: l.Layers, Earlier: []string{}, Cells: p.Judge(l, by)})
	}
	m.Finish()
	return m
}

func good() map[string][2]matrix.Observation {
	return map[string][2]matrix.Observation{
		"none": {pass, pass},
		"m01":  {fail("got-out"), spoilt},
		"m02":  {pass, fail("too-much")},
		"runc": {fail("host-seen"), pass},
	}
}

func with(id string, first, second matrix.Observation) map[string][2]matrix.Observation {
	rows := good()
	rows[id] = [2]matrix.Observation{first, second}
	return rows
}

func TestCellsAreJudged(t *testing.T) {
	if m := found(t, matrix.Whole, good()); len(m.Problems) > 0 || m.Totals != (matrix.Totals{Caught: 3, Green: 4, Excused: 1}) {
		t.Fatalf("the good matrix: %+v %q", m.Totals, m.Problems)
	}
	crash := matrix.Observation{Status: conformance.Errored, Reason: "timeout"}
	for name, row := range map[string]struct {
		rows map[string][2]matrix.Observation
		want string
	}{
		"survived":               {with("m02", pass, pass), "SURVIVED m02 by AA-02: want fail too-much, got pass"},
		"caught for other":       {with("m02", pass, fail("other")), "SURVIVED m02 by AA-02: want fail too-much, got fail other"},
		"a crash catches not":    {with("m02", pass, crash), "SURVIVED m02 by AA-02: want fail too-much, got error timeout"},
		"right word, no failure": {with("m02", pass, matrix.Observation{Status: conformance.Inconclusive, Reason: "too-much"}), "SURVIVED m02 by AA-02"},
		"other case fails":       {with("m02", fail("x"), fail("too-much")), "UNEXPECTED AA-01 under m02: want pass, got fail x"},
		"other case crashes":     {with("m02", crash, fail("too-much")), "UNEXPECTED AA-01 under m02: want pass, got error timeout"},
		"not applicable":         {with("m02", matrix.Observation{Status: conformance.NotApplicable, Reason: "feature-not-claimed"}, fail("too-much")), "UNEXPECTED AA-01 under m02"},
		"excused, other reason":  {with("m01", fail("got-out"), crash), "UNEXPECTED AA-02 under m01: want the excused suite-error, got error timeout"},
		"excused, other status":  {with("m01", fail("got-out"), fail("suite-error")), "UNEXPECTED AA-02 under m01"},
		"stale":                  {with("m01", fail("got-out"), pass), "STALE excuse of AA-02 under m01"},
		"base is not green":      {with("none", fail("x"), pass), "UNEXPECTED AA-01 under none"},
		"control is not green":   {with("runc", fail("host-seen"), fail("x")), "UNEXPECTED AA-02 under runc"},
		"empty row":              {with("m02", pass, pass), "EMPTY row: no case caught m02"},
		"empty column":           {with("m02", pass, pass), "EMPTY column: no mutant was caught by AA-02"},
	} {
		t.Run(name, func(t *testing.T) {
			m := found(t, matrix.Whole, row.rows)
			if text := strings.Join(m.Problems, "\n"); !strings.Contains(text, row.want) {
				t.Errorf("problems %q, want %q", text, row.want)
			}
		})
	}
}

func TestScopes(t *testing.T) {
	none := matrix.Observation{}
	m := found(t, matrix.Pairs, map[string][2]matrix.Observation{
		"none": {pass, pass}, "m01": {fail("got-out"), none}, "m02": {none, fail("too-much")}, "runc": {fail("host-seen"), none},
	})
	if len(m.Problems) > 0 || m.Totals.Blank != 3 || m.Totals.Green != 2 {
		t.Errorf("pairs only: %+v %q", m.Totals, m.Problems)
	}
	if r := m.Results(); len(r.Others) != 0 || len(r.Rows) != 3 {
		t.Errorf("pairs only: %+v", r)
	}
	m = found(t, matrix.Narrowed, map[string][2]matrix.Observation{"none": {pass, pass}, "m01": {fail("got-out"), spoilt}})
	if len(m.Problems) > 0 {
		t.Errorf("narrowed to one row: %q", m.Problems)
	}
}

func TestResultsOfAWholeMatrix(t *testing.T) {
	r := found(t, matrix.Whole, good()).Results()
	want := evidence.MutationResults{
		SuiteDigest: "sha256:s",
		Rows: []evidence.MutationRow{
			{Mutant: "m01", Case: "AA-01", Expected: "got-out", Observed: "got-out"},
			{Mutant: "m02", Case: "AA-02", Expected: "too-much", Observed: "too-much"},
			{Mutant: "runc", Case: "AA-01", Expected: "host-seen", Observed: "host-seen"},
		},
		Others: []evidence.MutationOthers{
			{Mutant: "m01", Passed: []string{}, Excused: []evidence.MutationExcused{{Case: "AA-02", Status: "error", Reason: "suite-error", Why: "nothing stays inside."}}},
			{Mutant: "m02", Passed: []string{"AA-01"}, Excused: []evidence.MutationExcused{}},
			{Mutant: "runc", Passed: []string{"AA-02"}, Excused: []evidence.MutationExcused{}},
		},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
	r = found(t, matrix.Whole, with("m02", pass, matrix.Observation{Status: conformance.Errored, Reason: "too-much"})).Results()
	if r.Rows[1].Observed != "" {
		t.Errorf("a crash was observed as %q", r.Rows[1].Observed)
	}
}

func TestPrintedForms(t *testing.T) {
	bad := with("m02", fail("x"), pass)
	bad["m01"] = [2]matrix.Observation{fail("got-out"), pass}
	one := found(t, matrix.Whole, good())
	one.Rows[1].Earlier = []string{"SURVIVED m01 by AA-01: want fail got-out, got pass"}
	for file, row := range map[string]struct {
		m      matrix.Matrix
		format string
		width  int
	}{
		"good.txt":     {one, matrix.Table, 0},
		"terminal.txt": {one, matrix.Table, 44},
		"narrow.txt":   {one, matrix.Table, 29},
		"good.md":      {one, matrix.Markdown, 10},
		"bad.txt":      {found(t, matrix.Whole, bad), matrix.Table, 200},
		"bad.md":       {found(t, matrix.Whole, bad), matrix.Markdown, 0},
		"narrowed.txt": {found(t, matrix.Narrowed, map[string][2]matrix.Observation{"none": {pass, pass}, "m01": {fail("got-out"), spoilt}}), matrix.Table, 0},
	} {
		t.Run(file, func(t *testing.T) {
			var b bytes.Buffer
			if err := row.m.Print(&b, row.format, row.width); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b.Bytes(), want) {
				t.Errorf("got\n%s\nwant\n%s", b.Bytes(), want)
			}
		})
	}
	if err := one.Print(&bytes.Buffer{}, "xml", 0); err == nil {
		t.Error("an unknown format was accepted")
	}
}

func TestJSONFormIsRead(t *testing.T) {
	var b bytes.Buffer
	m := found(t, matrix.Whole, good())
	if err := m.Print(&b, matrix.JSON, 0); err != nil {
		t.Fatal(err)
	}
	var back matrix.Matrix
	dec := json.NewDecoder(&b)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&back); err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, back, m)
	}
}

func TestLettersGoOn(t *testing.T) {
	m := matrix.Matrix{Columns: []matrix.Column{{Case: "AA-01"}}}
	for range 28 {
		m.Rows = append(m.Rows, matrix.Row{Mutant: "m" + string(rune('A'+len(m.Rows))), Cells: []matrix.Cell{{Case: "AA-01", Outcome: matrix.Excused, Why: "so."}}})
	}
	m.Finish()
	var b bytes.Buffer
	if err := m.Print(&b, matrix.Table, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nz  AA-01", "\naa AA-01", "\nab AA-01"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line begins with %q in\n%s", want, b.String())
		}
	}
}
