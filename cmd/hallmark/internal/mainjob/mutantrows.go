// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// openBound is what a row gets beyond its cases' own time-outs: to start a worker, to arm the
// oracles and to stop. It takes about 15 s.
const openBound = 5 * time.Minute

// rowsFolder holds the kept rows, one file each.
const rowsFolder = "rows"

type matrixOptions struct {
	scope string // of package matrix
	tier  conformance.Tier
	only  []string // mutants, when the scope is [matrix.Narrowed]
	pairs bool     // of those rows, run only the cells that must be caught
	fresh bool     // run rows that are kept, too
	procs int      // of one row at most, as [conformance.Options.Procs]
	base  *keptRow // what the unpatched worker came to in the same command, or nil
}

// cells is [matrix.Pairs] when only those cells of l are run that must be caught, else [matrix.Whole].
// Of the unpatched worker, all pairs are all cases.
func (o matrixOptions) cells(l matrix.Line) string {
	if o.scope == matrix.Pairs && l.ID != matrix.Base || o.scope == matrix.Narrowed && o.pairs {
		return matrix.Pairs
	}
	return matrix.Whole
}

// matrixInputs is everything that the rows of a matrix depend on.
type matrixInputs struct {
	plan      matrix.Plan
	patches   []mutants.Mutant
	binaries  map[string]string // digest, by name in [build.Commands]
	catalogue string
	cohort    evidence.Cohort
	dir       string // of the cache
}

func (j *job) matrixInputs(cohort evidence.Cohort, tier conformance.Tier) (in matrixInputs, err error) {
	in.cohort, in.binaries = cohort, map[string]string{}
	if in.plan, in.patches, err = j.plan(j.repo, tier); err != nil {
		return in, err
	}
	if in.dir, err = j.mutantsCache(); err != nil {
		return in, err
	}
	if in.catalogue, err = j.suite.CatalogueDigest(); err != nil {
		return in, failed("the catalogue is not valid", err)
	}
	own, err := os.Executable()
	if err != nil {
		return in, failed("the own executable cannot be found", err)
	}
	for _, name := range build.Commands {
		path := filepath.Join(filepath.Dir(own), name)
		if name == "hallmark" {
			path = "/proc/self/exe"
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return in, failed("a binary cannot be read", err)
		}
		in.binaries[name] = evidence.Digest(b)
	}
	return in, nil
}

// patch returns the patch of a line; the lines of the unpatched worker have none.
func (in matrixInputs) patch(l matrix.Line) (mutants.Mutant, bool) {
	i := slices.IndexFunc(in.patches, func(m mutants.Mutant) bool { return m.ID == l.ID })
	if i < 0 {
		return mutants.Mutant{}, false
	}
	return in.patches[i], true
}

// rowKey names a row by all that decides what it comes to. Builds are reproducible, so that the
// digests of the unpatched programs with that of the diff stand for the patched ones.
func (j *job) rowKey(in matrixInputs, l matrix.Line) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	runtime := lab.RuntimeRunsc
	if l.ID == matrix.Control {
		runtime = lab.RuntimeRunc
	}
	diff := ""
	if m, ok := in.patch(l); ok {
		diff = m.DiffDigest()
	}
	enc.Encode([]any{1, in.binaries, diff, runtime, j.lab.Runtimes[runtime].Digest, in.cohort.ID, j.workloads[0].ConfigDigest}) // a hash takes everything
	return hex.EncodeToString(h.Sum(nil))
}

// keptRow is the file of one row: what the cases came to, before anything is expected of them.
type keptRow struct {
	Key        string                        `json:"key"`
	Mutant     string                        `json:"mutant"`
	Seed       int64                         `json:"seed"`
	Procs      int                           `json:"procs"`
	StartedAt  string                        `json:"startedAt"`
	DurationMs int64                         `json:"durationMs"`
	Cases      map[string]matrix.Observation `json:"cases"`
	Earlier    []string                      `json:"earlier"` // what earlier runs of this key found wrong
}

// rowPath is where a row is kept; cells is [matrix.Pairs] or [matrix.Whole].
func rowPath(in matrixInputs, l matrix.Line, key, cells string) string {
	name := l.ID + "-" + key[:24]
	if cells == matrix.Pairs {
		name += "-pairs"
	}
	return filepath.Join(in.dir, rowsFolder, name+".json")
}

