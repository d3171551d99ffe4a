// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/emit"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of OU-02. The worker is bounded as in OU-01.
const (
	ou02Budget  = 256 << 10
	ou02Single  = 2000     // one-byte writes to each of both streams
	ou02Flood   = 32 << 20 // of one stream
	ou02Stalled = 24 << 20 // of each stream, while nobody reads the answer
	ou02Worker  = 24 * ou01Budget
	ou02Sandbox = 24 << 20         // less than a flood
	ou02Drained = 30 * time.Second // for all of a flood to be taken from the command although nobody reads
)

// OU02 has one stream flood the other.
var OU02 = conformance.Case{
	ID: "OU-02", Revision: 1, Title: "stderr and split flood",
	Requirement: "One budget holds for both streams. A flood of one takes nothing from what the other wrote before it, and costs constant memory; what is dropped is counted to the byte. A reader of the answer that takes nothing delays neither the command nor others.",
	Threat:      "A flood of stderr hides the result on stdout, or output that nobody reads stops the sandbox.",
	Attack:      "Single bytes to stdout and stderr in turn, then 32 MiB to stderr alone; the same the other way round; both streams at once, where the runtime streams also while its reader takes nothing.",
	Witness:     "Commands that wrote everything and exited (3), MiB that reached the collector and were dropped (at least 90), one-byte writes (at least 4,000).",
	Oracle:      "Bytes, flags and counts of the reply, compared with a random file that the host made; VmHWM of the worker and the memory peak of the sandbox's cgroup; the command's progress file, read on the host, while the answer is not read.",
	Precedent:   "inspect_ai#781",
	Tier:        conformance.Full, Control: true, Timeout: 150 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkerProcess, conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleMemory, conformance.OracleCgroup, conformance.OracleReply},
	Kills:    []conformance.Kill{{Mutant: "m08", Reason: "sandbox-memory"}, {Mutant: "m09", Reason: "bytes-unaccounted"}, {Mutant: "m85", Reason: "output-missing"}, {Mutant: "m86", Reason: "stream-starved"}, {Mutant: "m89", Reason: "bytes-differ"}},
	Run:      runOU02,
}

func runOU02(ctx context.Context, t *conformance.T) error {
	// Arrange: the first command has paid for what is paid once.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	content := make([]byte, 65_537)
	rand.Read(content)
	if err := emit.Place(ctx, sb, content); err != nil {
		return err
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	stop, err := emit.Watch(ctx, t, c)
	if err != nil {
		return err
	}

	// Attack.
	const block = 64 << 10
	floods := []struct {
		name  string
		steps []emit.Step
	}{
		{"stderr floods", []emit.Step{{FD: 12, Length: ou02Single, Block: 1}, emit.Settle, {FD: 2, From: ou02Single, Length: ou02Flood, Block: block}}},
		{"stdout floods", []emit.Step{{FD: 12, Length: ou02Single, Block: 1}, emit.Settle, {FD: 1, From: ou02Single, Length: ou02Flood, Block: block}}},
		{"both flood", []emit.Step{{FD: 12, Length: ou02Flood / 2, Block: block}}},
	}
	t.NeedWitness("commands-ended", int64(len(floods)))
	t.NeedWitness("mib-dropped", 90)
	t.NeedWitness("single-bytes", 2*ou02Single)
	type flooded struct {
		name   string
		script emit.Script
		o      attack.Outcome
	}
	var all []flooded
	for _, f := range floods {
		s := emit.Script{Content: content, Steps: f.steps}
		o := attack.Run(ctx, sb, target.Command{Argv: s.Argv(program), MaxOutput: ou02Budget, Timeout: 60 * time.Second})
		if err := o.Trouble(); err != nil {
			return err
		}
		all = append(all, flooded{f.name, s, o})

		// Witness.
		p, err := report.ReadProgress(filepath.Join(c.Workspace, emit.Progress))
		if err != nil {
			return fmt.Errorf("%s: read progress: %w", f.name, err)
		}
		if p.Done {
			t.Witness("commands-ended", 1)
			for _, step := range f.steps {
				if step.Block == 1 {
					t.Witness("single-bytes", 2*step.Length)
				}
			}
		}
		t.Witness("mib-dropped", o.Result.DroppedBytes>>20)
		t.Observe(f.name, map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "wallMs": o.Wall.Milliseconds(), "stdout": len(o.Result.Stdout), "stderr": len(o.Result.Stderr), "dropped": o.Result.DroppedBytes})
	}
	grown, err := stop()
	if err != nil {
		return err
	}
	t.Observe("growth", grown.Facts())

	// Verdict. What came before the flood is all there, on both streams.
	differences := make([][]emit.Fault, len(all))
	for i, f := range all {
		if f.o.Err != nil || f.o.Result.ExitCode != 0 {
			continue
		}
		differences[i] = f.script.Differences(f.o.Result, ou02Budget)
		// What came back as other bytes is no matter of which stream came first: it is named below.
		if f.name != "both flood" && len(differences[i]) == 0 && min(len(f.o.Result.Stdout), len(f.o.Result.Stderr)) < ou02Single {
			t.Fail("stream-starved", "%s: %d bytes of stdout and %d of stderr were returned, %d of each were written before the flood", f.name, len(f.o.Result.Stdout), len(f.o.Result.Stderr), ou02Single)
		}
	}
	if grown.Worker > ou02Worker {
		t.Fail("worker-memory", "the worker grew by %d bytes, bound %d", grown.Worker, int64(ou02Worker))
	}
	if grown.Sandbox > ou02Sandbox {
		t.Fail("sandbox-memory", "the sandbox grew by %d bytes, bound %d", grown.Sandbox, int64(ou02Sandbox))
	}
	for i, f := range all {
		if f.o.Err != nil || f.o.Result.ExitCode != 0 {
			t.Fail("flood-ended-the-exec", "%s: exit code %d, error %v", f.name, f.o.Result.ExitCode, f.o.Err)
			continue
		}
		for _, d := range differences[i] {
			t.Fail(d.Reason, "%s: %s", f.name, d.Text)
		}
	}
	if t.Target().Authority == nil {
		t.Observe("stalled reader", "the target offers no connection to hold")
		return nil
	}
	return ou02StalledReader(ctx, t, sb, c, program, content)
}

