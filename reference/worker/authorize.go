// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// checkHeaders is the first check: it needs no key and allocates nothing. Trailers are refused
// here when they are announced: no capability covers them.
func checkHeaders(r *http.Request) error {
	if len(r.Trailer) != 0 {
		return errTrailers
	}
	n := len(r.Method) + len(r.RequestURI) + len(r.Host) + 32
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + 4 // colon, space, CR, LF
		}
	}
	if n > api.MaxHeaderBytes {
		return api.E(api.RequestInvalid, fmt.Errorf("headers of %d bytes", n))
	}
	return nil
}

// verify judges the capability for this very request. It consumes nothing.
func (s *Server) verify(r *http.Request, c call) (capability.Claims, error) {
	token, err := bearer(r.Header)
	if err != nil {
		return capability.Claims{}, api.E(api.Unauthenticated, err)
	}
	return s.o.Verifier.Verify(token, capability.Want{Op: c.op, Method: r.Method, Target: r.RequestURI, SandboxID: c.sandbox})
}

// consume makes the nonce of claims durable. When it returns nil the token can do nothing more.
func (s *Server) consume(r *http.Request, claims capability.Claims) error {
	ctx, cancel := context.WithTimeout(r.Context(), nonceTimeout)
	defer cancel()
	err := s.o.Nonces.ConsumeNonce(ctx, claims.ID, claims.WorkspaceID, claims.ExpiresAt*1000)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, state.ErrReplay):
		return api.E(api.CapabilityReplay, err)
	case errors.Is(err, state.ErrExpired):
		return api.E(api.CapabilityExpired, err)
	case errors.Is(err, state.ErrExhausted):
		return api.E(api.NonceStoreExhausted, err)
	}
	return api.E(api.Unavailable, fmt.Errorf("consume nonce: %w", err))
}

func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", fmt.Errorf("%d Authorization headers", len(values))
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok {
		return "", errors.New("not a bearer token")
	}
	return token, nil
}

// plain refuses a body in another coding: what is signed is what is read, and nothing unpacks.
func plain(r *http.Request) error {
	if len(r.Header.Values("Content-Encoding")) != 0 {
		return api.E(api.RequestInvalid, errors.New("content coding"))
	}
	return nil
}

var errTrailers = api.E(api.RequestInvalid, errors.New("trailers"))

// readBody copies the whole request body within its bound and compares it with the capability.
// Preconditions: the read deadline is set.
func (s *Server) readBody(x *exchange, into io.Writer) (int64, error) {
	w, r := x.w, x.r
	if err := plain(r); err != nil {
		return 0, err
	}
	if r.ContentLength > api.MaxRequestBytes {
		return 0, api.E(api.RequestInvalid, fmt.Errorf("body of %d bytes", r.ContentLength))
	}
	sum := sha256.New()
	read := s.whileComing(w)
	n, err := io.Copy(io.MultiWriter(sum, into), http.MaxBytesReader(w, r.Body, api.MaxRequestBytes))
	if late := read(); err != nil && late {
		return 0, errEnding
	}
	if err != nil {
		return 0, bodyError(err)
	}
	if len(r.Trailer) != 0 {
		return 0, errTrailers
	}
	// The deadline covered the body. Left in place it would end the request's context by way
	// of net/http's background read, and so a long invocation.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		return 0, api.E(api.Unavailable, fmt.Errorf("clear read deadline: %w", err))
	}
	if digestText(sum) != x.claims.Digest {
		return 0, api.E(api.Unauthenticated, errors.New("body is not the one that was signed"))
	}
	return n, nil
}

// errEnding: what still runs in a drain has to end.
var errEnding = api.E(api.Unavailable, errors.New("shutting down"))

// whileComing ends the reading of a body when what still runs in a drain has to end, until read is called, which
// says whether it did. After that it touches the deadline no more.
func (s *Server) whileComing(w http.ResponseWriter) (read func() (late bool)) {
	rc := http.NewResponseController(w)
	var mu sync.Mutex
	over, cut := false, false
	stop := context.AfterFunc(s.ending, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			cut = rc.SetReadDeadline(time.Now()) == nil
		}
	})
	return func() bool {
		stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		return cut
	}
}

// noBody is body for operations that have none. What comes all the same is not kept.
func (s *Server) noBody(x *exchange) error {
	n, err := s.readBody(x, io.Discard)
	if err == nil && n != 0 {
		err = api.E(api.RequestInvalid, errors.New("this operation takes no body"))
	}
	return err
}

// bodyError is a failure to read a body, which is the caller's unless it has a code already.
func bodyError(err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return err
	}
	return api.E(api.RequestInvalid, fmt.Errorf("read body: %w", err))
}
