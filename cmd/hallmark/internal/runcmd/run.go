// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Params of one run of the suite against the reference worker in the lab, or against the target
// of a target file.
type Params struct {
	Suite conformance.Suite
	File  CohortFile

	Lab     *lab.Lab         // nil: the running one, else one is started and taken down again
	Runtime string           // name in the lab; "" is that of the cohort file
	Cohort  *evidence.Cohort // nil: it is measured

	TargetFile    string     // another target; then there is no bundle
	Binaries      string     // folder of hallmark-worker, -supervisor and -quota; "" is this program's
	Tenant        string     // attack binary; "" is hallmark-tenant beside this program, else it is built
	Workloads     []Workload // in the engine already; else WorkloadNames
	WorkloadNames []string   // busybox, static, or a tarball; empty means both fixtures

	Tier    conformance.Tier
	CaseIDs []string
	Seed    int64
	Out     string

	KeyFile      string // "" signs nothing
	Issuer       evidence.Issuer
	Mutation     *evidence.MutationEvidence
	MutationFile []byte

	Progress io.Writer
	Live     bool
	Command  []string // what repeats this run, for the reports
}

// Result is the outcome with what the run was made of.
type Result struct {
	conformance.Outcome
	Cohort      evidence.Cohort
	Workloads   []Workload
	Differences []string // against the cohort file's expected failures
	Narrowed    bool     // to single cases
}

// Validity is how long evidence of this command is good for at most; a trust policy may say less.
const Validity = 30 * 24 * time.Hour

// Limitations go into every bundle of this command.
var limitations = []string{
	"Shows what the cases of the named catalogue observed on this cohort in this run, and nothing else.",
	"Host root, the container engine itself and whoever holds an admitted signing key are out of scope.",
	"Timing and speculative side channels are not measured.",
}

// Run does one run. Every outcome of the cases is a Result; errors are *exit.Error.
func Run(ctx context.Context, p Params) (_ Result, err error) {
	if p.Suite.Drivers == nil {
		p.Suite.Drivers = Drivers()
	}
	if p.TargetFile != "" {
		return runTarget(ctx, p)
	}
	if p.Lab == nil {
		l, err := lab.Up(ctx, lab.Options{Out: p.Progress})
		if err != nil {
			return Result{}, labError(err)
		}
		if l.Fresh {
			defer func() {
				down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
				defer cancel()
				if derr := l.Down(down); derr != nil {
					err = errors.Join(err, failed("the lab is not gone", derr))
				}
			}()
		}
		p.Lab = l
	}
	release, err := p.Lab.Use()
	if err != nil {
		return Result{}, failed("the lab cannot be used", err)
	}
	defer release()
	if p.Runtime == "" {
		p.Runtime = p.File.Requirements.Runtime
	}
	return runLab(ctx, p)
}

func runLab(ctx context.Context, p Params) (Result, error) {
	l := p.Lab
	rt, ok := l.Runtimes[p.Runtime]
	if !ok {
		return Result{}, &exit.Error{Status: exit.Failed, Sentence: strings.TrimSuffix(fmt.Sprintf("the lab has no runtime %q: %s", p.Runtime, l.Missing[p.Runtime]), ": "),
			Remedy: "use runsc, runsc-deb or runc"}
	}
	res := Result{}
	if p.Cohort == nil {
		repo, err := lab.RepoDir()
		if err != nil {
			return res, failed("the repository cannot be found", err)
		}
		c, err := l.Cohort(ctx, p.Runtime, repo)
		if err != nil {
			return res, failed("the cohort cannot be measured", err)
		}
		p.Cohort = &c
	}
	res.Cohort = *p.Cohort
	if err := p.File.Requirements.agree(*p.Cohort); err != nil {
		return res, &exit.Error{Status: exit.Failed, Sentence: "the measured cohort is not the required one", Cause: err, Remedy: "choose another cohort file"}
	}
	var err error
	if res.Workloads = p.Workloads; len(res.Workloads) == 0 {
		if res.Workloads, err = loadWorkloads(ctx, l, p.WorkloadNames); err != nil {
			return res, failed("a workload image cannot be loaded", err)
		}
	}
	o, err := options(ctx, p, res.Workloads)
	if err != nil {
		return res, err
	}
	o.Work = filepath.Join(l.WorkDir, "run-"+rand.Text())
	config := api.Config{
		Engine: &api.Engine{
			Socket: l.Socket, PidFile: filepath.Join(l.RunDir, "dockerd.pid"), Runtime: rt.Name, CgroupParent: l.CgroupParent,
			NetworkNamespace: l.NetNS, Network: l.Network, SandboxBinary: api.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		},
		Launch: &api.Launch{Sockets: l.RunDir, CohortID: res.Cohort.ID, Ceilings: api.Ceilings, ReserveBytes: api.ReserveBytes, ReserveInodes: api.ReserveInodes},
	}
	for _, w := range res.Workloads {
		config.Launch.Images = append(config.Launch.Images, api.Image{ConfigDigest: w.ConfigDigest, ManifestDigest: w.ManifestDigest})
	}
	if err := binaries(p.Binaries, config.Launch); err != nil {
		return res, &exit.Error{Status: exit.Failed, Sentence: "a binary is missing", Cause: err, Remedy: "`make build` makes them; --bin names their folder"}
	}
	if p.Runtime == lab.RuntimeRunc {
		// The control: under runc the process of a sandbox is its own PID 1. The worker is told
		// so, or it would refuse every start; the suite still looks for the pinned sandbox.
		digest, err := fileDigest(config.Launch.Supervisor)
		if err != nil {
			return res, failed("the supervisor cannot be read", err)
		}
		config.Launch.WorkerSandbox = &api.SandboxBinary{Path: config.Launch.Supervisor, Digest: digest}
		config.Launch.RuntimeDigest = rt.Digest
		ours := l.Runtimes[lab.RuntimeRunsc]
		config.Engine.SandboxBinary = api.SandboxBinary{Path: ours.Path, Digest: ours.Digest}
	}
	o.Driver, o.CohortID = "api", res.Cohort.ID
	if o.Target, err = json.Marshal(config); err != nil {
		return res, failed("the target cannot be described", err)
	}
	if o.Evidence, err = evidenceFor(p, res); err != nil {
		return res, err
	}
	return finish(ctx, p, o, res)
}

