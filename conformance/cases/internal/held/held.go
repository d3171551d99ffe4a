// SPDX-License-Identifier: Apache-2.0

// Package held watches what a sandbox takes of its host while it is attacked: memory, by the kernel's
// own peaks, and how the runtime said that the attack ended. It returns facts, and judges by the one
// property that all cases about memory share: what was taken is within what was asked for, whoever
// took it, and an end at the limit has a name and leaves nothing.
package held

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// goneWithin is how long an ended sandbox may take to be gone from the host.
const goneWithin = 15 * time.Second

// Tolerance is how far a peak may lie above the limit. The kernel charges each CPU in batches of 64
// pages (MEMCG_CHARGE_BATCH), and charges past the limit where an allocation may not fail or wait
// (try_charge, "force"): a batch for each CPU, and 1 MiB for what is forced while many tasks die at once.
func Tolerance() int64 {
	return int64(64*os.Getpagesize()*runtime.NumCPU()) + 1<<20
}

// Watch is one attack on one sandbox.
type Watch struct {
	Group    oracle.Cgroup
	Peaks    oracle.CgroupPeaks // after Stop
	Report   report.Report      // after Stop: the attack's own, or the last of its progress file
	Limit    int64              // that is in force, as the kernel says
	Before   int64              // usage when the watch began
	Outcome  attack.Outcome
	stop     func() oracle.CgroupPeaks
	progress func() report.Report
}

// Begin watches the sandbox's memory, and the attack's progress file in its workspace.
func Begin(ctx context.Context, t *conformance.T, sb target.Sandbox, progress string) (*Watch, error) {
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return nil, err
	}
	w := &Watch{Group: oracle.Cgroup{Dirs: c.Cgroups}}
	if w.Limit, err = w.Group.MemoryLimit(); err != nil {
		return nil, err
	}
	if w.Before, err = w.Group.Memory(); err != nil {
		return nil, err
	}
	w.stop = w.Group.Watch(ctx, 10*time.Millisecond)
	w.progress = attack.Progress(ctx, c.Workspace, progress)
	return w, nil
}

// Stop ends the watch after an attack that came to o, and records what it saw under name.
func (w *Watch) Stop(t *conformance.T, name string, o attack.Outcome) {
	w.Report, w.Peaks, w.Outcome = w.progress(), w.stop(), o
	if o.Report.Attack != "" {
		w.Report = o.Report
	}
	attack.Witness(t, name, w.Report)
	t.Observe("memory "+name, map[string]int64{"limit": w.Limit, "before": w.Before, "peak": w.Peaks.Memory, "peakWithSwap": w.Peaks.MemoryAndSwap,
		"refused": w.Peaks.MemoryRefused, "kills": w.Peaks.MemoryKills, "samples": w.Peaks.Samples})
	t.Observe("end "+name, map[string]any{"code": o.Code, "kind": o.Kind, "signal": o.Result.Signal, "exitCode": o.Result.ExitCode, "timedOut": o.Result.TimedOut, "wallMs": o.Wall.Milliseconds()})
}

// Held is the most that was charged: the kernel's own peak where it has one, since a sample may catch
// charges on trial.
func (w *Watch) Held() int64 {
	if w.Peaks.MemoryPeak != 0 {
		return max(w.Peaks.MemoryPeak, w.Peaks.MemoryAndSwap)
	}
	return max(w.Peaks.Memory, w.Peaks.MemoryAndSwap)
}

// Hit says that the limit was reached: refusals or kills since the watch began, or a peak at it.
func (w *Watch) Hit() int64 {
	hit := w.Peaks.MemoryRefused + w.Peaks.MemoryKills
	if w.Held() > w.Limit-Tolerance() { // not every kernel counts refusals
		hit++
	}
	return hit
}

// Judge holds what was taken against what was asked for, never against the limit that is written down.
func (w *Watch) Judge(t *conformance.T, asked int64) {
	switch held := w.Held(); {
	case held > asked+Tolerance() && w.Limit > asked:
		t.Fail("memory-unbounded", "%d bytes were taken where %d were asked for; the limit is %d", held, asked, w.Limit)
	case held > w.Limit+Tolerance():
		t.Fail("memory-above-limit", "%d bytes were taken with a limit of %d, tolerance %d", held, w.Limit, Tolerance())
	}
}

// Ended judges what became of the sandbox: an end of it has a name and leaves nothing, and one that
// has not ended runs the next command. program is the attack program's path.
func (w *Watch) Ended(ctx context.Context, t *conformance.T, sb target.Sandbox, program string) error {
	o := w.Outcome
	switch {
	case o.Err != nil && o.Kind != target.KindOOM:
		t.Fail("end-not-named", "the exec ended in %q of kind %q (%v) instead of kind %q", o.Code, o.Kind, o.Err, target.KindOOM)
		return nil
	case o.Err == nil:
		return Usable(ctx, t, sb, program)
	}
	clean, err := Gone(ctx, t, sb, w.Group, goneWithin)
	if err == nil && !clean {
		t.Fail("leftover", "the container or its cgroup is still there after %s", goneWithin)
	}
	return err
}

// Gone waits until the engine has no container of the sandbox any more and the host no cgroup of it.
func Gone(ctx context.Context, t *conformance.T, sb target.Sandbox, group oracle.Cgroup, within time.Duration) (bool, error) {
	return attack.Eventually(ctx, within, func() (bool, error) {
		_, err := attack.Container(ctx, t, sb)
		if errors.Is(err, target.ErrNoContainer) {
			return !group.Exists(), nil
		}
		return false, err
	})
}

// Usable runs one more command in the sandbox.
func Usable(ctx context.Context, t *conformance.T, sb target.Sandbox, program string) error {
	next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")})
	if err := next.Trouble(); err != nil {
		return err
	}
	if next.Err != nil || next.Result.ExitCode != 0 || next.Result.TimedOut {
		t.Fail("sandbox-unusable", "the next command: code %q, exit code %d, timed out %v", next.Code, next.Result.ExitCode, next.Result.TimedOut)
	}
	return nil
}
