// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// Config says which worker is called and with whose authority.
type Config struct {
	Socket  string      // path of the worker's unix socket, or
	Address string      // host:port of its TLS 1.3 listener
	TLS     *tls.Config // with Address: the roots that count, and the client's certificate if it needs one

	WorkerID  string
	WorkerKey ed25519.PublicKey // verifies health and receipts

	Issuer string // of the capabilities
	KeyID  string
	Key    ed25519.PrivateKey

	Lifetime time.Duration    // of a capability; 0 means [capability.DefaultLifetime]
	Now      func() time.Time // nil means [time.Now]

	// WorkerDigest and SandboxBinaryDigest, if set, are those that a receipt must have; "" accepts any.
	WorkerDigest, SandboxBinaryDigest string

	// AllowQualification accepts a worker whose pins are candidates.
	AllowQualification bool

	// Silence is how long a stream may bring nothing, not even a heartbeat, before the worker
	// counts as lost. 0 means [DefaultSilence].
	Silence time.Duration

	// Wrap, if set, gets the round-tripper of this client and returns the one that is used: to
	// observe or to break exchanges. It must not send a request twice.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// DefaultSilence is three times the longest pause between two heartbeats of any stream.
const DefaultSilence = 30 * time.Second

// Client calls one worker. All methods are safe for concurrent use.
type Client struct {
	cfg    Config
	minter *capability.Minter
	http   *http.Client

	mu     sync.Mutex
	health api.Health // guarded by mu; last verified answer, zero before the first
}

// New checks cfg; it does not connect.
func New(cfg Config) (*Client, error) {
	switch {
	case len(cfg.WorkerKey) != ed25519.PublicKeySize:
		return nil, errors.New("client: worker key is missing")
	case (cfg.Socket == "") == (cfg.Address == ""):
		return nil, errors.New("client: exactly one of socket and address is needed")
	case (cfg.Address == "") != (cfg.TLS == nil):
		return nil, errors.New("client: an address needs a TLS configuration, a socket takes none")
	case cfg.WorkerDigest != "" && !api.ValidDigest(cfg.WorkerDigest), cfg.SandboxBinaryDigest != "" && !api.ValidDigest(cfg.SandboxBinaryDigest):
		return nil, errors.New("client: an expected digest is not a digest")
	case cfg.Silence < 0:
		return nil, errors.New("client: silence is negative")
	case cfg.Silence == 0:
		cfg.Silence = DefaultSilence
	}
	minter, err := capability.NewMinter(capability.MinterConfig{
		Issuer: cfg.Issuer, KeyID: cfg.KeyID, Key: cfg.Key, Audience: cfg.WorkerID, Lifetime: cfg.Lifetime, Now: cfg.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	var rt http.RoundTripper = transport(cfg)
	if cfg.Wrap != nil {
		rt = cfg.Wrap(rt)
	}
	return &Client{
		cfg:    cfg,
		minter: minter,
		http: &http.Client{
			Transport:     rt,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// transport opens a connection for each request.
func transport(cfg Config) *http.Transport {
	var d net.Dialer
	t := &http.Transport{
		// net/http repeats a request whose idle connection broke, with the same capability:
		// the worker would see a replay. New connections are cheap here. HTTP/2 stays off for
		// the same reason: it repeats what a server says it has not begun.
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ExpectContinueTimeout:  10 * time.Second,
		MaxResponseHeaderBytes: api.MaxHeaderBytes,
		TLSHandshakeTimeout:    10 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if cfg.Socket != "" {
				return d.DialContext(ctx, "unix", cfg.Socket)
			}
			return d.DialContext(ctx, "tcp", cfg.Address)
		},
	}
	if cfg.TLS != nil {
		t.TLSClientConfig = cfg.TLS.Clone()
		t.TLSClientConfig.MinVersion = tls.VersionTLS13
		t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	return t
}

// Minter signs capabilities as this client does, for tests of the protocol.
func (c *Client) Minter() *capability.Minter { return c.minter }

// Health asks the worker, verifies signature, challenge and identity, and remembers the boot
// epoch. It needs no prior call.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	challenge, err := capability.Random()
	if err != nil {
		return api.Health{}, err
	}
	const target = "/v1/health"
	token, err := c.minter.Mint(capability.Grant{Op: api.OpHealth, Method: http.MethodGet, Target: target, Challenge: challenge})
	if err != nil {
		return api.Health{}, err
	}
	res, err := c.Raw(ctx, RawRequest{Method: http.MethodGet, Target: target, Token: token})
	if err != nil {
		return api.Health{}, err
	}
	var body api.HealthResponse
	if err := res.into(http.StatusOK, &body); err != nil {
		return api.Health{}, err
	}
	h, err := capability.VerifyHealth(c.cfg.WorkerKey, body.Statement, challenge)
	if err != nil {
		return api.Health{}, err
	}
	switch {
	case h.ProtocolVersion != api.ProtocolVersion:
		return api.Health{}, api.E(api.ProtocolMismatch, fmt.Errorf("worker speaks %q", h.ProtocolVersion))
	case h.WorkerID != c.cfg.WorkerID || h.BootEpoch == "":
		return api.Health{}, api.E(api.ResponseInvalid, fmt.Errorf("worker calls itself %q", h.WorkerID))
	case h.Mode == api.Qualification && c.cfg.AllowQualification, h.Mode == api.Production:
	case h.Mode == api.Qualification:
		return api.Health{}, api.E(api.Unqualified, errors.New("worker is in qualification mode"))
	default:
		return api.Health{}, api.E(api.ResponseInvalid, fmt.Errorf("unknown mode %q", h.Mode))
	}
	c.mu.Lock()
	c.health = h
	c.mu.Unlock()
	return h, nil
}

// known returns the last verified health answer, asking when there is none.
func (c *Client) known(ctx context.Context) (api.Health, error) {
	c.mu.Lock()
	h := c.health
	c.mu.Unlock()
	if h.BootEpoch != "" {
		return h, nil
	}
	return c.Health(ctx)
}

// Forget drops what was learnt, as after a restart of the worker that the caller knows of.
func (c *Client) Forget() {
	c.mu.Lock()
	c.health = api.Health{}
	c.mu.Unlock()
}
