// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-10. A number comes back when all others have been used once: 65,536 of them in a sentry, 32,768
// to 4 million on Linux. How long that takes is measured in the sandbox first; the time-outs follow
// from it. What has more numbers than the bound, or needs longer, cannot be attacked in this way.
const (
	pr10Leaders  = 3               // commands whose leaders are gone
	pr10Children = 4               // of each, and of the one that is still running
	pr10Rate     = 3000            // numbers that are used for the measurement; beyond those that Linux never gives again
	pr10Wrap     = 2 * time.Minute // for all numbers once
	pr10Most     = 1 << 17
	pr10Slack    = 4 * time.Second
	pr10Sweep    = 1500 * time.Millisecond // from the time-out to the end of what it ends: the grace and some
	pr10Beats    = 2
)

// PR10 lets the numbers of ended processes come back as those of another invocation.
var PR10 = conformance.Case{
	ID: "PR-10", Revision: 1, Title: "PID reuse in kill path",
	Requirement: "The end of an invocation ends the processes that it started, and no process that has one of their numbers by now.",
	Threat:      "A tenant aims the runtime's own kill at another invocation.",
	Attack:      "Three commands end at once, long before their time-out, and a fourth goes on to its time-out; all had children in sessions of their own. Another command then uses up all process numbers but those, until they come back, and keeps a process under each, in a session and group of its own. Then all four time-outs pass.",
	Witness:     "Numbers of ended leaders (at least 1) and of ended processes in all (at least 4) that came back as processes which the host saw beat before the first time-out; time-outs that have passed since (4).",
	Oracle:      "The heartbeat of each of those processes, seen on the host after the last time-out; how their command ended.",
	Precedent:   "c8s#161; llxprt-code#3465",
	Tier:        conformance.Full, Timeout: 8 * time.Minute, // twice the wrap's bound, and what comes before and after
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m81", Reason: "other-exec-killed"}},
	Run:      runPR10,
}

func runPR10(ctx context.Context, t *conformance.T) error {
	// Arrange: how long it takes until a number comes back.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	rate, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "pid-spin", "-n", fmt.Sprint(pr10Rate)), Timeout: time.Minute})
	if err != nil {
		return err
	}
	spun, micros, all := rate.Report.Counts["spun"], rate.Report.Counts["micros"], rate.Report.Counts["pid-max"]
	if spun == 0 || all == 0 {
		return fmt.Errorf("the rate was not measured: %v", rate.Report.Counts)
	}
	wrap := time.Duration(micros*all/spun) * time.Microsecond
	t.Observe("numbers", map[string]int64{"all": all, "perSecond": spun * 1e6 / max(1, micros), "wrapMs": wrap.Milliseconds()})
	t.NeedWitness("leaders-back", 1)
	t.NeedWitness("numbers-back", 4)
	t.NeedWitness("time-outs", pr10Leaders+1)
	if all > pr10Most || wrap > pr10Wrap {
		t.Inconclusive("wrap-too-slow", "there are %d process numbers, and all of them once would take %s", all, wrap.Round(time.Second))
	}
	timeout := (2*wrap + pr10Slack).Truncate(time.Millisecond)

	// Attack: numbers are given back, by leaders that are gone and by children of one that stays.
	var leaders, numbers []string
	first := time.Now()
	for range pr10Leaders {
		o, err := attack.Must(ctx, sb, target.Command{Timeout: timeout, Argv: attack.Command(program, "pid-leave", "-n", fmt.Sprint(pr10Children))})
		if err != nil {
			return err
		}
		list := strings.Split(o.Report.Facts["numbers"], ",")
		leaders, numbers = append(leaders, list[0]), append(numbers, list...)
	}
	staying := make(chan attack.Outcome, 1)
	go func() {
		staying <- attack.Run(ctx, sb, target.Command{Timeout: timeout, Argv: attack.Command(program, "pid-leave", "-n", fmt.Sprint(pr10Children),
			"-stay", (2 * timeout).String(), "-progress", "pr10.staying")})
	}()
	left := attack.Progress(ctx, c.Workspace, "pr10.staying")
	if ok, err := attack.Eventually(ctx, attack.CrowdPatience, func() (bool, error) {
		size, err := oracle.FileSize(filepath.Join(c.Workspace, "pr10.staying"))
		return size > 0 && left().Counts["numbers"] > 0, err
	}); err != nil || !ok {
		return fmt.Errorf("the command that stays has told no numbers: %w", err)
	}
	last := time.Now()
	numbers = append(numbers, strings.Split(left().Facts["numbers"], ",")...)

	// They come back, as processes of another command.
	other := make(chan attack.Outcome, 1)
	go func() {
		other <- attack.Run(ctx, sb, target.Command{Timeout: 3*timeout + time.Minute, Argv: attack.Command(program, "pid-return",
			"-numbers", strings.Join(numbers, ","), "-file", "pr10.beat-", "-until", "pr10.stop", "-within", timeout.String(), "-life", (2*timeout + 30*time.Second).String(), "-progress", "pr10.back")})
	}()
	back := attack.Progress(ctx, c.Workspace, "pr10.back")
	var matched []string
	for time.Since(first) < timeout {
		if r := back(); r.Counts["matched"] > 0 {
			matched = strings.Split(r.Facts["matched"], ",")
			break
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	beat := func(number string) string { return filepath.Join(c.Workspace, "pr10.beat-"+number) }
	var living []string // seen to beat before the first time-out
	for _, number := range matched {
		if oracle.WaitBeating(ctx, beat(number), 1, time.Until(first.Add(timeout))) == nil {
			living = append(living, number)
		}
	}

	// Witness: the last time-out is that of the command that stays, which the runtime answers.
	o := <-staying
	if err := o.Trouble(); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(last.Add(timeout))+pr10Sweep); err != nil {
		return err
	}
	if o.Result.TimedOut {
		t.Witness("time-outs", pr10Leaders+1) // those of the others were earlier
	}
	for _, number := range living {
		t.Witness("numbers-back", 1)
		if slices.Contains(leaders, number) {
			t.Witness("leaders-back", 1)
		}
	}
	t.Observe("back", map[string]any{"wanted": len(numbers), "leaders": len(leaders), "matched": len(matched), "living": len(living), "timeoutMs": timeout.Milliseconds()})

	// Verdict.
	for _, number := range living {
		if err := oracle.WaitBeating(ctx, beat(number), pr10Beats, 3*time.Second); err != nil {
			t.Fail("other-exec-killed", "process %s of another command does not beat any more after the time-outs: %v", number, err)
		}
	}
	if err := sb.Files().Write(ctx, "pr10.stop", nil); err != nil {
		return err
	}
	end := <-other
	if err := end.Trouble(); err != nil {
		return err
	}
	attack.Witness(t, "back", end.Report)
	if len(living) > 0 && (end.Err != nil || end.Result.ExitCode != 0 || end.Report.Counts["alive"] != int64(len(matched))) {
		t.Fail("other-exec-killed", "the other command ended with exit code %d %s %s, and %d of its %d processes were alive", end.Result.ExitCode, end.Result.Signal, end.Code, end.Report.Counts["alive"], len(matched))
	}
	return nil
}

// sleep waits for d or for the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
