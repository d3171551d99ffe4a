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
	"slices"
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
	Attack:      "Containers that the suite makes on the engine. Under the worker's own label: every label of a live sandbox with a name of the worker's form, and with the sandbox's own name and one letter more; a path and a huge value as sandbox and generation; a name that contains the prefix. Besides: another worker's label, and a name of the worker's form without any label. One of them runs. The worker is killed and started again.",
	Witness:     "Look-alikes that stood when the worker was started again (6), those that the engine then listed under the worker's label (4), and the orphan (1).",
	Oracle:      "The engine's own answer for each id afterwards; a hash of the folder that the label names.",
	Precedent:   "TakoVM#76; traceroot#2124; synthorg#2777; hermes#44142",
	Tier:        conformance.Smoke, Timeout: 90 * time.Second,
	Exclusive: true, // a worker that removes what is not its own takes other processes' sandboxes too
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureReconcile},
	Needs:     []conformance.Part{conformance.PartEngine, conformance.PartRestart, conformance.PartWorkspacePath},
	Oracles:   []conformance.Oracle{conformance.OracleEngine, conformance.OracleTreeHash},
	Kills:     []conformance.Kill{{Mutant: "m18", Reason: "foreign-removed"}},
	Run:       runLC07,
}

func runLC07(ctx context.Context, t *conformance.T) error {
	// Arrange: a sandbox to be orphaned, and the folder that a label will name.
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
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
	worker := owned.Labels[attack.LabelWorker]
	if worker == "" || owned.Labels[attack.LabelSandbox] == "" || owned.Labels[attack.LabelGeneration] == "" {
		return fmt.Errorf("the sandbox's container lacks a label of ownership: %v", owned.Labels)
	}
	prefix, _, _ := strings.Cut(owned.Name, "-")
	plants := []struct {
		what    string
		plant   oracle.Plant
		listed  bool // under the worker's label: the worker's own listing shows it
		started bool
	}{
		{"every label and a name of the form", oracle.Plant{Name: prefix + "-" + random(16), Labels: with(nil)}, true, true},
		{"every label and the owned name as prefix", oracle.Plant{Name: owned.Name + "x", Labels: with(nil)}, true, false},
		{"a path and a huge value as labels", oracle.Plant{Name: prefix + "-" + random(16), Labels: with(map[string]string{
			attack.LabelSandbox: "../../../../.." + named, attack.LabelGeneration: strings.Repeat("9", 16<<10),
		})}, true, false},
		{"a name that contains the prefix", oracle.Plant{Name: "other-" + prefix + "-" + random(16), Labels: with(map[string]string{"other": "yes"})}, true, false},
		{"another worker's label", oracle.Plant{Name: prefix + "-" + random(16), Labels: with(map[string]string{attack.LabelWorker: otherWorker(worker)})}, false, false},
		{"a name of the form and no label", oracle.Plant{Name: prefix + "-" + random(16)}, false, false},
	}
	parent, err := attack.Parent(t)
	if err != nil {
		return err
	}
	ids := make([]string, len(plants))
	for i, p := range plants {
		p.plant.CgroupParent = parent
		p.plant.Image, p.plant.Binary, p.plant.Argv = t.Image(), program, attack.Command("/plant", "memory-hog", "-bytes", "8388608", "-hold", "5m")
		if ids[i], err = engine.Make(ctx, p.plant); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
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
	listed, err := engine.Labelled(ctx, attack.LabelWorker, worker)
	if err != nil {
		return err
	}
	t.NeedWitness("look-alikes", int64(len(plants)))
	t.NeedWitness("orphans", 1)
	reach := int64(0)
	for i, p := range plants {
		if p.listed {
			reach++
		}
		if is := slices.Contains(listed, ids[i]); is && p.listed {
			t.Witness("listed-as-ours", 1)
		} else if is != p.listed {
			return fmt.Errorf("the container with %s: listed under the worker's label: %v", p.what, is)
		}
		if _, found, err := engine.Inspect(ctx, ids[i]); err != nil {
			return err
		} else if found {
			t.Witness("look-alikes", 1)
		}
	}
	t.NeedWitness("listed-as-ours", reach)
	if f, found, err := engine.Inspect(ctx, owned.ID); err != nil {
		return err
	} else if found && f.Running {
		t.Witness("orphans", 1)
	}
	if err := t.Target().Controller.Start(ctx); err != nil && target.CodeOf(err) == "" {
		return fmt.Errorf("start the worker again: %w", err)
	} else if err != nil {
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

// otherWorker is another id of the same form: the last letter or digit differs.
func otherWorker(id string) string {
	last := byte('0')
	if id[len(id)-1] == last {
		last = '1'
	}
	return id[:len(id)-1] + string(last)
}

// random is n random bytes in hex.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
