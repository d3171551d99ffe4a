// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-01. The hog stops by itself at three times the limit. The kernel may charge a
// few pages past the limit rather than fail where it cannot wait (mm/memcontrol.c, "force"): 1 MiB
// of slack. codeOOM is the wire's name for a sandbox that ended at its memory limit.
const (
	rs01Memory = 160 << 20
	rs01Slack  = 1 << 20
	rs01Hog    = 3 * rs01Memory
	rs01Floor  = 2 * time.Second // of the probes' bounds
	rs01Gone   = 15 * time.Second
	codeOOM    = "REMOTE_WORKER_SANDBOX_OOM"
)

// RS01 takes more memory than the sandbox has.
var RS01 = conformance.Case{
	ID: "RS-01", Revision: 1, Title: "Memory hog",
	Requirement: "Memory beyond the limit ends this sandbox, or the processes in it, with a typed outcome; host and neighbours do not notice; nothing is left.",
	Threat:      "One tenant makes the host's kernel kill somebody else.",
	Attack:      "One process maps and touches three times the limit of 160 MiB; in a second sandbox twelve processes share it.",
	Witness:     "Times that the kernel refused memory at the limit, counted by the memory controller (at least 1 for each).",
	Oracle:      "Limit and peak of the memory controller on the host; the runtime's code; a neighbour's exec and the host's fsync and fork; the engine's list and the cgroup afterwards.",
	Precedent:   "gvisor#2520, #2535, #10477, #10371",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartEngine, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m32", Reason: "memory-unbounded"}},
	Run:      runRS01,
}

func runRS01(ctx context.Context, t *conformance.T) error {
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
	socket, err := t.Target().Observer.EngineSocket()
	if err != nil {
		return err
	}
	engine, err := oracle.OpenEngine(socket)
	if err != nil {
		return err
	}
	defer engine.Close()
	attack.ObserveLatencies(t, "neighbour-quiet", quiet)

	for _, procs := range []int64{1, 12} {
		name := strconv.FormatInt(procs, 10) + "-process"
		sb := t.Sandbox(ctx, target.Spec{MemoryBytes: rs01Memory, PIDs: 256})
		program := t.Tenant(ctx, sb)
		c, err := attack.Container(ctx, t, sb)
		if err != nil {
			return err
		}
		group := oracle.Cgroup{Dirs: c.Cgroups}
		limit, err := group.MemoryLimit()
		if err != nil {
			return err
		}

		// Attack.
		stopGroup := group.Watch(ctx, 5*time.Millisecond)
		stopNeighbour := oracle.Probe(ctx, 100*time.Millisecond, 10*time.Second, neighbour)
		stopHost := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, host)
		progress := attack.Progress(ctx, c.Workspace, "hog.progress")
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "memory-hog", "-bytes", strconv.Itoa(rs01Hog), "-procs", strconv.FormatInt(procs, 10), "-progress", "hog.progress"), Timeout: 20 * time.Second})
		hog := progress()
		peaks, near, home := stopGroup(), stopNeighbour(), stopHost()

		// Witness.
		attack.Witness(t, name, hog)
		t.NeedWitness("limit-hit "+name, 1)
		t.Witness("limit-hit "+name, peaks.MemoryRefused+peaks.MemoryKills)
		t.Observe("memory "+name, map[string]int64{"limit": limit, "peak": peaks.Memory, "refused": peaks.MemoryRefused, "kills": peaks.MemoryKills, "touched": hog.Counts["touched"], "samples": peaks.Samples})
		t.Observe("end "+name, map[string]any{"code": o.Code, "signal": o.Result.Signal, "exitCode": o.Result.ExitCode, "wallMs": o.Wall.Milliseconds()})
		attack.ObserveLatencies(t, "neighbour "+name, near)
		attack.ObserveLatencies(t, "host "+name, home)

		// Verdict.
		switch {
		case limit > rs01Memory:
			t.Fail("memory-unbounded", "the limit is %d, asked for %d; the peak was %d", limit, int64(rs01Memory), peaks.Memory)
		case peaks.Memory > limit+rs01Slack:
			t.Fail("memory-above-limit", "the peak is %d with a limit of %d", peaks.Memory, limit)
		}
		if near.Errors > 0 {
			t.Fail("neighbour-error", "%d of %d probes of the neighbour failed: %s", near.Errors, near.N, near.FirstError)
		}
		if bound := attack.Bound(quiet, rs01Floor); near.P99 > bound {
			t.Fail("neighbour-slow", "the neighbour's p99 is %s, bound %s", near.P99, bound)
		}
		if home.Errors > 0 || home.P99 > rs01Floor {
			t.Fail("host-slow", "the host's p99 is %s, bound %s, %d errors", home.P99, rs01Floor, home.Errors)
		}
		switch {
		case o.Err != nil && o.Code != codeOOM:
			t.Fail("end-not-named", "the exec ended in %q (%v) instead of %s", o.Code, o.Err, codeOOM)
		case o.Err == nil && peaks.MemoryKills == 0 && o.Result.ExitCode == 0 && o.Report.Counts["killed"] == 0:
			t.Fail("hog-unharmed", "the attack ended well after %d bytes", hog.Counts["touched"])
		case o.Code == codeOOM:
			clean, err := attack.Eventually(ctx, rs01Gone, func() (bool, error) {
				_, found, err := engine.Inspect(ctx, c.ID)
				return !found && !group.Exists(), err
			})
			if err != nil {
				return err
			}
			if !clean {
				t.Fail("leftover", "the container or its cgroup is still there after %s", rs01Gone)
			}
		default: // the kernel chose processes inside: the sandbox must go on
			if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
				t.Fail("sandbox-unusable", "the next command: %v", err)
			}
		}
	}
	if err := neighbour(ctx); err != nil {
		t.Fail("neighbour-ended", "the neighbour afterwards: %v", err)
	}
	return nil
}