// readRow returns the kept row, when it is of this key and holds every case of ids.
func readRow(path, key string, ids []string) (keptRow, bool) {
	var k keptRow
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &k) != nil || k.Key != key || !matrix.Covers(k.Cases, ids) {
		return keptRow{}, false
	}
	return k, true
}

func (k keptRow) write(path string) error {
	b, err := json.MarshalIndent(k, "", "  ")
	if err == nil {
		err = evidence.WriteDurable(path, b, 0o600)
	}
	if err != nil {
		return failed("a row cannot be kept", err)
	}
	return nil
}

// row judges what was kept or measured.
func (in matrixInputs) row(l matrix.Line, k keptRow, kept bool, scope string) matrix.Row {
	cases := k.Cases
	if scope == matrix.Pairs {
		cases = map[string]matrix.Observation{}
		for _, id := range in.plan.Pairs(l) {
			if o, ok := k.Cases[id]; ok {
				cases[id] = o
			}
		}
	}
	return matrix.Row{Mutant: l.ID, Title: l.Title, Layers: l.Layers, Seed: k.Seed, Procs: k.Procs, StartedAt: k.StartedAt, DurationMs: k.DurationMs,
		Kept: kept, Earlier: append([]string{}, k.Earlier...), Cells: in.plan.Judge(l, cases)}
}

func (j *job) newMatrix(in matrixInputs, scope string) matrix.Matrix {
	return matrix.Matrix{
		Scope: scope, SuiteDigest: in.binaries["hallmark"], CatalogueDigest: in.catalogue, PatchesDigest: mutants.Digest(in.patches),
		CohortID: in.cohort.ID, Image: j.workloads[0].ConfigDigest, Columns: in.plan.Columns,
	}
}

// keptMatrix is the whole matrix, when every row is kept and nothing is wrong with it.
func (j *job) keptMatrix(in matrixInputs) (matrix.Matrix, bool) {
	m := j.newMatrix(in, matrix.Whole)
	for _, l := range in.plan.Lines {
		key := j.rowKey(in, l)
		k, ok := readRow(rowPath(in, l, key, matrix.Whole), key, in.plan.Cases())
		if !ok {
			return matrix.Matrix{}, false
		}
		m.Rows = append(m.Rows, in.row(l, k, true, matrix.Whole))
	}
	m.Finish()
	return m, len(m.Problems) == 0
}

