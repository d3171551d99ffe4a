// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-13.
const (
	lc13Hold   = 12 * time.Second // longer than both exchanges take
	lc13Lease  = 12 * time.Second
	lc13After  = 3 * time.Second
	lc13Within = 20 * time.Second
)

// LC13 lets news of an earlier generation arrive when a later one lives.
var LC13 = conformance.Case{
	ID: "LC-13", Revision: 1, Title: "Stale callback after recreate",
	Requirement: "What was meant for an earlier sandbox, or for an earlier container of the same one, does nothing to what lives now: the end of a container that was replaced, the lease of a sandbox that is gone, a second dispose of it.",
	Threat:      "A timer or a notice that comes late removes somebody else's work.",
	Attack:      "The container of a sandbox is exchanged twice, by a command with a secret; what the worker asked the engine about the first container's end is held back until the third one runs. Then a sandbox over a workspace of which another one was disposed: the other's lease ends, and it is disposed once more.",
	Witness:     "Answers about the end of the first container that came when the third one ran (at least 1); leases of the earlier sandbox whose time came while the later one lived (1), and disposes of it that were answered meanwhile (1).",
	Oracle:      "The engine's own word on the container that lives, and a command in it afterwards.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath, conformance.PartSecrets, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m67", Reason: "stale-removal"}},
	Run:      runLC13,
}

func runLC13(ctx context.Context, t *conformance.T) error {
	t.NeedWitness("stale-answers", 1)
	t.NeedWitness("stale-leases", 1)
	t.NeedWitness("disposed-again", 1)
	if err := replaced(ctx, t); err != nil {
		return err
	}
	return recreated(ctx, t)
}

// replaced holds the news of the first container's end back until the third one runs.
func replaced(ctx context.Context, t *conformance.T) error {
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	if err := t.Target().Controller.Inject(target.TapeRule{Method: "POST", Match: `/wait$`, Nth: 1, Fault: target.FaultLate, For: lc13Hold}); err != nil {
		return err
	}
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	first, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	if _, err := b.Run(ctx, "lc13-secret", "secret-frame"); err != nil {
		return err
	}
	third, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	if third.ID == first.ID {
		return fmt.Errorf("a command with a secret did not exchange the container")
	}
	call, _, err := underway.Struck(t, mark)
	if err != nil {
		return err
	}
	if !strings.Contains(call.Path, first.ID) {
		return fmt.Errorf("the call that was held is not about the first container: %s", call.Path)
	}
	if call.Status == 0 {
		answered, err := attack.Eventually(ctx, lc13Within, func() (bool, error) {
			call, _, err = underway.Struck(t, mark)
			return call.Status != 0, err
		})
		if err != nil {
			return err
		}
		if answered {
			t.Witness("stale-answers", 1)
		}
	}
	if err := attack.Pause(ctx, lc13After); err != nil {
		return err
	}
	return lives(ctx, t, b, b.Program, third, "after the news of its first container's end")
}

// recreated lets the lease of a disposed sandbox end when another one has its workspace.
func recreated(ctx context.Context, t *conformance.T) error {
	asked := time.Now()
	earlier := t.Sandbox(ctx, target.Spec{HardTimeout: lc13Lease})
	ends := time.Now().Add(lc13Lease) // at the latest; asked plus the lease is when it ends at the earliest
	if err := earlier.Dispose(ctx); err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{WorkspaceID: earlier.WorkspaceID()})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	if time.Now().Before(asked.Add(lc13Lease)) {
		t.Witness("stale-leases", 1)
	}
	if err := earlier.Dispose(ctx); err != nil {
		t.Fail("code-differs", "the second dispose of a sandbox that is gone: %v", err)
	} else {
		t.Witness("disposed-again", 1)
	}
	if err := attack.Pause(ctx, time.Until(ends)+lc13After); err != nil {
		return err
	}
	return lives(ctx, t, sb, program, c, "after the lease of the earlier sandbox of its workspace")
}

// lives judges that a sandbox has the container that it had, and runs commands.
func lives(ctx context.Context, t *conformance.T, sb target.Sandbox, program string, c target.Container, when string) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	f, found, err := engine.Inspect(ctx, c.ID)
	if err != nil {
		return err
	}
	if !found || !f.Running {
		t.Fail("stale-removal", "%s the container does not run any more", when)
	}
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")})
	if err := o.Trouble(); err != nil {
		return err
	}
	if o.Code != "" || o.Result.ExitCode != 0 {
		t.Fail("stale-removal", "%s a command ends with code %q, exit code %d", when, o.Code, o.Result.ExitCode)
	}
	return nil
}
