// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

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

// withJSON gives req the body in.
func withJSON(req RawRequest, in any) (RawRequest, error) {
	b, err := strictjson.Marshal(in)
	if err != nil {
		return RawRequest{}, api.E(api.RequestInvalid, err)
	}
	req.Body, req.Header = b, http.Header{"Content-Type": {api.TypeJSON}}
	return req, nil
}

// call sends one JSON request and decodes the answer. After UNAUTHENTICATED it asks health
// again, and repeats the request once when repeat is set and the boot epoch has changed: such a
// refusal comes before any effect. After UNQUALIFIED, perhaps of pins that have been renewed, health is
// asked before the next request.
func (c *Client) call(ctx context.Context, req RawRequest, in any, status int, out any, repeat bool) error {
	if in != nil {
		var err error
		if req, err = withJSON(req, in); err != nil {
			return err
		}
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
	if res.Code == api.Unqualified {
		c.Forget()
	}
	return res.into(status, out)
}

// FillExpected returns req with the protocol version and the expectations that this worker's
// signed health answer gives, for a caller that has none of its own. The answer may be of before the
// pins were renewed: a create is then UNQUALIFIED, and what this fills in after that is of now.
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

// checkReceipt compares every field with what the caller asked for and knows. Cohort and pins are those
// that the request expects, not those of health: a lease that is asked for again keeps its own when the
// worker's are renewed.
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
		{"workerDigest", api.ValidDigest(r.WorkerDigest) && (c.cfg.WorkerDigest == "" || r.WorkerDigest == c.cfg.WorkerDigest)},
		{"sandboxBinaryDigest", api.ValidDigest(r.SandboxBinary) && (c.cfg.SandboxBinaryDigest == "" || r.SandboxBinary == c.cfg.SandboxBinaryDigest)},
		{"cohortId", r.CohortID == req.Expected.CohortID},
		{"pinsDigest", r.PinsDigest == req.Expected.PinsDigest},
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
	if err := c.call(ctx, onSandbox(api.OpGet, http.MethodGet, workspaceID, sandboxID, ""), nil, http.StatusOK, &out, true); err != nil {
		return api.SandboxState{}, err
	}
	if out.SandboxID != sandboxID || out.WorkspaceID != workspaceID {
		return api.SandboxState{}, api.E(api.ResponseInvalid, errors.New("state of another sandbox"))
	}
	return out, nil
}

// Renew begins the sandbox's idle time again and returns when the lease ends now.
func (c *Client) Renew(ctx context.Context, workspaceID, sandboxID string) (time.Time, error) {
	var out api.RenewResponse
	if err := c.call(ctx, onSandbox(api.OpRenew, http.MethodPost, workspaceID, sandboxID, "/renew"), nil, http.StatusOK, &out, true); err != nil {
		return time.Time{}, err
	}
	at, err := time.Parse(time.RFC3339Nano, out.ExpiresAt)
	if err != nil || out.SandboxID != sandboxID {
		return time.Time{}, api.E(api.ResponseInvalid, fmt.Errorf("lease of another sandbox, or without an end: %v", err))
	}
	return at, nil
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
