// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-01. Every guest process costs about three host tasks in a sentry, so 128 are
// some 33 guests. The bomb holds at most 300 processes when nothing stops it.
const (
	pr01PIDs    = 128
	pr01Guest   = 3               // no further guest fits when fewer are left
	pr01Floor   = 2 * time.Second // of the probes' bounds
	pr01Recover = 10 * time.Second
	pr01Budget  = 2 * time.Second // from the reply to the bomb's last beat
	pr01Quiet   = 10 * oracle.BeatPeriod
)

// pr01Trial is how far a sample may lie above the limit: the kernel charges a fork before it refuses it
// (pids_try_charge in kernel/cgroup/pids.c), one for each CPU and as many again for those that were
// preempted in between. Without a limit the bomb holds 300.
func pr01Trial() int64 { return int64(2 * runtime.NumCPU()) }

// PR01 lights a fork bomb that still burns when its leader has exited.
var PR01 = conformance.Case{
	ID: "PR-01", Revision: 2, Title: "Fork bomb",
	Requirement: "A tenant's processes are bounded by the host; the host and the neighbours do not notice; the exec ends in a typed state and takes its processes with it; the sandbox is usable again, or reported dead and removed.",
	Threat:      "One tenant freezes the host.",
	Attack:      "Every process forks; the leader exits 0 after 3 s and its children fork on for 30 s more, unless they are ended. In a second sandbox 16 processes start 40 threads each, and one more process beats for a minute.",
	Witness:     "Host tasks that each bomb made (at least 10); beats of each bomb that the host saw before the reply (at least 2); the limit reached by the forks, as the host's pids controller says: tasks that it refused, or a peak that leaves no room for one guest more (at least 1).",
	Oracle:      "pids.max and every sample of pids.current on the host, forks on trial allowed for; the bomb's heartbeat file from the reply on, or the end of container and cgroup; a neighbour's exec and the host's own fsync and fork, every 100 ms.",
	Precedent:   "gvisor#2490, #169; daytona#5140; codex#38909",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 60 * time.Second,
	Exclusive: true, // latencies of the host and of a neighbour are judged
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:     []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:   []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour, conformance.OracleHeartbeat},
	Kills:     []conformance.Kill{{Mutant: "m06", Reason: "bomb-survived"}, {Mutant: "m30", Reason: "pids-unbounded"}},
	Run:       runPR01,
}

