// SPDX-License-Identifier: Apache-2.0

// Package admission decides whether a container may start. It owns the worker's
// view of what is admitted: the candidates of a qualification run, or the pins that
// a gate signed together with the evidence behind them. It observes the files of
// trust, digests and a cohort that its callers' functions measure, and the clock. It
// never measures anything itself, never talks to the engine, ends nothing that runs,
// and has no mode that admits everything.
//
// Session asks twice per container: Precheck before any effect, Admit between create
// and start, when the launch profile has been observed. Read reference/session next.
package admission

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Start says what one container start would run. Every member is a measured digest,
// "sha256:" and 64 lower-case hex digits.
type Start struct {
	ImageDigest         string // config digest of the workload image
	SupervisorDigest    string // the binary that is mounted as PID 1
	QuotaDigest         string // the quota helper
	SandboxBinaryDigest string // the runtime binary registered with the engine
	LaunchProfileDigest string // the normalised inspect output; empty for Precheck only
}

// Gate is asked before every container start. Implementations are safe for concurrent
// use. Every refusal is an *api.Error with code UNQUALIFIED.
type Gate interface {
	// Precheck refuses what can be refused before anything exists. It ignores
	// Start.LaunchProfileDigest.
	Precheck(ctx context.Context, s Start) error
	// Admit is the last word before a start. An empty or malformed digest is refused.
	Admit(ctx context.Context, s Start) error
	// ManifestDigest maps an admitted image's config digest to its manifest digest,
	// which is what an engine with the containerd image store calls the image.
	// It is empty when the image is not admitted.
	ManifestDigest(configDigest string) string
	// CohortID is the admitted or candidate cohort.
	CohortID() string
	// PinsDigest identifies the pins or the candidate list, for receipts and health.
	PinsDigest() string
	// EvidenceDigests lists the evidence behind the pins; empty in qualification mode.
	EvidenceDigests() []string
}

var digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// refuse returns UNQUALIFIED with a cause for the log.
func refuse(format string, args ...any) error {
	return api.E(api.Unqualified, fmt.Errorf(format, args...))
}

// complete returns every member of s that is not a digest. The launch profile is
// looked at only when profile is true.
func (s Start) complete(profile bool) error {
	rows := []struct{ name, value string }{
		{"image", s.ImageDigest}, {"supervisor", s.SupervisorDigest},
		{"quota helper", s.QuotaDigest}, {"sandbox binary", s.SandboxBinaryDigest},
	}
	if profile {
		rows = append(rows, struct{ name, value string }{"launch profile", s.LaunchProfileDigest})
	}
	var errs []error
	for _, r := range rows {
		if !digestRE.MatchString(r.value) {
			errs = append(errs, fmt.Errorf("%s: %q is not a digest", r.name, r.value))
		}
	}
	return errors.Join(errs...)
}

// digestOf is the digest of v's canonical form.
func digestOf(v any) (string, error) {
	text, err := strictjson.Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
