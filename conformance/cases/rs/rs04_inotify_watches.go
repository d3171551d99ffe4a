// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/held"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of RS-04. An event that waits costs a sentry some 65 bytes (measured), which nothing but
// its memory bounds: those of the flood are far above the limit of its sandbox. One storm of the second sandbox
// takes 80 MiB there, and with twice that for what a collector has not yet given back it fits; what
// four storms keep does not.
const (
	rs04Memory = 160 << 20
	rs04Flood  = 6_000_000
	rs04Room   = 256 << 20
	rs04Storm  = 1_250_000
	rs04Storms = 4
)

// RS04 watches files and reads no event.
var RS04 = conformance.Case{
	ID: "RS-04", Revision: 1, Title: "inotify and hardlink watches",
	Requirement: "Watches, and events that nobody reads, are counted in the sandbox that made them and are gone after the command; a neighbour can watch meanwhile.",
	Threat:      "Queues that only their owner could empty fill the memory of the host or of the sentry; or one tenant takes the watches of everybody who has the same user id.",
	Attack:      "256 inotify instances watch three files and a second name of one, which is then removed; 6 million events are queued and none is read, in a sandbox of 160 MiB. In one of 256 MiB 1.25 million events are queued four times, and each command leaves a process behind that holds the queues.",
	Witness:     "Instances that watched in the flood (at least 64), and events that were made for them (at least 1,000,000).",
	Oracle:      "The kernel's peaks of the sandbox's memory on the host, against its limit; how the runtime says that the commands ended; a watch in a neighbour while the storm is held.",
	Precedent:   "gvisor#13188, #14619",
	Tier:        conformance.Full, Control: true, Timeout: 110 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m06", Reason: "watches-kept"}, {Mutant: "m32", Reason: "memory-unbounded"}},
	Run:      runRS04,
}

func runRS04(ctx context.Context, t *conformance.T) error {
	storm := func(sb target.Sandbox, program string, events int, more ...string) attack.Outcome {
		argv := append([]string{"watch-storm", "-events", strconv.Itoa(events), "-progress", "storm.progress"}, more...)
		return attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, argv...), Timeout: 30 * time.Second})
	}

	// Arrange and attack: a flood that nothing but the limit ends.
	sb := t.Sandbox(ctx, target.Spec{MemoryBytes: rs04Memory})
	program := t.Tenant(ctx, sb)
	w, err := held.Begin(ctx, t, sb, "storm.progress")
	if err != nil {
		return err
	}
	o := storm(sb, program, rs04Flood)
	w.Stop(t, "flood", o)
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness and verdict.
	t.NeedWitness("instances", 64)
	t.Witness("instances", w.Report.Counts["instances"])
	t.NeedWitness("events", 1_000_000)
	t.Witness("events", w.Report.Counts["events"])
	w.Judge(t, rs04Memory)
	if err := w.Ended(ctx, t, sb, program); err != nil {
		return err
	}

	// Arrange and attack: storms that fit, one after another.
	sb = t.Sandbox(ctx, target.Spec{MemoryBytes: rs04Room})
	program = t.Tenant(ctx, sb)
	neighbour := t.Sandbox(ctx, target.Spec{})
	other := t.Tenant(ctx, neighbour)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	if w, err = held.Begin(ctx, t, sb, "storm.progress"); err != nil {
		return err
	}
	for n := range rs04Storms {
		if n > 0 {
			o = storm(sb, program, rs04Storm, "-survive")
		} else if o, err = beside(ctx, t, filepath.Join(c.Workspace, "storm.progress"), neighbour, other, func() attack.Outcome {
			return storm(sb, program, rs04Storm, "-survive", "-hold", "5s")
		}); err != nil {
			return err
		}
		if err := o.Trouble(); err != nil {
			return err
		}
		if o.Err != nil || o.Result.ExitCode != 0 {
			t.Fail("watches-kept", "storm %d of %d that fit one by one ended in code %q of kind %q, exit code %d %s: what the earlier ones held is still there",
				n+1, rs04Storms, o.Code, o.Kind, o.Result.ExitCode, o.Result.Signal)
			break
		}
	}
	w.Stop(t, "storms", o)
	w.Judge(t, rs04Room)
	return w.Ended(ctx, t, sb, program)
}

// beside runs a storm and, while its queues are held, a small one in the neighbour.
func beside(ctx context.Context, t *conformance.T, progress string, neighbour target.Sandbox, program string, storm func() attack.Outcome) (attack.Outcome, error) {
	done := make(chan attack.Outcome, 1)
	go func() { done <- storm() }()
	var o attack.Outcome
	over := false
	holding, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) {
		select {
		case o = <-done:
			over = true
			return true, nil
		default:
		}
		r, err := report.ReadProgress(progress)
		return err == nil && r.Counts["holding"] > 0, nil
	})
	if holding && !over && err == nil {
		small := attack.Run(ctx, neighbour, target.Command{Argv: attack.Command(program, "watch-storm", "-instances", "1", "-events", "4"), Timeout: 15 * time.Second})
		err = small.Trouble()
		select {
		case o = <-done: // it may have come too late to meet the other
			over = true
		default:
			t.Witness("neighbour-beside", 1)
			if err == nil && (small.Err != nil || small.Result.ExitCode != 0 || small.Report.Counts["watches"] == 0) {
				t.Fail("neighbour-refused", "a neighbour could not watch a file: code %q, exit code %d, %v", small.Code, small.Result.ExitCode, small.Report.Errno)
			}
		}
	}
	if !over {
		o = <-done
	}
	return o, err
}
