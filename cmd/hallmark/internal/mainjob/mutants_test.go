// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

func patch(t *testing.T, id, header, change string) mutants.Mutant {
	t.Helper()
	text := "Mutant: " + id + "\nCase: AA-" + id[1:] + "\nReason: got-out\nLayers: one\n" + header + "It is broken.\n\n" +
		"--- a/reference/x.go\n+++ b/reference/x.go\n@@ -1,1 +1,1 @@\n-a\n+" + change + "\n"
	m, err := mutants.Parse(id+"-x.patch", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func digest(of string) string { return evidence.Digest([]byte(of)) }

// small is a job with two cases, two mutants and the control, and the inputs of its matrix.
func small(t *testing.T) (*job, matrixInputs) {
	t.Helper()
	cases := []conformance.Case{
		{ID: "AA-01", Title: "First", Kills: []conformance.Kill{{Mutant: "m01", Reason: "got-out"}, {Mutant: "runc", Reason: "host-seen"}}},
		{ID: "AA-02", Title: "Second", Kills: []conformance.Kill{{Mutant: "m02", Reason: "got-out"}}},
	}
	patches := []mutants.Mutant{patch(t, "m01", "", "b"), patch(t, "m02", "", "c")}
	plan, err := matrix.New(cases, patches)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, rowsFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	j := &job{suite: conformance.Suite{Cases: cases}, steps: io.Discard, answer: io.Discard, out: t.TempDir(),
		lab:       &lab.Lab{Cache: t.TempDir(), Runtimes: map[string]lab.Runtime{lab.RuntimeRunsc: {Digest: "sha256:runsc"}, lab.RuntimeRunc: {Digest: "sha256:runc"}}},
		workloads: []runcmd.Workload{{ConfigDigest: "sha256:image"}}}
	return j, matrixInputs{plan: plan, patches: patches, binaries: map[string]string{"hallmark": digest("suite"), "hallmark-worker": digest("worker")},
		catalogue: digest("catalogue"), cohort: evidence.Cohort{ID: digest("cohort")}, dir: dir}
}

func TestRowKeyFollowsEveryInput(t *testing.T) {
	line := func(in matrixInputs, id string) matrix.Line {
		l, ok := in.plan.Line(id)
		if !ok {
			t.Fatal(id)
		}
		return l
	}
	j, in := small(t)
	m01, base, control := j.rowKey(in, line(in, "m01")), j.rowKey(in, line(in, "none")), j.rowKey(in, line(in, "runc"))
	if again := j.rowKey(in, line(in, "m01")); again != m01 {
		t.Errorf("the same inputs give %s and %s", m01, again)
	}
	if m01 == base || base == control || m01 == j.rowKey(in, line(in, "m02")) {
		t.Error("rows share a key")
	}
	for name, change := range map[string]func(j *job, in *matrixInputs){
		"suite":   func(j *job, in *matrixInputs) { in.binaries["hallmark"] = "sha256:other" },
		"worker":  func(j *job, in *matrixInputs) { in.binaries["hallmark-worker"] = "sha256:other" },
		"cohort":  func(j *job, in *matrixInputs) { in.cohort.ID = "sha256:other" },
		"image":   func(j *job, in *matrixInputs) { j.workloads[0].ConfigDigest = "sha256:other" },
		"runtime": func(j *job, in *matrixInputs) { j.lab.Runtimes[lab.RuntimeRunsc] = lab.Runtime{Digest: "sha256:other"} },
		"diff":    func(j *job, in *matrixInputs) { in.patches[0] = patch(t, "m01", "", "z") },
	} {
		j, in := small(t)
		change(j, &in)
		if j.rowKey(in, line(in, "m01")) == m01 {
			t.Errorf("%s: the key of the row is the same", name)
		}
		if other := j.rowKey(in, line(in, "m02")); name == "diff" && other != j.rowKey(func() matrixInputs { _, in := small(t); return in }(), line(in, "m02")) {
			t.Error("the diff of m01 changes the key of m02")
		}
	}
	// What is expected of a row is judged anew and needs no new run.
	in.patches[0] = patch(t, "m01", "Spoils: AA-02 fail other: so it is.\n", "b")
	if j.rowKey(in, line(in, "m01")) != m01 {
		t.Error("a header changes the key")
	}
}

func keep(t *testing.T, j *job, in matrixInputs, id, scope string, cases map[string]matrix.Observation) {
	t.Helper()
	l, _ := in.plan.Line(id)
	k := keptRow{Key: j.rowKey(in, l), Mutant: id, Cases: cases, Earlier: []string{}}
	if err := k.write(rowPath(in, l, k.Key, scope)); err != nil {
		t.Fatal(err)
	}
}

var (
	pass    = matrix.Observation{Status: conformance.Pass}
	gotOut  = matrix.Observation{Status: conformance.Fail, Reason: "got-out"}
	allKept = map[string]map[string]matrix.Observation{
		"none": {"AA-01": pass, "AA-02": pass},
		"m01":  {"AA-01": gotOut, "AA-02": pass},
		"m02":  {"AA-01": pass, "AA-02": gotOut},
		"runc": {"AA-01": {Status: conformance.Fail, Reason: "host-seen"}, "AA-02": pass},
	}
)

func TestKeptMatrixIsWholeOrNothing(t *testing.T) {
	fill := func(t *testing.T) (*job, matrixInputs) {
		j, in := small(t)
		for id, cases := range allKept {
			keep(t, j, in, id, matrix.Whole, cases)
		}
		return j, in
	}
	j, in := fill(t)
	m, ok := j.keptMatrix(in)
	if !ok || len(m.Rows) != 4 || len(m.Results().Others) != 3 {
		t.Fatalf("the whole matrix: %v %+v", ok, m)
	}
	for name, change := range map[string]func(t *testing.T, j *job, in *matrixInputs){
		"another suite": func(t *testing.T, j *job, in *matrixInputs) { in.binaries["hallmark"] = "sha256:other" },
		"a changed patch": func(t *testing.T, j *job, in *matrixInputs) {
			in.patches[1] = patch(t, "m02", "", "z")
		},
		"a survivor": func(t *testing.T, j *job, in *matrixInputs) {
			keep(t, j, *in, "m02", matrix.Whole, map[string]matrix.Observation{"AA-01": pass, "AA-02": pass})
		},
		"a spoiled case": func(t *testing.T, j *job, in *matrixInputs) {
			keep(t, j, *in, "m02", matrix.Whole, map[string]matrix.Observation{"AA-01": gotOut, "AA-02": gotOut})
		},
		"a missing case": func(t *testing.T, j *job, in *matrixInputs) {
			keep(t, j, *in, "m02", matrix.Whole, map[string]matrix.Observation{"AA-02": gotOut})
		},
		"a missing row": func(t *testing.T, j *job, in *matrixInputs) {
			l, _ := in.plan.Line("runc")
			if err := os.Remove(rowPath(*in, l, j.rowKey(*in, l), matrix.Whole)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, in := fill(t)
			change(t, j, &in)
			if m, ok := j.keptMatrix(in); ok {
				t.Errorf("kept: %+v", m)
			}
		})
	}
}

func TestKeptRowsServeTheirScopeOnly(t *testing.T) {
	j, in := small(t)
	m01, _ := in.plan.Line("m01")
	// Pairs alone do not make a whole row; a whole row holds the pairs.
	keep(t, j, in, "m01", matrix.Pairs, map[string]matrix.Observation{"AA-01": gotOut})
	if _, ok := j.keptRow(in, m01, matrixOptions{scope: matrix.Whole}); ok {
		t.Error("pairs served as a whole row")
	}
	if row, ok := j.keptRow(in, m01, matrixOptions{scope: matrix.Pairs}); !ok || row.Cells[1].Outcome != matrix.Blank {
		t.Errorf("kept pairs: %v %+v", ok, row)
	}
	if _, ok := j.keptRow(in, m01, matrixOptions{scope: matrix.Pairs, fresh: true}); ok {
		t.Error("a fresh matrix takes a kept row")
	}
	keep(t, j, in, "m01", matrix.Whole, allKept["m01"])
	if row, ok := j.keptRow(in, m01, matrixOptions{scope: matrix.Narrowed}); !ok || row.Cells[1].Outcome != matrix.Green || !row.Kept {
		t.Errorf("a kept whole row: %v %+v", ok, row)
	}
	// A whole row in which another case is spoiled is run again, and still holds the pairs.
	in2 := in
	in2.dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(in2.dir, rowsFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	spoiled := maps.Clone(allKept["m01"])
	spoiled["AA-02"] = gotOut
	keep(t, j, in2, "m01", matrix.Whole, spoiled)
	if _, ok := j.keptRow(in2, m01, matrixOptions{scope: matrix.Whole}); ok {
		t.Error("a row with a problem was kept")
	}
	if row, ok := j.keptRow(in2, m01, matrixOptions{scope: matrix.Pairs}); !ok || row.Cells[1].Outcome != matrix.Blank {
		t.Errorf("pairs out of a whole row: %v %+v", ok, row)
	}
}

// Whatever is run of the mutants, the unpatched worker runs too.
func TestBaseRunsEveryCaseOfTheOtherRows(t *testing.T) {
	_, in := small(t)
	line := func(id string) matrix.Line { l, _ := in.plan.Line(id); return l }
	all := []string{"AA-01", "AA-02"}
	for _, row := range []struct {
		id   string
		o    matrixOptions
		want []string
	}{
		{"none", matrixOptions{scope: matrix.Whole}, all},
		{"none", matrixOptions{scope: matrix.Pairs}, all},
		{"none", matrixOptions{scope: matrix.Narrowed, only: []string{"m02"}}, all},
		{"none", matrixOptions{scope: matrix.Narrowed, only: []string{"m02"}, pairs: true}, []string{"AA-02"}},
		{"none", matrixOptions{scope: matrix.Narrowed, only: []string{"m02", "runc"}, pairs: true}, all},
		{"m02", matrixOptions{scope: matrix.Whole}, all},
		{"m02", matrixOptions{scope: matrix.Pairs}, []string{"AA-02"}},
		{"m02", matrixOptions{scope: matrix.Narrowed, only: []string{"m02"}}, all},
		{"m02", matrixOptions{scope: matrix.Narrowed, only: []string{"m02"}, pairs: true}, []string{"AA-02"}},
	} {
		if got := in.rowCases(line(row.id), row.o); !slices.Equal(got, row.want) {
			t.Errorf("%s with %+v: %q", row.id, row.o, got)
		}
		// A row that holds some of the cases never lies where one with all of them is looked for.
		if l, cells := line(row.id), row.o.cells(line(row.id)); len(row.want) < len(all) && rowPath(in, l, strings.Repeat("0", 64), cells) == rowPath(in, l, strings.Repeat("0", 64), matrix.Whole) {
			t.Errorf("%s with %+v is kept as a whole row", row.id, row.o)
		}
	}
	for cases, want := range map[int]int{1: 1, 6: 1, 12: 2, 60: 2} {
		if got := rowProcs(cases, 2); got != want {
			t.Errorf("%d cases in %d processes", cases, got)
		}
	}
	if rowProcs(60, 1) != 1 {
		t.Error("more processes than asked for")
	}
}

func TestOnlyAWholeMatrixWithoutAProblemIsSigned(t *testing.T) {
	for name, row := range map[string]struct {
		scope  string
		change map[string]matrix.Observation // of m02
		signed bool
	}{
		"whole":           {matrix.Whole, nil, true},
		"narrowed":        {matrix.Narrowed, nil, false},
		"with a survivor": {matrix.Whole, map[string]matrix.Observation{"AA-01": pass, "AA-02": pass}, false},
		"with a spoilt":   {matrix.Whole, map[string]matrix.Observation{"AA-01": gotOut, "AA-02": gotOut}, false},
	} {
		t.Run(name, func(t *testing.T) {
			j, in := small(t)
			var said bytes.Buffer
			j.steps = &said
			m := j.newMatrix(in, row.scope)
			for _, l := range in.plan.Lines {
				cases := allKept[l.ID]
				if l.ID == "m02" && row.change != nil {
					cases = row.change
				}
				m.Rows = append(m.Rows, in.row(l, keptRow{Cases: cases}, true, row.scope))
			}
			m.Finish()
			if err := j.signMatrix(m); err != nil {
				t.Fatal(err)
			}
			_, err := os.Stat(filepath.Join(j.out, mutationFile))
			if signed := err == nil; signed != row.signed || strings.Contains(said.String(), " signed: ") != row.signed {
				t.Errorf("signed %v, said %q", signed, said.String())
			}
			if err := j.problems(m); (err != nil) != (row.change != nil) {
				t.Errorf("problems: %v", err)
			}
		})
	}
}

func TestWorkFolderRemovesWhatNobodyHolds(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "build-dead", "m01")
	if err := os.MkdirAll(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	first, release, err := workFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, releaseSecond, err := workFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	have := func() []string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	want := []string{first, second}
	slices.Sort(want)
	if got := have(); !slices.Equal(got, want) {
		t.Errorf("there are %q, want the two that are held, %q", got, want)
	}
	release()
	releaseSecond()
	if got := have(); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

// The digest follows the worker's sources, and nothing else of the repository.
func TestSourcesDigestFollowsTheWorkersSources(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("git", "clone", "-q", repo, clone).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	digest := func() string {
		t.Helper()
		d, err := sourcesDigest(t.Context(), clone)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	write := func(name string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(clone, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("// more\n"); err != nil {
			t.Fatal(err)
		}
	}
	before := digest()
	for _, name := range []string{"README.md", "conformance/case.go", "reference/supervisor/attack_test.go"} {
		write(name)
		if digest() != before {
			t.Errorf("%s changes the digest", name)
		}
	}
	for _, name := range []string{"reference/supervisor/invoke.go", "go.mod", "cmd/hallmark-quota/main.go"} {
		before := digest()
		write(name)
		if digest() == before {
			t.Errorf("%s does not change the digest", name)
		}
		if err := unchanged(t.Context(), clone, before); !errors.Is(err, errSourcesChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A program that a mutant does not change is not built again: every patch of the repository changes
// one, and what changes the supervisor alone leaves the worker as it is.
func TestAffectedPrograms(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	folders, err := programFolders(t.Context(), repo)
	if err != nil {
		t.Fatal(err)
	}
	all, err := mutants.All(repo)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if len(affected(m, folders)) == 0 {
			t.Errorf("%s changes no program", m.File)
		}
	}
	for file, want := range map[string][]string{
		"reference/worker/x.go": {"hallmark-worker"}, "cmd/hallmark-supervisor/main.go": {"hallmark-supervisor"},
		"cmd/hallmark-quota/main.go": {"hallmark-quota"}, "reference/control/x.go": {"hallmark-supervisor", "hallmark-worker"},
		"conformance/case.go": nil, "reference/worker/internal/nothing/x.go": nil,
	} {
		if got := affected(mutants.Mutant{Diffs: []mutants.Diff{{Path: "docs/x.md"}, {Path: file}}}, folders); !slices.Equal(got, want) {
			t.Errorf("%s changes %q, want %q", file, got, want)
		}
	}
}

// The cases that the run to be signed has run are not run again on the unpatched worker, and what
// they came to there counts.
func TestBaseRowIsThatOfTheRun(t *testing.T) {
	j, in := small(t)
	base, _ := in.plan.Line(matrix.Base)
	report := conformance.Report{Seed: 7, Procs: 2, StartedAt: "2026-11-30T07:00:00Z", FinishedAt: "2026-11-30T07:01:30.5Z", Cases: []conformance.ReportCase{
		{ID: "AA-01", Status: conformance.Pass, Attempts: 1}, {ID: "AA-02", Status: conformance.Pass, Attempts: 1},
	}}
	o := matrixOptions{scope: matrix.Pairs, procs: 2, base: baseRow(report)}
	// A row that another command has kept does not stand for this one.
	keep(t, j, in, matrix.Base, matrix.Whole, map[string]matrix.Observation{"AA-01": gotOut, "AA-02": pass})
	if _, ok := j.keptRow(in, base, o); ok {
		t.Error("a kept row stands for the run")
	}
	row, err := j.runRow(t.Context(), in, base, o, "", "")
	if err != nil || len(row.Bad()) > 0 || row.DurationMs != 90_500 || row.Seed != 7 || row.Kept || len(row.Earlier) != 1 {
		t.Errorf("%+v, %v", row, err)
	}
	report.Cases[1].Status = conformance.Fail
	o.base = baseRow(report)
	if row, err = j.runRow(t.Context(), in, base, o, "", ""); err != nil || len(row.Bad()) != 1 {
		t.Errorf("a case that fails: %+v, %v", row, err)
	}
	report.Cases[1] = conformance.ReportCase{ID: "AA-02", Status: conformance.NotRun, Reason: "not-selected"}
	if k := baseRow(report); len(k.Cases) != 1 {
		t.Errorf("a case that was not run counts: %+v", k.Cases)
	}
}

// A mistake in the arguments, or a table with a hole, is told before a lab is started.
func TestMutantsMistakesAreToldAtOnce(t *testing.T) {
	whole := conformance.Suite{Cases: cases.All(), Unproven: cases.Unproven()}
	hole := conformance.Suite{Cases: slices.Clone(whole.Cases), Unproven: whole.Unproven}
	hole.Cases[0].Kills = nil
	for name, row := range map[string]struct {
		suite  conformance.Suite
		args   []string
		status int
		want   string
	}{
		"unknown mutant": {whole, []string{"m06", "m00"}, exit.Failed, `unknown mutant "m00"`},
		"the base":       {whole, []string{"none"}, exit.Failed, `unknown mutant "none"`},
		"unknown format": {whole, []string{"--format", "html"}, exit.Failed, `--format is "html"`},
		"no process":     {whole, []string{"--procs", "0"}, exit.Failed, "--procs is 0"},
		"empty column":   {hole, nil, exit.Negative, "no mutant shows that " + hole.Cases[0].ID + " can fail"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := mutantsCommand(row.suite)
			cmd.SetArgs(row.args)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			err := cmd.ExecuteContext(t.Context())
			var typed *exit.Error
			if !errors.As(err, &typed) || typed.Status != row.status || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want status %d and %s", err, row.status, row.want)
			}
		})
	}
}

// A cell that is lost for want of an oracle says why the oracle was not armed.
func TestUnarmedOracleIsExplained(t *testing.T) {
	r := conformance.Report{Oracles: []conformance.OracleRecord{{Oracle: conformance.OracleTape, Text: "planted-missed: nothing"}}}
	if got := unarmed(r, "oracle-unarmed.tape"); got != ": planted-missed: nothing" {
		t.Errorf("of the tape: %q", got)
	}
	if got := unarmed(r, "oracle-unarmed.wire") + unarmed(r, "no-witness"); got != "" {
		t.Errorf("of what is not there: %q", got)
	}
}
