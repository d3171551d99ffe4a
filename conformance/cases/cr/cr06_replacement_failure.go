// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"context"
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// codeDisposed is the answer to what is asked for after a replacement that failed.
const codeDisposed = "REMOTE_WORKER_SANDBOX_DISPOSED"

// CR06 makes the engine fail at each replacement around a secret-bearing invocation.
var CR06 = conformance.Case{
	ID: "CR-06", Revision: 1, Title: "Replacement failure",
	Requirement: "When a container cannot be replaced before or after a secret-bearing invocation, the caller hears a stable code, no secret reaches the old container, nothing runs in the sandbox any more, and the sandbox stays owned while its removal is tried again, at growing intervals, until it is proven. The provider is told of the end once.",
	Threat:      "A failing engine leaves a container with a secret in it to the next invocation, or a secret goes into a container that others have used.",
	Attack:      "The engine's answers to the removal, six times in a row, or to the creation are replaced by errors, before the secret-bearing command and after it. Then ordinary and secret-bearing commands, and another sandbox for the same workspace, are asked for.",
	Witness:     "Faults that struck (at least 12), and requests that were made while the sandbox could not be removed (at least 1).",
	Oracle:      "Status and code on the wire; a file that the command would leave in the workspace of the old container, seen on the host; the engine calls recorded meanwhile, and the engine, for the containers; the provider's own log.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 300 * time.Second, // four sandboxes, each with two replacements and a removal that is tried again
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m16", Reason: "outcome-despite-failure"}, {Mutant: "m91", Reason: "outcome-despite-failure"}, {Mutant: "m92", Reason: "delivered-to-old"}},
	Run:      runCR06,
}

// breakdown is one way in which a replacement fails.
type breakdown struct {
	name, method, match string
	first, times        int // the faults strike calls first, first+1, ...
	after               bool
}

// cr06Removals is how often a removal fails: with intervals that double from 100 ms it comes about
// three seconds after the failure, which leaves time to ask.
const cr06Removals = 6

func runCR06(ctx context.Context, t *conformance.T) error {
	t.NeedWitness("faults", 2*cr06Removals)
	t.NeedWitness("asked-while-kept", 1)
	for _, d := range []breakdown{
		{"remove before", "DELETE", `/containers/[0-9a-f]{64}$`, 1, cr06Removals, false},
		{"create before", "POST", `/containers/create$`, 1, 1, false},
		{"remove after", "DELETE", `/containers/[0-9a-f]{64}$`, 2, cr06Removals, true},
		{"create after", "POST", `/containers/create$`, 2, 1, true},
	} {
		if err := d.run(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (d breakdown) run(ctx context.Context, t *conformance.T) error {
	// Arrange: a container that an ordinary command has used.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "noop")}); err != nil {
		return err
	}
	old, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	for i := range d.times {
		if err := t.Target().Controller.Inject(target.TapeRule{Method: d.method, Match: d.match, Nth: d.first + i, Status: 500}); err != nil {
			return err
		}
	}

	// Attack: a command that leaves a file wherever it can write one, which is in the old container only.
	args := []string{"effect", "-file", "cr06-delivered"}
	if d.after {
		args = []string{"secret-frame"}
	}
	res, err := b.Wire(ctx, b.Request("cr06-secret", "", attack.Command(b.Program, args...)...))
	if err != nil {
		return err
	}
	failed := time.Now()
	if _, err := os.Lstat(filepath.Join(old.Workspace, "cr06-delivered")); !errors.Is(err, iofs.ErrNotExist) {
		t.Fail("delivered-to-old", "%s: the command ran in the old container, with the secret", d.name)
	}
	switch {
	case res.Status < 300:
		// The other faults are still armed: nothing more can be judged.
		t.FailNow("outcome-despite-failure", "%s: the caller was answered with status %d", d.name, res.Status)
	case res.Code != wire.Incomplete:
		t.Fail("code-differs", "%s: the caller was answered with %q", d.name, res.Code)
	}

	// Verdict: nothing runs any more, and nothing is forgotten.
	if err := d.blocked(ctx, t, b, engine, mark); err != nil {
		return err
	}
	if leases, ends, err := b.Asked("cr06-secret"); err != nil || leases != 1 || ends != 1 {
		t.Fail("not-disposed-once", "%s: the provider was asked %d times, and told of the end %d times, %v", d.name, leases, ends, err)
	}
	if leases, _, err := b.Asked("cr06-later"); err != nil || leases != 0 {
		t.Fail("provider-asked", "%s: the provider was asked %d times for a later command, %v", d.name, leases, err)
	}
	gone, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) {
		state, err := b.State(ctx)
		return state == "gone", err
	})
	if err != nil {
		return err
	}
	if !gone {
		t.Fail("not-retried", "%s: the sandbox is not removed within 30 s, although the engine works again", d.name)
		return nil
	}
	return d.settled(ctx, t, b, engine, old, mark, time.Since(failed))
}

