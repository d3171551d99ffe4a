// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// exchange is one request and its answer.
type exchange struct {
	w        http.ResponseWriter
	r        *http.Request
	id       string
	patience time.Duration // with a caller that does not read its answer
	claims   capability.Claims
	started  bool // the status line is out: a failure can only cut the connection, or be the last line

	last func(api.ErrorDetail) error // writes a failure as the last line of a stream; nil elsewhere

	// For the log and the observer.
	start    time.Time
	op       api.Op
	code     api.Code
	streamed bool
	admitted bool // the nonce is consumed
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{w: w, r: r, id: requestID(), patience: s.patience}
	defer s.began(x)()
	if err := s.begin(x); err != nil {
		s.fail(x, call{}, fmt.Errorf("set deadlines: %w", err))
		return
	}
	if r.Method == http.MethodGet && r.RequestURI == "/healthz" {
		s.part(x)
		x.op = OpLiveness
		w.WriteHeader(http.StatusNoContent)
		return
	}
	c, err := s.guard(x)
	if err != nil {
		s.fail(x, c, err)
	}
}

// guard runs the request and turns a panic into a failure.
func (s *Server) guard(x *exchange) (c call, err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.o.Log.ErrorContext(x.r.Context(), "handler panicked", "request", x.id, "op", c.op, "panic", panicCause(p), "stack", string(debug.Stack()))
		err = api.E(api.Unavailable, errors.New("handler panicked"))
	}()
	if err := checkHeaders(x.r); err != nil {
		return c, err
	}
	if s.draining.Load() {
		return c, api.E(api.Unavailable, errors.New("shutting down"))
	}
	if c, err = route(x.r); err != nil {
		return c, err
	}
	x.op = c.op
	if x.claims, err = s.verify(x.r, c); err != nil {
		return c, err
	}
	leave, err := claim(x.r.Context(), x.claims.WorkspaceID, c.op)
	if err != nil {
		return c, err
	}
	defer leave()
	if err := s.consume(x.r, x.claims); err != nil {
		return c, err
	}
	prove(x.r.Context())
	x.admitted = true
	return c, s.dispatch(x, c)
}

func (s *Server) dispatch(x *exchange, c call) error {
	switch c.op {
	case api.OpHealth:
		return s.health(x)
	case api.OpCreate:
		return s.create(x)
	case api.OpGet:
		return s.get(x, c)
	case api.OpExec:
		return s.exec(x, c)
	case api.OpCancel:
		return s.cancel(x, c)
	case api.OpFS:
		return s.fs(x, c)
	case api.OpRead:
		return s.read(x, c)
	case api.OpWrite:
		return s.write(x, c)
	case api.OpEvents:
		return s.events(x, c)
	case api.OpRenew:
		return s.renew(x, c)
	case api.OpDispose:
		return s.dispose(x, c)
	case api.OpPurge:
		return s.purge(x, c)
	}
	return errNoRoute
}

// self is what this worker says of itself now: pins may be renewed while it runs.
func (s *Server) self() api.Health {
	h := s.o.Health
	if s.o.Admitted != nil {
		h.CohortID, h.PinsDigest, h.EvidenceDigests = s.o.Admitted()
	}
	return h
}

func (s *Server) health(x *exchange) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	h := s.self()
	h.Challenge = x.claims.Challenge
	statement, err := s.o.Signer.Health(h)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, api.HealthResponse{Statement: statement})
}

func (s *Server) create(x *exchange) error {
	var req api.CreateRequest
	err := s.body(x, func(b []byte) (err error) {
		req, err = api.DecodeCreate(b, s.o.Health.Limits.ResourceCeilings)
		return err
	})
	if err != nil {
		return err
	}
	if req.WorkspaceID != x.claims.WorkspaceID {
		return api.E(api.AuthorizedWorkspaceRequired, errors.New("create names another workspace"))
	}
	digest, err := api.CanonicalDigest(req)
	if err != nil {
		return api.E(api.RequestInvalid, err)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), createTimeout)
	defer cancel()
	receipt, err := s.o.Sessions.Create(ctx, req, digest)
	if err != nil {
		return err
	}
	signed, err := s.o.Signer.Receipt(receipt)
	if err != nil {
		return err
	}
	return x.answer(http.StatusCreated, api.CreateResponse{
		SandboxID: receipt.SandboxID,
		ExpiresAt: time.UnixMilli(receipt.ExpiresAtUnixMs).UTC().Format(time.RFC3339Nano),
		Receipt:   signed,
	})
}