// runTarget runs the suite against a target of somebody else's. Its cohort is not measured
// here, so nothing is signed.
func runTarget(ctx context.Context, p Params) (Result, error) {
	var file struct {
		Driver    string          `json:"driver"`
		Workloads []string        `json:"workloads"`
		Config    json.RawMessage `json:"config"`
	}
	b, err := os.ReadFile(p.TargetFile)
	if err == nil {
		err = json.Unmarshal(b, &file)
	}
	if err != nil {
		return Result{}, &exit.Error{Status: exit.Failed, Sentence: "the target file cannot be used", Cause: err, Remedy: "it holds driver, workloads (config digests) and config"}
	}
	if p.KeyFile != "" {
		return Result{}, &exit.Error{Status: exit.Failed, Sentence: "a target file and a key exclude each other", Remedy: "leave --key out: the cohort of another target is not measured here"}
	}
	var workloads []Workload
	for _, w := range file.Workloads {
		workloads = append(workloads, Workload{ConfigDigest: w})
	}
	o, err := options(ctx, p, workloads)
	if err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "hallmark-run-")
	if err != nil {
		return Result{}, failed("no temporary folder", err)
	}
	defer os.RemoveAll(dir)
	o.Driver, o.Target, o.Work = file.Driver, file.Config, filepath.Join(dir, "work")
	return finish(ctx, p, o, Result{Workloads: workloads})
}

func options(ctx context.Context, p Params, workloads []Workload) (conformance.Options, error) {
	tenant, err := tenantBinary(ctx, p)
	if err != nil {
		return conformance.Options{}, failed("the attack binary is missing", err)
	}
	o := conformance.Options{
		Suite: p.Suite, Tier: p.Tier, CaseIDs: p.CaseIDs, Out: p.Out, Tenant: tenant, Seed: p.Seed, Progress: p.Progress, Live: p.Live,
	}
	o.Color = p.Live && os.Getenv("NO_COLOR") == ""
	o.About = conformance.About{Cohort: p.Cohort, Names: map[string]string{}, Command: p.Command}
	for _, w := range workloads {
		o.Workloads = append(o.Workloads, w.ConfigDigest)
		o.About.Names[w.ConfigDigest] = w.Name
	}
	return o, nil
}

func finish(ctx context.Context, p Params, o conformance.Options, res Result) (Result, error) {
	out, err := conformance.Run(ctx, o)
	if err != nil {
		return res, failed("the suite cannot run", err)
	}
	res.Outcome = out
	res.Narrowed = len(p.CaseIDs) > 0
	res.Differences = Differences(p.File.ExpectedFailures, out.Report)
	return res, nil
}

func evidenceFor(p Params, res Result) (*conformance.Evidence, error) {
	if p.KeyFile == "" {
		return nil, nil
	}
	key, err := signing.Load(p.KeyFile)
	if err != nil {
		return nil, &exit.Error{Status: exit.Failed, Sentence: "the signing key cannot be used", Cause: err, Remedy: "make one with `hallmark evidence keygen`"}
	}
	if p.Issuer.ID == "" {
		p.Issuer = evidence.Issuer{ID: "hallmark-run", Role: evidence.RoleCI, Runtime: "hallmark-reference"}
	}
	e := &conformance.Evidence{
		Signers: []evidence.Signer{key}, Sequence: func() (int64, error) { return evidence.NextSequence(p.KeyFile) },
		Issuer: p.Issuer, Cohort: res.Cohort, Mutation: p.Mutation, MutationFile: p.MutationFile, Validity: Validity, Limitations: limitations,
	}
	for _, w := range res.Workloads {
		e.Images = append(e.Images, evidence.Image{Name: w.Name, Role: evidence.ImageWorkload, ConfigDigest: w.ConfigDigest, ManifestDigest: w.ManifestDigest})
	}
	return e, nil
}

func labError(err error) error {
	var missing *lab.MissingError
	if errors.As(err, &missing) {
		return &exit.Error{Status: exit.Failed, Sentence: missing.What, Remedy: missing.Remedy}
	}
	return failed("the lab cannot be started", err)
}
