// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-12.
const (
	pr12PIDs  = 512     // room for the crowd: a command is some ten host tasks in a sentry
	pr12Chunk = 1000    // bytes of the neighbour's with each beat
	pr12Exit  = 7       // the neighbour's own exit code
	pr12Flood = 1 << 20 // budget of the flood; four times as much must have come through
	pr12Most  = 16      // commands at once that are called unbounded
	pr12More  = 3       // refusals that are waited for: a queue would let a later one in
	pr12Floor = 3 * time.Second
	pr12Beats = 2
)

// PR12 disturbs one command by others in the same sandbox.
var PR12 = conformance.Case{
	ID: "PR-12", Revision: 1, Title: "Concurrent execs",
	Requirement: "Commands that run in one sandbox at the same time do not disturb each other: neither the time-out, nor the flood, nor the leftovers of one change the output, the exit code or the pace of another. Beyond the sandbox's bound the next one is refused at once, with the code for that; it is not queued, and those that run go on.",
	Threat:      "The end of one command ends another; or a tenant piles up commands until the worker has no more memory for them.",
	Attack:      "While one command beats and writes, three others run at once: one ignores what asks it to end and is timed out, one floods stdout, one leaves daemons behind. Then commands are started, each of which stays, until three were refused.",
	Witness:     "Time-outs (1), MiB of the flood that came through (at least 4) and daemons that were left (1) while the host saw the neighbour beat; commands that ran at once (at least 2) when the first was refused.",
	Oracle:      "The neighbour's heartbeat file on the host, its output byte by byte against the number of its beats, its exit code, and the time from the word to end to its reply, against the same command alone; the codes and times of the refusals; the heartbeats of those that run.",
	Precedent:   "-",
	Tier:        conformance.Full, Timeout: 2 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m84", Reason: "neighbour-ended"}},
	Run:      runPR12,
}

// pr12 is one run.
type pr12 struct {
	t       *conformance.T
	sb      target.Sandbox
	program string
	host    string // the workspace
}

func runPR12(ctx context.Context, t *conformance.T) error {
	// Arrange.
	r := pr12{t: t, sb: t.Sandbox(ctx, target.Spec{PIDs: pr12PIDs})}
	r.program = t.Tenant(ctx, r.sb)
	c, err := attack.Container(ctx, t, r.sb)
	if err != nil {
		return err
	}
	r.host = c.Workspace

	// Attack and verdict: what three others do to a neighbour, against the same neighbour alone.
	alone, err := r.beside(ctx, "alone", nil)
	if err != nil {
		return err
	}
	among, err := r.beside(ctx, "among", r.others)
	if err != nil {
		return err
	}
	t.Observe("neighbour", map[string]int64{"aloneMs": alone.Milliseconds(), "amongMs": among.Milliseconds()})
	if bound := max(10*alone, pr12Floor); among > bound {
		t.Fail("neighbour-slow", "the neighbour's reply came %s after the word to end, bound %s", among.Round(time.Millisecond), bound)
	}
	return r.crowd(ctx)
}

// beside runs the neighbour, does what is to be done meanwhile, tells the neighbour to end, and judges how
// it did. It returns the time from that word to the reply.
func (r pr12) beside(ctx context.Context, name string, meanwhile func(context.Context) error) (time.Duration, error) {
	beat := filepath.Join(r.host, name+".beat")
	ended := make(chan attack.Outcome, 1)
	go func() {
		ended <- attack.Run(ctx, r.sb, target.Command{Timeout: time.Minute, MaxOutput: 4 << 20, Argv: attack.Command(r.program, "steady",
			"-file", name+".beat", "-until", name+".stop", "-life", "50s", "-chunk", fmt.Sprint(pr12Chunk), "-exit", fmt.Sprint(pr12Exit))})
	}()
	if err := oracle.WaitBeating(ctx, beat, pr12Beats, attack.CrowdPatience); err != nil {
		return 0, fmt.Errorf("neighbour %s: %w", name, err)
	}
	if meanwhile != nil {
		if err := meanwhile(ctx); err != nil {
			return 0, err
		}
		if err := oracle.WaitBeating(ctx, beat, pr12Beats, 5*time.Second); err != nil {
			r.t.Fail("neighbour-ended", "the neighbour does not beat any more after the others: %v", err)
		}
	}
	word := time.Now()
	if err := os.WriteFile(filepath.Join(r.host, name+".stop"), nil, 0o644); err != nil {
		return 0, err
	}
	o := <-ended
	took := time.Since(word)
	if err := o.Trouble(); err != nil {
		return 0, err
	}
	if o.Err != nil || o.Result.ExitCode != pr12Exit || o.Result.TimedOut {
		r.t.Fail("neighbour-ended", "%s: the neighbour ended with exit code %d %s %s, timed out %v", name, o.Result.ExitCode, o.Result.Signal, o.Code, o.Result.TimedOut)
		return took, nil
	}
	beats, err := oracle.FileSize(beat)
	if err != nil {
		return 0, err
	}
	out := o.Result.Stdout
	if int64(len(out)) != beats*pr12Chunk || o.Result.DroppedBytes != 0 || len(o.Result.Stderr) != 0 {
		r.t.Fail("neighbour-output", "%s: %d bytes on stdout, %d on stderr and %d dropped for %d beats of %d bytes", name, len(out), len(o.Result.Stderr), o.Result.DroppedBytes, beats, pr12Chunk)
	}
	for i, b := range out {
		if b != 'a'+byte(i%26) {
			r.t.Fail("neighbour-output", "%s: byte %d of the neighbour's output is %q", name, i, b)
			break
		}
	}
	if o.Result.DescendantsKilled != 0 {
		r.t.Fail("neighbour-output", "%s: the neighbour is said to have left %d descendants", name, o.Result.DescendantsKilled)
	}
	return took, nil
}

