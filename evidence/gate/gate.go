// SPDX-License-Identifier: Apache-2.0

// Package gate is the release gate: it reads files, decides, remembers and writes pins.
//
// It owns the order "policy, bundles, memory, record, pins": nothing is pinned before the memory that
// forbids its rollback and the record of the decision are durable. It owns the policy's expression
// too, which only it evaluates. It always audits, and has no switch that weakens a check.
// The decisions themselves are package evidence's.
package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Config is one question to the gate.
type Config struct {
	Root    string   // PEM public keys of the root
	Trust   string   // signed trust policy
	Bundles []string // at least one, see [ReadBundle]
	Cohort  string   // "" for whatever cohort the keys may speak for
	Key     string   // private gate key: a file, or SCHEME://KEY of a KMS
	State   string   // directory of the rollback memory
	Out     string   // pins file; "" writes none
	Want    []string // digests that every bundle must hold
	Images  []string // config digests to release; none means every workload of the evidence
	Host    string   // "" leaves it open
	Nonce   string   // "" leaves it open
	Log     string   // directory of the transparency log, where the policy demands one

	Catalogue evidence.Catalogue // the verifier's own
	Now       time.Time
	// Passphrase opens an encrypted gate key; nil when there is none.
	Passphrase signing.Passphrase
}

// Result is the gate's answer, and what it prints with --json.
type Result struct {
	Admitted  bool                      `json:"admitted"`
	Reason    evidence.Reason           `json:"reason"` // of the first bundle that was denied
	Detail    string                    `json:"detail"`
	Cohort    string                    `json:"cohort"`
	Subjects  []evidence.DecidedSubject `json:"subjects"` // of all bundles that were read
	Policy    string                    `json:"policyDigest"`
	Log       evidence.Reason           `json:"log"` // why the policy's log shows nothing, or ""
	Decisions []evidence.Decision       `json:"decisions"`
	Fleet     evidence.Fleet            `json:"fleet"`
	Pins      string                    `json:"pins"` // the file written, or ""
}

// Run decides. An error means that the gate could not do its work; a denial is a result.
func Run(c Config) (_ Result, err error) {
	r := Result{
		Subjects: []evidence.DecidedSubject{}, Decisions: []evidence.Decision{},
		Fleet: evidence.Fleet{Cohorts: []evidence.FleetStanding{}, Images: []evidence.ImageRelease{}},
	}
	if len(c.Bundles) == 0 || c.Now.IsZero() || c.State == "" {
		return r, errors.New("gate: bundle, state directory and time are required")
	}
	if c.Host != "" && !evidence.ValidDigest(c.Host) || c.Nonce != "" && !evidence.ValidNonce(c.Nonce) {
		return r, fmt.Errorf("gate: host %q, nonce %q: not what evidence can name", c.Host, c.Nonce)
	}
	signer, err := signing.Open(context.Background(), c.Key, c.Passphrase)
	if err != nil {
		return r, fmt.Errorf("gate key: %w", err)
	}
	rootText, err := evidence.ReadTrustFile(c.Root)
	if err != nil {
		return r, fmt.Errorf("root key: %w", err)
	}
	roots, err := evidence.ParsePublicKeysPEM(rootText)
	if err != nil {
		return r, fmt.Errorf("root key %s: %w", c.Root, err)
	}
	trust, err := evidence.ReadTrustFile(c.Trust)
	if err != nil {
		return r, fmt.Errorf("trust policy: %w", err)
	}
	for _, dir := range c.Bundles {
		if _, err := os.Stat(dir); err != nil {
			return r, fmt.Errorf("bundle: %w", err)
		}
	}
	// Nothing is made or locked on behalf of a policy that is none: the memory comes after it, and
	// the policy is held against the memory then.
	if _, err := evidence.OpenPolicy(trust, roots, evidence.NewMemory(), c.Now); err != nil {
		return denied(r, err)
	}
	mem, err := evidence.OpenMemory(c.State)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	policy, err := evidence.OpenPolicy(trust, roots, mem, c.Now)
	if err != nil {
		return denied(r, err)
	}
	r.Policy = policy.Digest()
	if _, err := expressionOf(policy); err != nil {
		return denied(r, err)
	}
	mem.SeePolicy(policy)
	ledger, err := FollowLog(policy, c.Log, c.State, mem)
	if err != nil {
		return denied(r, err)
	}
	r.Log = ledger.Refusal()
	for _, dir := range c.Bundles {
		d, err := Decide(evidence.Question{
			Policy: policy, Memory: mem, Catalogue: &c.Catalogue, Cohort: c.Cohort, Host: c.Host, Nonce: c.Nonce,
			Want: c.Want, Now: c.Now, Depth: evidence.AuditDepth,
		}, dir, ledger)
		mem.SeeNonce(d)
		if err != nil { // what was decided before it counts
			return r, errors.Join(err, remember(mem, r.Decisions))
		}
		r.Decisions = append(r.Decisions, d)
		r.Subjects = append(r.Subjects, d.Subjects...)
		if r.Cohort == "" && len(policy.Document().Fleet) == 0 {
			r.Cohort = d.Cohort
		}
		if !d.Admitted && r.Reason == "" {
			r.Reason, r.Detail = d.Reason, d.Detail
		}
	}
	// All bundles are judged against the memory as it was before; then all are remembered.
	if err := remember(mem, r.Decisions); err != nil {
		return r, err
	}
	r.Fleet = evidence.DecideFleet(policy, r.Decisions, c.Images)
	var file []byte
	if r.Reason == "" {
		if _, file, err = evidence.MakePins(policy, r.Decisions, signer, c.Now, c.Images...); err != nil {
			if r, err = denied(r, err); err != nil {
				return r, err
			}
		}
	}
	if err := recordOf(c, r, policy.Document().Version, file).append(c.State); err != nil {
		return r, err
	}
	if r.Reason != "" {
		return r, nil
	}
	if c.Out != "" {
		if err := evidence.WriteDurable(c.Out, file, 0o644); err != nil {
			return r, fmt.Errorf("write pins: %w", err)
		}
		r.Pins = c.Out
	}
	r.Admitted = true
	return r, nil
}

// remember takes decisions in, durably.
func remember(mem *evidence.Memory, decisions []evidence.Decision) error {
	for _, d := range decisions {
		mem.See(d)
	}
	return mem.Save()
}

// denied turns a refusal into a result and passes every other error on.
func denied(r Result, err error) (Result, error) {
	reason := evidence.ReasonOf(err)
	if reason == "" {
		return r, err
	}
	r.Reason, r.Detail = reason, err.Error()
	return r, nil
}
