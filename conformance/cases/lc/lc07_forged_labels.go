// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// LC07 puts look-alikes beside an orphan and restarts the worker.
var LC07 = conformance.Case{
	ID: "LC-07", Revision: 1, Title: "Forged or foreign labels",
	Requirement: "After a crash only what is provably owned is removed; names and labels prove nothing, and no path is taken from a label.",
	Threat:      "The clean-up deletes somebody else's container, or a folder that a label names.",
	Attack:      "Containers that the suite makes on the engine: with every label of a live sandbox and a name of the worker's form; with another instance's labels; with a path and a huge value as labels; with a name that contains the prefix. One of them runs. The worker is killed and started again.",
	Witness:     "Look-alikes that stood when the worker was started again (4), and the orphan (1).",
	Oracle:      "The engine's own answer for each id afterwards; a hash of the folder that the label names.",
	Precedent:   "TakoVM#76; traceroot#2124; synthorg#2777; hermes#44142",
	Tier:        conformance.Smoke, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureReconcile},
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartRestart, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleEngine, conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m18", Reason: "foreign-removed"}},
	Run:      runLC07,
}

func runLC07(ctx context.Context, t *conformance.T) error {
	// Arrange: a sandbox to be orphaned, and the folder that a label will name.
	socket, err := t.Target().Observer.EngineSocket()
	if err != nil {
		return err
	}
	engine, err := oracle.OpenEngine(socket)
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return engine.Close() })
	sb := t.Sandbox(ctx, target.Spec{})
	t.Tenant(ctx, sb)
	owned, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	named, err := os.MkdirTemp("", "hallmark-lc07-")
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return os.RemoveAll(named) })
	if err := os.WriteFile(filepath.Join(named, "keep"), []byte(t.Canary("label folder")), 0o600); err != nil {
		return err
	}
	folder, err := oracle.HashTree(named)
	if err != nil {
		return err
	}
	// The workspace is unmounted with its orphan, so the running look-alike gets a copy to run.
	program := filepath.Join(named, "..", filepath.Base(named)+"-program")
	body, err := os.ReadFile(filepath.Join(owned.Workspace, conformance.TenantProgram))
	if err != nil {
		return err
	}
	if err := os.WriteFile(program, body, 0o755); err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return os.Remove(program) })

	with := func(changes map[string]string) map[string]string {
		labels := maps.Clone(owned.Labels)
		maps.Copy(labels, changes)
		return labels
	}
	replaced := func(f func(name, value string) string) map[string]string {
		labels := map[string]string{}
		for name, value := range owned.Labels {
			labels[name] = f(name, value)
		}
		return labels
	}
	prefix, _, _ := strings.Cut(owned.Name, "-")
	plants := []struct {
		what    string
		plant   oracle.Plant
		started bool
	}{
		{"every label and a name of the form", oracle.Plant{Name: prefix + "-" + random(16), Labels: with(nil)}, true},
		{"another instance's labels", oracle.Plant{Name: prefix + "-" + random(16), Labels: replaced(func(_, v string) string { return v[:len(v)/2] + "x" })}, false},
		{"a path and a huge value as labels", oracle.Plant{Labels: replaced(func(name, v string) string {
			if strings.Contains(name, "sandbox") {
				return "../../../../.." + named
			}
			return v + strings.Repeat("A", 16<<10)
		})}, false},
		{"a name that contains the prefix", oracle.Plant{Name: "other-" + prefix + "-" + random(16), Labels: with(map[string]string{"other": "yes"})}, false},
	}
	ids := make([]string, len(plants))
	for i, p := range plants {
		p.plant.Image, p.plant.Binary, p.plant.Argv = t.Image(), program, attack.Command("/plant", "memory-hog", "-bytes", "8388608", "-hold", "60s")
		if ids[i], err = engine.Make(ctx, p.plant); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
		t.Cleanup(func(ctx context.Context) error { return engine.Remove(ctx, ids[i]) })
		if p.started {
			if err := engine.Start(ctx, ids[i]); err != nil {
				return fmt.Errorf("%s: %w", p.what, err)
			}
		}
	}

	// Attack: the worker dies and comes back.
	if err := t.Target().Controller.Kill(ctx); err != nil {
		return err
	}
	t.NeedWitness("look-alikes", int64(len(plants)))
	t.NeedWitness("orphans", 1)
	for i := range plants {
		if _, found, err := engine.Inspect(ctx, ids[i]); err != nil {
			return err
		} else if found {
			t.Witness("look-alikes", 1)
		}
	}
	if f, found, err := engine.Inspect(ctx, owned.ID); err != nil {
		return err
	} else if found && f.Running {
		t.Witness("orphans", 1)
	}
	if err := t.Target().Controller.Start(ctx); err != nil {
		t.Fail("restart-failed", "the worker does not come back: %v", err)
	}

	// Verdict.
	gone, err := attack.Eventually(ctx, 10*time.Second, func() (bool, error) {
		_, found, err := engine.Inspect(ctx, owned.ID)
		return !found, err
	})
	if err != nil {
		return err
	}
	for i, p := range plants {
		f, found, err := engine.Inspect(ctx, ids[i])
		switch {
		case err != nil:
			return err
		case !found:
			t.Fail("foreign-removed", "the container with %s is gone", p.what)
		case f.Running != p.started:
			t.Fail("foreign-touched", "the container with %s is running: %v", p.what, f.Running)
		}
	}
	if !gone {
		t.Fail("orphan-kept", "the owned container is still there 10 s after the restart")
	}
	after, err := oracle.HashTree(named)
	if err != nil {
		return err
	}
	if d := folder.Diff(after); len(d) > 0 {
		t.Fail("label-path-trusted", "the folder that a label names changed: %v", d)
	}
	return nil
}

// random is n random bytes in hex.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
