// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-02. A call is held for longer than a dispose needs to arrive, and for less than an
// engine may take.
const (
	lc02Hold   = 700 * time.Millisecond
	lc02Within = 20 * time.Second
	lc02Settle = 200 * time.Millisecond
	lc02Least  = 4
	lc02Random = 3
	lc02Rounds = 24
)

// LC02 disposes sandboxes that are being made.
var LC02 = conformance.Case{
	ID: "LC-02", Revision: 1, Title: "Create versus dispose",
	Requirement: "A sandbox that is disposed while it is being made ends, wherever its making is, and nothing of it stays: no container, no room for creates, no workspace that is held.",
	Threat:      "A caller gives up and disposes; the container that comes a moment later belongs to nobody, or the workspace stays locked.",
	Attack:      "Every engine call of an ordinary create, from the container's on, is held for 0.7 s in a create of its own, and the dispose is sent meanwhile; more creates are disposed at random moments of the time that the ordinary one took.",
	Witness:     "Disposes that were sent while a call of the create was held back and the create had no answer (at least 4), and such at random moments (3, of at most 24 creates).",
	Oracle:      "The engine's own list of the sandbox's containers when the dispose is called done, and afterwards; the state on the wire; a purge of the workspace, which nothing may hold.",
	Precedent:   "vm0#367, E2B#1498, strix#830",
	Tier:        conformance.Full, Timeout: 110 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m42", Reason: "dispose-forgotten"}},
	Run:      runLC02,
}

// unmaking is one run of LC-02.
type unmaking struct {
	t      *conformance.T
	engine *oracle.Engine
	random *rand.Rand
	// takes is the longest that a create may go on after the engine was asked for the container.
	takes time.Duration
	// surprised counts creates that were disposed at a random moment.
	surprised int
}

func runLC02(ctx context.Context, t *conformance.T) error {
	// Arrange: an ordinary create shows of which calls one is made.
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	u := &unmaking{t: t, engine: engine, random: rand.New(rand.NewPCG(uint64(t.Seed()), 2))}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	began := time.Now()
	t.Sandbox(ctx, target.Spec{})
	u.takes = time.Since(began)
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	first := 0
	for first < len(calls) && !underway.IsCreate(calls[first]) {
		first++
	}
	if first == len(calls) {
		return fmt.Errorf("an ordinary create asks for no container in %d calls", len(calls))
	}
	t.NeedWitness("disposed-while-held", lc02Least)
	t.NeedWitness("disposed-at-random", lc02Random)

	// Attack and verdict, call by call.
	for nth := first + 1; nth <= len(calls); nth++ {
		what := calls[nth-1].Method + " " + tail(calls[nth-1].Path)
		if err := u.round(ctx, what, &target.TapeRule{Match: ".", Nth: nth, Fault: target.FaultLate, For: lc02Hold}); err != nil {
			return err
		}
	}
	for n := 0; n < lc02Rounds && u.surprised < lc02Random; n++ {
		if err := u.round(ctx, "a random moment", nil); err != nil {
			return err
		}
	}
	return nil
}

// tail is a path without ids and versions.
func tail(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) == 64 {
			parts[i] = "ID"
		}
	}
	return "/" + strings.Join(parts[min(2, len(parts)-1):], "/")
}

