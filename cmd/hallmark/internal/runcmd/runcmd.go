// SPDX-License-Identifier: Apache-2.0

// Package runcmd is `hallmark run` and `hallmark cases`, and the one way in which this program
// runs the suite: [Run] measures the cohort, builds what the run needs, starts the lab when none
// runs, and hands the rest to package conformance. It never judges.
package runcmd

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Drivers are the targets that this program can open. They belong into the suite before
// [conformance.ChildMain] sees it.
func Drivers() map[string]conformance.Open { return map[string]conformance.Open{"api": api.Open} }

// New returns the commands run and cases.
func New(suite conformance.Suite) []*cobra.Command {
	return []*cobra.Command{runCommand(suite), casesCommand(suite)}
}

func runCommand(suite conformance.Suite) *cobra.Command {
	var p Params
	var tier, cohortFile, issuer string
	var ids []string
	cmd := &cobra.Command{
		Use:   "run --cohort FILE --out DIR",
		Short: "Run the adversarial suite on a cohort and emit a signed evidence bundle",
		Long: "Run the adversarial suite on a cohort and emit a signed evidence bundle.\n\n" +
			"Exit status: 0 conformant, 1 non-conformant, 2 incomplete, 3 usage or engine error.\n" +
			"Without --key nothing is signed. A run narrowed with --case is incomplete by definition.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cohortFile == "" || p.Out == "" {
				return &exit.Error{Status: exit.Failed, Sentence: "--cohort and --out are required", Remedy: "name a file of ci/cohorts and an output folder"}
			}
			c, err := ReadCohortFile(cohortFile)
			if err != nil {
				return &exit.Error{Status: exit.Failed, Sentence: "the cohort file cannot be used", Cause: err, Remedy: "see ci/cohorts for examples"}
			}
			if _, err := suite.Select(conformance.Tier(tier), ids); err != nil {
				return &exit.Error{Status: exit.Failed, Sentence: err.Error(), Remedy: "see `hallmark cases`; a tier is smoke, full or serial"}
			}
			p.Suite, p.File, p.Tier, p.CaseIDs = suite, c, conformance.Tier(tier), ids
			p.Issuer = evidence.Issuer{ID: issuer, Role: evidence.RoleCI, Runtime: "hallmark-reference"}
			p.Progress, p.Live, p.Command = cmd.ErrOrStderr(), Terminal(os.Stderr), append([]string{"hallmark"}, os.Args[1:]...)
			res, err := Run(cmd.Context(), p)
			if err != nil {
				return err
			}
			return Conclude(cmd.OutOrStdout(), p.Out, res)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cohortFile, "cohort", "", "file of requirements and expected failures")
	f.StringVar(&p.TargetFile, "target", "", "file that describes another target; without it the reference worker is launched in the lab")
	f.StringArrayVar(&p.WorkloadNames, "workload", nil, "image to qualify: busybox, static, or an image tarball (repeatable; default busybox and static)")
	f.StringVar(&tier, "tier", string(conformance.Full), "smoke, full (with smoke) or serial (with both)")
	f.StringSliceVar(&ids, "case", nil, "run these cases only; the run is then incomplete")
	f.StringVar(&p.KeyFile, "key", "", "private key that signs the bundle")
	f.StringVar(&issuer, "issuer", "hallmark-run", "identity that the key speaks for, as the trust policy names it")
	f.StringVar(&p.Out, "out", "", "output folder")
	f.StringVar(&p.Binaries, "bin", "", "folder of the worker, supervisor and quota binaries (default: that of this program)")
	f.Int64Var(&p.Seed, "seed", 0, "seed of order and attacks; 0 draws one")
	return cmd
}

// Terminal reports whether f is a terminal that may be drawn on: CI wants plain lines.
func Terminal(f *os.File) bool {
	if os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// failed wraps an error of engine or environment.
func failed(sentence string, err error) error {
	var typed *exit.Error
	if errors.As(err, &typed) {
		return err
	}
	return &exit.Error{Status: exit.Failed, Sentence: sentence, Cause: err, Remedy: "`hallmark doctor` says what this machine lacks"}
}

// Differences compares what failed with what the cohort file expects to fail. An unexpected
// pass is a difference too.
func Differences(expected []ExpectedFailure, report conformance.Report) []string {
	var out []string
	for _, e := range expected {
		c, ok := report.Case(e.Case)
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is expected to fail and is not in the catalogue", e.Case))
		case c.Status != conformance.Fail:
			out = append(out, fmt.Sprintf("%s is expected to fail with %s and came to %s %s", e.Case, e.Reason, c.Status, c.Reason))
		case c.Reason != e.Reason:
			out = append(out, fmt.Sprintf("%s is expected to fail with %s and failed with %s", e.Case, e.Reason, c.Reason))
		}
	}
	for _, c := range report.Cases {
		known := slices.ContainsFunc(expected, func(e ExpectedFailure) bool { return e.Case == c.ID })
		// not-applicable too: a claim that was dropped must not pass for success.
		if !known && c.Status != conformance.Pass && c.Reason != "not-selected" {
			out = append(out, fmt.Sprintf("%s is expected to pass and came to %s %s", c.ID, c.Status, c.Reason))
		}
	}
	return out
}