func (s *Server) get(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), fsTimeout)
	defer cancel()
	st, err := s.o.Sessions.Get(ctx, x.claims.WorkspaceID, c.sandbox)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, st)
}

func (s *Server) dispose(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), disposeTimeout)
	defer cancel()
	if err := s.o.Sessions.Dispose(ctx, x.claims.WorkspaceID, c.sandbox); err != nil {
		return err
	}
	return x.answer(http.StatusNoContent, nil)
}

func (s *Server) purge(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	if c.workspace != x.claims.WorkspaceID {
		return api.E(api.AuthorizedWorkspaceRequired, errors.New("purge names another workspace"))
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), disposeTimeout)
	defer cancel()
	if err := s.o.Sessions.Purge(ctx, c.workspace); err != nil {
		return err
	}
	return x.answer(http.StatusNoContent, nil)
}

// answer writes v as JSON; nil v means no body. An answer beyond its bound is OUTPUT_LIMIT.
func (x *exchange) answer(status int, v any) error {
	var b []byte
	if v != nil {
		var err error
		if b, err = strictjson.Marshal(v); err != nil {
			return err
		}
	}
	if err := x.head(status, len(b)); err != nil {
		return err
	}
	if v == nil {
		return nil
	}
	if _, err := x.w.Write(b); err != nil {
		return api.E(api.StreamClosed, fmt.Errorf("write answer: %w", err))
	}
	return nil
}

// answerResult is answer for v, which holds res, the result of a command, whose output is never in
// memory a second time: it is encoded piece by piece on its way out. res is emptied.
func (x *exchange) answerResult(v any, res *api.ExecResult) error {
	outputs := [][]byte{res.Stdout, res.Stderr}
	res.Stdout, res.Stderr = nil, nil
	b, err := strictjson.Marshal(v)
	if err != nil {
		return err
	}
	// The names are the type's own and stand in its order; before them is an id, which has no quote.
	pieces := [][]byte{}
	for _, empty := range []string{`"stdout":""`, `"stderr":""`} {
		at := bytes.Index(b, []byte(empty))
		if at < 0 {
			return fmt.Errorf("encoded result without %s", empty)
		}
		at += len(empty) - 1
		pieces, b = append(pieces, b[:at]), b[at:]
	}
	pieces = append(pieces, b)
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	for _, o := range outputs {
		size += base64.StdEncoding.EncodedLen(len(o))
	}
	if err := x.head(http.StatusOK, size); err != nil {
		return err
	}
	for i, p := range pieces {
		if _, err = x.w.Write(p); err == nil && i < len(outputs) {
			err = writeBase64(x.w, outputs[i])
		}
		if err != nil {
			return api.E(api.StreamClosed, fmt.Errorf("write answer: %w", err))
		}
	}
	return nil
}

// writeBase64 encodes b in pieces that hold whole groups.
func writeBase64(w io.Writer, b []byte) error {
	const piece = 24 << 10 // of input: 32 KiB of text
	buf := make([]byte, 0, base64.StdEncoding.EncodedLen(min(len(b), piece)))
	for len(b) > 0 {
		n := min(len(b), piece)
		buf = base64.StdEncoding.AppendEncode(buf[:0], b[:n])
		if _, err := w.Write(buf); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// head begins an answer with a body of size bytes of JSON.
func (x *exchange) head(status, size int) error {
	if size > api.MaxAnswerBytes {
		return api.E(api.OutputLimit, fmt.Errorf("answer of %d bytes", size))
	}
	if err := http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(x.patience)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	if size > 0 {
		x.w.Header().Set("Content-Type", "application/json")
		x.w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	x.started = true
	x.w.WriteHeader(status)
	return nil
}

// fail logs the cause and answers the code. After the status line of a stream it is the last line;
// after any other it cuts the connection, so that a truncated answer cannot be taken for a whole one.
func (s *Server) fail(x *exchange, c call, err error) {
	code := codeOf(err)
	x.code = code
	s.logRefusal(x, c, code, x.cause(err))
	if x.started {
		if x.last != nil && x.last(code.Body(x.id).Error) == nil {
			return
		}
		panic(http.ErrAbortHandler)
	}
	s.part(x)
	if aerr := x.answer(code.Status(), code.Body(x.id)); aerr != nil {
		if x.admitted { // others could fill the log with it
			s.o.Log.InfoContext(x.r.Context(), "refusal not delivered", "request", x.id, "err", x.cause(aerr))
		}
		panic(http.ErrAbortHandler)
	}
	s.linger(x)
}

func requestID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}
