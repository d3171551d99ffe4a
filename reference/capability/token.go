// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Claims of a capability as the worker uses them. Members that the operation does not have
// are empty; on the wire they are absent.
type Claims struct {
	Issuer, Audience string
	WorkspaceID      string // sub; empty for health
	Op               api.Op
	SandboxID        string // operations on a sandbox only
	Digest           string // of the raw body
	Target           string // of method, LF, raw request target
	Epoch            string // empty for health
	Challenge        string // health only
	IssuedAt         int64  // Unix seconds
	ExpiresAt        int64  // Unix seconds, exclusive
	ID               string // jti
}

// The three exact shapes. Every member is required; another is refused.
type healthClaims struct {
	Iss       string `json:"iss"`
	Aud       string `json:"aud"`
	Op        api.Op `json:"op"`
	Digest    string `json:"digest"`
	Target    string `json:"target"`
	Challenge string `json:"challenge"`
	Iat       int64  `json:"iat"`
	Exp       int64  `json:"exp"`
	Jti       string `json:"jti"`
}

type workspaceClaims struct {
	Iss    string `json:"iss"`
	Aud    string `json:"aud"`
	Sub    string `json:"sub"`
	Op     api.Op `json:"op"`
	Digest string `json:"digest"`
	Target string `json:"target"`
	Epoch  string `json:"epoch"`
	Iat    int64  `json:"iat"`
	Exp    int64  `json:"exp"`
	Jti    string `json:"jti"`
}

type sandboxClaims struct {
	Iss       string `json:"iss"`
	Aud       string `json:"aud"`
	Sub       string `json:"sub"`
	Op        api.Op `json:"op"`
	SandboxID string `json:"sandboxId"`
	Digest    string `json:"digest"`
	Target    string `json:"target"`
	Epoch     string `json:"epoch"`
	Iat       int64  `json:"iat"`
	Exp       int64  `json:"exp"`
	Jti       string `json:"jti"`
}

// Payload returns the wire form of c for its operation.
func (c Claims) Payload() any {
	switch {
	case c.Op == api.OpHealth:
		return healthClaims{c.Issuer, c.Audience, c.Op, c.Digest, c.Target, c.Challenge, c.IssuedAt, c.ExpiresAt, c.ID}
	case c.Op.OnSandbox():
		return sandboxClaims{c.Issuer, c.Audience, c.WorkspaceID, c.Op, c.SandboxID, c.Digest, c.Target, c.Epoch, c.IssuedAt, c.ExpiresAt, c.ID}
	}
	return workspaceClaims{c.Issuer, c.Audience, c.WorkspaceID, c.Op, c.Digest, c.Target, c.Epoch, c.IssuedAt, c.ExpiresAt, c.ID}
}

// DefaultLifetime of a minted capability.
const DefaultLifetime = time.Minute

// MinterConfig says for whom a [Minter] signs.
type MinterConfig struct {
	Issuer   string
	KeyID    string
	Key      ed25519.PrivateKey
	Audience string           // the worker's id
	Lifetime time.Duration    // whole seconds, at most 5 min; 0 means [DefaultLifetime]
	Now      func() time.Time // nil means [time.Now]
}

// Minter makes capabilities. It is the control plane's side and needs its private key.
type Minter struct{ cfg MinterConfig }

// NewMinter checks the configuration.
func NewMinter(cfg MinterConfig) (*Minter, error) {
	if cfg.Lifetime == 0 {
		cfg.Lifetime = DefaultLifetime
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	switch {
	case cfg.Issuer == "" || !api.ValidID(cfg.KeyID) || !api.ValidID(cfg.Audience):
		return nil, errors.New("minter: issuer, key id or audience is missing or malformed")
	case len(cfg.Key) != ed25519.PrivateKeySize:
		return nil, errors.New("minter: no Ed25519 key")
	case cfg.Lifetime < time.Second || cfg.Lifetime > api.MaxTokenSeconds*time.Second:
		return nil, fmt.Errorf("minter: lifetime %s", cfg.Lifetime)
	}
	return &Minter{cfg}, nil
}

// Grant is what one capability allows: one request, once.
type Grant struct {
	Op             api.Op
	Method, Target string
	Body           []byte
	WorkspaceID    string
	SandboxID      string
	Epoch          string
	Challenge      string
}

// Claims returns fresh claims for g, with a new jti. Tests alter them before [Minter.Sign].
func (m *Minter) Claims(g Grant) (Claims, error) {
	jti, err := Random()
	if err != nil {
		return Claims{}, err
	}
	now := m.cfg.Now().Unix()
	return Claims{
		Issuer: m.cfg.Issuer, Audience: m.cfg.Audience, WorkspaceID: g.WorkspaceID, Op: g.Op, SandboxID: g.SandboxID,
		Digest: api.Digest(g.Body), Target: api.TargetDigest(g.Method, g.Target), Epoch: g.Epoch, Challenge: g.Challenge,
		IssuedAt: now, ExpiresAt: now + int64(m.cfg.Lifetime/time.Second), ID: jti,
	}, nil
}

// Sign signs c as it is.
func (m *Minter) Sign(c Claims) (string, error) {
	return Sign(m.cfg.Key, m.cfg.KeyID, TypeCapability, c.Payload())
}

// Mint is Claims and Sign.
func (m *Minter) Mint(g Grant) (string, error) {
	c, err := m.Claims(g)
	if err != nil {
		return "", err
	}
	return m.Sign(c)
}

// Random returns 192 random bits in base64url, for a jti or a challenge.
func Random() (string, error) {
	var b [24]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("read random: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b[:]), nil
}
