// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-07. A time-out leaves twenty times of what a command takes for the style to be reached;
// the reply may take grace longer.
const (
	pr07AtOnce = 3               // styles
	pr07Least  = 2 * time.Second // of the time-out
	pr07Most   = 30 * time.Second
	pr07Grace  = 4 * time.Second
	pr07Budget = 2 * time.Second // from the reply to the last beat
	pr07Quiet  = 10 * oracle.BeatPeriod
	pr07Awake  = time.Second // twenty beats of what is continued
	pr07Beats  = 2           // that the host must have seen before the reply
)

// pr07Styles are the tenant program's, with the heartbeats of each beside that of its leader.
var pr07Styles = []struct {
	name   string
	beside []string
	alone  bool // after the others have ended
}{
	{"ignore", []string{".child"}, false},
	{"fifo", []string{".child"}, false},
	{"traced", []string{".child", ".group"}, false},
	{"vfork", []string{".child"}, false},
	// A runtime that ends what it kept for several commands at once ends what these have left, too.
	{"stopped", []string{".child", ".group"}, true},
}

// PR07 does not end when it is asked to.
var PR07 = conformance.Case{
	ID: "PR-07", Revision: 1, Title: "Unkillable styles",
	Requirement: "At its time-out a command ends, whatever it does against it, within a grace; so does everything that it started, also what is stopped and shows no sign of life.",
	Threat:      "A command that ignores the polite signal, or cannot hear it, never ends; what is stopped is taken for ended, and continues in the next invocation.",
	Attack:      "Five commands in one sandbox, three at once and the one that is stopped after the others, so that nothing ends with it, each with a process in its group and one in a session of its own: signals ignored; stopped by SIGSTOP; waiting in open(2) and read(2) on FIFOs; stopped by ptrace(2); in vfork(2). All meet their time-out. The next command continues whatever it may, for a second.",
	Witness:     "Heartbeats that the host saw grow before the reply (12, of leaders and of what is beside them), and styles that were reached before the time-out (5).",
	Oracle:      "The time of each reply, seen by the client; growth of the heartbeat files on the host, from the reply on, and while the next command continues what was stopped.",
	Precedent:   "inspect_ai#2779",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 180 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m06", Reason: "survivor-heartbeat"}, {Mutant: "m78", Reason: "stopped-survivor"}, {Mutant: "m79", Reason: "reply-late"}},
	Run:      runPR07,
}

func runPR07(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	timeout := pr07Least
	for range 3 {
		usual, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")})
		if err != nil {
			return err
		}
		timeout = min(max(20*usual.Wall, timeout), pr07Most)
	}

	// Attack: the host watches every heartbeat to the reply of its command, and from there on.
	type beat struct {
		style, file string
		before      int64
		after       oracle.Stillness
		err         error
	}
	var beats []*beat
	outcomes := make([]attack.Outcome, len(pr07Styles))
	var wg sync.WaitGroup
	turn := make(chan struct{}, pr07AtOnce)
	for i, style := range pr07Styles {
		if style.alone {
			wg.Wait()
		}
		turn <- struct{}{}
		var own []*beat
		for _, suffix := range append([]string{""}, style.beside...) {
			own = append(own, &beat{style: style.name, file: filepath.Join(c.Workspace, style.name+suffix)})
		}
		beats = append(beats, own...)
		wg.Go(func() {
			defer func() { <-turn }()
			stops := make([]func() int64, len(own))
			for i, b := range own {
				stops[i], b.err = oracle.WatchBeats(ctx, b.file)
				if b.err != nil {
					return
				}
			}
			outcomes[i] = attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "unkillable", "-style", style.name, "-file", style.name), Timeout: timeout})
			var watch sync.WaitGroup
			for i, b := range own {
				b.before = stops[i]()
				watch.Go(func() { b.after, b.err = oracle.WatchStill(ctx, b.file, pr07Quiet, pr07Budget+pr07Quiet) })
			}
			watch.Wait()
		})
	}
	wg.Wait()

	// Witness.
	t.NeedWitness("beating", int64(len(beats)))
	t.NeedWitness("styles-reached", int64(len(pr07Styles)))
	for i, style := range pr07Styles {
		o := outcomes[i]
		if err := o.Trouble(); err != nil {
			return err
		}
		if size, err := oracle.FileSize(filepath.Join(c.Workspace, style.name+".state")); err != nil {
			return err
		} else if size > 0 {
			t.Witness("styles-reached", 1)
		}
		t.Observe("reply "+style.name, map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "signal": o.Result.Signal, "timedOut": o.Result.TimedOut, "descendantsKilled": o.Result.DescendantsKilled,
			"cleanupProven": o.Result.CleanupProven, "wallMs": o.Wall.Milliseconds(), "timeoutMs": timeout.Milliseconds(), "stderr": string(o.Result.Stderr[:min(len(o.Result.Stderr), 200)])})

		// Verdict on the reply.
		if o.Wall > timeout+pr07Grace {
			t.Fail("reply-late", "style %s: the reply took %s, time-out %s", style.name, o.Wall.Round(time.Millisecond), timeout)
		}
		if o.Err == nil && !o.Result.TimedOut {
			t.Fail("time-out-not-told", "style %s: exit code %d %s before or without the time-out", style.name, o.Result.ExitCode, o.Result.Signal)
		}
	}

	// Verdict on what was seen to run.
	for _, b := range beats {
		if b.err != nil {
			return b.err
		}
		name := filepath.Base(b.file)
		t.Observe("heartbeat "+name, map[string]any{"beatsBeforeReply": b.before, "beatsAfterReply": b.after.Beats, "lastBeatMs": b.after.After.Milliseconds(), "fileGone": b.after.Gone})
		if b.before >= pr07Beats {
			t.Witness("beating", 1)
		}
		if !b.after.Gone && (!b.after.Still || b.after.After > pr07Budget) {
			t.Fail("survivor-heartbeat", "style %s: %s still beat %s after the reply", b.style, name, b.after.After.Round(time.Millisecond))
		}
	}
	// Verdict on what showed no sign of life: it is continued, and would beat.
	watch := make([]func() int64, len(beats))
	for i, b := range beats {
		if watch[i], err = oracle.WatchBeats(ctx, b.file); err != nil {
			return err
		}
	}
	next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "awaken", "-for", pr07Awake.String()), Timeout: 30 * time.Second})
	for i, b := range beats {
		if grown := watch[i](); grown > 0 {
			t.Fail("stopped-survivor", "style %s: %s beat %d times when the next command continued it", b.style, filepath.Base(b.file), grown)
		}
	}
	if err := next.Trouble(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	t.Observe("next", map[string]any{"code": next.Code, "exitCode": next.Result.ExitCode, "continued": next.Report.Errno["continue"]["ok"]})
	if next.Err != nil || next.Result.ExitCode != 0 {
		t.Fail("sandbox-unusable", "the next command: code %q, exit code %d", next.Code, next.Result.ExitCode)
	}
	return nil
}
