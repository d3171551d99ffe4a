// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Lease is a sandbox whose receipt has been verified field by field.
type Lease struct {
	SandboxID string
	ExpiresAt time.Time
	Receipt   api.Receipt
}

// call sends one JSON request and decodes the answer. After UNAUTHENTICATED it asks health
// again, and repeats the request once when repeat is set and the boot epoch has changed: such a
// refusal comes before any effect.
func (c *Client) call(ctx context.Context, req RawRequest, in any, status int, out any, repeat bool) error {
	if in != nil {
		b, err := strictjson.Marshal(in)
		if err != nil {
			return api.E(api.RequestInvalid, err)
		}
		req.Body = b
		req.Header = http.Header{"Content-Type": {"application/json"}}
	}
	before, err := c.known(ctx)
	if err != nil {
		return err
	}
	res, err := c.Raw(ctx, req)
	if err != nil {
		return err
	}
	if res.Code == api.Unauthenticated {
		if now, err := c.Health(ctx); err == nil && repeat && now.BootEpoch != before.BootEpoch {
			if res, err = c.Raw(ctx, req); err != nil {
				return err
			}
		}
	}
	return res.into(status, out)
}

// FillExpected returns req with the protocol version and the expectations that this worker's
// signed health answer gives, for a caller that has none of its own.
func (c *Client) FillExpected(ctx context.Context, req api.CreateRequest) (api.CreateRequest, error) {
	h, err := c.known(ctx)
	if err != nil {
		return api.CreateRequest{}, err
	}
	req.ProtocolVersion = api.ProtocolVersion
	req.Expected = api.Expected{CohortID: h.CohortID, PinsDigest: h.PinsDigest}
	return req, nil
}

// Create asks for a sandbox and verifies its receipt. When a field differs the sandbox is
// disposed and the error is BINDING_RECEIPT_INVALID. Repeating it with the same request gives
// the same lease.
func (c *Client) Create(ctx context.Context, req api.CreateRequest) (Lease, error) {
	var res api.CreateResponse
	raw := RawRequest{Op: api.OpCreate, Method: http.MethodPost, Target: "/v1/sandboxes", WorkspaceID: req.WorkspaceID}
	if err := c.call(ctx, raw, req, http.StatusCreated, &res, true); err != nil {
		return Lease{}, err
	}
	h, err := c.known(ctx)
	if err != nil {
		return Lease{}, err
	}
	lease, err := c.checkReceipt(h, req, res)
	if err == nil {
		return lease, nil
	}
	// Its own bound: the caller's context may be what has just ended.
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if api.ValidID(res.SandboxID) {
		if derr := c.Dispose(dctx, req.WorkspaceID, res.SandboxID); derr != nil {
			err = errors.Join(err, fmt.Errorf("dispose after a bad receipt: %w", derr))
		}
	}
	return Lease{}, err
}

func (c *Client) checkReceipt(h api.Health, req api.CreateRequest, res api.CreateResponse) (Lease, error) {
	r, err := capability.VerifyReceipt(c.cfg.WorkerKey, res.Receipt)
	if err != nil {
		return Lease{}, err
	}
	digest, err := api.CanonicalDigest(req)
	if err != nil {
		return Lease{}, api.E(api.RequestInvalid, err)
	}
	expires, err := time.Parse(time.RFC3339Nano, res.ExpiresAt)
	if err != nil {
		return Lease{}, api.E(api.BindingReceiptInvalid, err)
	}
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"workspaceId", r.WorkspaceID == req.WorkspaceID},
		{"clientLeaseId", r.ClientLeaseID == req.ClientLeaseID},
		{"workerId", r.WorkerID == c.cfg.WorkerID},
		{"sandboxId", r.SandboxID == res.SandboxID && api.ValidID(r.SandboxID)},
		{"generation", r.Generation > 0},
		{"bootEpoch", r.BootEpoch == h.BootEpoch},
		{"mode", r.Mode == h.Mode},
		{"requestDigest", r.RequestDigest == digest},
		{"imageDigest", r.ImageDigest == req.Image},
		{"workerDigest", api.ValidDigest(r.WorkerDigest)},
		{"sandboxBinaryDigest", api.ValidDigest(r.SandboxBinary)},
		{"cohortId", r.CohortID == h.CohortID && r.CohortID == req.Expected.CohortID},
		{"pinsDigest", r.PinsDigest == h.PinsDigest && r.PinsDigest == req.Expected.PinsDigest},
		{"expiry", r.ExpiresAtUnixMs == expires.UnixMilli()},
	} {
		if !f.ok {
			return Lease{}, api.E(api.BindingReceiptInvalid, fmt.Errorf("receipt field %s differs", f.name))
		}
	}
	return Lease{SandboxID: r.SandboxID, ExpiresAt: expires, Receipt: r}, nil
}

