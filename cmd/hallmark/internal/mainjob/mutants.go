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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// controlMutant stands for the unpatched worker on a weaker runtime.
const controlMutant = "runc"

// mutation is the signed result of the mutants for exactly these binaries.
type mutation struct {
	evidence evidence.MutationEvidence
	file     []byte // the signed envelope
	key      evidence.PublicKey
}

// mutationEvidence returns the cached result for these binaries on this cohort, or makes one.
func (j *job) mutationEvidence(ctx context.Context, cohort evidence.Cohort) (mutation, error) {
	key, err := j.mutationKey()
	if err != nil {
		return mutation{}, err
	}
	name, suite, err := j.mutationCache(cohort)
	if err != nil {
		return mutation{}, err
	}
	catalogue, err := j.suite.Catalogue().Digest()
	if err != nil {
		return mutation{}, failed("the catalogue is not valid", err)
	}
	rows, err := readRows(name)
	if err == nil {
		j.step("mutants: %d rows from the cache, for exactly these binaries", len(rows))
	} else if rows, err = j.runMutants(ctx, cohort); err != nil {
		return mutation{}, err
	} else if survivors(rows) == nil { // a survivor is looked for again next time
		if err := writeRows(name, rows); err != nil {
			return mutation{}, failed("the mutants' result cannot be kept", err)
		}
	}
	m := mutation{key: key.PublicKey()}
	m.evidence.MutationResults = evidence.MutationResults{SuiteDigest: suite, CatalogueDigest: catalogue, CohortID: cohort.ID, Rows: rows}
	if m.file, err = evidence.SealMutation(m.evidence.MutationResults, key); err != nil {
		return mutation{}, failed("the mutants' result cannot be signed", err)
	}
	m.evidence.Digest = evidence.Digest(m.file)
	return m, survivors(rows)
}

// mutationKey signs mutation statements; it lives in the cache folder.
func (j *job) mutationKey() (*signing.Signer, error) {
	dir := filepath.Join(j.lab.Cache, "mutants")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("the cache cannot be used", err)
	}
	path := filepath.Join(dir, "mutation.key")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if _, err := signing.Generate(path, filepath.Join(dir, "mutation.pub"), evidence.Ed25519); err != nil {
			return nil, failed("the mutation key cannot be made", err)
		}
	}
	key, err := signing.Load(path)
	if err != nil {
		return nil, failed("the mutation key cannot be used", err)
	}
	return key, nil
}

// mutationCache names the cached rows by everything that they depend on: the four binaries, the
// patches (compiled into this program) and the cohort. It returns the suite's own digest too.
func (j *job) mutationCache(cohort evidence.Cohort) (path, suite string, err error) {
	h := sha256.New()
	exe, err := os.Executable()
	if err != nil {
		return "", "", failed("the own executable cannot be found", err)
	}
	for _, name := range build.Commands {
		p := filepath.Join(filepath.Dir(exe), name)
		if name == "hallmark" {
			p = "/proc/self/exe"
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return "", "", failed("a binary cannot be read", err)
		}
		sum := sha256.Sum256(b)
		h.Write(sum[:])
		if name == "hallmark" {
			suite = evidence.Digest(b)
		}
	}
	fmt.Fprint(h, cohort.ID)
	for _, w := range j.workloads {
		fmt.Fprint(h, w.ConfigDigest)
	}
	return filepath.Join(j.lab.Cache, "mutants", hex.EncodeToString(h.Sum(nil)[:16])+".json"), suite, nil
}

func readRows(path string) ([]evidence.MutationRow, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []evidence.MutationRow
	return rows, json.Unmarshal(b, &rows)
}

func writeRows(path string, rows []evidence.MutationRow) error {
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return evidence.WriteDurable(path, b, 0o600)
}

// kill is one cell of the matrix that must be filled.
type kill struct{ mutant, caseID, reason string }

// kills lists the cells of the catalogue, by mutant.
func (j *job) kills() map[string][]kill {
	out := map[string][]kill{}
	for _, c := range j.suite.Cases {
		for _, k := range c.Kills {
			out[k.Mutant] = append(out[k.Mutant], kill{k.Mutant, c.ID, k.Reason})
		}
	}
	return out
}

// runMutants first shows that the unmutated worker passes, then breaks it once per mutant.
func (j *job) runMutants(ctx context.Context, cohort evidence.Cohort) ([]evidence.MutationRow, error) {
	patches, err := mutants.All()
	if err != nil {
		return nil, failed("the mutants cannot be read", err)
	}
	kills := j.kills()
	work, err := os.MkdirTemp(filepath.Join(j.lab.Cache, "mutants"), "build-")
	if err != nil {
		return nil, failed("the cache cannot be used", err)
	}
	defer os.RemoveAll(work)
	j.step("mutants: the unmutated worker first")
	var ids []string
	for _, c := range j.suite.Cases {
		if len(c.Kills) > 0 {
			ids = append(ids, c.ID)
		}
	}
	base, err := j.mutantRun(ctx, "", lab.RuntimeRunsc, &cohort, ids, filepath.Join(work, "base"))
	if err != nil {
		return nil, err
	}
	if base.Interrupted {
		return nil, ctx.Err()
	}
	for _, id := range ids {
		if c, ok := base.Report.Case(id); !ok || c.Status != conformance.Pass {
			return nil, &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("%s does not pass on the unmutated worker: %s %s (%s)", id, c.Status, c.Reason, c.Text),
				Remedy: "mend that first: a mutant proves nothing against a case that fails anyway"}
		}
	}
	var rows []evidence.MutationRow
	building, stop := context.WithCancel(ctx)
	next := j.buildAhead(building, patches, work)
	defer func() { // the builder has ended before its folder is removed
		stop()
		for range next {
		}
	}()
	for _, m := range patches {
		built, ok := <-next
		if !ok {
			return nil, ctx.Err()
		}
		if built.err != nil {
			return nil, failed("mutant "+m.ID+" cannot be built", built.err)
		}
		got, err := j.judgeMutant(ctx, kills[m.ID], built.dir, lab.RuntimeRunsc, &cohort, filepath.Join(work, m.ID+"-run"))
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
		os.RemoveAll(built.dir)
	}
	if len(kills[controlMutant]) > 0 {
		got, err := j.judgeMutant(ctx, kills[controlMutant], "", lab.RuntimeRunc, nil, filepath.Join(work, "control"))
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	slices.SortFunc(rows, func(a, b evidence.MutationRow) int { return strings.Compare(a.Mutant+" "+a.Case, b.Mutant+" "+b.Case) })
	return rows, nil
}

