// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-06. Retries begin after 100 ms and double: in three seconds there is room for six, and for
// a few more by an engine client that looks again by itself.
const (
	lc06Hold   = 3 * time.Second
	lc06Calls  = 24
	lc06Within = 30 * time.Second
)

// LC06 makes removals fail.
var LC06 = conformance.Case{
	ID: "LC-06", Revision: 1, Title: "Removal fails",
	Requirement: "A sandbox whose removal fails stays owned, whatever the engine says: nobody is told that it is gone, its workspace is given to nobody, the removal is tried again and not too often, the caller learns a code and nothing of the cause, and it ends when the engine does its part.",
	Threat:      "A removal that the engine refuses, or only claims, leaves a container that nobody owns, with a workspace that the next tenant gets.",
	Attack:      "For three seconds the engine's answer to every removal of one sandbox is an error; that it is in progress; that there is no such container; success. In truth nothing is removed. Meanwhile the sandbox is disposed, and another is asked for over its workspace.",
	Witness:     "Removals that were answered falsely while the engine had the container (at least 2 for each of the four answers), and creates over the workspace meanwhile (4).",
	Oracle:      "The engine's own word, past the tape, when the dispose is called done and when a create over the workspace was answered; removals on the tape; status, code and text on the wire.",
	Precedent:   "moby#31195, #22312; gvisor#9834; ml-intern#163",
	Tier:        conformance.Full, Timeout: 110 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m65", Reason: "removal-believed"}, {Mutant: "m66", Reason: "retries-unbounded"}},
	Run:      runLC06,
}

func runLC06(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	t.NeedWitness("asked-meanwhile", 4)
	for _, says := range []struct {
		what   string
		status int
	}{{"error", 500}, {"in-progress", 409}, {"absent", 404}, {"success", 204}} {
		t.NeedWitness("answers-"+says.what, 2)
		if err := stuck(ctx, t, engine, says.what, says.status); err != nil {
			return err
		}
	}
	return nil
}

// stuck disposes a sandbox while its removals are answered falsely.
func stuck(ctx context.Context, t *conformance.T, engine *oracle.Engine, what string, status int) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	secret := "lc06" + strings.ToLower(rand.Text())
	text := ""
	if status >= 400 {
		text = "removal of container " + c.ID + " is already in progress: " + secret
	}
	if err := t.Target().Controller.Inject(target.TapeRule{Method: "DELETE", Match: `/containers/[^/]+$`, Nth: 1, Times: 1 << 20, Status: status, Text: text}); err != nil {
		return err
	}

	// Attack.
	end := underway.Send(ctx, t, target.Spec{}, underway.Disposal(sb.WorkspaceID(), sb.ID()))
	// What the engine has when the dispose is answered is asked at once.
	type answer struct {
		res  target.RawResponse
		kept bool
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		var a answer
		if a.res, a.err = end.Wait(ctx); a.err == nil {
			_, a.kept, a.err = engine.Inspect(ctx, c.ID)
		}
		ended <- a
	}()
	if err := attack.Pause(ctx, lc06Hold/2); err != nil {
		return err
	}
	_, there, err := engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	other, err := underway.Create(ctx, t, target.Spec{WorkspaceID: sb.WorkspaceID()})
	if err != nil {
		return err
	}
	again, err := other.Wait(ctx)
	if err != nil {
		return err
	}
	_, still, err := engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	if there && still {
		t.Witness("asked-meanwhile", 1)
		if again.Status < 300 {
			t.Fail("workspace-reused", "%s: a create over the workspace of a sandbox that is there was accepted", what)
		}
	}
	if again.Status < 300 {
		t.Cleanup(func(ctx context.Context) error { return attack.DisposeRaw(ctx, t, sb.WorkspaceID(), again.Body) })
	}
	if err := attack.Pause(ctx, lc06Hold/2); err != nil {
		return err
	}
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	removals := int64(0)
	for _, call := range calls {
		if call.Fault != "" {
			removals++
		}
	}
	if _, still, err = engine.Inspect(ctx, c.ID); err != nil {
		return err
	}
	if still {
		t.Witness("answers-"+what, removals)
	}
	t.Observe("removals asked in 3 s, "+what, removals)
	if removals > lc06Calls {
		t.Fail("retries-unbounded", "%s: in %s the engine was asked %d times to remove one container", what, lc06Hold, removals)
	}

	// Verdict: the engine does its part.
	if err := t.Target().Controller.Calm(); err != nil {
		return err
	}
	none, err := attack.Eventually(ctx, lc06Within, func() (bool, error) {
		_, found, err := engine.Inspect(ctx, c.ID)
		return !found, err
	})
	if err != nil {
		return err
	}
	if !none {
		t.Fail("not-removed", "%s: %s after the engine removes again, the container is still there", what, lc06Within)
		return engine.Remove(ctx, c.ID)
	}
	a := <-ended
	if a.err != nil {
		return a.err
	}
	res := a.res
	if res.Status < 300 && a.kept {
		t.Fail("removal-believed", "%s: the dispose was answered with status %d and the engine has the container", what, res.Status)
	}
	if res.Status >= 300 && res.Code != wire.Incomplete {
		t.Fail("code-differs", "%s: the dispose was answered with status %d and %q", what, res.Status, res.Code)
	}
	if strings.Contains(string(res.Body), secret) || strings.Contains(string(again.Body), secret) {
		t.Fail("cause-told", "%s: an answer on the wire holds the engine's own words", what)
	}
	free, err := underway.Freed(ctx, t, sb.WorkspaceID(), lc06Within)
	if err == nil && !free && again.Status >= 300 {
		t.Fail("workspace-held", "%s: %s after the container is gone the workspace is still held", what, lc06Within)
	}
	return err
}