func onSandbox(op api.Op, method, workspaceID, sandboxID, tail string) RawRequest {
	return RawRequest{Op: op, Method: method, Target: "/v1/sandboxes/" + sandboxID + tail, WorkspaceID: workspaceID, SandboxID: sandboxID}
}

// Get returns the sandbox's state.
func (c *Client) Get(ctx context.Context, workspaceID, sandboxID string) (api.SandboxState, error) {
	var out api.SandboxState
	err := c.call(ctx, onSandbox(api.OpGet, http.MethodGet, workspaceID, sandboxID, ""), nil, http.StatusOK, &out, true)
	return out, err
}

// Exec runs one command and waits for its outcome. It is sent once: on OUTCOME_UNKNOWN the
// command may have run. When ctx ends the worker ends the command.
func (c *Client) Exec(ctx context.Context, workspaceID, sandboxID string, req api.ExecRequest) (api.ExecResult, error) {
	var out api.ExecResult
	err := c.call(ctx, onSandbox(api.OpExec, http.MethodPost, workspaceID, sandboxID, "/exec"), req, http.StatusOK, &out, false)
	if err == nil && (out.InvocationID != req.InvocationID || (out.ExitCode == nil) == (out.Signal == "")) {
		err = api.E(api.ResponseInvalid, errors.New("outcome is of another invocation, or has not exactly one of exit code and signal"))
	}
	return out, err
}

// FS runs one workspace operation.
func (c *Client) FS(ctx context.Context, workspaceID, sandboxID string, req api.FSRequest) (api.FSResponse, error) {
	var out api.FSResponse
	repeat := req.Op == api.FSStat || req.Op == api.FSList || req.Op == api.FSReadlink
	err := c.call(ctx, onSandbox(api.OpFS, http.MethodPost, workspaceID, sandboxID, "/fs"), req, http.StatusOK, &out, repeat)
	return out, err
}

// Dispose ends the sandbox; nil means that removal is proven.
func (c *Client) Dispose(ctx context.Context, workspaceID, sandboxID string) error {
	return c.call(ctx, onSandbox(api.OpDispose, http.MethodDelete, workspaceID, sandboxID, ""), nil, http.StatusNoContent, nil, true)
}

// Purge removes a workspace's data.
func (c *Client) Purge(ctx context.Context, workspaceID string) error {
	raw := RawRequest{Op: api.OpPurge, Method: http.MethodDelete, Target: "/v1/workspaces/" + workspaceID, WorkspaceID: workspaceID}
	return c.call(ctx, raw, nil, http.StatusNoContent, nil, true)
}

// Read returns a file's bytes, at most 1 GiB. path is bytes.
func (c *Client) Read(ctx context.Context, workspaceID, sandboxID, path string) ([]byte, error) {
	if _, err := c.known(ctx); err != nil {
		return nil, err
	}
	res, err := c.Raw(ctx, onSandbox(api.OpRead, http.MethodGet, workspaceID, sandboxID, "/files?"+pathQuery(path).Encode()))
	if err != nil {
		return nil, err
	}
	if res.Status != http.StatusOK {
		return nil, res.into(http.StatusOK, nil)
	}
	return res.Body, nil
}

// WriteOptions of [Client.Write]. The zero value creates a file of mode 0644.
type WriteOptions struct {
	Replace    bool // an existing file is replaced instead of refused
	Executable bool // mode 0755
}

// Write stores body at path atomically. It is sent once.
func (c *Client) Write(ctx context.Context, workspaceID, sandboxID, path string, body []byte, o WriteOptions) (api.WriteResponse, error) {
	q := pathQuery(path)
	q.Set("mode", api.WriteCreate)
	if o.Replace {
		q.Set("mode", api.WriteReplace)
	}
	if o.Executable {
		q.Set("executable", "true")
	}
	raw := onSandbox(api.OpWrite, http.MethodPut, workspaceID, sandboxID, "/files?"+q.Encode())
	raw.Body = body
	raw.Header = http.Header{"Content-Type": {"application/octet-stream"}}
	var out api.WriteResponse
	err := c.call(ctx, raw, nil, http.StatusOK, &out, false)
	if err == nil && (out.Size != int64(len(body)) || out.Digest != api.Digest(body)) {
		err = api.E(api.ResponseInvalid, errors.New("worker stored other bytes"))
	}
	return out, err
}

// pathQuery names a path in the form that holds it without loss.
func pathQuery(path string) url.Values {
	if utf8.ValidString(path) {
		return url.Values{"path": {path}}
	}
	return url.Values{"pathBytes": {base64.StdEncoding.EncodeToString([]byte(path))}}
}
