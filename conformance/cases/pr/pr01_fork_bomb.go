// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
)

// PR01 lights a fork bomb that still burns when its leader has exited.
var PR01 = conformance.Case{
	ID: "PR-01", Revision: 1, Title: "Fork bomb",
	Requirement: "A tenant's processes are bounded by the host; the host and the neighbours do not notice; the exec ends in a typed state; the sandbox is usable again, or reported dead and removed.",
	Threat:      "One tenant freezes the host.",
	Attack:      "Every process forks for 3 s; the leader exits 0 and its children fork on for 3 s more. In a second sandbox 16 processes start 40 threads each.",
	Witness:     "Host tasks that each bomb made (at least 10), and the limit reached by forks: refusals inside or counted by the host's pids controller, or no room for one process more (at least 1).",
	Oracle:      "pids.max and every sample of pids.current on the host; a heartbeat of the bomb; a neighbour's exec and the host's own fsync and fork, every 100 ms.",
	Precedent:   "gvisor#2490, #169; daytona#5140; codex#38909",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour, conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m30", Reason: "pids-unbounded"}},
	Run:      runPR01,
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
		{"fork", []string{"fork-bomb", "-seconds", "3", "-linger", "3", "-max", "300", "-progress", "bomb.progress"}},
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
		stopGroup := group.Watch(ctx, 5*time.Millisecond)
		stopNeighbour := oracle.Probe(ctx, 100*time.Millisecond, 10*time.Second, neighbour)
		stopHost := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, host)
		progress := attack.Progress(ctx, c.Workspace, "bomb.progress")
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, bomb.args...), Timeout: 15 * time.Second})
		report := progress()
		peaks, near, home := stopGroup(), stopNeighbour(), stopHost()

		// Witness.
		attack.Witness(t, bomb.name, report)
		t.NeedWitness("tasks-made by "+bomb.name, 10)
		t.Witness("tasks-made by "+bomb.name, peaks.PIDs-before)
		if bomb.name == "fork" { // a sentry may run many threads on few host tasks and refuse none
			t.NeedWitness("limit-reached", 1)
			t.Witness("limit-reached", report.Counts["refused"]+peaks.PIDsRefused)
			if peaks.PIDs > limit-pr01Guest {
				t.Witness("limit-reached", 1)
			}
		}
		t.Observe("inside "+bomb.name, report.Counts)
		t.Observe("pids "+bomb.name, map[string]int64{"limit": limit, "before": before, "peak": peaks.PIDs, "refused": peaks.PIDsRefused, "samples": peaks.Samples})
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
		case peaks.PIDs > limit:
			t.Fail("pids-above-limit", "%d tasks with a limit of %d", peaks.PIDs, limit)
		}
		if !o.Typed() {
			t.Fail("exec-untyped", "%s bomb: the exec ended without a result or a code: %v", bomb.name, o.Err)
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
		usable, err := attack.Eventually(ctx, pr01Recover, func() (bool, error) {
			o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 5 * time.Second})
			if o.Err == nil && o.Result.ExitCode == 0 {
				return true, nil
			}
			_, cerr := attack.Container(ctx, t, sb)
			return o.Code != "" && errors.Is(cerr, target.ErrNoContainer), nil // reported dead and removed
		})
		if err != nil {
			return err
		}
		if !usable {
			t.Fail("sandbox-stuck", "%s bomb: the sandbox is neither usable nor reported dead and removed after %s", bomb.name, pr01Recover)
			continue
		}
		if _, err := attack.Container(ctx, t, sb); err != nil {
			t.Observe("sandbox "+bomb.name, "removed")
			continue
		}
		t.Observe("sandbox "+bomb.name, "usable")
		// A sentry keeps the host tasks that it has once needed, so their number says nothing.
		still, err := oracle.WatchStill(ctx, filepath.Join(c.Workspace, "bomb.beat"), 10*oracle.BeatPeriod, 20*oracle.BeatPeriod)
		if err != nil {
			return err
		}
		if !still.Still {
			t.Fail("bomb-survived", "%s bomb: it still burns after the reply", bomb.name)
		}
	}
	return nil
}
