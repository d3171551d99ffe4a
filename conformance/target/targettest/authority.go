// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func authority() []Check {
	return []Check{
		{"authority", "A minted capability passes once, for its own request and within its lifetime; a connection that is opened reaches the daemon; the nonce store has bounds.", checkAuthority},
		{"peers", "A second daemon with its own state answers beside the first and works within the bounds that were asked for; one on the same state does not start.", checkPeers},
	}
}

func checkAuthority(ctx context.Context, s *subject) error {
	if !s.has("runtime.authority") {
		return notOffered("the target does not sign requests of a case")
	}
	var f faults
	if s.tg.Authority == nil || s.tg.Wire == nil {
		f.add("runtime.authority is named, and there is no authority or no wire")
		return f.join()
	}
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	get := target.RawRequest{Op: "get", Method: "GET", Target: "/v1/sandboxes/" + sb.ID(), WorkspaceID: sb.WorkspaceID(), SandboxID: sb.ID()}
	for _, lifetime := range []time.Duration{0, 1500 * time.Millisecond, 301 * time.Second} {
		if token, err := s.tg.Authority.Mint(ctx, get, lifetime); err == nil || token != "" {
			f.add("a lifetime of %s is minted", lifetime)
		}
	}
	f.once(ctx, s, get)
	f.reaches(ctx, s.tg.Authority)
	return f.join()
}

// once sends get three times: with a capability for another request, with its own, and again.
func (f *faults) once(ctx context.Context, s *subject, get target.RawRequest) {
	other := get
	other.Target += "/exec"
	for i, step := range []struct {
		what   string
		passes bool
	}{{"a capability for another request", false}, {"a fresh capability", true}, {"the capability for the second time", false}} {
		if i < 2 {
			var err error
			if get.Token, err = s.tg.Authority.Mint(ctx, []target.RawRequest{other, get}[i], time.Minute); err != nil {
				f.add("mint: %w", err)
				return
			}
		}
		res, err := s.tg.Wire.Raw(ctx, get)
		if err != nil || (res.Status < 300) != step.passes {
			f.add("%s: status %d, code %q, %v", step.what, res.Status, res.Code, err)
		}
	}
}

// reaches asks for liveness over a raw connection, and for the bounds.
func (f *faults) reaches(ctx context.Context, a target.Authority) {
	c, err := a.Dial(ctx)
	if err != nil {
		f.add("dial: %w", err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n"); err != nil {
		f.add("write: %w", err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != http.StatusNoContent {
		f.add("liveness over a raw connection: %v, %v", res, err)
	}
	if all, share, err := a.NonceLimits(ctx); err != nil || share < 1 || all < share {
		f.add("the nonce store holds %d, %d of one workspace, %v", all, share, err)
	}
}

func checkPeers(ctx context.Context, s *subject) error {
	if !s.has("controller.peers") {
		return notOffered("the target starts no second daemon")
	}
	var f faults
	if s.tg.Peers == nil {
		f.add("controller.peers is named and there are no peers")
		return f.join()
	}
	const all, share = 2000, 150
	p, err := s.tg.Peers.Start(ctx, target.PeerSpec{Nonces: all, NoncesPerWorkspace: share})
	if err != nil {
		return err
	}
	f.reaches(ctx, p)
	if a, b, err := p.NonceLimits(ctx); a != all || b != share {
		f.add("asked for %d nonces and %d of one workspace, and the peer has %d and %d, %v", all, share, a, b, err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			f.add("close: %w", err)
		}
	}
	if c, err := p.Dial(ctx); err == nil {
		f.add("a closed peer takes connections")
		c.Close()
	}
	var refused *target.Error
	switch p, err := s.tg.Peers.Start(ctx, target.PeerSpec{SameState: true}); {
	case err == nil:
		f.add("a second daemon on the same state answers")
		p.Close()
	case !errors.As(err, &refused):
		f.add("a second daemon on the same state: the error has no code: %w", err)
	}
	if _, err := s.tg.Runtime.Describe(ctx); err != nil {
		f.add("the first daemon, after all: %w", err)
	}
	return f.join()
}
