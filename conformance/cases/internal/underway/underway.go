// SPDX-License-Identifier: Apache-2.0

// Package underway is about what has been asked for and is not over: requests that are not waited for, engine
// calls that a fault holds, and the end of all that a sandbox had. It returns facts and never judges.
package underway

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Ask is one request over the raw wire, under way.
type Ask struct {
	Spec target.Spec // of a create
	over chan struct{}
	res  target.RawResponse
	err  error
}

// Create sends a create of spec, over a workspace that is recorded, and does not wait.
func Create(ctx context.Context, t *conformance.T, spec target.Spec) (*Ask, error) {
	spec = t.Spec(spec)
	req, err := Request(ctx, t, spec)
	if err != nil {
		return nil, err
	}
	return Send(ctx, t, spec, req), nil
}

// Request asks for the sandbox of a whole spec, over a workspace that is recorded.
func Request(ctx context.Context, t *conformance.T, spec target.Spec) (target.RawRequest, error) {
	t.AdoptWorkspace(spec.WorkspaceID)
	body, err := t.Target().Wire.CreateBody(ctx, spec)
	return target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: body}, err
}

// Send sends a request and does not wait.
func Send(ctx context.Context, t *conformance.T, spec target.Spec, req target.RawRequest) *Ask {
	a := &Ask{Spec: spec, over: make(chan struct{})}
	t.Cleanup(func(context.Context) error { <-a.over; return nil })
	go func() {
		defer close(a.over)
		a.res, a.err = t.Target().Wire.Raw(ctx, req)
	}()
	return a
}

// Wait returns the answer, each time. An error is a connection that broke.
func (a *Ask) Wait(ctx context.Context) (target.RawResponse, error) {
	select {
	case <-a.over:
		return a.res, a.err
	case <-ctx.Done():
		return target.RawResponse{}, ctx.Err()
	}
}

// Over reports whether the request has been answered, or its connection has broken.
func (a *Ask) Over() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// Disposal asks for the end of a sandbox that is known by its id only.
func Disposal(workspace, sandbox string) target.RawRequest {
	return target.RawRequest{Op: "dispose", Method: "DELETE", Target: "/v1/sandboxes/" + sandbox, WorkspaceID: workspace, SandboxID: sandbox}
}

// Label is the value of a label in a recorded create of a container, "" for any other call.
func Label(call target.TapeCall, label string) string {
	if !IsCreate(call) {
		return ""
	}
	var body struct {
		Labels map[string]string
	}
	if json.Unmarshal(call.Body, &body) != nil {
		return ""
	}
	return body.Labels[label]
}

// IsCreate reports whether call asks the engine to make a container.
func IsCreate(call target.TapeCall) bool {
	return call.Method == "POST" && strings.HasSuffix(call.Path, "/containers/create")
}

// Struck is the first call since mark that a fault acted on.
func Struck(t *conformance.T, mark int64) (call target.TapeCall, found bool, err error) {
	calls, _, err := t.Target().Observer.Tape(mark)
	for _, c := range calls {
		if c.Fault != "" {
			return c, true, err
		}
	}
	return call, false, err
}

// Made waits until no call since mark is held any more: each that a fault made late has been made.
func Made(ctx context.Context, t *conformance.T, mark int64, within time.Duration) (bool, error) {
	return attack.Eventually(ctx, within, func() (bool, error) {
		calls, _, err := t.Target().Observer.Tape(mark)
		return !slices.ContainsFunc(calls, func(c target.TapeCall) bool { return c.Held }), err
	})
}

// Gone waits until the engine lists nothing under a label.
func Gone(ctx context.Context, engine *oracle.Engine, label, value string, within time.Duration) (bool, error) {
	return attack.Eventually(ctx, within, func() (bool, error) {
		list, err := engine.Labelled(ctx, label, value)
		return len(list) == 0, err
	})
}

// Freed waits until nothing holds a workspace: it can be purged then.
func Freed(ctx context.Context, t *conformance.T, workspace string, within time.Duration) (bool, error) {
	return attack.Eventually(ctx, within, func() (bool, error) {
		err := t.Target().Runtime.Purge(ctx, workspace)
		if err != nil && target.CodeOf(err) == "" {
			return false, err
		}
		return err == nil, nil
	})
}
