// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
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
	blast := attack.Blast{PIDs: pr01PIDs, Timeout: 15 * time.Second, Budget: pr01Budget, Quiet: pr01Quiet}
	if err := blast.Prepare(ctx, t); err != nil {
		return err
	}
	for _, bomb := range []struct {
		name string
		args []string
	}{
		{"fork", []string{"fork-bomb", "-seconds", "3", "-linger", "30", "-max", "300"}},
		{"thread", []string{"thread-bomb", "-procs", "16", "-threads", "40", "-seconds", "2"}},
	} {
		// Attack.
		burn, err := blast.Light(ctx, t, bomb.name, bomb.args...)
		if err != nil {
			return err
		}

		// Witness.
		t.NeedWitness("tasks-made by "+bomb.name, 10)
		t.Witness("tasks-made by "+bomb.name, burn.Peaks.PIDs-burn.Before)
		t.NeedWitness("bomb-beating by "+bomb.name, 2)
		t.Witness("bomb-beating by "+bomb.name, burn.Beats)
		if bomb.name == "fork" { // a sentry may run many threads on few host tasks and refuse none
			t.NeedWitness("limit-reached", 1)
			t.Witness("limit-reached", burn.Peaks.PIDsRefused)
			if burn.Peaks.PIDs > burn.Limit-pr01Guest {
				t.Witness("limit-reached", 1)
			}
		}

		// Verdict.
		switch {
		case burn.Limit == oracle.Unlimited:
			t.Fail("pids-unbounded", "pids.max is not set; the bomb reached %d tasks", burn.Peaks.PIDs)
		case burn.Limit != pr01PIDs:
			t.Fail("pids-limit-differs", "pids.max is %d, asked for %d", burn.Limit, pr01PIDs)
		case burn.Peaks.PIDs > burn.Limit+attack.OnTrial():
			t.Fail("pids-above-limit", "%d tasks with a limit of %d", burn.Peaks.PIDs, burn.Limit)
		}
		if still := burn.Still; !still.Gone && (!still.Still || still.After > pr01Budget) {
			t.Fail("bomb-survived", "%s bomb: it still burns %s after the reply", bomb.name, still.After.Round(time.Millisecond))
		}
		if near := burn.Neighbour; near.Errors > 0 {
			t.Fail("neighbour-error", "%s bomb: %d of %d probes of the neighbour failed: %s", bomb.name, near.Errors, near.N, near.FirstError)
		}
		if bound := attack.Bound(blast.NeighbourAt, pr01Floor); burn.Neighbour.P99 > bound {
			t.Fail("neighbour-slow", "%s bomb: the neighbour's p99 is %s, bound %s", bomb.name, burn.Neighbour.P99, bound)
		}
		if bound := attack.Bound(blast.HostAt, pr01Floor); burn.Host.Errors > 0 || burn.Host.P99 > bound {
			t.Fail("host-slow", "%s bomb: the host's p99 is %s, bound %s, %d errors", bomb.name, burn.Host.P99, bound, burn.Host.Errors)
		}
		// A sentry that wants a task beyond the limit may end. Then the sandbox must be reported dead.
		end, err := burn.End(ctx, t, pr01Recover)
		if err != nil {
			return err
		}
		t.Observe("sandbox "+bomb.name, end)
		switch {
		case end == "":
			t.Fail("sandbox-stuck", "%s bomb: the sandbox is neither usable nor reported dead and removed after %s", bomb.name, pr01Recover)
		case end == attack.Usable && burn.Still.Gone:
			return fmt.Errorf("%s bomb: the heartbeat file of a living sandbox is missing", bomb.name)
		}
	}
	return nil
}
