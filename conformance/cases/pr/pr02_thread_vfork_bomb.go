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

// The numbers of PR-02, as those of PR-01. The default memory of a sandbox must be room enough for what
// its limit of tasks allows: then the bombs meet the second and not the first.
const (
	pr02PIDs    = 128
	pr02Guest   = 6               // host tasks that one more pair of guest processes needs
	pr02Floor   = 4 * time.Second // of the probes' bounds: a frozen neighbour or host is meant, not one of two busy cores
	pr02Recover = 10 * time.Second
	pr02Budget  = 2 * time.Second
	pr02Quiet   = 10 * oracle.BeatPeriod
)

// PR02 lights bombs of threads, of vfork(2) pairs and of spawned programs.
var PR02 = conformance.Case{
	ID: "PR-02", Revision: 1, Title: "Thread and vfork bomb",
	Requirement: "Threads, processes that wait in vfork(2) and spawned programs are bounded as forked processes are, and by the limit of tasks, not by memory; the host and the neighbours do not notice; the exec ends in a typed state and takes them with it; the sandbox is usable again, or reported dead and removed.",
	Threat:      "What is no fork is not counted, and one tenant freezes the host with it.",
	Attack:      "In each of three sandboxes four processes make one kind of task until they are refused, and go on trying: threads by clone(2), pairs of a process in vfork(2) and its sleeping child, programs executed by children that share memory until then. All signals are blocked; the leader exits 0 after 2 s, and the bomb would burn for 30 s more.",
	Witness:     "Host tasks that each bomb made (at least 8), and threads by its own count (at least 20 beyond its processes: more than any program would make); beats that the host saw before each reply (at least 2); for processes, the limit reached, as the host's pids controller says: tasks that it refused, or a peak that leaves no room for one pair more (at least 1).",
	Oracle:      "pids.max and every sample of pids.current on the host, forks on trial allowed for; what the memory controller refused and killed; the bomb's heartbeat file from the reply on, or the end of container and cgroup; a neighbour's exec and the host's own fsync and fork, every 100 ms.",
	Precedent:   "gvisor#6754; runc#1914",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 240 * time.Second,
	Exclusive: true, // latencies of the host and of a neighbour are judged
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:     []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:   []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour, conformance.OracleHeartbeat},
	Kills:     []conformance.Kill{{Mutant: "m06", Reason: "bomb-survived"}, {Mutant: "m30", Reason: "pids-unbounded"}},
	Run:       runPR02,
}

func runPR02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	blast := attack.Blast{PIDs: pr02PIDs, Timeout: 45 * time.Second, Budget: pr02Budget, Quiet: pr02Quiet}
	if err := blast.Prepare(ctx, t); err != nil {
		return err
	}
	for _, bomb := range []struct{ kind, least string }{
		{"thread", "30"}, {"vfork", "60"}, {"spawn", "30"}, // by then a sentry is at the limit with those that are processes
	} {
		// Attack.
		kind := bomb.kind
		burn, err := blast.Light(ctx, t, kind, "clone-bomb", "-kind", kind, "-seconds", "2", "-linger", "30", "-max", "300", "-least", bomb.least)
		if err != nil {
			return err
		}

		// Witness.
		if kind == "thread" { // a sandbox that dies at the limit takes the last counts of processes with it
			t.NeedWitness("tasks-counted-inside by "+kind, 20)
		}
		t.Witness("tasks-counted-inside by "+kind, burn.Inside.Counts["forks"]-4)
		t.NeedWitness("tasks-made by "+kind, 8)
		t.Witness("tasks-made by "+kind, burn.Peaks.PIDs-burn.Before)
		t.NeedWitness("bomb-beating by "+kind, 2)
		t.Witness("bomb-beating by "+kind, burn.Beats)
		if kind != "thread" { // a sentry runs many sleeping threads on few host tasks and refuses none
			t.NeedWitness("limit-reached by "+kind, 1)
			t.Witness("limit-reached by "+kind, burn.Peaks.PIDsRefused)
			if burn.Peaks.PIDs > burn.Limit-pr02Guest {
				t.Witness("limit-reached by "+kind, 1)
			}
		}
		t.Observe("memory "+kind, map[string]int64{"limit": burn.Memory, "peak": burn.Peaks.Memory, "refused": burn.Peaks.MemoryRefused, "kills": burn.Peaks.MemoryKills})

		// Verdict.
		switch {
		case burn.Limit == oracle.Unlimited:
			t.Fail("pids-unbounded", "pids.max is not set; the bomb reached %d tasks", burn.Peaks.PIDs)
		case burn.Limit != pr02PIDs:
			t.Fail("pids-limit-differs", "pids.max is %d, asked for %d", burn.Limit, pr02PIDs)
		case burn.Peaks.PIDs > burn.Limit+attack.OnTrial():
			t.Fail("pids-above-limit", "%d tasks with a limit of %d", burn.Peaks.PIDs, burn.Limit)
		}
		if burn.Peaks.MemoryKills > 0 {
			t.Fail("memory-was-the-limit", "%s bomb: the kernel killed %d tasks for want of memory at %d of %d tasks", kind, burn.Peaks.MemoryKills, burn.Peaks.PIDs, burn.Limit)
		}
		if still := burn.Still; !still.Gone && (!still.Still || still.After > pr02Budget) {
			t.Fail("bomb-survived", "%s bomb: it still burns %s after the reply", kind, still.After.Round(time.Millisecond))
		}
		if near := burn.Neighbour; near.Errors > 0 {
			t.Fail("neighbour-error", "%s bomb: %d of %d probes of the neighbour failed: %s", kind, near.Errors, near.N, near.FirstError)
		}
		if bound := attack.Bound(blast.NeighbourAt, pr02Floor); burn.Neighbour.P99 > bound {
			t.Fail("neighbour-slow", "%s bomb: the neighbour's p99 is %s, bound %s", kind, burn.Neighbour.P99, bound)
		}
		if bound := attack.Bound(blast.HostAt, pr02Floor); burn.Host.Errors > 0 || burn.Host.P99 > bound {
			t.Fail("host-slow", "%s bomb: the host's p99 is %s, bound %s, %d errors", kind, burn.Host.P99, bound, burn.Host.Errors)
		}
		end, err := burn.End(ctx, t, pr02Recover)
		if err != nil {
			return err
		}
		t.Observe("sandbox "+kind, end)
		switch {
		case end == "":
			t.Fail("sandbox-stuck", "%s bomb: the sandbox is neither usable nor reported dead and removed after %s", kind, pr02Recover)
		case end == attack.Usable && burn.Still.Gone:
			return fmt.Errorf("%s bomb: the heartbeat file of a living sandbox is missing", kind)
		}
	}
	return nil
}
