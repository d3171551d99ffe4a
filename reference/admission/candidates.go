// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

// CandidatesConfig names what a qualification run may start. Everything is required.
type CandidatesConfig struct {
	Images              map[string]string // config digest -> manifest digest
	CohortID            string
	SupervisorDigest    string
	QuotaDigest         string
	SandboxBinaryDigest string
}

// Candidates is the gate of a qualification worker: exactly the images and binaries under
// test, with no evidence behind them. The launch profile is not pinned yet; that it is the
// same for every start is the engine's ProfileRecorder's matter.
type Candidates struct {
	c      CandidatesConfig
	digest string
}

var _ Gate = (*Candidates)(nil)

// NewCandidates checks c. An empty list is an error: nothing would be under test.
func NewCandidates(c CandidatesConfig) (*Candidates, error) {
	var errs []error
	check := func(what, digest string) {
		if !digestRE.MatchString(digest) {
			errs = append(errs, fmt.Errorf("candidate %s: %q is not a digest", what, digest))
		}
	}
	if len(c.Images) == 0 {
		errs = append(errs, errors.New("no candidate image"))
	}
	for config, manifest := range c.Images {
		check("image", config)
		check("image manifest", manifest)
	}
	check("cohort", c.CohortID)
	check("supervisor", c.SupervisorDigest)
	check("quota helper", c.QuotaDigest)
	check("sandbox binary", c.SandboxBinaryDigest)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.Images = maps.Clone(c.Images)
	digest, err := digestOf(struct {
		Schema        string            `json:"schema"`
		Images        map[string]string `json:"images"`
		CohortID      string            `json:"cohortId"`
		Supervisor    string            `json:"supervisor"`
		Quota         string            `json:"quota"`
		SandboxBinary string            `json:"sandboxBinary"`
	}{"hallmark.candidates.v1", c.Images, c.CohortID, c.SupervisorDigest, c.QuotaDigest, c.SandboxBinaryDigest})
	if err != nil {
		return nil, fmt.Errorf("digest candidates: %w", err)
	}
	return &Candidates{c: c, digest: digest}, nil
}

// Precheck implements Gate.
func (g *Candidates) Precheck(_ context.Context, s Start) error { return g.check(s, false) }

// Admit implements Gate.
func (g *Candidates) Admit(_ context.Context, s Start) error { return g.check(s, true) }

func (g *Candidates) check(s Start, profile bool) error {
	if err := s.complete(profile); err != nil {
		return refuse("%w", err)
	}
	if _, ok := g.c.Images[s.ImageDigest]; !ok {
		return refuse("image %s is not a candidate", s.ImageDigest)
	}
	return binaries(s, g.c.SupervisorDigest, g.c.QuotaDigest, g.c.SandboxBinaryDigest)
}

// binaries compares the three programs of a start with the admitted ones.
func binaries(s Start, supervisor, quota, sandbox string) error {
	for _, r := range []struct{ what, got, want string }{
		{"supervisor", s.SupervisorDigest, supervisor},
		{"quota helper", s.QuotaDigest, quota},
		{"sandbox binary", s.SandboxBinaryDigest, sandbox},
	} {
		if r.got != r.want {
			return refuse("%s is %s, not %s", r.what, r.got, r.want)
		}
	}
	return nil
}

// ManifestDigest implements Gate.
func (g *Candidates) ManifestDigest(configDigest string) string { return g.c.Images[configDigest] }

// CohortID implements Gate.
func (g *Candidates) CohortID() string { return g.c.CohortID }

// PinsDigest implements Gate: the digest of the canonical candidate list.
func (g *Candidates) PinsDigest() string { return g.digest }

// EvidenceDigests implements Gate: there is none.
func (g *Candidates) EvidenceDigests() []string { return nil }