type builtMutant struct {
	dir string
	err error
}

// buildAhead builds the mutants in order, one ahead of the one that runs.
func (j *job) buildAhead(ctx context.Context, patches []mutants.Mutant, work string) <-chan builtMutant {
	out := make(chan builtMutant, 1)
	go func() {
		defer close(out)
		for _, m := range patches {
			dir, err := j.buildMutant(ctx, m, work)
			select {
			case out <- builtMutant{dir, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// buildMutant makes the worker, the supervisor and the quota helper with the patch laid over
// the sources; everything else is as in the unmutated build.
func (j *job) buildMutant(ctx context.Context, m mutants.Mutant, work string) (string, error) {
	dir := filepath.Join(work, m.ID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	overlay, err := m.Overlay(j.repo, dir)
	if err != nil {
		return "", err
	}
	return dir, build.All(ctx, build.Options{
		Source: j.repo, Out: dir, Overlay: overlay, Only: []string{"hallmark-supervisor", "hallmark-quota", "hallmark-worker"},
	})
}

func (j *job) mutantRun(ctx context.Context, binaries, runtime string, cohort *evidence.Cohort, ids []string, out string) (runcmd.Result, error) {
	return runcmd.Run(ctx, runcmd.Params{
		Suite: j.suite, File: runcmd.CohortFile{Requirements: runcmd.Requirements{Runtime: runtime}}, Lab: j.lab, Cohort: cohort,
		// One image is enough to show that a case can fail.
		Workloads: j.workloads[:1], Binaries: binaries, Tier: conformance.Full, CaseIDs: ids, Out: out, Progress: io.Discard,
	})
}

// judgeMutant runs the cases that must notice the mutant and writes down what they said. Only
// a judged failure counts as observed: a crash or a time-out catches nothing.
func (j *job) judgeMutant(ctx context.Context, want []kill, binaries, runtime string, cohort *evidence.Cohort, out string) ([]evidence.MutationRow, error) {
	if len(want) == 0 {
		return nil, nil
	}
	var ids []string
	for _, k := range want {
		ids = append(ids, k.caseID)
	}
	started := time.Now()
	res, err := j.mutantRun(ctx, binaries, runtime, cohort, ids, out)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	if res.Interrupted {
		return nil, ctx.Err()
	}
	var rows []evidence.MutationRow
	for _, k := range want {
		c, _ := res.Report.Case(k.caseID)
		row := evidence.MutationRow{Mutant: k.mutant, Case: k.caseID, Expected: k.reason}
		mark := "SURVIVED"
		if c.Status == conformance.Fail {
			row.Observed, mark = c.Reason, "caught"
		}
		if row.Observed != k.reason {
			mark = "SURVIVED"
			fmt.Fprintf(j.steps, "        %s: %s %s: %s\n", k.caseID, c.Status, c.Reason, c.Text)
		}
		j.step("%-5s %-6s %s %s (%.1fs)", k.mutant, k.caseID, mark, k.reason, time.Since(started).Seconds())
		rows = append(rows, row)
	}
	return rows, nil
}

// survivors is an error that names every mutant that was not caught with the expected reason.
func survivors(rows []evidence.MutationRow) error {
	var alive []string
	for _, r := range rows {
		if r.Observed != r.Expected || r.Expected == "" {
			alive = append(alive, fmt.Sprintf("%s by %s (want %s, got %q)", r.Mutant, r.Case, r.Expected, r.Observed))
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return &exit.Error{Status: exit.Negative, Sentence: "not caught: " + strings.Join(alive, ", "),
		Remedy: "a case that no mutant can fail is not a case: sharpen it, or correct the mutant"}
}

// mutantsOnly is `hallmark mutants`: the matrix on the terminal and its signed form in a file.
func (j *job) mutantsOnly(ctx context.Context) error {
	return j.within(ctx, func(ctx context.Context) error {
		cohort, err := j.measure(ctx, lab.RuntimeRunsc)
		if err != nil {
			return err
		}
		m, merr := j.mutationEvidence(ctx, cohort)
		if m.file == nil {
			return merr
		}
		if err := j.clear(); err != nil {
			return err
		}
		path := filepath.Join(j.out, "mutation.json")
		if err := evidence.WriteDurable(path, m.file, 0o644); err != nil {
			return failed("the signed matrix cannot be written", err)
		}
		t := tabwriter.NewWriter(j.answer, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "MUTANT\tCASE\tEXPECTED\tOBSERVED")
		for _, r := range m.evidence.Rows {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Mutant, r.Case, r.Expected, r.Observed)
		}
		fmt.Fprintf(t, "signed: %s\n", j.relative(path))
		return errors.Join(t.Flush(), merr)
	})
}