// ou02StalledReader floods both streams of a streamed answer that is not read until the command has
// written all, and then reads it.
func ou02StalledReader(ctx context.Context, t *conformance.T, sb target.Sandbox, c target.Container, program string, content []byte) error {
	const budget = 1 << 20 // more than the sockets hold
	s := emit.Script{Content: content, Steps: []emit.Step{{FD: 12, Length: ou02Stalled, Block: 64 << 10}}}
	id := make([]byte, 16)
	rand.Read(id)
	req, err := wire.Sign(ctx, t.Target().Authority, wire.Streamed(wire.Run(sb, "ou02-"+hex.EncodeToString(id), s.Argv(program, "-progress", "stalled.progress"), 60*time.Second, budget)))
	if err != nil {
		return err
	}
	stop, err := emit.Watch(ctx, t, c)
	if err != nil {
		return err
	}
	t.NeedWitness("written-unread", 1)
	drained := false
	answer, err := wire.Stalled(ctx, t.Target().Authority.Dial, req, func() (err error) {
		drained, err = attack.Eventually(ctx, ou02Drained, func() (bool, error) {
			p, err := report.ReadProgress(filepath.Join(c.Workspace, "stalled.progress"))
			return err == nil && p.Done, nil // not there, or not whole yet
		})
		if err != nil {
			return err
		}
		if !drained {
			t.Fail("reader-stalls-the-command", "after %s the command has not written all, and nobody reads its answer", ou02Drained)
		}
		start := time.Now()
		if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 10 * time.Second}); err != nil {
			t.Fail("reader-stalls-others", "another command meanwhile: %v", err)
		}
		t.Observe("command beside the stalled answer", map[string]int64{"wallMs": time.Since(start).Milliseconds()})
		return nil
	})
	if err != nil {
		return err
	}
	grown, err := stop()
	if err != nil {
		return err
	}
	t.Observe("growth with a stalled reader", grown.Facts())
	if drained {
		t.Witness("written-unread", 1)
	}
	if answer.Status != 200 {
		t.Fail("stalled-answer-lost", "status %d: %.300q", answer.Status, answer.Body)
		return nil
	}
	res, err := wire.Lines(answer.Body)
	if err != nil {
		t.Fail("stream-malformed", "%v", err)
		return nil
	}
	for _, d := range s.Differences(res, budget) {
		t.Fail(d.Reason, "stalled reader: %s", d.Text)
	}
	if grown.Worker > ou02Worker {
		t.Fail("worker-memory", "with a stalled reader the worker grew by %d bytes, bound %d", grown.Worker, int64(ou02Worker))
	}
	if grown.Sandbox > ou02Sandbox {
		t.Fail("sandbox-memory", "with a stalled reader the sandbox grew by %d bytes, bound %d", grown.Sandbox, int64(ou02Sandbox))
	}
	return nil
}
