// SPDX-License-Identifier: Apache-2.0

package im

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// IM05 looks at what really runs below a sandbox.
var IM05 = conformance.Case{
	ID: "IM-05", Revision: 2, Title: "Silent runtime downgrade",
	Requirement: "Every create names the runtime, the engine uses that one, and the process on the host is the pinned sandbox binary, by digest.",
	Threat:      "The engine's default runtime takes over and the sandbox is an ordinary container.",
	Attack:      "Two sandboxes are made on an engine whose default runtime is another one.",
	Witness:     "Sandboxes made while the engine said that its default is another runtime than theirs (2), container creates on the tape (at least 2), host processes whose executable was hashed (2).",
	Oracle:      "HostConfig.Runtime in the recorded requests, compared with the engine's answer for each container and with the runtime that the engine has registered for the pinned binary; sha256 of /proc/<State.Pid>/exe on the host.",
	Precedent:   "TakoVM#57; mirendev#973",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureAdmission}, // who pins no sandbox binary cannot lose it
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartTape},
	Oracles:  []conformance.Oracle{conformance.OracleTape, conformance.OracleEngine, conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m22", Reason: "runtime-implicit"}, {Mutant: "runc", Reason: "sandbox-binary-differs"}},
	Run:      runIM05,
}

func runIM05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	_, pinned, err := t.Target().Observer.SandboxBinary()
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}

	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	registered, err := engine.Runtimes(ctx)
	if err != nil {
		return err
	}
	expected, err := registeredFor(registered, pinned)
	if err != nil {
		return err
	}

	// Attack.
	t.NeedWitness("creates-recorded", 2)
	t.NeedWitness("processes-hashed", 2)
	t.NeedWitness("default-is-another", 2)
	type process struct{ Runtime, Digest string }
	var running []process
	for range 2 {
		sb := t.Sandbox(ctx, target.Spec{})
		c, err := attack.Container(ctx, t, sb)
		if err != nil {
			return err
		}
		digest, err := oracle.ExeDigest(c.Pid)
		if err != nil {
			return err
		}
		t.Witness("processes-hashed", 1)
		if c.Runtime != registered.Default {
			t.Witness("default-is-another", 1)
		}
		running = append(running, process{c.Runtime, digest})
	}

	// Witness.
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	var asked []string
	for _, call := range calls {
		if call.Method != "POST" || !strings.HasSuffix(call.Path, createPath) {
			continue
		}
		var body struct{ HostConfig struct{ Runtime string } }
		if err := json.Unmarshal(call.Body, &body); err != nil {
			return err
		}
		asked = append(asked, body.HostConfig.Runtime)
		t.Witness("creates-recorded", 1)
	}
	t.Observe("runtimes-asked", asked)
	t.Observe("running", running)
	t.Observe("engine-default", registered.Default)
	t.Observe("registered-for-pinned", expected)
	t.Observe("pinned", pinned)

	// Verdict.
	if slices.Contains(asked, "") {
		t.Fail("runtime-implicit", "a create leaves the runtime to the engine's default")
	}
	for _, p := range running {
		if p.Digest != pinned {
			t.Fail("sandbox-binary-differs", "the host process under runtime %s is %s, pinned is %s", p.Runtime, p.Digest, pinned)
		}
		if !slices.Contains(asked, p.Runtime) || !slices.Contains(expected, p.Runtime) {
			t.Fail("runtime-differs", "the engine runs %q; it was asked for %q and has the pinned binary registered as %q", p.Runtime, asked, expected)
		}
	}
	return nil
}

// registeredFor lists the runtimes whose program is the pinned binary. The engine names a path, or
// a type only, of which nothing is known here.
func registeredFor(r oracle.Runtimes, pinned string) ([]string, error) {
	var names []string
	for name, path := range r.Paths {
		if !filepath.IsAbs(path) {
			continue
		}
		digest, err := oracle.FileDigest(path)
		if err != nil {
			return nil, fmt.Errorf("runtime %s: %w", name, err)
		}
		if digest == pinned {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
