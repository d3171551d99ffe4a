// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/ci/vm"
	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Bounds of the guest's run.
const (
	// vmRunBound is by the guest's clock, which counts instructions: a loaded host makes the run longer, not shorter.
	vmRunBound = 40 * time.Minute
	// vmBound is by the host's clock, for everything.
	vmBound = 2 * time.Hour
	// vmResults bounds what comes out of the guest, in bytes.
	vmResults = 512 << 20
)

func vmCommand(suite conformance.Suite) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "vm-conformance",
		Short: "Run the cases of an emulated machine in a Debian 13 guest, bring the signed evidence out, gate it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newJob(cmd, suite, filepath.Join("out", "vm-conformance")).vm(cmd.Context(), file)
		},
	}
	c.Flags().StringVar(&file, "cohort", "loop-ext4.yaml", "file of ci/cohorts/vm; its requirements say what bounds the workspaces, on which file system")
	return c
}

// vm does in a clean guest what conformance does here, as far as the cohort file's profiles go, and judges what
// comes out like anybody's evidence.
func (j *job) vm(ctx context.Context, name string) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, vmBound, fmt.Errorf("it was not done in %s", vmBound))
	defer cancel()
	if j.repo, err = lab.RepoDir(); err != nil {
		return &exit.Error{Status: exit.Failed, Sentence: "the repository cannot be found", Cause: err, Remedy: "run this in a clone of it"}
	}
	j.out = filepath.Join(j.repo, j.out)
	if buildinfo.TreeState() != "clean" {
		j.step("note: these binaries are of a %s tree; the gate denies their evidence. Commit, and build again.", buildinfo.TreeState())
	}
	file, err := j.cohortFile(filepath.Join("vm", name))
	if err != nil {
		return err
	}
	if len(file.Profiles) == 0 || !slices.Contains(link.Disks, file.Requirements.Filesystem) {
		return &exit.Error{Status: exit.Failed, Sentence: fmt.Sprintf("ci/cohorts/vm/%s names no profile, or no file system of the guest", name), Remedy: "set profiles, and requirements.filesystem to one of " + strings.Join(link.Disks, ", ")}
	}
	if err := j.clear(); err != nil {
		return err
	}
	j.step("keys and trust policy of this run in %s", j.relative(j.out))
	policy, err := gate.Init(gate.InitConfig{
		Dir: j.out, Identity: issuerID, Role: evidence.RoleCI, Profiles: file.Profiles,
		Catalogue: j.suite.Catalogue(), Mutation: evidence.MutationRecorded, Lifetime: throwAwayLifetime, Now: time.Now(),
	})
	if err != nil {
		return failed("the trust policy cannot be made", err)
	}
	report, err := j.inGuest(ctx, name, file)
	if ctx.Err() != nil {
		return &exit.Error{Status: exit.Incomplete, Sentence: "nothing was admitted: " + context.Cause(ctx).Error(), Remedy: j.again}
	}
	if err != nil {
		return err
	}
	return j.judgeGuest(file, policy, report)
}

// inGuest runs the suite in a clean guest and returns its report, whatever it says. Files come into <out>/run.
func (j *job) inGuest(ctx context.Context, name string, file runcmd.CohortFile) (report conformance.Report, err error) {
	cache, err := lab.CacheDir()
	if err != nil {
		return report, failed("the cache folder cannot be found", err)
	}
	own, err := runcmd.Program("hallmark")
	if err != nil {
		return report, failed("the own folder cannot be found", err)
	}
	o := vm.Options{Cache: cache, Repo: j.repo, Out: j.steps}
	img, err := vm.Prepare(ctx, o)
	if err != nil {
		return report, failed("the guest's image cannot be built", err)
	}
	k, err := makeKit(ctx, o, filepath.Join(j.out, gate.EvidenceKeyFile))
	if err != nil {
		return report, failed("what the guest needs cannot be made", err)
	}
	defer func() { err = errors.Join(err, k.remove()) }()
	j.step("guest: Debian %s, kernel %s", img.Record.Recipe.Suite, img.Record.Release)
	m, err := vm.Start(ctx, o, img, vm.Config{Console: filepath.Join(j.out, "console.log")})
	if err != nil {
		return report, failed("the guest cannot be started", err)
	}
	defer func() {
		err = errors.Join(err, m.Close())
		j.step("guest: ended, after %s of the emulator's CPU time", m.CPU().Round(time.Second))
	}()
	// On a file system with quota: below it lie the engine's data, the workers' state and the workspaces.
	home := path.Join("/quota", file.Requirements.Filesystem, "hallmark")
	if err := m.Put(ctx, home, k.files(j.repo, filepath.Dir(own))...); err != nil {
		return report, failed("a file cannot be copied into the guest", err)
	}
	j.step("suite in the guest, profiles %s", strings.Join(file.Profiles, ", "))
	argv := []string{"bin/hallmark", "run", "--cohort", "ci/cohorts/vm/" + name, "--key", "evidence.key", "--issuer", issuerID, "--procs", "1", "--out", "run"}
	res, err := m.Run(ctx, link.Command{Argv: argv, Dir: home, Env: []string{"CI=1"}}, vmRunBound, io.Discard, j.steps)
	if err != nil {
		return report, failed("the guest's run has no result", err)
	}
	if err := m.Get(ctx, j.out, vmResults, path.Join(home, "run")); err != nil {
		return report, failed(fmt.Sprintf("the guest's run (status %d, %s%s) left no results", res.Code, res.Signal, res.Error), err)
	}
	body, err := os.ReadFile(filepath.Join(j.out, "run", "report.json"))
	if err == nil {
		err = json.Unmarshal(body, &report)
	}
	if err != nil {
		return report, failed(fmt.Sprintf("the guest's run (status %d, %s%s) left no report", res.Code, res.Signal, res.Error), err)
	}
	return report, nil
}

