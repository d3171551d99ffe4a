// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-04. A create is held back for longer than a worker needs to come back; what comes
// late is looked for at most every 5 s by the protocol's own rule.
const (
	lc04Late   = 12 * time.Second
	lc04Within = 25 * time.Second
	lc04Cgroup = 5 * time.Second
	lc04Steps  = 5
)

// LC04 kills the worker in the middle of what it does, and starts it again.
var LC04 = conformance.Case{
	ID: "LC-04", Revision: 1, Title: "Worker SIGKILL",
	Requirement: "Whenever the worker dies, its next start ends what it left, before it serves: containers, commands, secrets that were delivered. What was asked of the engine and comes later is removed too. No workspace stays locked.",
	Threat:      "Sandboxes that nobody knows run on after a crash, with a secret in them; a container comes to life minutes after its owner has died.",
	Attack:      "SIGKILL of the worker while a command runs; while a command with a secret runs; while the engine is asked to start a container; while a removal is under way; and while a create is held back for 12 s, so that the engine makes the container when the next worker serves already.",
	Witness:     "Steps at which the worker was killed (5), each seen on the tape or by a heartbeat just before; beats before the kill (at least 4); containers that the engine made after the next start (1).",
	Oracle:      "The engine's own list under the worker's label, when the next start is done and later; cgroups; the tape's order of the start and the late create; a purge of each workspace.",
	Precedent:   "daytona#129, e2b-dev/infra#1568, #2041, OpenSandbox#1780, llxprt-code#3449",
	Tier:        conformance.Full, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureReconcile, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs: []conformance.Part{conformance.PartEngine, conformance.PartCgroup, conformance.PartRestart, conformance.PartTape, conformance.PartWire, conformance.PartWorkspacePath,
		conformance.PartSecrets, conformance.PartFoothold, conformance.PartConcurrent},
	Oracles: []conformance.Oracle{conformance.OracleEngine, conformance.OracleCgroup, conformance.OracleHeartbeat, conformance.OracleTape, conformance.OracleWire},
	Kills:   []conformance.Kill{{Mutant: "m59", Reason: "late-container-kept"}, {Mutant: "m64", Reason: "orphan-kept"}},
	Run:     runLC04,
}

// crash is one run of LC-04.
type crash struct {
	t      *conformance.T
	engine *oracle.Engine
	worker string // value of the worker's label
}

