// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// LC01 asks for one sandbox many times.
var LC01 = conformance.Case{
	ID: "LC-01", Revision: 1, Title: "Double create",
	Requirement: "A create is one sandbox however often it is asked for: requests of one lease at once, and a repetition after a lost answer, get the same sandbox; another request under the lease's id is refused.",
	Threat:      "A caller that repeats a create pays for containers that nobody knows of, or gets one that somebody else asked for.",
	Attack:      "One create over 50 connections, each with a capability of its own, released together; the same id with other resources, with another session and with another workspace; a create whose connection is cut when the engine has been asked for its container and has not answered the caller, and then repeated.",
	Witness:     "Connections that were open with a whole signed create before the first was released (50); creates of a known id with another body (3); a connection that was cut after the engine's create and before the answer (1).",
	Oracle:      "Sandbox ids in the answers; creates that the tape saw go to the engine, each one counted; the engine's own list of the worker's containers.",
	Precedent:   "E2B#1658, mitos#240, arcbox#536",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWire, conformance.PartTape, conformance.PartEngine},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m57", Reason: "lease-not-joined"}, {Mutant: "m58", Reason: "conflict-accepted"}},
	Run:      runLC01,
}

const lc01Together = 50

// creates is one run of LC-01.
type creates struct {
	t      *conformance.T
	engine *oracle.Engine
	worker string // value of the worker's label
	before int    // containers of the worker before the case
	mark   int64  // on the tape
	ids    map[string]bool
}

func runLC01(ctx context.Context, t *conformance.T) error {
	// Arrange: a sandbox tells under which label the worker's containers are.
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	c := &creates{t: t, engine: engine, ids: map[string]bool{}}
	own, err := attack.Container(ctx, t, t.Sandbox(ctx, target.Spec{}))
	if err != nil {
		return err
	}
	c.worker = own.Labels[attack.LabelWorker]
	list, err := c.engine.Labelled(ctx, attack.LabelWorker, c.worker)
	if err != nil {
		return err
	}
	c.before = len(list)
	if _, c.mark, err = t.Target().Observer.Tape(0); err != nil {
		return err
	}
	t.NeedWitness("released-together", lc01Together)
	t.NeedWitness("other-bodies", 3)
	t.NeedWitness("answers-lost", 1)

	// Attack and verdict, step by step.
	if err := c.parallel(ctx); err != nil {
		return err
	}
	return c.lost(ctx)
}

// request is a create over a new workspace, which is recorded.
func (c *creates) request(ctx context.Context) (target.RawRequest, error) {
	return underway.Request(ctx, c.t, c.t.Spec(target.Spec{}))
}

// made notes the sandbox of an accepted create, to be disposed after the case.
func (c *creates) made(workspace string, answer []byte) (string, error) {
	var body struct {
		SandboxID string `json:"sandboxId"`
	}
	if err := json.Unmarshal(answer, &body); err != nil || body.SandboxID == "" {
		return "", fmt.Errorf("an accepted create names no sandbox: %w", err)
	}
	if !c.ids[body.SandboxID] {
		c.ids[body.SandboxID] = true
		c.t.Cleanup(func(ctx context.Context) error { return attack.DisposeRaw(ctx, c.t, workspace, answer) })
	}
	return body.SandboxID, nil
}

// count judges how many containers were asked for and are there since the case began.
func (c *creates) count(ctx context.Context, after string, want int) error {
	calls, _, err := c.t.Target().Observer.Tape(c.mark)
	if err != nil {
		return err
	}
	asked := 0
	for _, call := range calls {
		if underway.IsCreate(call) {
			asked++
		}
	}
	list, err := c.engine.Labelled(ctx, attack.LabelWorker, c.worker)
	if err != nil {
		return err
	}
	if asked != want || len(list)-c.before != want {
		c.t.Fail("second-container", "%s the engine was asked for %d containers and has %d, where %d are due", after, asked, len(list)-c.before, want)
	}
	return nil
}

// parallel releases one create over many connections, then asks for others under its id.
func (c *creates) parallel(ctx context.Context) error {
	req, err := c.request(ctx)
	if err != nil {
		return err
	}
	requests := make([]wire.Request, lc01Together)
	for i := range requests {
		if requests[i], err = wire.Sign(ctx, c.t.Target().Authority, req); err != nil {
			return err
		}
	}
	answers, err := wire.Together(ctx, c.t.Target().Authority.Dial, requests)
	if err != nil {
		return err
	}
	c.t.Witness("released-together", int64(len(answers)))
	leases := map[string]int{}
	for _, a := range answers {
		if a.Status != 201 {
			code, err := wire.Refusal(a)
			c.t.Fail("lease-not-joined", "one of %d equal creates: status %d, code %q (%v)", lc01Together, a.Status, code, err)
			continue
		}
		id, err := c.made(req.WorkspaceID, a.Body)
		if err != nil {
			return err
		}
		leases[id]++
	}
	if len(leases) != 1 {
		c.t.Fail("lease-not-joined", "%d equal creates gave %d sandboxes", lc01Together, len(leases))
	}
	if err := c.count(ctx, "after equal creates at once", 1); err != nil {
		return err
	}
	return c.others(ctx, req)
}