// judgeGuest compares the report with the cohort file, asks the gate, and shows that the evidence is good for
// nothing more than it says.
func (j *job) judgeGuest(file runcmd.CohortFile, policy evidence.TrustPolicy, report conformance.Report) error {
	results := filepath.Join(j.out, "run")
	// Cases of no list were not selected, so the comparison leaves the verdict to whoever asks.
	if differences := file.Differences(report); len(differences) > 0 || string(report.Verdict) != file.Verdict {
		return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("the guest's run is %s, and differs from what %s expects: %s", report.Verdict, file.Name, strings.Join(append(differences, report.Reasons...), "; ")),
			Remedy: "read " + j.relative(results) + "/report.html"}
	}
	j.step("gate")
	ask := func(trust, state, pins, cohort string) (gate.Result, error) {
		r, err := gate.Run(gate.Config{
			Root: filepath.Join(j.out, gate.RootPublicFile), Trust: trust, Bundles: []string{filepath.Join(results, "bundle")}, Cohort: cohort,
			Key: filepath.Join(j.out, gate.GateKeyFile), State: filepath.Join(j.out, state), Out: pins, Catalogue: j.suite.Catalogue(), Now: time.Now(),
		})
		if err != nil {
			return r, failed("the gate cannot decide", err)
		}
		return r, nil
	}
	trust := filepath.Join(j.out, gate.TrustFile)
	decision, err := ask(trust, gate.StateDir, filepath.Join(j.out, gate.PinsFile), report.Cohort)
	if err != nil {
		return err
	}
	if !decision.Admitted {
		return &exit.Error{Status: exit.Negative, Sentence: "the gate denies: " + decision.Detail, Remedy: "read " + j.relative(results) + "/report.html"}
	}
	// The same keys, and what a production release asks for.
	policy.Profiles = conformance.ReferenceProfiles()
	production := filepath.Join(j.out, "production.json")
	root, err := signing.Load(filepath.Join(j.out, gate.RootKeyFile))
	if err != nil {
		return failed("the root key cannot be read", err)
	}
	text, err := evidence.SignPolicy(policy, root)
	if err == nil {
		err = os.WriteFile(production, text, 0o644)
	}
	if err != nil {
		return failed("the policy of production cannot be made", err)
	}
	denied := map[string]gate.Result{}
	for what, q := range map[string]struct {
		trust, cohort string
		want          evidence.Reason
	}{
		"by a policy that requires " + strings.Join(policy.Profiles, ", "): {production, report.Cohort, evidence.ReasonProfile},
		"for another cohort": {trust, evidence.Digest([]byte(report.Cohort)), evidence.ReasonCohortOther},
	} {
		r, err := ask(q.trust, "state-"+evidence.Digest([]byte(what))[7:15], "", q.cohort)
		if err != nil {
			return err
		}
		if r.Admitted || r.Reason != q.want {
			return &exit.Error{Status: exit.Negative, Sentence: fmt.Sprintf("the evidence is not denied %s with %s: admitted %v, %s", what, q.want, r.Admitted, r.Detail), Remedy: "this is a defect of the gate"}
		}
		denied[what] = r
	}
	return j.concludeGuest(report, decision, denied)
}

func (j *job) concludeGuest(report conformance.Report, decision gate.Result, denied map[string]gate.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "verdict   %s (%d cases pass)\ncohort    %s\n", report.Verdict, report.Counts.Pass, decision.Cohort)
	for _, s := range decision.Subjects {
		fmt.Fprintf(&b, "admitted  %-10s %s  %s\n", s.Role, s.Digest, s.Name)
	}
	for _, what := range slices.Sorted(maps.Keys(denied)) {
		fmt.Fprintf(&b, "denied    %s: %s\n", what, denied[what].Reason)
	}
	out := j.relative(j.out)
	fmt.Fprintf(&b, "reports   %[1]s/run/report.html, report.json, junit.xml\nevidence  %[1]s/run/bundle, %[1]s/pins.json\n", out)
	_, err := fmt.Fprint(j.answer, b.String())
	return err
}
