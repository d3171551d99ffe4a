// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// alternative is one runtime that people really use, as the lab has it.
type alternative struct {
	name   string // also the folder of its results
	file   string // of ci/cohorts: what is expected of it
	what   string // for the legend of the table
	target func(*job, runcmd.CohortFile) (runcmd.TargetFile, error)
}

// alternatives returns them in the order of the table. A nil target is the reference worker on
// the file's runtime.
func alternatives() []alternative {
	return []alternative{
		{"worker-runsc", "runsc.yaml", "the reference worker on gVisor's runsc of the pinned module", nil},
		{"worker-runsc-deb", "worker-runsc-deb.yaml", "the reference worker on the distribution's runsc", nil},
		{"worker-runsc-deb13", "worker-runsc-deb13.yaml", "the reference worker on Debian 13's runsc", nil},
		{"docker-runc", "docker-runc.yaml", "a plain engine with runc, by the docker driver; no worker", dockerTarget},
		{"docker-runsc", "docker-runsc.yaml", "a plain engine with gVisor's runsc of the pinned module, by the docker driver; no worker", dockerTarget},
		{"bubblewrap", "bubblewrap.yaml", "examples/bubblewrap, by the exec driver", bubblewrapTarget},
	}
}

// AlternativeNames are the names of all alternatives, in the order of the table.
func AlternativeNames() []string {
	var out []string
	for _, a := range alternatives() {
		out = append(out, a.name)
	}
	return out
}

// alternativeResult is what one alternative came to. Without a report it was not measured, and
// missing says why.
type alternativeResult struct {
	alternative
	file        runcmd.CohortFile
	report      *conformance.Report
	missing     string
	differences []string
}

func alternativesCommand(suite conformance.Suite) *cobra.Command {
	var format, tier string
	var only []string
	c := &cobra.Command{
		Use:   "alternatives [NAME...]",
		Short: "Run the same cases on other runtimes, and compare with what ci/cohorts expects of each",
		Long: "Run the same cases on other runtimes, in the lab, one after the other, and compare with what ci/cohorts\n" +
			"expects of each. The names are " + strings.Join(AlternativeNames(), ", ") + ".\n\n" +
			"Exit status: 0 every result is the expected one, 1 one is not, 2 an alternative was not measured, 3 usage\n" +
			"or engine error.",
		RunE: func(cmd *cobra.Command, names []string) error {
			print, ok := tables()[format]
			if !ok {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("unknown format %q", format), Remedy: "use table or md"}
			}
			if t := conformance.Tier(tier); t != conformance.Smoke && t != conformance.Full {
				return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("--tier is %q", tier), Remedy: "use smoke or full (with smoke)"}
			}
			for _, name := range names {
				if !slices.Contains(AlternativeNames(), name) {
					return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("unknown alternative %q", name), Remedy: "use " + strings.Join(AlternativeNames(), ", ")}
				}
			}
			cases, err := suite.Select(conformance.Tier(tier), only)
			if err != nil {
				return &exit.Error{Status: exit.Failed, Sentence: "the cases cannot be selected", Cause: err, Remedy: "`hallmark cases` lists them"}
			}
			return newJob(cmd, suite, filepath.Join("out", "alternatives")).alternatives(cmd.Context(), names, conformance.Tier(tier), only, func(results []alternativeResult) string { return print(cases, results) })
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table or md")
	c.Flags().StringVar(&tier, "tier", string(conformance.Full), "smoke or full (with smoke)")
	c.Flags().StringSliceVar(&only, "case", nil, "run these cases only")
	return c
}

func (j *job) alternatives(ctx context.Context, names []string, tier conformance.Tier, only []string, print func([]alternativeResult) string) error {
	return j.within(ctx, func(ctx context.Context) error {
		var results []alternativeResult
		for _, a := range alternatives() {
			if len(names) > 0 && !slices.Contains(names, a.name) {
				continue
			}
			r, err := j.alternative(ctx, a, tier, only)
			if err != nil {
				return err
			}
			results = append(results, r)
		}
		if _, err := fmt.Fprint(j.answer, print(results)); err != nil {
			return err
		}
		return j.compareAlternatives(results)
	})
}

