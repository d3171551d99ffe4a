// SPDX-License-Identifier: Apache-2.0

package im

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// IM05 looks at what really runs below a sandbox.
var IM05 = conformance.Case{
	ID: "IM-05", Revision: 1, Title: "Silent runtime downgrade",
	Requirement: "Every create names the runtime, and the process on the host is the pinned sandbox binary, by digest.",
	Threat:      "The engine's default runtime takes over and the sandbox is an ordinary container.",
	Attack:      "Two sandboxes are made on an engine whose default runtime is another one.",
	Witness:     "Container creates on the tape (at least 2) and host processes whose executable was hashed (2).",
	Oracle:      "HostConfig.Runtime in the recorded requests and in the engine's answer; sha256 of /proc/<State.Pid>/exe on the host.",
	Precedent:   "TakoVM#57; mirendev#973",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec},
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

	// Attack.
	t.NeedWitness("creates-recorded", 2)
	t.NeedWitness("processes-hashed", 2)
	running := map[string]string{}
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
		running[digest] = c.Runtime
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
	t.Observe("pinned", pinned)

	// Verdict.
	for _, name := range asked {
		if name == "" {
			t.Fail("runtime-implicit", "a create leaves the runtime to the engine's default")
		}
	}
	for digest, name := range running {
		if digest != pinned {
			t.Fail("sandbox-binary-differs", "the host process under runtime %s is %s, pinned is %s", filepath.Base(name), digest, pinned)
		}
	}
	return nil
}
