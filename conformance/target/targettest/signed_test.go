// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// signer is the smallest daemon that honours capabilities: a token is the request that it is for.
type signer struct {
	broken
	all, share int64

	mu     sync.Mutex
	minted map[string]string // token -> target
	closed bool
}

// broken says which promises are broken: each switch is one.
type broken struct {
	anyLifetime, unbound, reusable, refusing, deaf, boundless bool // of Authority
	ignoresBounds, lingers, sharesState, typelessRefusal      bool // of Peers
	unclosable                                                bool
}

func signs(b broken, parts ...string) func(*target.Target) {
	return func(tg *target.Target) {
		d := &signer{broken: b, all: 100, share: 10}
		tg.Parts = append(tg.Parts, parts...)
		tg.Authority, tg.Wire, tg.Peers = d, d, d
	}
}

func (s *signer) Mint(_ context.Context, req target.RawRequest, lifetime time.Duration) (string, error) {
	if !s.anyLifetime && (lifetime < time.Second || lifetime > 5*time.Minute || lifetime%time.Second != 0) {
		return "", fmt.Errorf("lifetime %s", lifetime)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.minted == nil {
		s.minted = map[string]string{}
	}
	token := fmt.Sprint("token-", len(s.minted))
	s.minted[token] = req.Target
	return token, nil
}

func (s *signer) Raw(_ context.Context, req target.RawRequest) (target.RawResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	forTarget, known := s.minted[req.Token]
	if s.refusing || !known || forTarget == "used" || forTarget != req.Target && !s.unbound {
		return target.RawResponse{Status: http.StatusUnauthorized, Code: "UNAUTHENTICATED"}, nil
	}
	if !s.reusable {
		s.minted[req.Token] = "used"
	}
	return target.RawResponse{Status: http.StatusOK}, nil
}

func (s *signer) CreateBody(context.Context, target.Spec) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

func (s *signer) Dial(context.Context) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && !s.lingers {
		return nil, errors.New("closed")
	}
	mine, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		req, err := http.ReadRequest(bufio.NewReader(theirs))
		if err == nil && req.URL.Path == "/healthz" && !s.deaf {
			_, _ = io.WriteString(theirs, "HTTP/1.1 204 No Content\r\n\r\n") // the other end may have gone
		}
	}()
	return mine, nil
}

func (s *signer) NonceLimits(context.Context) (all, perWorkspace int64, err error) {
	if s.boundless {
		return 0, 0, nil
	}
	return s.all, s.share, nil
}

func (s *signer) Start(_ context.Context, spec target.PeerSpec) (target.Peer, error) {
	if spec.SameState && !s.sharesState {
		if s.typelessRefusal {
			return nil, errors.New("in use")
		}
		return nil, &target.Error{Code: "exit-3"}
	}
	p := &signer{broken: s.broken, all: spec.Nonces, share: spec.NoncesPerWorkspace}
	if s.ignoresBounds {
		p.all, p.share = s.all, s.share
	}
	return p, nil
}

func (s *signer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && s.unclosable {
		return errors.New("closed before")
	}
	s.closed = true
	return nil
}