// matrix first shows that the unpatched worker passes, then breaks it once per mutant, as [schedule]
// says. Every row is kept as soon as it is measured; one with a problem is measured again next time.
// An error means that the matrix could not be made, not that something is wrong with it.
func (j *job) matrix(ctx context.Context, in matrixInputs, o matrixOptions) (m matrix.Matrix, err error) {
	work, release, err := workFolder(in.dir)
	if err != nil {
		return m, err
	}
	defer release()
	lines := slices.DeleteFunc(slices.Clone(in.plan.Lines), func(l matrix.Line) bool {
		return o.scope == matrix.Narrowed && l.ID != matrix.Base && !slices.Contains(o.only, l.ID)
	})
	m = j.newMatrix(in, o.scope)
	plan := j.schedule(in, lines, o)
	kept := map[string]matrix.Row{}
	var build []mutants.Mutant
	for _, l := range append(lines[:1:1], plan.lines()...) {
		if row, ok := j.keptRow(in, l, o); ok {
			kept[l.ID] = row
		} else if p, ok := in.patch(l); ok {
			build = append(build, p)
		}
	}
	builds, err := j.buildAhead(ctx, in, build, work)
	if err != nil {
		return m, err
	}
	defer builds.stop()
	defer os.Remove(filepath.Join(j.out, runsFolder)) // when it is empty
	beside := filepath.Join(work, "beside")
	if err := os.Mkdir(beside, 0o700); err != nil {
		return m, failed("the cache cannot be used", err)
	}
	rows := map[string]matrix.Row{}
	var mu sync.Mutex // of rows, and of what is told
	take := func(l matrix.Line) (dir string, err error) {
		_, ok := kept[l.ID]
		if _, patched := in.patch(l); patched && !ok {
			return builds.next(l.ID)
		}
		return "", nil
	}
	do := func(ctx context.Context, l matrix.Line, dir string) error {
		row, ok := kept[l.ID]
		if !ok {
			var err error
			if row, err = j.runRow(ctx, in, l, o, dir, beside); err != nil {
				return err
			}
			if dir != "" {
				os.RemoveAll(dir)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		rows[l.ID] = row
		j.tellRow(row)
		return nil
	}
	if err := do(ctx, lines[0], ""); err != nil { // [matrix.Base]
		return m, err
	}
	if bad := rows[matrix.Base].Bad(); len(bad) > 0 {
		return m, &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("on the unmutated worker not every case passes: %s", bad[0]),
			Remedy: "mend that first: a mutant proves nothing against a case that fails anyway"}
	}
	if err := plan.run(ctx, take, do); err != nil {
		return m, err
	}
	for _, l := range lines {
		m.Rows = append(m.Rows, rows[l.ID])
	}
	m.Finish()
	return m, nil
}

// keptRow looks for a row of exactly these inputs with which nothing is wrong. A whole row serves
// where only pairs are asked for.
func (j *job) keptRow(in matrixInputs, l matrix.Line, o matrixOptions) (matrix.Row, bool) {
	if o.fresh || l.ID == matrix.Base && o.base != nil {
		return matrix.Row{}, false
	}
	key := j.rowKey(in, l)
	for _, cells := range slices.Compact([]string{matrix.Whole, o.cells(l)}) {
		k, ok := readRow(rowPath(in, l, key, cells), key, in.rowCases(l, o))
		if !ok {
			continue
		}
		if row := in.row(l, k, true, o.cells(l)); len(row.Bad()) == 0 {
			return row, true
		}
	}
	return matrix.Row{}, false
}

// rowCases are the cases that l is run with. The unpatched worker runs every case that another row
// of the same command runs.
func (in matrixInputs) rowCases(l matrix.Line, o matrixOptions) []string {
	switch {
	case o.cells(l) == matrix.Whole:
		return in.plan.Cases()
	case l.ID != matrix.Base:
		return in.plan.Pairs(l)
	}
	need := map[string]bool{}
	for _, other := range in.plan.Lines {
		if slices.Contains(o.only, other.ID) {
			for _, id := range in.plan.Pairs(other) {
				need[id] = true
			}
		}
	}
	return slices.DeleteFunc(in.plan.Cases(), func(id string) bool { return !need[id] })
}

// casesPerProcess is for how many cases of a row one more process is worth its while: it starts a
// worker of its own and arms every oracle again.
const casesPerProcess = 6

// rowProcs is how many processes run so many cases of one row.
func rowProcs(cases, most int) int { return max(1, min(most, cases/casesPerProcess)) }

// baseRow is a row out of the report of a run of the unpatched worker, with the cases that it ran.
func baseRow(r conformance.Report) *keptRow {
	k := keptRow{Mutant: matrix.Base, Seed: r.Seed, Procs: r.Procs, StartedAt: r.StartedAt, Cases: map[string]matrix.Observation{}, Earlier: []string{}}
	begin, berr := time.Parse(time.RFC3339Nano, r.StartedAt)
	end, eerr := time.Parse(time.RFC3339Nano, r.FinishedAt)
	if berr == nil && eerr == nil {
		k.DurationMs = end.Sub(begin).Milliseconds()
	}
	for _, c := range r.Cases {
		if c.Attempts > 0 {
			k.Cases[c.ID] = matrix.Observation{Status: c.Status, Reason: c.Reason, Text: c.Text, DurationMs: c.DurationMs}
		}
	}
	return &k
}

// runRow runs the cases against one worker, and keeps what they came to.
func (j *job) runRow(ctx context.Context, in matrixInputs, l matrix.Line, o matrixOptions, binaries, beside string) (matrix.Row, error) {
	ids, key := in.rowCases(l, o), j.rowKey(in, l)
	known := keptRow{}
	if l.ID == matrix.Base && o.base != nil {
		known = *o.base
	}
	left := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := known.Cases[id]; return ok })
	k := known
	if len(left) > 0 {
		var err error
		if k, err = j.measureRow(ctx, in, l, o, left, binaries, beside); err != nil {
			return matrix.Row{}, err
		}
		maps.Copy(k.Cases, known.Cases)
	}
	k.Key = key
	path := rowPath(in, l, key, o.cells(l))
	if before, ok := readRow(path, key, ids); ok {
		k.Earlier = append(k.Earlier, before.Earlier...)
		k.Earlier = append(k.Earlier, in.row(l, before, true, o.cells(l)).Bad()...)
	}
	if err := k.write(path); err != nil {
		return matrix.Row{}, err
	}
	row := in.row(l, k, false, o.cells(l))
	if len(row.Bad()) == 0 {
		return row, os.RemoveAll(j.rowOut(l))
	}
	return row, nil
}

