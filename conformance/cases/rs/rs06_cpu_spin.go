// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-06: a small quota, so that a busy machine reaches it too, and is far from what all of
// its CPUs would give. The kernel hands a quota out in slices of 5 ms for each CPU
// (sched_cfs_bandwidth_slice_us) and lets a period's rest be used in the next: the slack is a period for each CPU.
const (
	rs06CPUs    = 300 // thousandths
	rs06Spin    = 3 * time.Second
	rs06Excess  = 1.25
	rs06Period  = 100 * time.Millisecond
	rs06Floor   = 2 * time.Second // of the neighbour's bound
	rs06Periods = 5
)

// RS06 computes as much as it can.
var RS06 = conformance.Case{
	ID: "RS-06", Revision: 1, Title: "CPU spin",
	Requirement: "A tenant gets the CPU time that was asked for and no more, whatever it asks of the scheduler; a neighbour does not notice.",
	Threat:      "One tenant takes the CPUs from the others and from the host.",
	Attack:      "In a sandbox of 0.3 CPUs four processes for each CPU ask for a real-time policy, for nice -20 and for every CPU, and compute for 3 s.",
	Witness:     "Processes that computed (at least 4); periods in which the kernel held the sandbox back (at least 5).",
	Oracle:      "The CPU time of the sandbox's cgroup on the host over the wall time of the command; policy and priority of every thread in it; a neighbour's exec meanwhile.",
	Precedent:   "daytona#5140",
	Tier:        conformance.Full, Control: true, Timeout: 75 * time.Second,
	Exclusive: true, // latencies of a neighbour are judged
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:     []conformance.Part{conformance.PartCgroup, conformance.PartConcurrent},
	Oracles:   []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour, conformance.OracleProcess},
	Kills:     []conformance.Kill{{Mutant: "m96", Reason: "cpu-unbounded"}},
	Run:       runRS06,
}

func runRS06(ctx context.Context, t *conformance.T) error {
	// Arrange.
	neighbour, quiet, err := attack.Neighbour(ctx, t)
	if err != nil {
		return err
	}
	sb := t.Sandbox(ctx, target.Spec{CPUs: rs06CPUs})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	before, err := group.CPUTime()
	if err != nil {
		return err
	}
	held, err := group.Throttled()
	if err != nil {
		return err
	}

	// Attack.
	var preferred []string
	var threads int64
	stopThreads := oracle.Probe(ctx, 200*time.Millisecond, 5*time.Second, func(context.Context) error {
		pids, err := group.Procs()
		if err != nil {
			return err
		}
		list, n, err := oracle.Preferred(pids)
		threads = max(threads, n)
		if len(list) > len(preferred) {
			preferred = list
		}
		return err
	})
	stopNeighbour := oracle.Probe(ctx, 100*time.Millisecond, 10*time.Second, neighbour)
	start := time.Now()
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "spin", "-seconds", strconv.FormatFloat(rs06Spin.Seconds(), 'f', -1, 64)), Timeout: 40 * time.Second})
	after, err := group.CPUTime()
	wall := time.Since(start)
	near := stopNeighbour()
	looks := stopThreads()
	if terr := o.Trouble(); terr != nil {
		return terr
	}
	if errors.Is(err, fs.ErrNotExist) {
		t.Fail("sandbox-ended", "computing ended the sandbox: code %q of kind %q", o.Code, o.Kind)
		return nil
	}
	if err != nil {
		return err
	}
	heldAfter, err := group.Throttled()
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "spin", o.Report)
	t.NeedWitness("spinning", 4)
	t.Witness("spinning", o.Report.Counts["spinning"])
	t.NeedWitness("periods-held-back", rs06Periods)
	t.Witness("periods-held-back", heldAfter-held)
	used, allowed := after-before, time.Duration(float64(wall)*rs06CPUs/1000*rs06Excess)+time.Duration(max(o.Report.Counts["cpus"], 2))*rs06Period
	t.Observe("cpu", map[string]int64{"wallMs": wall.Milliseconds(), "usedMs": used.Milliseconds(), "allowedMs": allowed.Milliseconds(), "cpusInside": o.Report.Counts["cpus"], "threads": threads, "looks": looks.N - looks.Errors})
	t.Observe("inside", o.Report.Errno)
	t.Observe("end", map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "timedOut": o.Result.TimedOut})
	attack.ObserveLatencies(t, "neighbour-quiet", quiet)
	attack.ObserveLatencies(t, "neighbour", near)

	// Verdict.
	if used > allowed {
		t.Fail("cpu-unbounded", "%s of CPU time in %s, where %d thousandths allow %s", used, wall, rs06CPUs, allowed)
	}
	if len(preferred) > 0 {
		t.Fail("priority-raised", "the kernel prefers threads of the sandbox: %q", preferred[:min(3, len(preferred))])
	}
	if near.Errors > 0 {
		t.Fail("neighbour-error", "%d of %d probes of the neighbour failed: %s", near.Errors, near.N, near.FirstError)
	}
	if bound := attack.Bound(quiet, rs06Floor); near.P99 > bound {
		t.Fail("neighbour-slow", "the neighbour's p99 is %s, bound %s", near.P99, bound)
	}
	if o.Err != nil || o.Result.ExitCode != 0 {
		t.Fail("spin-ended", "the command ended in code %q, exit code %d, timed out %v", o.Code, o.Result.ExitCode, o.Result.TimedOut)
	}
	return nil
}