func runPR01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	neighbour, quiet, err := attack.Neighbour(ctx, t)
	if err != nil {
		return err
	}
	host, done, err := oracle.HostProbe(os.TempDir(), "/bin/true")
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return done() })
	stopQuiet := oracle.Probe(ctx, 10*time.Millisecond, 5*time.Second, host)

	for i, bomb := range []struct {
		name string
		args []string
	}{
		{"fork", []string{"fork-bomb", "-seconds", "3", "-linger", "30", "-max", "300", "-progress", "bomb.progress"}},
		{"thread", []string{"thread-bomb", "-procs", "16", "-threads", "40", "-seconds", "2", "-progress", "bomb.progress"}},
	} {
		sb := t.Sandbox(ctx, target.Spec{PIDs: pr01PIDs})
		program := t.Tenant(ctx, sb)
		quietHost := stopQuiet()
		c, err := attack.Container(ctx, t, sb)
		if err != nil {
			return err
		}
		group := oracle.Cgroup{Dirs: c.Cgroups}
		limit, err := group.PIDsLimit()
		if err != nil {
			return err
		}
		before, err := group.PIDs()
		if err != nil {
			return err
		}

		// Attack.
		beat := filepath.Join(c.Workspace, "bomb.beat")
		beats, err := oracle.WatchBeats(ctx, beat)
		if err != nil {
			return err
		}
		stopGroup := group.Watch(ctx, 2*time.Millisecond)
		stopNeighbour := oracle.Probe(ctx, 100*time.Millisecond, 10*time.Second, neighbour)
		stopHost := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, host)
		progress := attack.Progress(ctx, c.Workspace, "bomb.progress")
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, bomb.args...), Timeout: 15 * time.Second})
		beating := beats()
		if err := o.Trouble(); err != nil {
			return err
		}
		// At once: a bomb that nobody has ended is seen before anything else can end it.
		still, err := oracle.WatchStill(ctx, beat, pr01Quiet, pr01Budget+pr01Quiet)
		if err != nil {
			return err
		}
		report := progress()
		peaks, near, home := stopGroup(), stopNeighbour(), stopHost()

		// Witness.
		attack.Witness(t, bomb.name, report)
		t.NeedWitness("tasks-made by "+bomb.name, 10)
		t.Witness("tasks-made by "+bomb.name, peaks.PIDs-before)
		t.NeedWitness("bomb-beating by "+bomb.name, 2)
		t.Witness("bomb-beating by "+bomb.name, beating)
		if bomb.name == "fork" { // a sentry may run many threads on few host tasks and refuse none
			t.NeedWitness("limit-reached", 1)
			t.Witness("limit-reached", peaks.PIDsRefused)
			if peaks.PIDs > limit-pr01Guest {
				t.Witness("limit-reached", 1)
			}
		}
		t.Observe("inside "+bomb.name, report.Counts)
		t.Observe("pids "+bomb.name, map[string]int64{"limit": limit, "before": before, "peak": peaks.PIDs, "refused": peaks.PIDsRefused, "samples": peaks.Samples})
		t.Observe("heartbeat "+bomb.name, map[string]any{"beatsBeforeReply": beating, "beatsAfterReply": still.Beats, "lastBeatMs": still.After.Milliseconds(), "still": still.Still, "fileGone": still.Gone})
		t.Observe("end "+bomb.name, map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "signal": o.Result.Signal, "descendantsKilled": o.Result.DescendantsKilled, "wallMs": o.Wall.Milliseconds()})
		attack.ObserveLatencies(t, "neighbour "+bomb.name, near)
		attack.ObserveLatencies(t, "host "+bomb.name, home)
		if i == 0 {
			attack.ObserveLatencies(t, "neighbour quiet", quiet)
			attack.ObserveLatencies(t, "host quiet", quietHost)
		}

		// Verdict.
		switch {
		case limit == oracle.Unlimited:
			t.Fail("pids-unbounded", "pids.max is not set; the bomb reached %d tasks", peaks.PIDs)
		case limit != pr01PIDs:
			t.Fail("pids-limit-differs", "pids.max is %d, asked for %d", limit, pr01PIDs)
		case peaks.PIDs > limit+pr01Trial():
			t.Fail("pids-above-limit", "%d tasks with a limit of %d", peaks.PIDs, limit)
		}
		if !still.Gone && (!still.Still || still.After > pr01Budget) {
			t.Fail("bomb-survived", "%s bomb: it still burns %s after the reply", bomb.name, still.After.Round(time.Millisecond))
		}
		if near.Errors > 0 {
			t.Fail("neighbour-error", "%s bomb: %d of %d probes of the neighbour failed: %s", bomb.name, near.Errors, near.N, near.FirstError)
		}
		if bound := attack.Bound(quiet, pr01Floor); near.P99 > bound {
			t.Fail("neighbour-slow", "%s bomb: the neighbour's p99 is %s, bound %s", bomb.name, near.P99, bound)
		}
		if bound := attack.Bound(quietHost, pr01Floor); home.Errors > 0 || home.P99 > bound {
			t.Fail("host-slow", "%s bomb: the host's p99 is %s, bound %s, %d errors", bomb.name, home.P99, bound, home.Errors)
		}
		// A sentry that wants a task beyond the limit may end. Then the sandbox must be reported dead, and
		// nothing of it may be left on the host: neither its container nor its cgroup, hence no process.
		var end string
		settled, err := attack.Eventually(ctx, pr01Recover, func() (bool, error) {
			o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 5 * time.Second})
			if err := o.Trouble(); err != nil {
				return false, err
			}
			_, err := attack.Container(ctx, t, sb)
			switch {
			case err == nil && o.Err == nil && o.Result.ExitCode == 0:
				end = "usable"
			case errors.Is(err, target.ErrNoContainer) && o.Err != nil && !group.Exists():
				end = "reported dead and removed: " + o.Code
			case err != nil && !errors.Is(err, target.ErrNoContainer):
				return false, err
			}
			return end != "", nil
		})
		if err != nil {
			return err
		}
		t.Observe("sandbox "+bomb.name, end)
		switch {
		case !settled:
			t.Fail("sandbox-stuck", "%s bomb: the sandbox is neither usable nor reported dead and removed after %s", bomb.name, pr01Recover)
		case end == "usable" && still.Gone:
			return fmt.Errorf("%s bomb: the heartbeat file of a living sandbox is missing", bomb.name)
		}
	}
	return nil
}