// others are the three that disturb, all at once.
func (r pr12) others(ctx context.Context) error {
	r.t.NeedWitness("time-outs", 1)
	r.t.NeedWitness("flood-mib", 4*pr12Flood>>20)
	r.t.NeedWitness("daemons", 1)
	commands := []target.Command{
		{Argv: attack.Command(r.program, "stage-beat", "stubborn.beat", "40s"), Timeout: 1500 * time.Millisecond},
		{Argv: attack.Command(r.program, "flood", "-time", "1500ms"), MaxOutput: pr12Flood, Timeout: 30 * time.Second},
		{Argv: attack.Command(r.program, "daemonise", "-file", "daemon.beat", "-life", "40s"), Timeout: 30 * time.Second},
	}
	ends := make([]attack.Outcome, len(commands))
	var wg sync.WaitGroup
	for i, cmd := range commands {
		wg.Go(func() { ends[i] = attack.Run(ctx, r.sb, cmd) })
	}
	wg.Wait()
	for i, o := range ends {
		if err := o.Trouble(); err != nil {
			return fmt.Errorf("command %d beside the neighbour: %w", i, err)
		}
		r.t.Observe(fmt.Sprintf("other %d", i), map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "timedOut": o.Result.TimedOut, "wallMs": o.Wall.Milliseconds(), "dropped": o.Result.DroppedBytes})
		if o.Err != nil && o.Kind != target.KindBusy { // a sandbox that runs fewer than four has no such witness
			r.t.Fail("neighbour-ended", "of four commands at once one ended in %s", o.Code)
		}
	}
	if ends[0].Result.TimedOut {
		r.t.Witness("time-outs", 1)
	}
	r.t.Witness("flood-mib", (int64(len(ends[1].Result.Stdout))+ends[1].Result.DroppedBytes)>>20)
	r.t.Witness("daemons", ends[2].Report.Counts["daemons-beating"])
	return nil
}

// crowd starts commands until some are refused.
func (r pr12) crowd(ctx context.Context) error {
	r.t.NeedWitness("at-once", 2)
	crowd, err := attack.Gather(ctx, r.sb, r.program, r.host, "crowd", pr12Most, pr12More)
	if err != nil {
		return err
	}
	r.t.Witness("at-once", int64(len(crowd.Running)))
	var refusals []map[string]any
	for _, o := range crowd.Refused {
		refusals = append(refusals, map[string]any{"code": o.Code, "kind": o.Kind, "wallMs": o.Wall.Milliseconds()})
		switch {
		case o.Kind != target.KindBusy:
			r.t.Fail("busy-untyped", "command %d is refused with %s, which does not say that the sandbox is busy", len(crowd.Running)+1, o.Code)
		case r.t.Target().Wire != nil && o.Code != wire.ExecConcurrency:
			r.t.Fail("busy-untyped", "command %d is refused with %s", len(crowd.Running)+1, o.Code)
		}
	}
	r.t.Observe("crowd", map[string]any{"running": len(crowd.Running), "late": crowd.Late, "refused": refusals})
	switch {
	case crowd.Late > 0:
		r.t.Fail("queued", "command %d has neither begun nor been refused %s after it was asked for", len(crowd.Running)+1, attack.CrowdPatience)
	case len(crowd.Refused) == 0:
		r.t.Fail("concurrency-unbounded", "%d commands run at once, and none was refused", len(crowd.Running))
	}
	for i, beat := range crowd.Running {
		if err := oracle.WaitBeating(ctx, beat, pr12Beats, 5*time.Second); err != nil {
			r.t.Fail("neighbour-ended", "command %d of %d does not beat any more when others were refused: %v", i+1, len(crowd.Running), err)
		}
	}
	ends, err := crowd.Let(ctx)
	if err != nil {
		return err
	}
	for i, o := range ends {
		if o.Err != nil || o.Result.ExitCode != 0 || o.Report.Attack == "" {
			r.t.Fail("neighbour-ended", "command %d of %d ended with exit code %d %s %s", i+1, len(ends), o.Result.ExitCode, o.Result.Signal, o.Code)
		}
	}
	if next, err := attack.Must(ctx, r.sb, target.Command{Argv: attack.Command(r.program, "noop")}); next.Trouble() != nil {
		return err
	} else if err != nil {
		r.t.Fail("sandbox-unusable", "the command after the crowd: %v", err)
	}
	return nil
}
