// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/matrix"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// Files that `hallmark mutants` leaves in its output folder.
const (
	matrixFile   = "matrix.json"   // the whole table, for scripts
	mutationFile = "mutation.json" // the signed statement; only of a whole matrix without a problem
	runsFolder   = "runs"          // reports and raw records of the rows with a problem
)

func mutantsCommand(suite conformance.Suite) *cobra.Command {
	var o matrixOptions
	var format, out string
	cmd := &cobra.Command{
		Use:   "mutants [MUTANT...]",
		Short: "Break the worker on purpose, one defect at a time, and show which case notices",
		Long: "Break the worker on purpose, one defect at a time, run every case against each, and print the matrix.\n\n" +
			"Every mutant must be caught by its cases with the expected reason; every other case must stay green, or be\n" +
			"excused by the mutant's patch with exactly what it came to. Rows are kept: an interrupted matrix goes on where\n" +
			"it was, and after a change of one patch one row runs again. A whole matrix is signed; with MUTANT (m06, runc)\n" +
			"only those rows are run, and nothing is. With --pairs only the cells that must be caught are run.\n\n" +
			"Exit status: 0 as expected, 1 something is not, 2 interrupted, 3 usage or engine error.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{matrix.Table, matrix.JSON, matrix.Markdown}, format) {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--format is %q", format), Remedy: "use table, json or md"}
			}
			if o.procs < 1 || o.procs > 8 {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--procs is %d", o.procs), Remedy: "use 1 to 8"}
			}
			if err := wholeTier(o.tier); err != nil {
				return err
			}
			j := newJob(cmd, suite, filepath.Join("out", "mutants"))
			if out != "" {
				var err error
				if j.out, err = filepath.Abs(out); err != nil {
					return failed("--out cannot be used", err)
				}
			}
			j.again = "run it again: the rows that are done are kept"
			o.scope, o.only = matrix.Whole, args
			switch {
			case len(args) > 0:
				o.scope = matrix.Narrowed
			case o.pairs:
				o.scope = matrix.Pairs
			}
			return j.mutantsOnly(cmd.Context(), o, func(m matrix.Matrix) error { return m.Print(j.answer, format, width(j.answer)) })
		},
	}
	cmd.Flags().StringVar(&format, "format", matrix.Table, "table (a list where the terminal is narrower), json or md")
	cmd.Flags().StringVar(&out, "out", "", "output folder (default: out/mutants in the repository)")
	cmd.Flags().IntVar(&o.procs, "procs", runcmd.DefaultProcs(), "processes that run the cases of one row side by side, 1 to 8")
	cmd.Flags().StringVar((*string)(&o.tier), "tier", string(conformance.Full), "cases of the table: full (with smoke) or serial (with both)")
	cmd.Flags().BoolVar(&o.pairs, "pairs", false, "run only the cells that must be caught")
	cmd.Flags().BoolVar(&o.fresh, "fresh", false, "run every row, kept or not")
	return cmd
}

// width is the terminal's in columns, or 0 when w is none.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// mutantsOnly is `hallmark mutants`.
func (j *job) mutantsOnly(ctx context.Context, o matrixOptions, print func(matrix.Matrix) error) error {
	if err := j.checkPlan(o.tier, o.only); err != nil {
		return err
	}
	return j.within(ctx, func(ctx context.Context) error {
		if err := j.clearMatrix(); err != nil {
			return err
		}
		cohort, err := j.measure(ctx, lab.RuntimeRunsc)
		if err != nil {
			return err
		}
		in, err := j.matrixInputs(cohort, o.tier)
		if err != nil {
			return err
		}
		m, err := j.matrix(ctx, in, o)
		if err != nil {
			return err
		}
		text, err := m.Encode()
		if err == nil {
			err = evidence.WriteDurable(filepath.Join(j.out, matrixFile), text, 0o644)
		}
		if err != nil {
			return failed("the matrix cannot be written", err)
		}
		if err := print(m); err != nil {
			return failed("the matrix cannot be printed", err)
		}
		return errors.Join(j.signMatrix(m), j.problems(m))
	})
}

// clearMatrix removes what an earlier matrix left in the output folder, and nothing else.
func (j *job) clearMatrix() error {
	for _, name := range []string{matrixFile, mutationFile, runsFolder} {
		if err := os.RemoveAll(filepath.Join(j.out, name)); err != nil {
			return failed("the output folder cannot be cleared", err)
		}
	}
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return failed("the output folder cannot be made", err)
	}
	return nil
}

// checkPlan finds what is wrong with the table before a lab is started.
func (j *job) checkPlan(tier conformance.Tier, only []string) error {
	repo, err := lab.RepoDir()
	if err != nil {
		return nil // within says it better
	}
	plan, _, err := j.plan(repo, tier)
	if err != nil {
		return err
	}
	known := mutantsOf(plan)
	for _, id := range only {
		if slices.Contains(known, id) {
			continue
		}
		if whole, _, err := j.plan(repo, conformance.Serial); err == nil && slices.Contains(mutantsOf(whole), id) {
			return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("the cases of mutant %q are not in tier %s", id, tier), Remedy: "use --tier serial"}
		}
		return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("unknown mutant %q", id), Remedy: "name one of " + strings.Join(known, ", ")}
	}
	return nil
}

// mutantsOf are the rows of a table that may be named.
func mutantsOf(p matrix.Plan) (ids []string) {
	for _, l := range p.Lines[1:] {
		ids = append(ids, l.ID)
	}
	return ids
}

