// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// leeway is how far in the future an iat may lie: the worker's own clock may trail wall time
// by [MaxDeviation] before it refuses. Expiry has no leeway.
const leeway = MaxDeviation

var tokenLimits = strictjson.Limits{Bytes: api.MaxTokenBytes, Depth: 2, StringBytes: 1024}

// VerifierConfig says whose capabilities count.
type VerifierConfig struct {
	Issuer   string
	Audience string // this worker's id
	Epoch    string // this boot's
	Keys     []Key  // one, or two during rotation
	Now      func() (time.Time, error)
}

// Verifier is the worker's side. It holds public keys only and is safe for concurrent use.
type Verifier struct{ cfg VerifierConfig }

// NewVerifier refuses a configuration under which nothing would be checked.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Issuer == "" || !api.ValidID(cfg.Audience) || cfg.Epoch == "" || cfg.Now == nil {
		return nil, errors.New("verifier: issuer, audience, epoch or clock is missing")
	}
	if len(cfg.Keys) < 1 || len(cfg.Keys) > 2 {
		return nil, fmt.Errorf("verifier: %d authority keys, one or two are needed", len(cfg.Keys))
	}
	for i, k := range cfg.Keys {
		if !api.ValidID(k.ID) || len(k.Public) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("verifier: authority key %d is malformed", i)
		}
		if i > 0 && (k.ID == cfg.Keys[0].ID || k.Public.Equal(cfg.Keys[0].Public)) {
			return nil, errors.New("verifier: the two authority keys are one")
		}
	}
	return &Verifier{cfg}, nil
}

// Want is what the request on the wire is.
type Want struct {
	Op             api.Op
	Method, Target string
	SandboxID      string // from the target; empty when the operation has none
}

// Verify returns the claims of a capability for exactly this request. The body's digest, the
// nonce and the workspace are the caller's to check, in that order of PROTOCOL.md. Errors are
// *api.Error: UNAVAILABLE when the clock is not to be trusted, CAPABILITY_EXPIRED outside
// [iat, exp), UNAUTHENTICATED otherwise; they consume nothing.
func (v *Verifier) Verify(token string, want Want) (Claims, error) {
	now, err := v.cfg.Now()
	if err != nil {
		return Claims{}, api.E(api.Unavailable, err)
	}
	if err := checkShape(token, api.MaxTokenBytes); err != nil {
		return Claims{}, api.E(api.Unauthenticated, err)
	}
	timeErr, err := verifySignature(token, v.cfg.Keys, jwt.WithIssuedAt(), jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway), jwt.WithTimeFunc(func() time.Time { return now }))
	if err != nil {
		return Claims{}, api.E(api.Unauthenticated, err)
	}
	c, err := decodeClaims(token, want.Op)
	if err != nil {
		return Claims{}, api.E(api.Unauthenticated, err)
	}
	if err := v.match(c, want); err != nil {
		return Claims{}, api.E(api.Unauthenticated, err)
	}
	if timeErr != nil {
		return Claims{}, api.E(api.CapabilityExpired, timeErr)
	}
	if now.UnixMilli() >= c.ExpiresAt*1000 || c.IssuedAt*1000 > now.Add(leeway).UnixMilli() {
		return Claims{}, api.E(api.CapabilityExpired, fmt.Errorf("iat %d, exp %d", c.IssuedAt, c.ExpiresAt))
	}
	return c, nil
}

func decodeClaims(token string, op api.Op) (Claims, error) {
	switch {
	case op == api.OpHealth:
		var h healthClaims
		err := decodeExact(token, TypeCapability, &h, tokenLimits)
		return Claims{Issuer: h.Iss, Audience: h.Aud, Op: h.Op, Digest: h.Digest, Target: h.Target, Challenge: h.Challenge,
			IssuedAt: h.Iat, ExpiresAt: h.Exp, ID: h.Jti}, err
	case op.OnSandbox():
		var s sandboxClaims
		err := decodeExact(token, TypeCapability, &s, tokenLimits)
		return Claims{Issuer: s.Iss, Audience: s.Aud, WorkspaceID: s.Sub, Op: s.Op, SandboxID: s.SandboxID, Digest: s.Digest,
			Target: s.Target, Epoch: s.Epoch, IssuedAt: s.Iat, ExpiresAt: s.Exp, ID: s.Jti}, err
	}
	var w workspaceClaims
	err := decodeExact(token, TypeCapability, &w, tokenLimits)
	return Claims{Issuer: w.Iss, Audience: w.Aud, WorkspaceID: w.Sub, Op: w.Op, Digest: w.Digest, Target: w.Target,
		Epoch: w.Epoch, IssuedAt: w.Iat, ExpiresAt: w.Exp, ID: w.Jti}, err
}

func (v *Verifier) match(c Claims, want Want) error {
	switch {
	case c.Issuer != v.cfg.Issuer:
		return errors.New("another issuer")
	case c.Audience != v.cfg.Audience:
		return errors.New("another audience")
	case c.Op != want.Op:
		return errors.New("another operation")
	case c.Target != api.TargetDigest(want.Method, want.Target):
		return errors.New("another request target")
	case c.SandboxID != want.SandboxID:
		return errors.New("another sandbox")
	case !api.ValidDigest(c.Digest):
		return errors.New("digest is malformed")
	case !api.Token(c.ID, api.MinNonceChars, api.MaxNonceChars):
		return errors.New("jti is malformed")
	case c.IssuedAt <= 0 || c.ExpiresAt <= c.IssuedAt || c.ExpiresAt-c.IssuedAt > api.MaxTokenSeconds:
		return errors.New("lifetime is out of bounds")
	}
	if want.Op == api.OpHealth {
		if !api.Token(c.Challenge, api.MinNonceChars, api.MaxChallengeChars) {
			return errors.New("challenge is malformed")
		}
		return nil
	}
	if c.Epoch != v.cfg.Epoch {
		return errors.New("another boot epoch")
	}
	if !api.ValidID(c.WorkspaceID) {
		return errors.New("sub is malformed")
	}
	return nil
}
