// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// askFirst is the size of a body, in bytes, above which the worker is asked before it is sent.
const askFirst = 64 << 10

// maxFile bounds a file read whole through this client, in bytes.
const maxFile = 1 << 30

// RawRequest is one request with nothing repaired: Target and Body are sent byte for byte. A
// capability over exactly them is minted unless Token or NoToken is set.
type RawRequest struct {
	Op             api.Op
	Method, Target string
	WorkspaceID    string
	SandboxID      string // empty for operations on no sandbox
	Header         http.Header
	Body           []byte
	Token          string // sent instead of a fresh capability
	NoToken        bool   // send no Authorization at all
}

// RawResponse is the wire's answer. Code is error.code of a well-formed failure, else "".
type RawResponse struct {
	Status int
	Header http.Header
	Body   []byte
	Code   api.Code
}

// Raw sends req once. An error means that no whole answer came: UNAVAILABLE when the worker was
// not reached, STREAM_CLOSED when the connection ended first or brought no HTTP (OUTCOME_UNKNOWN
// for exec), RESPONSE_INVALID when the body is beyond its bound.
func (c *Client) Raw(ctx context.Context, req RawRequest) (RawResponse, error) {
	res, err := c.open(ctx, req, nil)
	if err != nil {
		return RawResponse{}, err
	}
	limit := int64(api.MaxAnswerBytes)
	if req.Op == api.OpRead && res.StatusCode == http.StatusOK {
		limit = maxFile
	}
	return finish(req.Op, res, limit)
}

// finish reads the rest of an answer.
func finish(op api.Op, res *http.Response, limit int64) (RawResponse, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return RawResponse{}, lost(op, err)
	}
	if int64(len(body)) > limit {
		return RawResponse{}, api.E(api.ResponseInvalid, fmt.Errorf("answer above %d bytes", limit))
	}
	out := RawResponse{Status: res.StatusCode, Header: res.Header, Body: body}
	if res.StatusCode >= 400 {
		if e := api.DecodeError(res.StatusCode, body); e.Code != api.ResponseInvalid {
			out.Code = e.Code
		}
	}
	return out, nil
}

// source is a request body that is not in memory.
type source struct {
	from   io.Reader
	size   int64
	digest string
}

// open sends req, with from as its body when it is set, and returns the answer's head. The caller
// closes the body.
func (c *Client) open(ctx context.Context, req RawRequest, from *source) (*http.Response, error) {
	token := req.Token
	if token == "" && !req.NoToken {
		var err error
		if token, err = c.mint(ctx, req, from); err != nil {
			return nil, err
		}
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	scheme := "http"
	if c.cfg.TLS != nil {
		scheme = "https"
	}
	hr := (&http.Request{
		Method: req.Method,
		URL:    &url.URL{Scheme: scheme, Host: c.host(), Opaque: req.Target}, // sent as it is
		Header: req.Header.Clone(),
		Host:   "worker",
		// Without a version net/http sends the body at once, whatever Expect says.
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if hr.Header == nil {
		hr.Header = http.Header{}
	}
	size := int64(len(req.Body))
	hr.Body = io.NopCloser(bytes.NewReader(req.Body))
	if from != nil {
		size, hr.Body = from.size, io.NopCloser(from.from)
	}
	if hr.ContentLength = size; size == 0 {
		hr.Body = http.NoBody
	}
	if size > askFirst && hr.Header.Get("Expect") == "" {
		hr.Header.Set("Expect", "100-continue") // a refusal then comes instead of the transfer
	}
	if token != "" {
		hr.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(hr)
	switch {
	case err == nil:
		return res, nil
	case !connected.Load(): // nothing was sent
		return nil, api.E(api.Unavailable, err)
	}
	return nil, lost(req.Op, err)
}

// host is what TLS verifies the certificate against, unless its configuration says otherwise.
func (c *Client) host() string {
	if c.cfg.Address != "" {
		return c.cfg.Address
	}
	return "worker"
}

// Mint returns the capability that Raw would send, and learns the boot epoch first when needed.
func (c *Client) Mint(ctx context.Context, req RawRequest) (string, error) {
	return c.mint(ctx, req, nil)
}

func (c *Client) mint(ctx context.Context, req RawRequest, from *source) (string, error) {
	g := capability.Grant{
		Op: req.Op, Method: req.Method, Target: req.Target, Body: req.Body, WorkspaceID: req.WorkspaceID, SandboxID: req.SandboxID,
	}
	if req.Op == api.OpHealth {
		challenge, err := capability.Random()
		if err != nil {
			return "", err
		}
		g.Challenge = challenge
		return c.minter.Mint(g)
	}
	h, err := c.known(ctx)
	if err != nil {
		return "", err
	}
	g.Epoch = h.BootEpoch
	claims, err := c.minter.Claims(g)
	if err != nil {
		return "", err
	}
	if from != nil {
		claims.Digest = from.digest
	}
	return c.minter.Sign(claims)
}

// lost gives a broken exchange its code.
func lost(op api.Op, err error) error {
	if op == api.OpExec {
		return api.E(api.OutcomeUnknown, err)
	}
	return api.E(api.StreamClosed, err)
}

// into decodes an answer that must have status; v is nil when it must have no body.
func (r RawResponse) into(status int, v any) error {
	switch {
	case r.Status >= 400:
		if err := typed(r.Header, api.TypeJSON); err != nil {
			return err
		}
		return api.DecodeError(r.Status, r.Body)
	case r.Status != status:
		return api.E(api.ResponseInvalid, fmt.Errorf("status %d, expected %d", r.Status, status))
	case v == nil && len(r.Body) != 0:
		return api.E(api.ResponseInvalid, fmt.Errorf("body of %d bytes, none expected", len(r.Body)))
	case v == nil:
		return nil
	}
	if err := typed(r.Header, api.TypeJSON); err != nil {
		return err
	}
	return api.DecodeAnswer(r.Body, v)
}

// typed compares the media type, which has no parameters.
func typed(h http.Header, media string) error {
	if got := h.Values("Content-Type"); len(got) != 1 || got[0] != media {
		return api.E(api.ResponseInvalid, fmt.Errorf("media type %.100q, expected %s", got, media))
	}
	return nil
}