// plan reads the patches and holds them against the cases of a tier.
func (j *job) plan(repo string, tier conformance.Tier) (matrix.Plan, []mutants.Mutant, error) {
	patches, err := mutants.All(repo)
	if err != nil {
		return matrix.Plan{}, nil, failed("the mutants cannot be read", err)
	}
	cases, err := j.suite.Select(tier, nil)
	if err != nil {
		return matrix.Plan{}, nil, failed("the cases cannot be selected", err)
	}
	patches = matrix.About(cases, slices.Concat(j.suite.Cases, j.suite.Unproven), patches)
	plan, err := matrix.New(cases, patches)
	if err != nil {
		return matrix.Plan{}, nil, &exit.Error{Status: exit.Negative, Sentence: "patches and catalogue disagree", Cause: err,
			Remedy: "a case that no mutant can fail is not a case; `go test ./fixtures/mutants` says the same"}
	}
	file, err := runcmd.ReadCohortFile(filepath.Join(repo, "ci", "cohorts", controlFile))
	if err != nil {
		return matrix.Plan{}, nil, failed("the cohort file cannot be used", err)
	}
	if err := plan.Excuse(excuses(file)); err != nil {
		return matrix.Plan{}, nil, failed("the control's cohort file and the catalogue disagree", err)
	}
	return plan, patches, nil
}

// excuses are the differences of a cohort that are no failures.
func excuses(file runcmd.CohortFile) (spoils []mutants.Spoil) {
	for _, e := range file.Expected {
		for _, id := range e.Cases {
			if e.Status != string(conformance.Fail) {
				spoils = append(spoils, mutants.Spoil{Case: id, Status: e.Status, Reason: e.Reason, Why: e.Why})
			}
		}
	}
	return spoils
}

// signMatrix writes the signed statement when m may have one, and says so.
func (j *job) signMatrix(m matrix.Matrix) error {
	if m.Scope != matrix.Whole || len(m.Problems) > 0 {
		j.step("unsigned: the matrix is %s", map[bool]string{true: "narrowed", false: "not as it must be"}[m.Scope != matrix.Whole])
		return nil
	}
	signed, err := j.sealMatrix(m)
	if err != nil {
		return err
	}
	path := filepath.Join(j.out, mutationFile)
	if err := evidence.WriteDurable(path, signed.file, 0o644); err != nil {
		return failed("the signed matrix cannot be written", err)
	}
	j.step("signed: %s", j.relative(path))
	return nil
}

// problems is an error that names what is not as it must be.
func (j *job) problems(m matrix.Matrix) error {
	if len(m.Problems) == 0 {
		return nil
	}
	first := m.Problems[:min(3, len(m.Problems))]
	more := ""
	if n := len(m.Problems) - len(first); n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return &exit.Error{Status: exit.Negative, Sentence: strings.Join(first, "; ") + more,
		Remedy: "sharpen the case or the mutant; " + j.relative(filepath.Join(j.out, runsFolder)) + " holds the reports of these rows"}
}

// mutation is the signed result of the mutants for exactly these binaries.
type mutation struct {
	evidence evidence.MutationEvidence
	file     []byte // the signed envelope
}

// mutationEvidence is what a conformance run needs: the whole matrix when every row of it is kept
// for exactly these binaries, patches, cohort and image, else the cells that must be caught. The
// report is of the unpatched worker in the same command.
func (j *job) mutationEvidence(ctx context.Context, cohort evidence.Cohort, tier conformance.Tier, report conformance.Report) (mutation, error) {
	in, err := j.matrixInputs(cohort, tier)
	if err != nil {
		return mutation{}, err
	}
	m, ok := j.keptMatrix(in)
	if ok {
		j.step("mutants: the whole matrix is kept for exactly these binaries: %d rows", len(m.Rows))
	} else {
		j.step("mutants: only the cells that must be caught; `make mutants` runs the whole matrix")
		if m, err = j.matrix(ctx, in, matrixOptions{scope: matrix.Pairs, tier: tier, procs: runcmd.DefaultProcs(), base: baseRow(report)}); err != nil {
			return mutation{}, err
		}
		if err := j.problems(m); err != nil {
			return mutation{}, err
		}
	}
	return j.sealMatrix(m)
}

func (j *job) sealMatrix(m matrix.Matrix) (mutation, error) {
	key, err := j.mutationKey()
	if err != nil {
		return mutation{}, err
	}
	var signed mutation
	signed.evidence.MutationResults = m.Results()
	if signed.file, err = evidence.SealMutation(signed.evidence.MutationResults, key); err != nil {
		return mutation{}, failed("the mutants' result cannot be signed", err)
	}
	signed.evidence.Digest = evidence.Digest(signed.file)
	return signed, nil
}

// mutationKey signs mutation statements; it lives in the cache folder.
func (j *job) mutationKey() (*signing.Signer, error) {
	dir, err := j.mutantsCache()
	if err != nil {
		return nil, err
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

// mutantsCache is the folder for kept rows and builds; it is made when missing.
func (j *job) mutantsCache() (string, error) {
	dir := filepath.Join(j.lab.Cache, "mutants")
	if err := os.MkdirAll(filepath.Join(dir, rowsFolder), 0o700); err != nil {
		return "", failed("the cache cannot be used", err)
	}
	return dir, nil
}
