// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// askFirst is the size of a body, in bytes, above which the worker is asked before it is sent.
const askFirst = 64 << 10

// maxFile bounds a file read through this client, in bytes.
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
// not reached, STREAM_CLOSED when the connection ended first (OUTCOME_UNKNOWN for exec).
func (c *Client) Raw(ctx context.Context, req RawRequest) (RawResponse, error) {
	token := req.Token
	if token == "" && !req.NoToken {
		var err error
		if token, err = c.mint(ctx, req); err != nil {
			return RawResponse{}, err
		}
	}
	hr := (&http.Request{
		Method: req.Method,
		URL:    &url.URL{Scheme: "http", Host: "worker", Opaque: req.Target}, // sent as it is
		Header: req.Header.Clone(),
		Host:   "worker",
		// Without a version net/http sends the body at once, whatever Expect says.
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if hr.Header == nil {
		hr.Header = http.Header{}
	}
	if len(req.Body) > askFirst && hr.Header.Get("Expect") == "" {
		hr.Header.Set("Expect", "100-continue") // a refusal then comes instead of the transfer
	}
	hr.Body, hr.ContentLength = http.NoBody, 0
	if len(req.Body) > 0 {
		hr.Body, hr.ContentLength = io.NopCloser(bytes.NewReader(req.Body)), int64(len(req.Body))
	}
	if token != "" {
		hr.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(hr)
	if err != nil {
		return RawResponse{}, lost(req.Op, err)
	}
	limit := int64(api.MaxAnswerBytes)
	if req.Op == api.OpRead && res.StatusCode == http.StatusOK {
		limit = maxFile
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return RawResponse{}, lost(req.Op, err)
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

// Mint returns the capability that Raw would send, and learns the boot epoch first when needed.
func (c *Client) Mint(ctx context.Context, req RawRequest) (string, error) { return c.mint(ctx, req) }

func (c *Client) mint(ctx context.Context, req RawRequest) (string, error) {
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
	return c.minter.Mint(g)
}

// lost gives a broken exchange its code.
func lost(op api.Op, err error) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return api.E(api.Unavailable, err)
	case op == api.OpExec:
		return api.E(api.OutcomeUnknown, err)
	}
	return api.E(api.StreamClosed, err)
}

// into decodes an answer that must have status; v is nil when it must have no body.
func (r RawResponse) into(status int, v any) error {
	if r.Status >= 400 {
		return api.DecodeError(r.Status, r.Body)
	}
	if r.Status != status {
		return api.E(api.ResponseInvalid, fmt.Errorf("status %d, expected %d", r.Status, status))
	}
	if v == nil {
		if len(r.Body) != 0 {
			return api.E(api.ResponseInvalid, fmt.Errorf("body of %d bytes, none expected", len(r.Body)))
		}
		return nil
	}
	return api.DecodeAnswer(r.Body, v)
}
