// SPDX-License-Identifier: Apache-2.0

// Package corpus makes the negative corpus: one good bundle in many bad variants, each with
// the reason code that the gate must give, and runs the gate on such a corpus.
//
// It owns throw-away keys and the forging of bundles. Everything that is changed inside a
// payload is signed again, so that a row tests the check that it names and not the signature.
// The gate's own code is only called, never copied. Rows are in rows_*.go.
package corpus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Expect is the file expect.json of a row. Args are the arguments of `hallmark gate`, with
// paths relative to the row's folder; an empty Reason means admitted.
type Expect struct {
	Row    string          `json:"row"`
	Group  string          `json:"group"`
	Reason evidence.Reason `json:"reason"`
	Args   []string        `json:"args"`
}

// Config says what to make a corpus of. Out must be absent or empty. Rows that depend on the
// time hold for at least an hour after Now.
type Config struct {
	Bundle string // directory of a bundle that its own gate admits
	Trust  string // the policy that admits it; its keys are replaced
	Out    string
	Now    time.Time
}

// row is one line of the table. edit changes a fresh draft of the good bundle.
type row struct {
	name   string
	group  string
	reason evidence.Reason
	edit   func(*draft)
}

func table() []row {
	return slices.Concat(
		[]row{
			{"unmodified", "Base", "", func(*draft) {}},
			{"two-signers", "Base", "", func(d *draft) { d.twoSigners(2) }},
			{"ecdsa-signer", "Base", "", func(d *draft) { d.signer = d.ring.ecdsa; d.trustKey(d.ring.ecdsa, d.st.Predicate.Issuer.ID) }},
		},
		envelopeRows(), jsonRows(), identityRows(), cohortRows(), hostRows(), timeRows(), resultRows(), claimRows(), waiverRows(), runRows(), artifactRows(), archiveRows(), policyRows(), fleetRows(), logRows(), expressionRows(),
	)
}

// Generate writes the corpus and returns its rows. It is an error when the unmodified bundle,
// signed again, is not admitted: then no row would mean anything.
func Generate(c Config) ([]Expect, error) {
	if entries, err := os.ReadDir(c.Out); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("make corpus: %s is not empty", c.Out)
	}
	base, err := load(c)
	if err != nil {
		return nil, fmt.Errorf("make corpus: %w", err)
	}
	var out []Expect
	for i, r := range table() {
		d, err := base.copy()
		if err != nil {
			return nil, err
		}
		r.edit(d)
		e := Expect{Row: fmt.Sprintf("%03d-%s", i, r.name), Group: r.group, Reason: r.reason}
		if e.Args, err = d.write(filepath.Join(c.Out, e.Row), base); err != nil {
			return nil, fmt.Errorf("make row %s: %w", e.Row, err)
		}
		text, err := strictjson.Marshal(e)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(c.Out, e.Row, "expect.json"), append(text, '\n'), 0o644); err != nil {
			return nil, err
		}
		if i == 0 {
			if err := base.prove(filepath.Join(c.Out, e.Row)); err != nil {
				return nil, err
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// load reads the good bundle and puts throw-away keys in the place of the real ones.
func load(c Config) (*draft, error) {
	b, err := evidence.ReadBundle(c.Bundle, evidence.AuditDepth)
	if err != nil {
		return nil, err
	}
	st, _, err := evidence.UnverifiedStatement(b)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.Trust)
	if err != nil {
		return nil, err
	}
	policy, err := evidence.UnverifiedPolicy(text)
	if err != nil {
		return nil, err
	}
	keys, err := newRing()
	if err != nil {
		return nil, err
	}
	d := &draft{now: c.Now.UTC().Truncate(time.Second), ring: keys, signer: keys.evidence, st: st, policy: policy}
	for _, a := range st.Predicate.Artifacts.Items {
		body, ok := b.File(evidence.BlobName(a.Digest))
		if !ok {
			return nil, fmt.Errorf("artifact %s is missing", a.Name)
		}
		if a.Role != evidence.ArtifactTestResult {
			d.blobs = append(d.blobs, evidence.Blob{Name: a.Name, Role: a.Role, MediaType: a.MediaType, Body: body})
		}
	}
	if err := d.mutationEvidence(); err != nil {
		return nil, err
	}
	d.defaultPolicy()
	return d, nil
}

// mutationEvidence signs that of the bundle again. A bundle without any gets a made-up matrix, in
// which each case has its mutant: its rows are needed as much, and no key of a corpus counts.
func (d *draft) mutationEvidence() error {
	p := &d.st.Predicate
	if m := p.MutationEvidence; m != nil {
		file, err := evidence.SealMutation(m.MutationResults, d.ring.mutation)
		if err != nil {
			return err
		}
		m.Digest = evidence.Digest(file)
		if !d.setBlob(evidence.ArtifactMutation, file) {
			return errors.New("the bundle names mutation evidence that it does not hold")
		}
		return nil
	}
	m := evidence.MutationEvidence{MutationResults: evidence.MutationResults{
		SuiteDigest: p.Suite.BinaryDigest, CatalogueDigest: p.Suite.CatalogueDigest, PatchesDigest: otherDigest("patches"), CohortID: p.Cohort.ID,
	}}
	for i, c := range p.Cases {
		m.Rows = append(m.Rows, evidence.MutationRow{Mutant: fmt.Sprintf("m%03d", i), Case: c.ID, Expected: "escaped", Observed: "escaped"})
	}
	file, err := evidence.SealMutation(m.MutationResults, d.ring.mutation)
	if err != nil {
		return err
	}
	m.Digest, p.MutationEvidence = evidence.Digest(file), &m
	d.blobs = append(d.blobs, evidence.Blob{Name: "mutation.json", Role: evidence.ArtifactMutation, MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json", Body: file})
	return nil
}

// defaultPolicy keeps what the real policy demands and replaces keys and dates, so that the
// corpus can be used for a week whatever the age of the bundle.
func (d *draft) defaultPolicy() {
	p := &d.policy
	issuer := d.st.Predicate.Issuer
	p.Version, p.Expires = 10, evidence.At(d.now.AddDate(0, 0, 7))
	p.MaxAgeSeconds, p.MaxValiditySeconds, p.ClockSkewSeconds = 10*366*86400, 10*366*86400, 60
	p.Thresholds = map[string]int64{issuer.Role: 1}
	p.MinimumSequences, p.DeniedDigests = nil, nil
	p.Log, p.BindHosts = nil, false // rows of their own demand them
	p.Keys = nil
	d.policyKey(d.ring.evidence, issuer.Role, issuer.ID)
	d.policyKey(d.ring.gate, evidence.RoleGate, "gate")
	d.policyKey(d.ring.mutation, evidence.RoleMutation, "mutation")
	d.st.Predicate.Validity = evidence.Validity{
		NotBefore: d.st.Predicate.Run.FinishedAt, NotAfter: evidence.At(d.now.AddDate(0, 0, 7)),
	}
}
