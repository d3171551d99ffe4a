// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"context"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of OU-01. A reply is copied a few times on its way (frames, base64, JSON) and the
// collector doubles that: 24 times the budget bounds the worker. In the sandbox only pipes and
// frames may hold output; the fixture itself and the page cache of its binary take some.
const (
	ou01Budget  = 1 << 20
	ou01Worker  = 24 * ou01Budget
	ou01Sandbox = 64 << 20
	ou01Flood   = 64 << 20 // bytes that must have come through for the flood to be one
)

// OU01 floods stdout.
var OU01 = conformance.Case{
	ID: "OU-01", Revision: 1, Title: "stdout flood",
	Requirement: "Output beyond the budget is drained with constant memory, and the reply says that it was cut and by how much.",
	Threat:      "A tenant exhausts the worker's memory, or hides output behind a silent cut.",
	Attack:      "Blocks of 64 KiB on stdout for 3 s, at most 10 GiB, against a budget of 1 MiB.",
	Witness:     "MiB that reached the collector, returned or dropped, as the reply counts them (at least 64); what the tenant says it wrote is recorded beside them.",
	Oracle:      "VmHWM of the worker and the memory peak of the sandbox's cgroup, on the host; sizes in the reply.",
	Precedent:   "inspect_ai#3534; agent-governance-toolkit#2303; sandcastle#698",
	Tier:        conformance.Full, Control: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkerProcess, conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleMemory, conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m08", Reason: "sandbox-memory"}, {Mutant: "m09", Reason: "truncated-in-silence"}},
	Run:      runOU01,
}

func runOU01(ctx context.Context, t *conformance.T) error {
	// Arrange: the first command has paid for what is paid once.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	worker, err := t.Target().Observer.WorkerPid()
	if err != nil {
		return err
	}
	if err := oracle.ResetPeak(worker); err != nil {
		return err
	}
	workerBefore, _, err := oracle.ResidentMemory(worker)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	groupBefore, err := group.Memory()
	if err != nil {
		return err
	}

	// Attack.
	stop := group.Watch(ctx, 20*time.Millisecond)
	progress := attack.Progress(ctx, c.Workspace, "flood.progress")
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "flood", "-time", "3s"), MaxOutput: ou01Budget, Timeout: 20 * time.Second})
	if err := o.Trouble(); err != nil {
		return err
	}
	flood := progress()
	peaks := stop()
	_, workerPeak, err := oracle.ResidentMemory(worker)
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "flood", flood)
	captured := int64(len(o.Result.Stdout) + len(o.Result.Stderr))
	t.NeedWitness("mib-through", ou01Flood>>20)
	t.Witness("mib-through", (captured+o.Result.DroppedBytes)>>20)
	t.Observe("memory", map[string]int64{"workerBefore": workerBefore, "workerPeak": workerPeak, "sandboxBefore": groupBefore, "sandboxPeak": peaks.Memory})
	t.Observe("reply", map[string]any{"code": o.Code, "captured": captured, "dropped": o.Result.DroppedBytes, "truncatedStdout": o.Result.TruncatedStdout,
		"written": flood.Counts["bytes"], "wallMs": o.Wall.Milliseconds(), "timedOut": o.Result.TimedOut})

	// Verdict.
	if grown := workerPeak - workerBefore; grown > ou01Worker {
		t.Fail("worker-memory", "the worker grew by %d bytes, bound %d", grown, int64(ou01Worker))
	}
	if grown := peaks.Memory - groupBefore; grown > ou01Sandbox {
		t.Fail("sandbox-memory", "the sandbox grew by %d bytes, bound %d", grown, int64(ou01Sandbox))
	}
	if o.Err != nil {
		t.Fail("flood-ended-the-exec", "the flood ended in %s", o.Code)
		return nil
	}
	if captured > ou01Budget {
		t.Fail("output-above-budget", "%d bytes were returned, budget %d", captured, ou01Budget)
	}
	if !o.Result.TruncatedStdout {
		t.Fail("truncated-in-silence", "%d of %d bytes were returned and nothing says so", captured, flood.Counts["bytes"])
	}
	if flood.Done && captured+o.Result.DroppedBytes < flood.Counts["bytes"] {
		t.Fail("bytes-unaccounted", "%d captured and %d dropped of %d written", captured, o.Result.DroppedBytes, flood.Counts["bytes"])
	}
	return nil
}
