// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-05. A call is held for longer than anybody waits for a small command, and
// for less than a create may take.
const (
	lc05Stall   = 20 * time.Second
	lc05Asked   = 24
	lc05Pending = 16 // creates that may be under way at once
	lc05Settle  = 3 * time.Second
	lc05Watch   = 10 * time.Second
	lc05Command = 5 * time.Second
	lc05Files   = 8 * lc05Asked
	lc05Within  = 60 * time.Second
)

// LC05 holds every call for a container back.
var LC05 = conformance.Case{
	ID: "LC-05", Revision: 1, Title: "dockerd stalled",
	Requirement: "While the engine makes no container, commands in sandboxes that are there go on, creates beyond a bound are refused at once, and what is under way is bounded too; when it goes on, each create has one container or none, and new ones are served.",
	Threat:      "A hanging engine takes the runtime with it; or callers that try again pile up requests, each of which becomes a container when the engine wakes.",
	Attack:      "Each call that makes a container is held for 20 s, and made then. Meanwhile 24 creates are asked for at once, and small commands run one after another in a sandbox from before.",
	Witness:     "Calls for a container that are still held when all the commands have run (at least 1), creates that were asked for meanwhile (24), commands that ran while calls were held (at least 10).",
	Oracle:      "Times and codes of the answers; the worker's descriptors, counted by the host; the engine's own list of the worker's containers when every held call has been made, against the creates that were accepted; a create after that.",
	Precedent:   "docker/for-linux#1319, moby#33828",
	Tier:        conformance.Full, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs: []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath, conformance.PartWorkerProcess,
		conformance.PartConcurrent},
	Oracles: []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine, conformance.OracleDescriptors},
	Kills:   []conformance.Kill{{Mutant: "m02", Reason: "creates-unbounded"}},
	Run:     runLC05,
}

func runLC05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	before, err := engine.Labelled(ctx, attack.LabelWorker, c.Labels[attack.LabelWorker])
	if err != nil {
		return err
	}
	pid, err := t.Target().Observer.WorkerPid()
	if err != nil {
		return err
	}
	files, err := oracle.Descriptors(pid)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	t.NeedWitness("calls-held", 1)
	t.NeedWitness("creates-asked", lc05Asked)
	t.NeedWitness("commands-meanwhile", 10)
	if err := t.Target().Controller.Inject(target.TapeRule{Method: "POST", Match: `/containers/create$`, Nth: 1, Times: 1 << 20, Fault: target.FaultLate, For: lc05Stall}); err != nil {
		return err
	}

	// Attack.
	began := time.Now()
	var asks []*underway.Ask
	for range lc05Asked {
		a, err := underway.Create(ctx, t, target.Spec{})
		if err != nil {
			return err
		}
		asks = append(asks, a)
	}
	t.Witness("creates-asked", lc05Asked)
	if err := attack.Pause(ctx, lc05Settle); err != nil {
		return err
	}
	pending := 0
	for _, a := range asks {
		if !a.Over() {
			pending++
		}
	}
	if pending > lc05Pending {
		t.Fail("creates-unbounded", "%s after %d creates were asked for at once, %d of them are under way", lc05Settle, lc05Asked, pending)
	}
	var slowest time.Duration
	for time.Since(began) < lc05Watch {
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 2 * lc05Command})
		if err := o.Trouble(); err != nil {
			return err
		}
		if o.Code != "" || o.Result.ExitCode != 0 {
			t.Fail("command-refused", "while the engine is held a command ends with code %q, exit code %d", o.Code, o.Result.ExitCode)
		}
		slowest = max(slowest, o.Wall)
		t.Witness("commands-meanwhile", 1)
	}
	if slowest > lc05Command {
		t.Fail("command-delayed", "while the engine is held a command took %s", slowest.Round(time.Millisecond))
	}
	now, err := oracle.Descriptors(pid)
	if err != nil {
		return err
	}
	if now > files+lc05Files {
		t.Fail("descriptors-unbounded", "while the engine is held the worker has %d descriptors; before it had %d", now, files)
	}
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, call := range calls {
		if underway.IsCreate(call) && call.Fault != "" && call.Status == 0 {
			t.Witness("calls-held", 1)
		}
	}
	t.Observe("stall", map[string]int64{"pending": int64(pending), "slowestMs": slowest.Milliseconds(), "descriptors": now, "descriptorsBefore": files})

	// Verdict: the engine answers again.
	if err := t.Target().Controller.Calm(); err != nil {
		return err
	}
	if made, err := underway.Made(ctx, t, mark, 2*lc05Stall); err != nil || !made {
		return fmt.Errorf("calls that were held are not made: %w", err)
	}
	accepted := 0
	for _, a := range asks {
		res, err := a.Wait(ctx)
		if err != nil {
			return err
		}
		switch {
		case res.Status == 201:
			accepted++
			t.Cleanup(func(ctx context.Context) error { return attack.DisposeRaw(ctx, t, a.Spec.WorkspaceID, res.Body) })
		case res.Code == "":
			t.Fail("code-differs", "a create was answered with status %d and no code", res.Status)
		}
	}
	var list []string
	settled, err := attack.Eventually(ctx, lc05Within, func() (bool, error) {
		list, err = engine.Labelled(ctx, attack.LabelWorker, c.Labels[attack.LabelWorker])
		return len(list)-len(before) == accepted, err
	})
	if err != nil {
		return err
	}
	if !settled {
		t.Fail("second-container", "%d creates were accepted, and %s later the engine has %d containers more", accepted, lc05Within, len(list)-len(before))
	}
	t.Observe("accepted", accepted)
	after, err := t.TrySandbox(ctx, target.Spec{})
	if err != nil && target.CodeOf(err) == "" {
		return err
	}
	if err != nil {
		t.Fail("not-recovered", "a create after the stall ended with %v", err)
		return nil
	}
	return after.Dispose(ctx)
}
