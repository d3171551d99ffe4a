// SPDX-License-Identifier: Apache-2.0

// Package mainjob is `hallmark conformance`, `hallmark control`, `hallmark mutants`, `hallmark alternatives`,
// `hallmark fleet` and `hallmark vm-conformance`: what is done from a bare host to the end, in one command each. It owns the order of
// the steps and what is printed between them. It never judges, signs or admits by itself.
package mainjob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// issuerID is the identity that throw-away keys of a local run speak for.
const issuerID = "local-run"

// New returns the commands conformance, control, mutants, alternatives, fleet and vm-conformance.
func New(suite conformance.Suite) []*cobra.Command {
	var tier string
	conform := &cobra.Command{
		Use:   "conformance",
		Short: "Attack the reference worker on gVisor, sign the evidence, gate it, start a production worker on the pins",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := wholeTier(conformance.Tier(tier)); err != nil {
				return err
			}
			return newJob(cmd, suite, filepath.Join("out", "conformance")).conformance(cmd.Context(), conformance.Tier(tier))
		},
	}
	conform.Flags().StringVar(&tier, "tier", string(conformance.Full), "full (with smoke) or serial (with both)")
	control := &cobra.Command{
		Use:   "control",
		Short: "Run the same cases on plain runc; succeeds when they fail exactly where they must",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newJob(cmd, suite, filepath.Join("out", "control")).control(cmd.Context())
		},
	}
	return []*cobra.Command{conform, control, mutantsCommand(suite), alternativesCommand(suite), fleetCommand(suite), vmCommand(suite)}
}

// wholeTier refuses a tier that leaves out what a profile requires.
func wholeTier(t conformance.Tier) error {
	if t != conformance.Full && t != conformance.Serial {
		return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--tier is %q", t), Remedy: "use full (with smoke) or serial (with both)"}
	}
	return nil
}

// job is one command under way.
type job struct {
	suite   conformance.Suite
	out     string    // folder of results; when relative, in the repository
	answer  io.Writer // last lines
	steps   io.Writer // progress
	live    bool
	started time.Time
	again   string // what to do after an interrupt

	lab       *lab.Lab
	repo      string
	workloads []runcmd.Workload
}

func newJob(cmd *cobra.Command, suite conformance.Suite, out string) *job {
	return &job{
		suite: suite, out: out, answer: cmd.OutOrStdout(), steps: cmd.ErrOrStderr(),
		live: runcmd.Terminal(os.Stderr), started: time.Now(), again: "run it again: it starts from the beginning",
	}
}

func (j *job) step(format string, args ...any) {
	fmt.Fprintf(j.steps, "[%4ds] %s\n", int(time.Since(j.started).Seconds()), fmt.Sprintf(format, args...))
}

// within brings the lab up with both workloads loaded, runs f, and takes down what it started.
func (j *job) within(ctx context.Context, f func(context.Context) error) (err error) {
	if j.repo, err = lab.RepoDir(); err != nil {
		return &exit.Error{Status: exit.Failed, Sentence: "the repository cannot be found", Cause: err, Remedy: "run this in a clone of it"}
	}
	if !filepath.IsAbs(j.out) {
		j.out = filepath.Join(j.repo, j.out)
	}
	if buildinfo.TreeState() != "clean" {
		j.step("note: these binaries are of a %s tree; the gate denies their evidence. Commit, and build again.", buildinfo.TreeState())
	}
	j.step("lab: a private engine with runsc and runc")
	l, err := lab.Up(ctx, lab.Options{Out: j.steps, Bound: true})
	if err != nil {
		return failed("the lab cannot be started", err)
	}
	j.lab = l
	release, err := l.Use()
	if err != nil {
		return failed("the lab cannot be used", err)
	}
	defer release()
	if l.Fresh {
		defer func() {
			down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
			defer cancel()
			if derr := l.Down(down); derr != nil {
				err = errors.Join(failed("the lab left something behind", derr), err)
			}
		}()
	}
	for _, kind := range []image.Kind{image.Busybox, image.Static} {
		b, err := l.BuildImage(ctx, kind)
		if err != nil {
			return failed("a workload image cannot be built", err)
		}
		j.step("image %s %s", b.Name, b.ConfigDigest)
		j.workloads = append(j.workloads, runcmd.Workload{Name: b.Name, ConfigDigest: b.ConfigDigest, ManifestDigest: b.ManifestDigest})
	}
	if err := f(ctx); ctx.Err() == nil {
		return err
	}
	// Whatever a step says of an interrupt, this is what happened.
	return &exit.Error{Status: exit.Incomplete, Sentence: "the command was interrupted; nothing was signed or admitted", Remedy: j.again}
}

// measure returns the cohort of a runtime of the lab.
func (j *job) measure(ctx context.Context, runtime string) (evidence.Cohort, error) {
	c, err := j.lab.Cohort(ctx, runtime, j.repo)
	if err != nil {
		return c, failed("the cohort cannot be measured", err)
	}
	j.step("cohort %s", c.ID)
	return c, nil
}

// cohortFile reads one of ci/cohorts.
func (j *job) cohortFile(name string) (runcmd.CohortFile, error) {
	f, err := runcmd.ReadCohortFile(filepath.Join(j.repo, "ci", "cohorts", name))
	if err != nil {
		return f, failed("the cohort file cannot be used", err)
	}
	return f, nil
}

// clear empties the output folder: its keys and pins are of one run.
func (j *job) clear() error {
	if err := os.RemoveAll(j.out); err != nil {
		return failed("the output folder cannot be cleared", err)
	}
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return failed("the output folder cannot be made", err)
	}
	return nil
}

// relative shortens a path below the repository for people.
func (j *job) relative(path string) string {
	if r, err := filepath.Rel(j.repo, path); err == nil && filepath.IsLocal(r) {
		return r
	}
	return path
}

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
