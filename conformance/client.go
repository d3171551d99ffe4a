// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// owned is something outside the target that the case made or was about to make.
type owned struct {
	what   string
	remove func(context.Context) error
}

// errEnded refuses what a goroutine that outlives its case wants to make.
var errEnded = errors.New("the case has ended")

// lend returns tg as a case may use it: what is created through it is recorded first.
func (t *T) lend(tg *target.Target) *target.Target {
	lent := *tg
	lent.Runtime = recordingRuntime{tg.Runtime, t}
	if tg.Wire != nil {
		lent.Wire = recordingWire{tg.Wire, t}
	}
	if tg.Controller != nil {
		lent.Controller = recordingController{tg.Controller, t}
	}
	if tg.Peers != nil {
		lent.Peers = recordingPeers{tg.Peers, t}
	}
	lent.Close = func() error { return errors.New("a case does not close its target") }
	return &lent
}

// Own records what the case is about to make outside the target, for example a container of the
// engine, together with its removal; it is called before the making. remove runs after the case,
// last recorded first, with a context of its own, and succeeds when there is nothing to remove. An
// error means that the case has ended: nothing may be made then.
func (t *T) Own(what string, remove func(context.Context) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errEnded
	}
	t.owned = append(t.owned, owned{what, remove})
	return nil
}

// Cleanup registers f to run after the case, last registered first, with a context of its own.
// After the case has ended it runs at once.
func (t *T) Cleanup(f func(context.Context) error) {
	if t.Own("", f) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupBudget)
	defer cancel()
	if err := guarded(ctx, f); err != nil {
		t.broke("cleanup-failed", "after the case had ended: "+err.Error())
	}
}

// Adopt records a sandbox that the case obtained in another way, for example by the raw wire.
func (t *T) Adopt(sb target.Sandbox) {
	t.mu.Lock()
	late := t.swept
	if !late {
		t.sandboxes = append(t.sandboxes, sb)
		t.recordWorkspace(sb.WorkspaceID())
	}
	t.mu.Unlock()
	if !late {
		return
	}
	// The case's own clean-up has been: nobody else would remove it.
	ctx, cancel := context.WithTimeout(context.Background(), cleanupBudget)
	defer cancel()
	err := guarded(ctx, sb.Dispose)
	if err == nil {
		err = guarded(ctx, func(ctx context.Context) error { return t.target.Runtime.Purge(ctx, sb.WorkspaceID()) })
	}
	if err != nil {
		t.broke("cleanup-failed", "a sandbox that came after the case had ended: "+err.Error())
	}
}

// AdoptWorkspace records a workspace for purging, for example one named in a raw request.
func (t *T) AdoptWorkspace(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recordWorkspace(id)
}

// recordWorkspace needs t.mu.
func (t *T) recordWorkspace(id string) {
	if id != "" && !slices.Contains(t.workspaces, id) {
		t.workspaces = append(t.workspaces, id)
	}
}

// begin records ws before its create. The create is under way until done is called.
func (t *T) begin(ws string) (done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errEnded
	}
	t.recordWorkspace(ws)
	t.making.Add(1)
	return t.making.Done, nil
}

func (t *T) owns(ws string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.workspaces, ws)
}

func newWorkspace() string { return "ws-" + randomHex(12) }

// recordingRuntime is the runtime as a case sees it.
type recordingRuntime struct {
	target.Runtime
	t *T
}

func (r recordingRuntime) Create(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	if spec.WorkspaceID == "" {
		spec.WorkspaceID = newWorkspace()
	}
	done, err := r.t.begin(spec.WorkspaceID)
	if err != nil {
		return nil, err
	}
	defer done()
	sb, err := r.Runtime.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if sb == nil {
		return nil, errors.New("the driver's create returned neither a sandbox nor an error")
	}
	r.t.Adopt(sb)
	return sb, nil
}

// Purge refuses what the case did not make: nothing else is ever deleted.
func (r recordingRuntime) Purge(ctx context.Context, ws string) error {
	if !r.t.owns(ws) {
		return fmt.Errorf("the workspace %q is not of this case", ws)
	}
	return r.Runtime.Purge(ctx, ws)
}

// recordingWire is the wire as a case sees it.
type recordingWire struct {
	target.Wire
	t *T
}

// Raw records the workspace of a create, and the sandbox that an accepted one names.
func (w recordingWire) Raw(ctx context.Context, req target.RawRequest) (target.RawResponse, error) {
	if req.Op != "create" {
		return w.Wire.Raw(ctx, req)
	}
	done, err := w.t.begin(req.WorkspaceID)
	if err != nil {
		return target.RawResponse{}, err
	}
	defer done()
	res, err := w.Wire.Raw(ctx, req)
	var made struct {
		SandboxID string `json:"sandboxId"`
	}
	if err != nil || res.Status >= 300 || json.Unmarshal(res.Body, &made) != nil || made.SandboxID == "" {
		return res, err
	}
	w.t.Cleanup(func(ctx context.Context) error {
		gone, err := w.Wire.Raw(ctx, target.RawRequest{Op: "dispose", Method: "DELETE", Target: "/v1/sandboxes/" + made.SandboxID,
			WorkspaceID: req.WorkspaceID, SandboxID: made.SandboxID})
		if err != nil || gone.Status < 300 || strings.HasSuffix(gone.Code, "SANDBOX_DISPOSED") {
			return err
		}
		return fmt.Errorf("dispose of a sandbox made by the wire: status %d, code %s", gone.Status, gone.Code)
	})
	return res, nil
}

// recordingController is the controller as a case sees it.
type recordingController struct {
	target.Controller
	t *T
}

// Start remembers what appears meanwhile in the suite's own process and below it: the driver holds
// it for the daemon, and it is no leak of the case.
func (c recordingController) Start(ctx context.Context) error {
	before := takeFootprint()
	err := c.Controller.Start(ctx)
	c.t.excuse(takeFootprint().since(before))
	return err
}

// Inject arms a fault for this case only: it is disarmed after it, and what it holds is waited for.
func (c recordingController) Inject(rule target.TapeRule) error {
	err := c.t.Own("", func(ctx context.Context) error {
		return errors.Join(c.Controller.Calm(), c.t.untilMade(ctx))
	})
	if err != nil {
		return err
	}
	return c.Controller.Inject(rule)
}

// untilMade waits until every call that a fault has made late has been made, at most half a minute: then the
// engine does not answer it.
func (t *T) untilMade(ctx context.Context) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		calls, _, err := t.target.Observer.Tape(0)
		if err != nil || !slices.ContainsFunc(calls, func(c target.TapeCall) bool { return c.Held }) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// recordingPeers are the peers as a case sees them.
type recordingPeers struct {
	target.Peers
	t *T
}

// Start records the peer, so that it ends with the case.
func (p recordingPeers) Start(ctx context.Context, spec target.PeerSpec) (target.Peer, error) {
	peer, err := p.Peers.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	p.t.Cleanup(func(context.Context) error { return peer.Close() })
	return peer, nil
}