// blocked asks for more while the sandbox ends.
func (d breakdown) blocked(ctx context.Context, t *conformance.T, b *delivery.Box, engine *oracle.Engine, mark int64) error {
	for what, req := range map[string]target.RawRequest{
		"an ordinary command":      wire.Exec(b, "cr06-plain", attack.Command(b.Program, "effect", "-file", "cr06-plain")...),
		"a secret-bearing command": b.Request("cr06-later", "", attack.Command(b.Program, "secret-frame")...),
	} {
		res, err := b.Wire(ctx, req)
		if err != nil {
			return err
		}
		switch {
		case res.Status < 300:
			t.Fail("later-ran", "%s: %s afterwards was answered with status %d", d.name, what, res.Status)
		case res.Code != codeDisposed:
			t.Fail("code-differs", "%s: %s afterwards was answered with %q", d.name, what, res.Code)
		}
	}
	state, err := b.State(ctx)
	if err != nil {
		return err
	}
	left, err := owned(ctx, engine, b.ID())
	if err != nil {
		return err
	}
	if state == "gone" && left > 0 {
		t.Fail("ownership-forgotten", "%s: the sandbox is said to be gone while %d containers of it are there", d.name, left)
	}
	if state != "retiring" {
		return nil
	}
	_, cerr := t.TrySandbox(ctx, target.Spec{WorkspaceID: b.WorkspaceID()})
	if cerr != nil && target.CodeOf(cerr) == "" {
		return cerr
	}
	// Only while the engine still fails is it certain that the sandbox was owned all the time.
	struck, err := d.struck(t, mark)
	if err != nil || struck == d.times {
		return err
	}
	t.Witness("asked-while-kept", 1)
	if cerr == nil {
		t.Fail("workspace-given-away", "%s: another sandbox was made for the workspace while a container of the first had it", d.name)
	}
	return nil
}

// owned counts the containers of a sandbox, running or not, at the engine.
func owned(ctx context.Context, engine *oracle.Engine, sandbox string) (int, error) {
	ids, err := engine.Labelled(ctx, attack.LabelSandbox, sandbox)
	return len(ids), err
}

// struck counts the faults that the tape has given since mark.
func (d breakdown) struck(t *conformance.T, mark int64) (n int, err error) {
	calls, _, err := t.Target().Observer.Tape(mark)
	for _, c := range calls {
		if c.Fault != "" {
			n++
		}
	}
	return n, err
}

// settled judges how it came to an end.
func (d breakdown) settled(ctx context.Context, t *conformance.T, b *delivery.Box, engine *oracle.Engine, old target.Container, mark int64, took time.Duration) error {
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	struck, removals := 0, 0
	for _, c := range calls {
		if c.Fault != "" {
			struck++
		}
		if c.Method == "DELETE" && strings.Contains(c.Path, "/containers/") {
			removals++
		}
	}
	t.Witness("faults", int64(struck))
	// Each container is removed once, and each fault costs one attempt more.
	if most := 2 + struck; d.method == "DELETE" && removals > most {
		t.Fail("retry-unbounded", "%s: %d removals were asked for, %d are needed", d.name, removals, most)
	}
	if least := 1500 * time.Millisecond; d.method == "DELETE" && took < least {
		t.Fail("retry-unbounded", "%s: %d removals within %d ms, without growing intervals", d.name, removals, took.Milliseconds())
	}
	for _, id := range append(delivery.Started(calls), old.ID) {
		// A sandbox that was made for the workspace as soon as it was free has another label.
		if f, found, err := engine.Inspect(ctx, id); err != nil {
			return err
		} else if found && f.Labels[attack.LabelSandbox] == b.ID() {
			t.Fail("ownership-forgotten", "%s: a container is there although the sandbox is gone", d.name)
		}
	}
	if _, err := os.Lstat(filepath.Join(old.Workspace, "cr06-plain")); err == nil {
		t.Fail("later-ran", "%s: an ordinary command ran afterwards", d.name)
	}
	return nil
}
