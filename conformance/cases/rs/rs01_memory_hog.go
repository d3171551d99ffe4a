// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-01. The hog stops by itself at three times the limit.
const (
	rs01Memory = 160 << 20
	rs01Hog    = 3 * rs01Memory
	rs01Floor  = 2 * time.Second // of the probes' bounds
	rs01Gone   = 15 * time.Second
)

// rs01Tolerance is how far a peak may lie above the limit. The kernel charges each CPU in batches
// of 64 pages (MEMCG_CHARGE_BATCH), and charges past the limit where an allocation may not fail
// or wait (try_charge, "force"): a batch for each CPU, and 1 MiB for what is forced while many
// tasks die at once. Some pages more are no hole; a limit that is not kept gives the hog 320 MiB.
func rs01Tolerance() int64 {
	return int64(64*os.Getpagesize()*runtime.NumCPU()) + 1<<20
}

// RS01 takes more memory than the sandbox has.
var RS01 = conformance.Case{
	ID: "RS-01", Revision: 3, Title: "Memory hog",
	Requirement: "Memory beyond the limit ends this sandbox, or the processes in it, with a typed outcome; host and neighbours do not notice; nothing is left.",
	Threat:      "One tenant makes the host's kernel kill somebody else.",
	Attack:      "One process maps and touches three times the limit of 160 MiB; in a second sandbox twelve processes share it.",
	Witness:     "The limit reached, as the memory controller says: refusals and kills while the attack ran, and a peak at the limit (at least 1 for each).",
	Oracle:      "Limit and the kernel's peaks of memory, and of memory with swap, on the host; tasks that the kernel killed; the kind of end that the runtime names; a neighbour's exec and the host's fsync and fork; container and cgroup afterwards.",
	Precedent:   "gvisor#2520, #2535, #10477, #10371",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 75 * time.Second,
	Exclusive: true, // latencies of the host and of a neighbour are judged
	Features:  []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:     []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:   []conformance.Oracle{conformance.OracleCgroup, conformance.OracleNeighbour},
	Kills:     []conformance.Kill{{Mutant: "m32", Reason: "memory-unbounded"}},
	Run:       runRS01,
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
	quietHost, err := quietly(ctx, host)
	if err != nil {
		return err
	}
	attack.ObserveLatencies(t, "neighbour-quiet", quiet)
	attack.ObserveLatencies(t, "host-quiet", quietHost)

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

		// Witness: what the kernel counted since the watch began.
		attack.Witness(t, name, hog)
		t.NeedWitness("limit-hit "+name, 1)
		peak := peaks.MemoryPeak // without charges on trial, which a sample may catch
		if peak == 0 {
			peak = peaks.Memory
		}
		tolerance := rs01Tolerance()
		hit := peaks.MemoryRefused + peaks.MemoryKills
		if peak > limit-tolerance { // not every kernel counts refusals
			hit++
		}
		t.Witness("limit-hit "+name, hit)
		held := max(peak, peaks.MemoryAndSwap)
		t.Observe("memory "+name, map[string]int64{"limit": limit, "peak": peak, "peakWithSwap": peaks.MemoryAndSwap, "refused": peaks.MemoryRefused, "kills": peaks.MemoryKills,
			"touched": hog.Counts["touched"], "noMemoryInside": hog.Counts["no-memory"], "killedInside": hog.Counts["killed"], "samples": peaks.Samples})
		t.Observe("end "+name, map[string]any{"code": o.Code, "kind": o.Kind, "signal": o.Result.Signal, "exitCode": o.Result.ExitCode, "timedOut": o.Result.TimedOut, "wallMs": o.Wall.Milliseconds()})
		attack.ObserveLatencies(t, "neighbour "+name, near)
		attack.ObserveLatencies(t, "host "+name, home)
		if err := o.Trouble(); err != nil {
			return err
		}

		// Verdict: what was taken, never the limit that is written down.
		switch {
		case held > rs01Memory+tolerance && limit > rs01Memory:
			t.Fail("memory-unbounded", "%d bytes were taken where %d were asked for; the limit is %d", held, int64(rs01Memory), limit)
		case held > limit+tolerance:
			t.Fail("memory-above-limit", "%d bytes were taken with a limit of %d, tolerance %d", held, limit, tolerance)
		}
		if near.Errors > 0 {
			t.Fail("neighbour-error", "%d of %d probes of the neighbour failed: %s", near.Errors, near.N, near.FirstError)
		}
		if bound := attack.Bound(quiet, rs01Floor); near.P99 > bound {
			t.Fail("neighbour-slow", "the neighbour's p99 is %s, bound %s", near.P99, bound)
		}
		if bound := attack.Bound(quietHost, rs01Floor); home.Errors > 0 || home.P99 > bound {
			t.Fail("host-slow", "the host's p99 is %s, bound %s, %d errors", home.P99, bound, home.Errors)
		}
		switch {
		case o.Err != nil && o.Kind != target.KindOOM:
			t.Fail("end-not-named", "the exec ended in %q of kind %q (%v) instead of kind %q", o.Code, o.Kind, o.Err, target.KindOOM)
		case o.Kind == target.KindOOM:
			clean, err := attack.Eventually(ctx, rs01Gone, func() (bool, error) {
				_, err := attack.Container(ctx, t, sb)
				if errors.Is(err, target.ErrNoContainer) {
					return !group.Exists(), nil
				}
				return false, err
			})
			if err != nil {
				return err
			}
			if !clean {
				t.Fail("leftover", "the container or its cgroup is still there after %s", rs01Gone)
			}
			continue
		case o.Result.TimedOut && hit > 0:
			t.Fail("limit-hung", "at the limit nothing ended: the exec ran into its time-out")
		case o.Result.ExitCode == 0 && peaks.MemoryKills == 0 && hog.Counts["no-memory"] == 0:
			// Nobody was killed and nobody was refused: the memory is charged to somebody else.
			t.Fail("hog-unharmed", "the attack ended well and the kernel killed nobody; it says that it touched %d bytes", hog.Counts["touched"])
		}
		// The kernel chose processes inside, or refused them: the sandbox must go on.
		next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")})
		if err := next.Trouble(); err != nil {
			return err
		}
		if next.Err != nil || next.Result.ExitCode != 0 || next.Result.TimedOut {
			t.Fail("sandbox-unusable", "the next command: code %q, exit code %d, timed out %v", next.Code, next.Result.ExitCode, next.Result.TimedOut)
		}
	}
	if err := neighbour(ctx); err != nil {
		if errors.Unwrap(err) != nil && target.CodeOf(err) == "" {
			return err // no answer of the runtime's
		}
		t.Fail("neighbour-ended", "the neighbour afterwards: %v", err)
	}
	return nil
}

// quietly measures a probe while nothing is attacked.
func quietly(ctx context.Context, op func(context.Context) error) (oracle.Latencies, error) {
	stop := oracle.Probe(ctx, 10*time.Millisecond, 5*time.Second, op)
	timer := time.NewTimer(400 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	quiet := stop()
	if quiet.Errors > 0 || quiet.N == 0 {
		return quiet, fmt.Errorf("host probe: %d of %d quiet operations failed: %s", quiet.Errors, quiet.N, quiet.FirstError)
	}
	return quiet, nil
}
