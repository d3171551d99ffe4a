// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-04. A zombie is a task of the host's where the host's kernel runs the tenant; a
// sentry holds its own. The reply may need the time to look at a thousand of them on a busy machine, as the tenant does.
const (
	pr04Rounds = 2
	pr04Each   = 1000
	pr04PIDs   = 512
	pr04Least  = 150 // zombies at once that a farm makes at least, however slow the machine is
	pr04Slack  = 60  // tasks: a sentry makes some threads for so many processes, and keeps them
	pr04Dead   = 8   // zombies
	pr04Free   = 3 * time.Second
	pr04Reply  = 5 * time.Second // and ten times what one look at all processes took inside
)

// PR04 leaves zombies behind.
var PR04 = conformance.Case{
	ID: "PR-04", Revision: 1, Title: "Zombie farm",
	Requirement: "The dead of an invocation are waited for when their parent dies, in its lifetime and at its end: their numbers are free again at once, the reply is not held up, and the next command starts.",
	Threat:      "Zombies use up the process numbers of a sandbox that looks idle.",
	Attack:      "Up to 1,000 children, as many as two seconds give and at least 150, exit under a parent that never waits and then dies: first a child of the leader, then the leader itself, that exits 0. Then both once more in the next command.",
	Witness:     "Zombies at once, counted inside from /proc, under the leader of each command (at least 150), and children in all (at least 600).",
	Oracle:      "pids.current on the host from the reply on; the dead in the whole sandbox, counted by root past the runtime, where that is to be had; the time of the reply, seen by the client; whether the second command gets as far as the first.",
	Precedent:   "-",
	Tier:        conformance.Full, Control: true, Timeout: 240 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m77", Reason: "zombies-kept"}},
	Run:      runPR04,
}

func runPR04(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{PIDs: pr04PIDs})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		return err // helpers that are made once are there now
	}
	before, err := group.PIDs()
	if err != nil {
		return err
	}
	last := fmt.Sprintf("zombies round %d", pr04Rounds-1)
	t.NeedWitness("children", 2*pr04Rounds*pr04Least)
	var reached [2]int64
	for i, name := range []string{"first", "second"} {
		// Attack.
		stop := group.Watch(ctx, 5*time.Millisecond)
		started := time.Now()
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "zombie-farm", "-rounds", fmt.Sprint(pr04Rounds), "-each", fmt.Sprint(pr04Each), "-least", fmt.Sprint(pr04Least), "-seconds", "2"), Timeout: 90 * time.Second})
		replied := time.Now()
		peaks := stop()
		if err := o.Trouble(); err != nil {
			return err
		}

		// Witness.
		attack.Witness(t, name+"-farm", o.Report)
		t.Witness("children", o.Report.Counts["children"])
		t.NeedWitness("zombies-at-once in the "+name, pr04Least)
		reached[i] = o.Report.Counts[last]
		t.Witness("zombies-at-once in the "+name, reached[i])

		// Verdict.
		var tasks int64
		free, err := attack.Eventually(ctx, pr04Free, func() (bool, error) {
			tasks, err = group.PIDs()
			return tasks <= before+pr04Slack, err
		})
		if err != nil {
			return err
		}
		freed := time.Since(replied)
		// What the leader saw by itself ends before its exit: the rest of the wall time is the runtime's.
		held := o.Wall - time.Duration(o.Report.Counts["ms"])*time.Millisecond
		dead := int64(-1)
		root, err := attack.Foothold(ctx, t, sb, "zombies")
		switch {
		case err == nil:
			dead = root.Counts["zombies"]
		case !errors.Is(err, target.ErrUnavailable):
			return err
		}
		t.Observe(name, map[string]any{"inside": o.Report.Counts, "exitCode": o.Result.ExitCode, "code": o.Code, "descendantsKilled": o.Result.DescendantsKilled, "wallMs": replied.Sub(started).Milliseconds(),
			"heldUpMs": held.Milliseconds(), "tasksBefore": before, "tasksPeak": peaks.PIDs, "tasksAfter": tasks, "freedMs": freed.Milliseconds(), "zombiesAfter": dead})
		if !free {
			t.Fail("zombies-kept", "%s command: %d tasks %s after the reply, and %d before", name, tasks, pr04Free, before)
		}
		if dead > pr04Dead {
			t.Fail("zombies-kept", "%s command: root counts %d dead in the sandbox after the reply", name, dead)
		}
		if o.Err != nil || o.Result.ExitCode != 0 || o.Result.TimedOut {
			t.Fail("farm-not-answered", "%s command: code %q, exit code %d %s, timed out %v", name, o.Code, o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut)
			return nil
		}
		if left := o.Report.Counts["left"]; left > pr04Dead {
			t.Fail("zombies-kept", "%s command: %d of a dead parent's children were still there 2 s after it", name, left)
		}
		if bound := pr04Reply + 10*time.Duration(o.Report.Counts["look-ms"])*time.Millisecond; held > bound {
			t.Fail("reply-late", "%s command: the reply came %s after the leader's own end, bound %s", name, held.Round(time.Millisecond), bound)
		}
	}
	if reached[1] < min(reached[0]/2, pr04Least) {
		t.Fail("numbers-not-free", "the second command had %d zombies at once, the first %d", reached[1], reached[0])
	}
	if next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return next.Trouble()
	} else if next.Err != nil || next.Result.ExitCode != 0 {
		t.Fail("sandbox-unusable", "the next command: code %q, exit code %d", next.Code, next.Result.ExitCode)
	}
	return nil
}
