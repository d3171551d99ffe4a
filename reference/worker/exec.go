// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// exec answers both forms of one request: the buffered outcome, or a stream of lines. The form is no
// part of the request's identity: a repetition may ask for the other one.
func (s *Server) exec(x *exchange, c call) error {
	var req api.ExecRequest
	err := s.body(x, func(b []byte) (err error) {
		req, err = api.DecodeExec(b)
		return err
	})
	if err != nil {
		return err
	}
	streamed, err := wantsStream(x.r.Header)
	if err != nil {
		return err
	}
	digest, err := api.CanonicalDigest(req)
	if err != nil {
		return api.E(api.RequestInvalid, err)
	}
	// Before the claim: a refusal later would lose the outcome of a secret-bearing invocation, and end
	// a command of a stream. Its output stays in memory until the caller has taken it.
	give, err := s.outputs.take(x.claims.WorkspaceID, req.MaxOutputBytes)
	if err != nil {
		return err
	}
	defer give()
	// A caller that goes away ends its invocation, and so does the second half of a drain.
	peer, stop := whilePeer(x.r.Context())
	defer stop()
	ctx, cancel := context.WithTimeout(peer, time.Duration(req.TimeoutMs)*time.Millisecond+execGrace)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	if !streamed {
		res, err := s.o.Sessions.Exec(ctx, x.claims.WorkspaceID, c.sandbox, req, digest)
		if err != nil {
			return err
		}
		return x.answerResult(&res, &res)
	}
	run, err := s.o.Sessions.Start(ctx, x.claims.WorkspaceID, c.sandbox, req, digest)
	if err != nil {
		return err
	}
	defer run.Close()
	return s.stream(x, run, req.InvocationID)
}

// wantsStream reads Accept. It is exact: no lists, no parameters, no preferences, so that nobody can
// take one form for the other.
func wantsStream(h http.Header) (bool, error) {
	values := h.Values("Accept")
	if len(values) == 0 {
		return false, nil
	}
	if len(values) == 1 {
		switch values[0] {
		case "*/*", api.TypeJSON:
			return false, nil
		case api.TypeNDJSON:
			return true, nil
		}
	}
	return false, api.E(api.RequestInvalid, fmt.Errorf("accept %.100q", values))
}

// cancel answers the outcome of an invocation once it has ended.
func (s *Server) cancel(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(x.r.Context(), disposeTimeout)
	defer stop()
	res, err := s.o.Sessions.Cancel(ctx, x.claims.WorkspaceID, c.sandbox, c.invocation)
	if err != nil {
		return err
	}
	if (res.Result == nil) == (res.Error == nil) {
		return api.E(api.Unavailable, errors.New("a cancel with no outcome, or two"))
	}
	if res.Error != nil {
		res.Error.RequestID = x.id
		return x.answer(http.StatusOK, res)
	}
	result := *res.Result // the outcome is kept as it is, for the next one who asks
	give, err := s.outputs.take(x.claims.WorkspaceID, int64(len(result.Stdout)+len(result.Stderr)))
	if err != nil {
		return err
	}
	defer give()
	res.Result = &result
	return x.answerResult(res, &result)
}

// renew begins the idle time of a sandbox again.
func (s *Server) renew(x *exchange, c call) error {
	if err := s.noBody(x); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), fsTimeout)
	defer cancel()
	res, err := s.o.Sessions.Renew(ctx, x.claims.WorkspaceID, c.sandbox)
	if err != nil {
		return err
	}
	return x.answer(http.StatusOK, res)
}
