// SPDX-License-Identifier: Apache-2.0

// Package runcmd is `hallmark run`, `hallmark cases` and `hallmark target`, and the one way in which this program
// runs the suite: [Run] measures the cohort, builds what the run needs, starts the lab when none
// runs, and hands the rest to package conformance. It never judges.
package runcmd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Drivers are the targets that this program can open. They belong into the suite before
// [conformance.ChildMain] sees it.
func Drivers() map[string]conformance.Open {
	return map[string]conformance.Open{driverAPI: api.Open, driverDocker: docker.Open, driverExec: execdriver.Open}
}

// New returns the commands run, cases and target.
func New(suite conformance.Suite) []*cobra.Command {
	return []*cobra.Command{runCommand(suite), casesCommand(suite), targetCommand(suite)}
}

func runCommand(suite conformance.Suite) *cobra.Command {
	var p Params
	var tier, cohortFile, issuer string
	cmd := &cobra.Command{
		Use:   "run (--cohort FILE | --target FILE) --out DIR",
		Short: "Run the adversarial suite on a cohort and emit a signed evidence bundle",
		Long: "Run the adversarial suite on a cohort and emit a signed evidence bundle.\n\n" +
			"With --cohort the reference worker is started in the lab; with --target the suite attacks what the file\n" +
			"describes (docs/targets.md), unsigned, and --cohort only says what is expected there.\n\n" +
			"Exit status: 0 conformant, 1 non-conformant, 2 incomplete, 3 usage or engine error.\n" +
			"Without --key nothing is signed. A run narrowed with --case is incomplete by definition.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Suite, p.Tier = suite, conformance.Tier(tier)
			if p.Suite.Drivers == nil {
				p.Suite.Drivers = Drivers()
			}
			p.Issuer = evidence.Issuer{ID: issuer, Role: evidence.RoleCI, Runtime: "hallmark-reference"}
			p.Progress, p.Live, p.Command = cmd.ErrOrStderr(), Terminal(os.Stderr), append([]string{"hallmark"}, os.Args[1:]...)
			if err := p.read(cohortFile); err != nil {
				return err
			}
			res, err := Run(cmd.Context(), p)
			if err != nil {
				return err
			}
			return Conclude(cmd.OutOrStdout(), p.Out, res)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cohortFile, "cohort", "", "file of requirements and of expected results, see ci/cohorts")
	f.StringVar(&p.TargetFile, "target", "", "file that describes another target, see docs/targets.md; without it the reference worker is launched in the lab")
	f.StringArrayVar(&p.Profiles, "profile", nil, "profile to judge by (repeatable; default "+strings.Join(conformance.ReferenceProfiles(), ", ")+", or "+conformance.ProfileBaseline+" with --target)")
	f.StringArrayVar(&p.WorkloadNames, "workload", nil, "image to qualify: busybox, static, or an image tarball (repeatable; default busybox and static)")
	f.StringVar(&tier, "tier", string(conformance.Full), "smoke, full (with smoke) or serial (with both)")
	f.StringSliceVar(&p.CaseIDs, "case", nil, "run these cases only; the run is then incomplete")
	f.StringVar(&p.Nonce, "nonce", "", "what whoever asks for this very run drew; goes into the bundle: 16 to 128 letters, digits, dots, dashes, underscores")
	f.IntVar(&p.Procs, "procs", 0, fmt.Sprintf("processes that run cases side by side, 1 to %d (default %d; 1 for a worker that is attached to)", conformance.MaxProcs, DefaultProcs()))
	f.StringVar(&p.KeyFile, "key", "", "private key that signs the bundle: a file, or SCHEME://KEY of a KMS")
	f.StringVar(&p.KeyState, "key-state", "", "file beside which the sequence of a key of a KMS is kept")
	f.StringVar(&issuer, "issuer", "hallmark-run", "identity that the key speaks for, as the trust policy names it")
	f.StringVar(&p.MutationPath, "mutation", "", "signed matrix that `hallmark mutants` wrote for this very program on this cohort; goes into the bundle")
	f.StringVar(&p.Out, "out", "", "output folder")
	f.StringVar(&p.Binaries, "bin", "", "folder of the worker, supervisor and quota binaries (default: that of this program)")
	f.Int64Var(&p.Seed, "seed", 0, "seed of order and attacks; 0 draws one")
	return cmd
}

// DefaultProcs is how many processes run cases side by side unless somebody says otherwise.
func DefaultProcs() int { return min(2, runtime.NumCPU()) }

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
	var missing *lab.MissingError
	if errors.As(err, &missing) {
		return &exit.Error{Status: exit.Failed, Sentence: missing.What, Remedy: missing.Remedy}
	}
	return &exit.Error{Status: exit.Failed, Sentence: sentence, Cause: err, Remedy: "`hallmark doctor` says what this machine lacks"}
}