// round begins one create and disposes it: while rule holds a call of it, or at a random moment.
func (u *unmaking) round(ctx context.Context, what string, rule *target.TapeRule) error {
	t := u.t
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	if rule != nil {
		if err := t.Target().Controller.Inject(*rule); err != nil {
			return err
		}
	}
	create, err := underway.Create(ctx, t, target.Spec{})
	if err != nil {
		return err
	}
	// The sandbox has no other name yet than the one in the engine's call.
	sandbox, held := "", false
	if _, err := attack.Eventually(ctx, lc02Within, func() (bool, error) {
		calls, _, err := t.Target().Observer.Tape(mark)
		for _, c := range calls {
			if id := underway.Label(c, attack.LabelSandbox); id != "" {
				sandbox = id
			}
			held = held || c.Fault != ""
		}
		return sandbox != "" && (held || rule == nil) || create.Over(), err
	}); err != nil {
		return err
	}
	if sandbox == "" && create.Over() {
		if res, err := create.Wait(ctx); err == nil && res.Code != "" {
			t.FailNow("room-kept", "%s: after other creates were disposed, a create is answered with status %d and %q", what, res.Status, res.Code)
		}
	}
	if sandbox == "" {
		return fmt.Errorf("%s: the engine was not asked for a container", what)
	}
	moment := time.Duration(u.random.Int64N(int64(u.takes)))
	if rule == nil {
		if err := attack.Pause(ctx, moment); err != nil {
			return err
		}
	}
	// What the engine has when the dispose is answered is asked at once.
	type end struct {
		res  target.RawResponse
		kept int
		err  error
	}
	ended := make(chan end, 1)
	dispose := underway.Send(ctx, t, create.Spec, underway.Disposal(create.Spec.WorkspaceID, sandbox))
	call, _, err := underway.Struck(t, mark)
	if err != nil {
		return err
	}
	switch early := !create.Over(); {
	case early && rule == nil:
		t.Witness("disposed-at-random", 1)
		u.surprised++
	case early && held && call.Status == 0:
		t.Witness("disposed-while-held", 1)
	case rule == nil:
		u.takes = max(moment, time.Millisecond) // it was over before: later moments are none
	}
	go func() {
		var e end
		if e.res, e.err = dispose.Wait(ctx); e.err == nil {
			var list []string
			list, e.err = u.engine.Labelled(ctx, attack.LabelSandbox, sandbox)
			e.kept = len(list)
		}
		ended <- e
	}()
	made, err := create.Wait(ctx)
	if err != nil {
		return fmt.Errorf("%s: create: %w", what, err)
	}
	if err := t.Target().Controller.Calm(); err != nil {
		return err
	}
	// What was held is made now, whoever still wants it: only then can it be seen that nothing stays.
	if _, err := underway.Made(ctx, t, mark, lc02Within); err != nil {
		return err
	}
	if err := attack.Pause(ctx, lc02Settle); err != nil {
		return err
	}
	if err := u.ended(ctx, what, create.Spec.WorkspaceID, sandbox); err != nil {
		return err
	}
	e := <-ended
	if e.err != nil {
		return fmt.Errorf("%s: dispose: %w", what, e.err)
	}
	switch {
	case e.res.Status < 300 && e.kept > 0:
		t.Fail("removal-believed", "%s: the dispose was called done and the engine has %d containers of the sandbox", what, e.kept)
	case e.res.Status >= 300 && e.res.Code != wire.Incomplete:
		t.Fail("code-differs", "%s: the dispose was answered with status %d and %q", what, e.res.Status, e.res.Code)
	}
	t.Observe("disposed in "+what, map[string]int64{"create": int64(made.Status), "dispose": int64(e.res.Status)})
	return nil
}

// ended judges that nothing of a sandbox is left. What is, is disposed once more for the case's own sake.
func (u *unmaking) ended(ctx context.Context, what, workspace, sandbox string) error {
	none, err := underway.Gone(ctx, u.engine, attack.LabelSandbox, sandbox, lc02Within)
	if err != nil {
		return err
	}
	if !none {
		if res, err := u.t.Target().Wire.Raw(ctx, underway.Disposal(workspace, sandbox)); err != nil || res.Status >= 300 {
			return fmt.Errorf("%s: dispose again: status %d, %w", what, res.Status, err)
		}
		u.t.FailNow("dispose-forgotten", "%s: %s after the dispose the sandbox has a container", what, lc02Within)
	}
	// A dispose that could not wait for the whole end says so, and the rest of it follows.
	var state target.RawResponse
	over, err := attack.Eventually(ctx, lc02Within, func() (bool, error) {
		state, err = u.t.Target().Wire.Raw(ctx, target.RawRequest{Op: "get", Method: "GET", Target: "/v1/sandboxes/" + sandbox, WorkspaceID: workspace, SandboxID: sandbox})
		return state.Status >= 300 || strings.Contains(string(state.Body), `"gone"`), err
	})
	if err != nil {
		return err
	}
	if !over {
		u.t.Fail("state-differs", "%s: %s after the dispose the sandbox is %.200s", what, lc02Within, state.Body)
	}
	free, err := underway.Freed(ctx, u.t, workspace, lc02Within)
	if err != nil {
		return err
	}
	if !free {
		u.t.Fail("workspace-held", "%s: %s later the workspace is still held", what, lc02Within)
	}
	return nil
}