// alternative runs one. That it cannot be run here is a result; that the suite cannot run is an error.
func (j *job) alternative(ctx context.Context, a alternative, tier conformance.Tier, only []string) (alternativeResult, error) {
	r := alternativeResult{alternative: a}
	var err error
	if r.file, err = j.cohortFile(a.file); err != nil {
		return r, err
	}
	p := runcmd.Params{
		Suite: j.suite, File: r.file, Lab: j.lab, Workloads: j.workloads, Tier: tier, CaseIDs: only, Procs: runcmd.DefaultProcs(), Out: filepath.Join(j.out, a.name),
		Progress: j.steps, Live: j.live,
	}
	if a.target == nil {
		if _, ok := j.lab.Runtimes[r.file.Requirements.Runtime]; !ok {
			r.missing = j.lab.Missing[r.file.Requirements.Runtime]
		}
	} else {
		t, err := a.target(j, r.file)
		var lacking *lab.MissingError
		switch {
		case errors.As(err, &lacking):
			r.missing = lacking.What
		case err != nil:
			return r, failed(a.name+" cannot be described", err)
		}
		p.Target = &t
	}
	if r.missing != "" {
		j.step("alternative %s: not measured here: %s", a.name, r.missing)
		return r, nil
	}
	j.step("alternative %s: %s", a.name, a.what)
	res, err := runcmd.Run(ctx, p)
	if errors.Is(err, runcmd.ErrOtherCohort) {
		r.missing = err.Error()
		j.step("alternative %s: not measured here: %s", a.name, r.missing)
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if res.Interrupted {
		return r, ctx.Err()
	}
	r.report, r.differences = &res.Report, res.Differences
	j.step("alternative %s: %s, %d differences from what %s expects; %s", a.name, res.Report.Verdict, len(r.differences), a.file, j.relative(p.Out))
	return r, nil
}

// compareAlternatives is an error that names every result that is not the expected one.
func (j *job) compareAlternatives(results []alternativeResult) error {
	var different, missing []string
	for _, r := range results {
		for _, d := range r.differences {
			different = append(different, r.name+": "+d)
		}
		if r.missing != "" {
			missing = append(missing, r.name+": "+r.missing)
		}
	}
	switch {
	case len(different) > 0:
		return &exit.Error{Status: exit.Negative, Sentence: "the results are not those that ci/cohorts expects:\n  " + strings.Join(different, "\n  "),
			Remedy: "read " + j.relative(j.out) + "/NAME/report.html; when the new result is right, correct the file in ci/cohorts and EVIDENCE.md"}
	case len(missing) > 0:
		return &exit.Error{Status: exit.Incomplete, Sentence: "not measured here: " + strings.Join(missing, "; "), Remedy: "run it where the distribution has the package"}
	}
	return nil
}

// dockerTarget is the lab's engine without a worker.
func dockerTarget(j *job, file runcmd.CohortFile) (runcmd.TargetFile, error) {
	rt, ok := j.lab.Runtimes[file.Requirements.Runtime]
	if !ok {
		return runcmd.TargetFile{}, &lab.MissingError{What: j.lab.Missing[file.Requirements.Runtime], Remedy: "run it where the distribution has the package"}
	}
	hold, err := runcmd.Program(build.Tenant)
	if err != nil {
		return runcmd.TargetFile{}, err
	}
	c := docker.Config{
		Socket: j.lab.Socket, Runtime: rt.Name, CgroupParent: j.lab.CgroupParent, NetworkNamespace: j.lab.NetNS, Network: j.lab.Network,
		Hold: docker.Hold{Binary: hold, Argv: []string{"hold", "{seconds}"}},
	}
	if rt.Name != lab.RuntimeRunc { // which leaves no program of its own running
		c.SandboxBinary = &docker.SandboxBinary{Path: rt.Path, Digest: rt.Digest}
	}
	return describe("docker", c, j.workloads)
}

// bubblewrapTarget is the worked example of the exec driver.
func bubblewrapTarget(j *job, _ runcmd.CohortFile) (runcmd.TargetFile, error) {
	if j.lab.Bubblewrap.Path == "" {
		return runcmd.TargetFile{}, &lab.MissingError{What: j.lab.Missing[lab.Bubblewrap], Remedy: "install the package bubblewrap"}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return runcmd.TargetFile{}, &lab.MissingError{What: "python3 is not on PATH", Remedy: "apt-get install python3-minimal"}
	}
	c := execdriver.Config{Command: []string{python, filepath.Join(j.repo, "examples", "bubblewrap", "bubblewrap.py"), j.lab.Bubblewrap.Path}}
	if libraries := j.lab.Bubblewrap.Libraries; len(libraries) > 0 {
		c.Env = map[string]string{"LD_LIBRARY_PATH": strings.Join(libraries, ":")}
	}
	return describe("exec", c, nil)
}

func describe(driver string, config any, workloads []runcmd.Workload) (runcmd.TargetFile, error) {
	f := runcmd.TargetFile{Driver: driver}
	for _, w := range workloads {
		f.Workloads = append(f.Workloads, w.ConfigDigest)
	}
	var err error
	f.Config, err = strictjson.Marshal(config)
	return f, err
}
