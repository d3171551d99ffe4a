// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of PR-08. PID 1, the bridge and two keepers are four processes of root's, and the suite's own
// helper a fifth; some forty deeds are tried on each.
const (
	pr08Targets  = 4
	pr08Attempts = 100
	pr08Appeared = 3                // processes that were about to become a command, and were attacked
	pr08Hunt     = 20 * time.Second // at most, for those
	pr08Beats    = 2
)

// PR08 attacks every process that is not the tenant's.
var PR08 = conformance.Case{
	ID: "PR-08", Revision: 1, Title: "Attack the supervisor",
	Requirement: "A tenant changes nothing of any process of root's in its sandbox: PID 1, the helpers that run commands, the bridge to the worker, and what is about to become a command.",
	Threat:      "A tenant ends, stops, traces or starves the processes that bound it, or makes one of them do its will.",
	Attack:      "On each process of root's: signals by kill, tgkill, pidfd and to its group, ptrace, reading and writing its memory, its limits, priority, scheduler and processors, its files in /proc; then the same on those that appear while further commands are started; at last every ending signal to everybody.",
	Witness:     "Processes of root's that were attacked (at least 4), deeds that were tried (at least 100), and processes that were attacked between their start and their becoming a command (at least 3), by the tenant's word.",
	Oracle:      "Identity, state, tracer, limits, priority and processors of every helper, read by a root peer in the sandbox before and after; the supervisor's own counters; pid and start time of the sandbox's process on the host; the heartbeat of a helper of the suite's own, which runs as root in the same sandbox; how the commands that were started meanwhile ended.",
	Precedent:   "-",
	Tier:        conformance.Full, Control: true, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleControl, conformance.OracleHeartbeat, conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m80", Reason: "helper-harmed"}},
	Run:      runPR08,
}

// census is what is known of the processes of root's at one time.
type census struct {
	helpers map[string]string // PID 1, keepers and bridge: "role.pid" to their state
	others  int64
	keepers int64 // that the supervisor has ever started
	orphans int64 // that it has killed
	host    oracle.Process
}

func runPR08(ctx context.Context, t *conformance.T) error {
	// Arrange: a helper of the suite's own runs as root in the sandbox, and beats in a file that the tenant made.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "steady", "-file", "root.beat", "-life", "1ms")}); err != nil {
		return err
	}
	alone, err := takeCensus(ctx, t, sb, c.Pid)
	if err != nil {
		return err
	}
	beat := filepath.Join(c.Workspace, "root.beat")
	ended := make(chan error, 1)
	go func() {
		_, err := attack.Foothold(ctx, t, sb, "steady", "-file", "/workspace/root.beat", "-until", "/workspace/pr08.stop", "-life", "80s")
		ended <- err
	}()
	if err := oracle.WaitBeating(ctx, beat, pr08Beats, 15*time.Second); err != nil {
		return err
	}
	before, err := takeCensus(ctx, t, sb, c.Pid)
	if err != nil {
		return err
	}
	if before.others != alone.others+1 || len(before.helpers) < pr08Targets {
		t.Inconclusive("census-blind", "%d helpers and %d others are seen, %d others before the suite's own was started", len(before.helpers), before.others, alone.others)
	}

	// Attack: each helper, then what appears while commands are started.
	t.NeedWitness("targets", pr08Targets)
	t.NeedWitness("attempts", pr08Attempts)
	t.NeedWitness("appeared", pr08Appeared)
	progress := attack.Progress(ctx, c.Workspace, "pr08.progress")
	hunted := make(chan attack.Outcome, 1)
	go func() {
		hunted <- attack.Run(ctx, sb, target.Command{Timeout: pr08Hunt + 20*time.Second, Argv: attack.Command(program, "assault",
			"-time", pr08Hunt.String(), "-until", "pr08.hunted", "-progress", "pr08.progress")})
	}()
	bad, started, err := startMany(ctx, sb, program, filepath.Join(c.Workspace, "pr08.progress"))
	if err != nil {
		return err
	}
	if err := sb.Files().Write(ctx, "pr08.hunted", nil); err != nil && target.CodeOf(err) == "" {
		return err
	}
	hunt := <-hunted
	if err := hunt.Trouble(); err != nil {
		return err
	}
	end := attack.Run(ctx, sb, target.Command{Timeout: 20 * time.Second, Argv: attack.Command(program, "assault", "-all")})
	if err := end.Trouble(); err != nil {
		return err
	}

	// Witness.
	r := progress()
	attack.Witness(t, "hunt", r)
	attack.Witness(t, "everybody", end.Report)
	for _, name := range []string{"targets", "attempts", "appeared"} {
		t.Witness(name, r.Counts[name])
	}
	t.Observe("tenant", map[string]any{"hunt": r.Counts, "everybody": end.Report.Counts, "allowed": allowed(r, end.Report)})
	t.Observe("commands", map[string]any{"started": started, "refused": bad})

	// Verdict.
	for what, o := range map[string]attack.Outcome{"the attack": hunt, "the attack on everybody": end} {
		if o.Err != nil {
			t.Fail("helper-harmed", "%s ended in %s: who ran it was harmed", what, o.Code)
		}
	}
	if len(bad) > 0 {
		t.Fail("helper-harmed", "of %d commands that were started meanwhile, some did not come to an end of their own: %v", started, bad)
	}
	after, err := takeCensus(ctx, t, sb, c.Pid)
	if err != nil && (hunt.Err != nil || end.Err != nil) {
		t.Log("the sandbox cannot be looked at any more: %v", err)
		return nil // it was judged
	}
	if err != nil && gone(ctx, t, sb) {
		t.Fail("helper-harmed", "the sandbox is gone: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	t.Observe("helpers", after.helpers)
	before.judge(t, after)
	if err := oracle.WaitBeating(ctx, beat, pr08Beats, 5*time.Second); err != nil {
		t.Fail("helper-harmed", "the helper of the suite's own does not beat any more: %v", err)
	}
	if next, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return err
	} else if err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", err)
	}
	if err := sb.Files().Write(ctx, "pr08.stop", nil); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		t.Fail("helper-harmed", "the helper of the suite's own: %v", err)
	}
	return nil
}