func runLC04(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	k := &crash{t: t, engine: engine}
	t.NeedWitness("killed-at", lc04Steps)
	t.NeedWitness("beats", 4)
	t.NeedWitness("came-late", 1)
	for _, step := range []func(context.Context) error{k.command, k.secret, k.start, k.removal, k.create} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// again kills the worker and starts it again. ready says that its start was refused or not.
func (k *crash) again(ctx context.Context, what string) (ready bool, err error) {
	if err := k.t.Target().Controller.Kill(ctx); err != nil {
		return false, err
	}
	k.t.Witness("killed-at", 1)
	err = k.t.Target().Controller.Start(ctx)
	if err != nil && target.CodeOf(err) == "" {
		return false, fmt.Errorf("%s: start the worker again: %w", what, err)
	}
	if err != nil {
		k.t.Fail("restart-failed", "%s: the worker does not come back: %v", what, err)
	}
	return err == nil, nil
}

// left judges what is there when the next worker serves.
func (k *crash) left(ctx context.Context, reason, what string, c target.Container, workspace string) error {
	_, found, err := k.engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	if found {
		k.t.Fail(reason, "%s: the container is still there when the next worker serves", what)
		if err := k.engine.Remove(ctx, c.ID); err != nil { // it is in the way of what follows
			return err
		}
	}
	// The kernel drops an empty cgroup a little later than the engine says that its container is gone.
	group := oracle.Cgroup{Dirs: c.Cgroups}
	none, err := attack.Eventually(ctx, lc04Cgroup, func() (bool, error) { return len(c.Cgroups) == 0 || !group.Exists(), nil })
	if err != nil {
		return err
	}
	if !none {
		k.t.Fail(reason, "%s: %s after the next worker serves the container's cgroup is still there", what, lc04Cgroup)
	}
	return k.free(ctx, what, workspace)
}

// free judges that nothing holds a workspace.
func (k *crash) free(ctx context.Context, what, workspace string) error {
	free, err := underway.Freed(ctx, k.t, workspace, lc04Within)
	if err == nil && !free {
		k.t.Fail("workspace-held", "%s: %s after the start the workspace is still held", what, lc04Within)
	}
	return err
}

// sandbox makes one, with the attack program in it.
func (k *crash) sandbox(ctx context.Context) (sb target.Sandbox, c target.Container, program string, err error) {
	sb = k.t.Sandbox(ctx, target.Spec{})
	program = k.t.Tenant(ctx, sb)
	c, err = attack.Container(ctx, k.t, sb)
	k.worker = c.Labels[attack.LabelWorker]
	return sb, c, program, err
}

// command kills while a command runs.
func (k *crash) command(ctx context.Context) error {
	sb, c, program, err := k.sandbox(ctx)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "beat", "-life", "1m"), Timeout: time.Minute})
	}()
	beat := filepath.Join(c.Workspace, "beat")
	if err := oracle.WaitBeating(ctx, beat, 4, lc04Within); err != nil {
		return err
	}
	k.t.Witness("beats", 4)
	ready, err := k.again(ctx, "a command runs")
	if err != nil || !ready {
		return err
	}
	<-over
	return k.left(ctx, "orphan-kept", "a command runs", c, sb.WorkspaceID())
}

// secret kills while a command holds a secret.
func (k *crash) secret(ctx context.Context) error {
	b, err := delivery.Arrange(ctx, k.t)
	if err != nil {
		return err
	}
	before, err := attack.Container(ctx, k.t, b)
	if err != nil {
		return err
	}
	run := underway.Send(ctx, k.t, target.Spec{}, b.Request("lc04-secret", "", attack.Command(b.Program, "secret-display", "-wait", "/workspace/lc04-never")...))
	var c target.Container
	there, err := attack.Eventually(ctx, lc04Within, func() (bool, error) {
		// Containers come and go meanwhile: only the new one counts, and only with the command in it.
		var err error
		if c, err = attack.Container(ctx, k.t, b); err != nil || c.ID == before.ID || c.Pid == 0 {
			return false, nil
		}
		census, err := attack.Foothold(ctx, k.t, b, "census")
		return err == nil && census.Counts["tenants"] >= 2, nil
	})
	if err != nil || !there {
		return fmt.Errorf("the command with the secret is not seen: %w", err)
	}
	ready, err := k.again(ctx, "a command with a secret runs")
	if err != nil || !ready {
		return err
	}
	run.Wait(ctx) // its connection broke
	return k.left(ctx, "secret-container-kept", "a command with a secret runs", c, b.WorkspaceID())
}

// held begins what rule holds, kills the worker meanwhile, and lets it come back.
func (k *crash) held(ctx context.Context, what string, rule target.TapeRule, begin func() (*underway.Ask, error)) (a *underway.Ask, mark int64, ready bool, err error) {
	if _, mark, err = k.t.Target().Observer.Tape(0); err != nil {
		return nil, 0, false, err
	}
	if err = k.t.Target().Controller.Inject(rule); err != nil {
		return nil, 0, false, err
	}
	if a, err = begin(); err != nil {
		return nil, 0, false, err
	}
	seen, err := attack.Eventually(ctx, lc04Within, func() (bool, error) {
		_, found, err := underway.Struck(k.t, mark)
		return found, err
	})
	if err != nil || !seen {
		return nil, 0, false, fmt.Errorf("%s: the engine was not asked: %w", what, err)
	}
	ready, err = k.again(ctx, what)
	a.Wait(ctx) // its connection broke
	return a, mark, ready, err
}

