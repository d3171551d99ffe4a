// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// PinnedConfig is where a production worker's trust lies and what it measured of itself.
// Everything but Host and Now is required.
type PinnedConfig struct {
	Root     string   // PEM public keys of the root
	Trust    string   // signed trust policy
	Pins     string   // signed pins
	Bundles  []string // bundle directories
	StateDir string   // rollback memory

	CohortID           string // measured now
	WorkerDigest       string // of this executable
	WorkerConfigDigest string // of its security-relevant configuration
	Host               string // id of this host, "" for none

	Now func() time.Time // time.Now by default
}

// Pinned is the gate of a production worker: only what signed pins name, with the evidence
// behind them verified when it was made, and only until that evidence ends.
type Pinned struct {
	admission *evidence.Admission
	cohort    string
	digest    string
	evidence  []string
	now       func() time.Time
}

var _ Gate = (*Pinned)(nil)

// NewPinned verifies policy, pins and bundles at admit depth. A refusal is UNQUALIFIED;
// candidate pins are refused like anything else that a gate did not sign for production.
func NewPinned(c PinnedConfig) (*Pinned, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	a, err := evidence.Admit(evidence.AdmitConfig{
		Root: c.Root, Trust: c.Trust, Pins: c.Pins, Bundles: c.Bundles, StateDir: c.StateDir,
		Cohort: c.CohortID, WorkerDigest: c.WorkerDigest, WorkerConfigDigest: c.WorkerConfigDigest, Host: c.Host, Now: c.Now(),
	})
	var denied *evidence.Denied
	switch {
	case errors.As(err, &denied):
		return nil, api.E(api.Unqualified, err)
	case err != nil:
		return nil, fmt.Errorf("admission: %w", err)
	}
	// What was verified is the parsed form; the name of the pins on the wire is the digest
	// of that form, so that it cannot depend on a file that changes under us.
	digest, err := digestOf(a.Release())
	if err != nil {
		return nil, fmt.Errorf("digest pins: %w", err)
	}
	p := &Pinned{admission: a, cohort: c.CohortID, digest: digest, now: c.Now}
	p.evidence = a.Pins().Evidence
	return p, nil
}

// Precheck implements Gate.
func (p *Pinned) Precheck(_ context.Context, s Start) error {
	s.LaunchProfileDigest = p.admission.Pins().LaunchProfile // not observed yet
	return p.check(s)
}

// Admit implements Gate. The launch profile is compared with the pinned one.
func (p *Pinned) Admit(_ context.Context, s Start) error { return p.check(s) }

func (p *Pinned) check(s Start) error {
	if err := s.complete(true); err != nil {
		return refuse("%w", err)
	}
	err := p.admission.Check(evidence.Start{
		ImageDigest: s.ImageDigest, SupervisorDigest: s.SupervisorDigest, QuotaDigest: s.QuotaDigest,
		SandboxBinaryDigest: s.SandboxBinaryDigest, LaunchProfileDigest: s.LaunchProfileDigest,
	}, p.now())
	if err != nil {
		return api.E(api.Unqualified, err)
	}
	return nil
}

// ManifestDigest implements Gate.
func (p *Pinned) ManifestDigest(configDigest string) string {
	for _, img := range p.admission.Pins().Images {
		if img.Role == evidence.ImageWorkload && img.ConfigDigest == configDigest {
			return img.ManifestDigest
		}
	}
	return ""
}

// CohortID implements Gate.
func (p *Pinned) CohortID() string { return p.cohort }

// PinsDigest implements Gate: the digest of the canonical form of the verified pins.
func (p *Pinned) PinsDigest() string { return p.digest }

// EvidenceDigests implements Gate.
func (p *Pinned) EvidenceDigests() []string { return p.evidence }

// NotAfter is when nothing is admitted any more.
func (p *Pinned) NotAfter() time.Time { return p.admission.NotAfter() }