func takeCensus(ctx context.Context, t *conformance.T, sb target.Sandbox, pid int) (census, error) {
	c := census{helpers: map[string]string{}}
	r, err := attack.Foothold(ctx, t, sb, "helpers")
	if err != nil {
		return c, err
	}
	for name, facts := range r.Facts {
		switch role, _, _ := strings.Cut(name, "."); role {
		case "supervisor", "invoke", "bridge":
			c.helpers[name] = facts
		}
	}
	c.others = r.Counts["other"]
	stats, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return c, err
	}
	c.keepers, c.orphans = stats.Counts["keepers"], stats.Counts["orphans-killed"]
	c.host, err = oracle.ReadProcess(pid)
	return c, err
}

// judge fails what differs in now. A keeper that was started for more commands at once than there were
// idle ones is no change of another.
func (was census) judge(t *conformance.T, now census) {
	for _, name := range slices.Sorted(maps.Keys(was.helpers)) {
		if is, ok := now.helpers[name]; !ok {
			t.Fail("helper-harmed", "%s is gone", name)
		} else if is != was.helpers[name] {
			t.Fail("helper-harmed", "%s was %q and is %q", name, was.helpers[name], is)
		}
	}
	if now.orphans != was.orphans {
		t.Fail("helper-harmed", "the supervisor has killed %d processes that a dead helper had left to it", now.orphans-was.orphans)
	}
	if now.host.Pid != was.host.Pid || now.host.Start != was.host.Start {
		t.Fail("helper-harmed", "the sandbox's process on the host was %d of %d and is %d of %d", was.host.Pid, was.host.Start, now.host.Pid, now.host.Start)
	}
}

// startMany starts one small command after the other, while the attack looks for them, until it has met
// enough. bad are those that the runtime ended in a code of its own. One that the tenant has killed or stopped
// as its own is none: from the moment that it has the tenant's user it is the tenant's.
func startMany(ctx context.Context, sb target.Sandbox, program, progress string) (bad []string, started int, err error) {
	for end := time.Now().Add(pr08Hunt); time.Now().Before(end); started++ {
		if r, err := report.ReadProgress(progress); err == nil && r.Counts["appeared"] >= pr08Appeared && started >= pr08Appeared {
			break
		}
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 10 * time.Second})
		if err := o.Trouble(); err != nil {
			return bad, started, err
		}
		if o.Err != nil {
			bad = append(bad, o.Code)
			if len(bad) == 3 {
				break
			}
		}
	}
	return bad, started, nil
}

// allowed are the steps that a kernel said yes to, as the tenant tells.
func allowed(reports ...report.Report) map[string]int64 {
	out := map[string]int64{}
	for _, r := range reports {
		for step, names := range r.Errno {
			if n := names["ok"]; n > 0 {
				out[step] += n
			}
		}
	}
	return out
}

// gone says that the engine has no container of the sandbox any more.
func gone(ctx context.Context, t *conformance.T, sb target.Sandbox) bool {
	_, err := attack.Container(ctx, t, sb)
	return err != nil
}