// start kills while the engine is asked to start a container.
func (k *crash) start(ctx context.Context) error {
	const what = "a container is being started"
	a, _, ready, err := k.held(ctx, what, target.TapeRule{Method: "POST", Match: `/start$`, Nth: 1, Fault: target.FaultLate, For: time.Second},
		func() (*underway.Ask, error) { return underway.Create(ctx, k.t, target.Spec{}) })
	if err != nil || !ready {
		return err
	}
	if none, err := underway.Gone(ctx, k.engine, attack.LabelWorker, k.worker, time.Second); err != nil {
		return err
	} else if !none {
		k.t.Fail("orphan-kept", "%s: a container is still there when the next worker serves", what)
	}
	return k.free(ctx, what, a.Spec.WorkspaceID)
}

// removal kills while a sandbox is removed.
func (k *crash) removal(ctx context.Context) error {
	const what = "a container is being removed"
	sb, c, _, err := k.sandbox(ctx)
	if err != nil {
		return err
	}
	_, _, ready, err := k.held(ctx, what, target.TapeRule{Method: "DELETE", Match: `/containers/`, Nth: 1, Fault: target.FaultStall, For: time.Minute},
		func() (*underway.Ask, error) {
			return underway.Send(ctx, k.t, target.Spec{}, underway.Disposal(sb.WorkspaceID(), sb.ID())), nil
		})
	if err != nil || !ready {
		return err
	}
	return k.left(ctx, "orphan-kept", what, c, sb.WorkspaceID())
}

// create kills while a create is on its way to the engine, which gets it when the next worker serves.
func (k *crash) create(ctx context.Context) error {
	const what = "a create is on its way"
	// The workspace is an older one: a new one goes with a create that failed, and the engine makes no container
	// over a folder that is not there.
	earlier, _, _, err := k.sandbox(ctx)
	if err != nil {
		return err
	}
	if err := earlier.Dispose(ctx); err != nil {
		return err
	}
	a, mark, ready, err := k.held(ctx, what, target.TapeRule{Method: "POST", Match: `/containers/create$`, Nth: 1, Fault: target.FaultLate, For: lc04Late},
		func() (*underway.Ask, error) {
			return underway.Create(ctx, k.t, target.Spec{WorkspaceID: earlier.WorkspaceID()})
		})
	if err != nil || !ready {
		return err
	}
	call, _, err := underway.Struck(k.t, mark)
	if err != nil {
		return err
	}
	if call.Status != 0 {
		return nil // the engine was faster than the next worker: without the witness nothing is shown
	}
	made, err := attack.Eventually(ctx, 2*lc04Late, func() (bool, error) {
		call, _, err = underway.Struck(k.t, mark)
		return call.Status != 0, err
	})
	if err != nil {
		return err
	}
	if !made || call.Status != 201 {
		return fmt.Errorf("%s: the engine answered the late call with status %d", what, call.Status)
	}
	k.t.Witness("came-late", 1)
	none, err := underway.Gone(ctx, k.engine, attack.LabelSandbox, underway.Label(call, attack.LabelSandbox), lc04Within)
	if err != nil {
		return err
	}
	if !none {
		k.t.Fail("late-container-kept", "%s after it came, a container of a create before the crash is still there", lc04Within)
		return k.drop(ctx, underway.Label(call, attack.LabelSandbox))
	}
	return k.free(ctx, what, a.Spec.WorkspaceID)
}

// drop removes what the worker under test has left: it is the case's doing that it is there.
func (k *crash) drop(ctx context.Context, sandbox string) error {
	list, err := k.engine.Labelled(ctx, attack.LabelSandbox, sandbox)
	if err != nil {
		return err
	}
	for _, id := range list {
		if err := k.engine.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
