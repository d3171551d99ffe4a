// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
)

// throwAwayLifetime bounds the keys and the policy of a local run.
const throwAwayLifetime = 30 * 24 * time.Hour

func (j *job) conformance(ctx context.Context, tier conformance.Tier) error {
	return j.within(ctx, func(ctx context.Context) error {
		cohort, err := j.measure(ctx, lab.RuntimeRunsc)
		if err != nil {
			return err
		}
		file, err := j.cohortFile("runsc.yaml")
		if err != nil {
			return err
		}
		key, err := j.mutationKey()
		if err != nil {
			return err
		}
		var fault error // of the mutants
		mutants := func(report conformance.Report) (*evidence.MutationEvidence, []byte, error) {
			if report.Verdict != evidence.Conformant {
				return nil, nil, nil // a mutant proves nothing against a case that fails anyway
			}
			m, err := j.mutationEvidence(ctx, cohort, tier, report)
			fault = err
			return &m.evidence, m.file, err
		}
		res, err := j.evidenceRun(ctx, file, cohort, tier, &mutantsAfter{key.PublicKey(), mutants})
		if fault != nil {
			return fault
		}
		if err != nil {
			return err
		}
		if res.Report.Verdict != evidence.Conformant {
			return runcmd.Conclude(j.answer, j.relative(j.out), res)
		}
		decision, err := j.gate(cohort)
		if err != nil {
			return err
		}
		if !decision.Admitted {
			return &exit.Error{Status: exit.Negative, Sentence: "the gate denies: " + decision.Detail,
				Remedy: "read " + j.relative(j.out) + "/report.html"}
		}
		if err := j.production(ctx); err != nil {
			return err
		}
		return j.conclude(res, decision)
	})
}

// mutantsAfter are run when the cases have passed, before the bundle is signed.
type mutantsAfter struct {
	key     evidence.PublicKey // signs their results
	results func(conformance.Report) (*evidence.MutationEvidence, []byte, error)
}

// evidenceRun makes keys and policy, runs the suite and signs its bundle. Without m the policy
// records mutation evidence instead of demanding it.
func (j *job) evidenceRun(ctx context.Context, file runcmd.CohortFile, cohort evidence.Cohort, tier conformance.Tier, m *mutantsAfter) (runcmd.Result, error) {
	if err := j.clear(); err != nil {
		return runcmd.Result{}, err
	}
	j.step("keys and trust policy of this run in %s", j.relative(j.out))
	trust := gate.InitConfig{
		Dir: j.out, Identity: issuerID, Role: evidence.RoleCI, Profiles: conformance.ReferenceProfiles(),
		Catalogue: j.suite.Catalogue(), Mutation: evidence.MutationRecorded, Lifetime: throwAwayLifetime, Now: time.Now(),
	}
	params := runcmd.Params{
		Suite: j.suite, File: file, Lab: j.lab, Cohort: &cohort, Workloads: j.workloads, Tier: tier, Procs: runcmd.DefaultProcs(), Out: j.out,
		KeyFile:  filepath.Join(j.out, gate.EvidenceKeyFile),
		Issuer:   evidence.Issuer{ID: issuerID, Role: evidence.RoleCI, Runtime: "hallmark-reference"},
		Progress: j.steps, Live: j.live,
		Command: []string{"hallmark", "run", "--cohort=ci/cohorts/" + file.Name + ".yaml", "--tier=" + string(tier), "--out=out/run"},
	}
	if m != nil {
		trust.Mutation, trust.MutationKeys = evidence.MutationRequired, []evidence.PublicKey{m.key}
		params.Mutants = m.results
	}
	if _, err := gate.Init(trust); err != nil {
		return runcmd.Result{}, failed("the trust policy cannot be made", err)
	}
	j.step("suite, tier %s, on %d images", tier, len(j.workloads))
	return runcmd.Run(ctx, params)
}

// gate asks the release gate about this run's bundle, for exactly the cohort that was measured.
func (j *job) gate(cohort evidence.Cohort) (gate.Result, error) {
	j.step("gate")
	r, err := gate.Run(gate.Config{
		Root: filepath.Join(j.out, gate.RootPublicFile), Trust: filepath.Join(j.out, gate.TrustFile),
		Bundles: []string{filepath.Join(j.out, "bundle")}, Cohort: cohort.ID,
		Key: filepath.Join(j.out, gate.GateKeyFile), State: filepath.Join(j.out, gate.StateDir),
		Out: filepath.Join(j.out, gate.PinsFile), Catalogue: j.suite.Catalogue(), Now: time.Now(),
	})
	if err != nil {
		return r, failed("the gate cannot decide", err)
	}
	return r, nil
}

// conclude prints the last lines.
func (j *job) conclude(res runcmd.Result, decision gate.Result) error {
	var b strings.Builder
	c := res.Report.Counts
	fmt.Fprintf(&b, "verdict   %s (%d of %d cases pass)\n", res.Report.Verdict, c.Pass, c.Total)
	fmt.Fprintf(&b, "cohort    %s\n", decision.Cohort)
	for _, s := range decision.Subjects {
		fmt.Fprintf(&b, "admitted  %-10s %s  %s\n", s.Role, s.Digest, s.Name)
	}
	out := j.relative(j.out)
	fmt.Fprintf(&b, "reports   %s/report.html, report.json, junit.xml\nevidence  %s/bundle, pins.json\n", out, out)
	_, err := fmt.Fprint(j.answer, b.String())
	return err
}