// rowOut is where the reports of a row lie; they stay when something is wrong with it.
func (j *job) rowOut(l matrix.Line) string { return filepath.Join(j.out, runsFolder, l.ID) }

// measureRow runs cases against one worker within a bound.
func (j *job) measureRow(ctx context.Context, in matrixInputs, l matrix.Line, o matrixOptions, ids []string, binaries, beside string) (keptRow, error) {
	procs := rowProcs(len(ids), o.procs)
	bound := openBound
	for _, c := range j.suite.Cases {
		if slices.Contains(ids, c.ID) {
			bound += c.Timeout
		}
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	out := j.rowOut(l)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return keptRow{}, failed("the output folder cannot be made", err)
	}
	p := runcmd.Params{
		Suite: j.suite, File: runcmd.CohortFile{Requirements: runcmd.Requirements{Runtime: lab.RuntimeRunsc}}, Lab: j.lab, Cohort: &in.cohort,
		// One image is enough to show that a case can fail.
		Workloads: j.workloads[:1], Binaries: binaries, Tier: conformance.Full, CaseIDs: ids, Procs: procs, Beside: beside, Out: out, Progress: io.Discard,
		// A row says what cases came to; what the worker has is seen in the run that is signed.
		WithoutProbes: true,
		// A cell that must be caught is caught by an oracle that sees; a cell that must stay green needs one.
		WithoutArming: o.cells(l) == matrix.Pairs && l.ID != matrix.Base,
	}
	if l.ID == matrix.Control {
		p.File.Requirements.Runtime, p.Cohort = lab.RuntimeRunc, nil
	}
	started := time.Now()
	res, err := runcmd.Run(bounded, p)
	if ctx.Err() != nil {
		return keptRow{}, errors.Join(ctx.Err(), os.RemoveAll(out))
	}
	if err != nil {
		return keptRow{}, err
	}
	if bounded.Err() != nil {
		j.step("%-5s did not end within %s", l.ID, bound)
	}
	k := keptRow{Mutant: l.ID, Seed: res.Report.Seed, Procs: procs, StartedAt: string(evidence.At(started)),
		DurationMs: time.Since(started).Milliseconds(), Cases: map[string]matrix.Observation{}, Earlier: []string{}}
	for _, id := range ids {
		c, _ := res.Report.Case(id)
		k.Cases[id] = matrix.Observation{Status: c.Status, Reason: c.Reason, Text: c.Text + unarmed(res.Report, c.Reason), DurationMs: c.DurationMs}
	}
	return k, nil
}

// unarmed is what became of the oracle that a reason names, for a case that did not run for want of it.
func unarmed(r conformance.Report, reason string) string {
	name, ok := strings.CutPrefix(reason, "oracle-unarmed.")
	i := slices.IndexFunc(r.Oracles, func(o conformance.OracleRecord) bool { return string(o.Oracle) == name })
	if !ok || i < 0 {
		return ""
	}
	return ": " + r.Oracles[i].Text
}

// tellRow prints one line of progress, and one for each problem.
func (j *job) tellRow(r matrix.Row) {
	n := map[matrix.Outcome]int{}
	for _, c := range r.Cells {
		n[c.Outcome]++
	}
	how := fmt.Sprintf("(%.1fs)", float64(r.DurationMs)/1000)
	if r.Kept {
		how = "(kept)"
	}
	others := fmt.Sprintf(", %d green, %d excused", n[matrix.Green], n[matrix.Excused])
	if n[matrix.Blank] > 0 { // they were not run
		others = ""
	}
	j.step("%-5s %d caught%s %s", r.Mutant, n[matrix.Caught], others, how)
	for _, line := range r.Bad() {
		fmt.Fprintf(j.steps, "        %s\n", line)
	}
}
