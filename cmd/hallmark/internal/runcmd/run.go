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
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	reference "github.com/hallmark-sandbox/hallmark/reference/cohort"
)

// Params of one run of the suite against the reference worker in the lab, or against the target
// of a target file.
type Params struct {
	Suite conformance.Suite
	File  CohortFile

	Lab     *lab.Lab         // nil: the running one, else one is started and taken down again
	Runtime string           // name in the lab; "" is that of the cohort file
	Cohort  *evidence.Cohort // nil: it is measured

	TargetFile    string      // Target is read from it, or ""
	Target        *TargetFile // another target than the reference worker; then there is no bundle
	Binaries      string      // folder of hallmark-worker, -supervisor and -quota; "" is this program's
	Tenant        string      // attack binary; "" is hallmark-tenant beside this program, else it is built
	Workloads     []Workload  // in the engine already; else WorkloadNames
	WorkloadNames []string    // busybox, static, or a tarball; empty means both fixtures

	Profiles []string // empty: those of the cohort file, else the reference worker's or the baseline
	Tier     conformance.Tier
	CaseIDs  []string
	Procs    int
	// WithoutProbes is [conformance.Options.WithoutProbes].
	WithoutProbes bool
	// WithoutArming is [conformance.Options.WithoutArming].
	WithoutArming bool
	// Beside is [conformance.Options.Beside].
	Beside string
	Seed   int64
	Out    string

	KeyFile      string // private key, a file or SCHEME://KEY of a KMS; "" signs nothing
	Nonce        string // that the run is asked for with, or ""
	KeyState     string // file beside which the sequence of a KMS's key is kept; of a key file it is that file
	signer       *signing.Signer
	Issuer       evidence.Issuer
	MutationPath string // file that Mutation and MutationFile are read from, or ""
	Mutation     *evidence.MutationEvidence
	MutationFile []byte
	Mutants      func(conformance.Report) (*evidence.MutationEvidence, []byte, error) // [conformance.Evidence.Mutants]

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
	if len(p.Profiles) == 0 {
		p.Profiles = p.File.Profiles
	}
	if p.Target != nil {
		return runTarget(ctx, p)
	}
	if len(p.Profiles) == 0 {
		p.Profiles = conformance.ReferenceProfiles()
	}
	if p.Lab == nil {
		l, err := lab.Up(ctx, lab.Options{Out: p.Progress})
		if err != nil {
			return Result{}, failed("the lab cannot be started", err)
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
			Remedy: "use runsc, runsc-deb, runsc-deb13 or runc"}
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
	if err := p.File.Requirements.Agree(*p.Cohort); err != nil {
		return res, usage(err, "choose another cohort file", "%s is not for this host", p.File.Name)
	}
	if p.Mutation != nil && p.Mutation.CohortID != res.Cohort.ID {
		return res, usage(nil, "run `hallmark mutants` on this cohort, then this", "the mutation evidence is of the cohort %s, this is %s", p.Mutation.CohortID, res.Cohort.ID)
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

func options(ctx context.Context, p Params, workloads []Workload) (conformance.Options, error) {
	tenant, err := tenantBinary(ctx, p)
	if err != nil {
		return conformance.Options{}, failed("the attack binary is missing", err)
	}
	o := conformance.Options{
		Suite: p.Suite, Profiles: p.Profiles, Procs: p.Procs, Tier: p.Tier, CaseIDs: p.CaseIDs, WithoutProbes: p.WithoutProbes, WithoutArming: p.WithoutArming, Beside: p.Beside, Out: p.Out, Tenant: tenant,
		TimeScale: p.File.TimeScale, Seed: p.Seed, Progress: p.Progress, Live: p.Live,
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
		return res, runError(p.Out, err)
	}
	res.Outcome = out
	res.Narrowed = len(p.CaseIDs) > 0
	if p.File.Name != "" { // else nothing is expected, as of a target that came without a file
		res.Differences = p.File.Differences(out.Report)
	}
	return res, nil
}

func evidenceFor(p Params, res Result) (*conformance.Evidence, error) {
	if p.KeyFile == "" {
		return nil, nil
	}
	if err := p.openKey(context.Background()); err != nil {
		return nil, err
	}
	if p.Issuer.ID == "" {
		p.Issuer = evidence.Issuer{ID: "hallmark-run", Role: evidence.RoleCI, Runtime: "hallmark-reference"}
	}
	host, err := reference.HostID()
	if err != nil {
		return nil, &exit.Error{Status: exit.Failed, Sentence: "the id of this host cannot be read", Cause: err, Remedy: "make /etc/machine-id readable"}
	}
	e := &conformance.Evidence{
		Host: host, Nonce: p.Nonce,
		Signers: []evidence.Signer{p.signer}, Sequence: func() (int64, error) { return evidence.NextSequence(p.KeyState) },
		Issuer: p.Issuer, Cohort: res.Cohort, Mutation: p.Mutation, MutationFile: p.MutationFile, Mutants: p.Mutants, Validity: Validity, Limitations: slices.Concat(limitations, p.File.limitations()),
	}
	for _, w := range res.Workloads {
		e.Images = append(e.Images, evidence.Image{Name: w.Name, Role: evidence.ImageWorkload, ConfigDigest: w.ConfigDigest, ManifestDigest: w.ManifestDigest})
	}
	return e, nil
}
