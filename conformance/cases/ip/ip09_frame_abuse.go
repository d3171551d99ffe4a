// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of IP-09. The attack sends 24 MiB behind each of two lengths; what a sandbox needs for
// the attack's own program and for a frame of the largest honest size is far below the bound.
const (
	ip09Abuses = 27
	ip09Memory = 16 << 20
)

// IP09 sends frames that break the format in every field.
var IP09 = conformance.Case{
	ID: "IP-09", Revision: 1, Title: "Frame abuse",
	Requirement: "A frame that breaks the format is refused before anything is allocated for it, its connection is closed at once, and nothing else changes.",
	Threat:      "A length, a count or a version that is believed exhausts the supervisor or confuses it into an execution.",
	Attack:      "27 broken frames, each on a connection of its own by a root peer that the suite has put into the sandbox and that knows the challenge, so that the form alone can refuse: lengths of 0, 2^31-1 and 2^32-1 (24 MiB follow as far as they are taken), versions, types, reserved bytes, a large first request, trailing and missing bytes, counts, times, budgets, secrets without end or of nothing, a wrong MAC, a repeated request. Then two requests in one write, and a broken frame behind a good one.",
	Witness:     "Broken frames that were sent on a connection which had been greeted (all 27); two requests in one write that were both answered, and a broken one behind a good one.",
	Oracle:      "The memory peak of the sandbox's cgroup, on the host; files that an executed request leaves; the supervisor's counters: each of the 27 is refused for its form or its MAC, none by a deadline, and no invocation is counted; afterwards the worker's next command runs.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 3 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartCgroup},
	Oracles:  []conformance.Oracle{conformance.OracleControl, conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m13", Reason: "length-trusted"}},
	Run:      runIP09,
}

func runIP09(ctx context.Context, t *conformance.T) error {
	// Arrange: the first foothold has paid for what is paid once.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		return err
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	memory, err := group.Memory()
	if err != nil {
		return err
	}

	// Attack, beginning with one length by itself: a supervisor that believes it can be seen to wait for the
	// rest, and may not live through the next one.
	stop := group.Watch(ctx, 10*time.Millisecond)
	defer stop()
	length, err := attack.Foothold(ctx, t, sb, "control-frames", "-file", "/workspace/ip09", "-first")
	if err != nil {
		return err
	}
	believed, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	if n := counted(before, believed)["refused.slow"]; n > 0 {
		t.NeedWitness("broken-frames", 1)
		t.Witness("broken-frames", length.Counts["abuses"])
		t.FailNow("length-trusted", "the supervisor waited for the rest of a frame of 2^31-1 bytes until a deadline, and took %d", length.Counts["flooded"])
	}
	frames, err := attack.Foothold(ctx, t, sb, "control-frames", "-file", "/workspace/ip09")
	peaks := stop()
	if err != nil {
		return err
	}
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		t.Fail("socket-unusable", "a good root peer afterwards: %v", err)
		return nil
	}

	for name, n := range length.Counts {
		frames.Counts[name] += n
	}

	// Witness.
	attack.Witness(t, "frames", frames)
	t.NeedWitness("broken-frames", ip09Abuses)
	t.Witness("broken-frames", frames.Counts["abuses"])
	t.NeedWitness("two-in-one-write", 2)
	t.Witness("two-in-one-write", frames.Counts["pairs"])
	t.NeedWitness("broken-behind-good", 1)
	t.Witness("broken-behind-good", frames.Counts["behind"])
	delta := counted(before, after)
	t.Observe("counters", delta)
	t.Observe("memory", map[string]int64{"before": memory, "peak": peaks.Memory})
	t.Observe("taken-behind-a-length", frames.Counts["flooded"])

	// Verdict.
	effects, err := filepath.Glob(filepath.Join(c.Workspace, "ip09-*"))
	if err != nil {
		return err
	}
	if len(effects) > 0 || delta["invocations"] > 0 {
		t.Fail("broken-frame-executed", "%d files were left and %d invocations counted", len(effects), delta["invocations"])
	}
	if n := delta["refused.slow"]; n > 0 {
		t.Fail("length-trusted", "the supervisor waited for the rest of %d frames until a deadline: %v", n, frames.Facts)
	}
	if grown := peaks.Memory - memory; grown > ip09Memory {
		t.Fail("memory-grown", "the sandbox grew by %d bytes, bound %d", grown, int64(ip09Memory))
	}
	if frames.Counts["ended"] < frames.Counts["abuses"] || frames.Counts["answered"] > 0 {
		t.Fail("connection-kept", "of %d connections with a broken frame %d were closed and %d answered: %v", frames.Counts["abuses"], frames.Counts["ended"], frames.Counts["answered"], frames.Facts)
	}
	if refused := delta["refused.frame"] + delta["refused.mac"]; refused < frames.Counts["abuses"] {
		t.Fail("refusal-not-recorded", "%d broken frames were sent and %d refusals counted", frames.Counts["abuses"], refused)
	}
	if next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return next.Trouble()
	} else if next.Err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", next.Err)
	}
	return nil
}