// others sends creates that differ from req in one member, and keep its lease's id.
func (c *creates) others(ctx context.Context, req target.RawRequest) error {
	other := c.t.Spec(target.Spec{}).WorkspaceID
	c.t.AdoptWorkspace(other)
	for _, change := range []struct{ what, workspace, member, value string }{
		{"other resources", req.WorkspaceID, "resources", ""},
		{"another session", req.WorkspaceID, "sessionId", `"lc01-other"`},
		{"another workspace", other, "workspaceId", `"` + other + `"`},
	} {
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal(req.Body, &members); err != nil {
			return err
		}
		if change.value == "" {
			members[change.member] = bytes.Replace(members[change.member], []byte(`"pids":256`), []byte(`"pids":255`), 1)
		} else {
			members[change.member] = json.RawMessage(change.value)
		}
		body, err := json.Marshal(members)
		if err != nil {
			return err
		}
		q, err := wire.Sign(ctx, c.t.Target().Authority, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: change.workspace, Body: body})
		if err != nil {
			return err
		}
		a, err := wire.Send(ctx, c.t.Target().Authority.Dial, q)
		if err != nil {
			return fmt.Errorf("create with %s: %w", change.what, err)
		}
		c.t.Witness("other-bodies", 1)
		if code, err := wire.Refusal(a); err != nil || code != wire.Conflict {
			c.t.Fail("conflict-accepted", "the lease's id with %s: status %d, code %q (%v)", change.what, a.Status, code, err)
		}
		if a.Status == 201 {
			if _, err := c.made(change.workspace, a.Body); err != nil {
				return err
			}
		}
	}
	return c.count(ctx, "after other creates under its id", 1)
}

// lost cuts a create's connection in the middle and asks again.
func (c *creates) lost(ctx context.Context) error {
	req, err := c.request(ctx)
	if err != nil {
		return err
	}
	q, err := wire.Sign(ctx, c.t.Target().Authority, req)
	if err != nil {
		return err
	}
	_, mark, err := c.t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	conn, err := c.t.Target().Authority.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(append(q.Head(), q.Body...)); err != nil {
		return err
	}
	seen, err := attack.Eventually(ctx, 20*time.Second, func() (bool, error) {
		calls, _, err := c.t.Target().Observer.Tape(mark)
		for _, call := range calls {
			if underway.IsCreate(call) {
				return true, err
			}
		}
		return false, err
	})
	if err != nil || !seen {
		return fmt.Errorf("the engine was not asked for the container: %w", err)
	}
	// Nothing may have been answered yet; a byte that can be read would be the beginning of it.
	conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, _ := conn.Read(make([]byte, 1)); n == 0 {
		c.t.Witness("answers-lost", 1)
	}
	if err := conn.Close(); err != nil {
		return err
	}
	known := len(c.ids)
	for _, when := range []string{"at once", "once more"} {
		a, err := c.repeat(ctx, req)
		if err != nil {
			return err
		}
		if a.Status != 201 {
			code, err := wire.Refusal(a)
			c.t.Fail("lease-not-joined", "the create after a lost answer, %s: status %d, code %q (%v)", when, a.Status, code, err)
		}
	}
	if n := len(c.ids) - known; n > 1 {
		c.t.Fail("lease-not-joined", "a create and its repetitions gave %d sandboxes", n)
	}
	if len(c.ids) == known {
		// It was judged; the sandbox that nobody was told of has to be found all the same.
		found, err := attack.Eventually(ctx, 20*time.Second, func() (bool, error) {
			a, err := c.repeat(ctx, req)
			return a.Status == 201, err
		})
		if err != nil || !found {
			return fmt.Errorf("the sandbox of the lost create cannot be found: %w", err)
		}
	}
	return c.count(ctx, "after a lost answer", 2)
}

// repeat sends a create with a fresh capability and notes the sandbox that it gives.
func (c *creates) repeat(ctx context.Context, req target.RawRequest) (wire.Answer, error) {
	q, err := wire.Sign(ctx, c.t.Target().Authority, req)
	if err != nil {
		return wire.Answer{}, err
	}
	a, err := wire.Send(ctx, c.t.Target().Authority.Dial, q)
	if err != nil {
		return a, fmt.Errorf("the create again: %w", err)
	}
	if a.Status == 201 {
		_, err = c.made(req.WorkspaceID, a.Body)
	}
	return a, err
}
