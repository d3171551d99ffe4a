// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/emit"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of OU-03. Memory is bounded as in OU-01. A byte that is written alone may be passed on
// alone, through every hand on the way: 40 µs of the daemon's processors for each is several times what
// its hands need, on a busy machine too, and far from what a search over all that has come would take.
const (
	ou03Budget  = 128 << 10
	ou03Long    = 128 << 20       // without a newline
	ou03Tiny    = 1 << 20         // writes of one byte at most, within ou03Span
	ou03Least   = 2_000           // of them; a busy machine needs a millisecond for each
	ou03Span    = 4 * time.Second // of them
	ou03Worker  = 24 * ou01Budget
	ou03Sandbox = 64 << 20
	ou03CPU     = 40 * time.Microsecond
	ou03Floor   = 2 * time.Second // for what does not depend on the number: 128 MiB are 2,048 blocks
)

// OU03 writes one endless line, and bytes one at a time.
var OU03 = conformance.Case{
	ID: "OU-03", Revision: 1, Title: "No newline, tiny writes",
	Requirement: "Nobody waits for the end of a line: one without end costs constant memory. Bytes that are written one at a time cost the worker processor time in proportion to their number at most.",
	Threat:      "One long line fills the memory of whoever reads by lines; many small writes fill the processors of whoever does something for each.",
	Attack:      "128 MiB without a newline, then writes of one byte for 4 s, at most a Mi, against a budget of 128 KiB.",
	Witness:     "MiB without a newline that reached the collector, returned or dropped (at least 120), and one-byte writes that did (at least 2,000).",
	Oracle:      "VmHWM and processor time of the worker, and the memory peak of the sandbox's cgroup, on the host; bytes, flags and counts of the reply.",
	Precedent:   "moby#18057",
	Tier:        conformance.Full, Control: true, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkerProcess, conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleMemory, conformance.OracleCgroup, conformance.OracleCPU, conformance.OracleReply},
	Kills:    []conformance.Kill{{Mutant: "m08", Reason: "sandbox-memory"}, {Mutant: "m09", Reason: "bytes-unaccounted"}, {Mutant: "m85", Reason: "output-missing"}, {Mutant: "m87", Reason: "sandbox-memory"}},
	Run:      runOU03,
}

func runOU03(ctx context.Context, t *conformance.T) error {
	// Arrange: the first command has paid for what is paid once.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	content := bytes.Repeat([]byte("no newline in here, "), 1<<12)
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
	t.NeedWitness("mib-without-newline", 120)
	t.NeedWitness("one-byte-writes", ou03Least)
	for _, row := range []struct {
		name   string
		step   emit.Step
		enough time.Duration
	}{
		{"no newline", emit.Step{FD: 1, Length: ou03Long, Block: 64 << 10}, time.Hour},
		{"one byte at a time", emit.Step{FD: 1, Length: ou03Tiny, Block: 1}, ou03Span},
	} {
		// Attack.
		stop, err := emit.Watch(ctx, t, c)
		if err != nil {
			return err
		}
		s := emit.Script{Content: content, Steps: []emit.Step{row.step}}
		o := attack.Run(ctx, sb, target.Command{Argv: s.Argv(program, "-time", "45s", "-enough", row.enough.String()), MaxOutput: ou03Budget, Timeout: 45 * time.Second})
		if err := o.Trouble(); err != nil {
			return err
		}
		grown, err := stop()
		if err != nil {
			return err
		}

		// Witness.
		through := int64(len(o.Result.Stdout)) + o.Result.DroppedBytes
		if row.step.Block == 1 {
			t.Witness("one-byte-writes", through)
		} else {
			t.Witness("mib-without-newline", through>>20)
		}
		cpu := ou03Floor
		if row.step.Block == 1 {
			cpu += time.Duration(through) * ou03CPU
		}
		facts := grown.Facts()
		facts["wallMs"], facts["through"] = o.Wall.Milliseconds(), through
		t.Observe(row.name, facts)

		// Verdict.
		if grown.Worker > ou03Worker {
			t.Fail("worker-memory", "%s: the worker grew by %d bytes, bound %d", row.name, grown.Worker, int64(ou03Worker))
		}
		if grown.Sandbox > ou03Sandbox {
			t.Fail("sandbox-memory", "%s: the sandbox grew by %d bytes, bound %d", row.name, grown.Sandbox, int64(ou03Sandbox))
		}
		if grown.CPU > cpu {
			t.Fail("worker-cpu", "%s: the worker used %s of the processors, bound %s", row.name, grown.CPU, cpu)
		}
		if o.Err != nil || o.Result.ExitCode != 0 {
			t.Fail("flood-ended-the-exec", "%s: exit code %d, error %v", row.name, o.Result.ExitCode, o.Err)
			continue
		}
		// How many bytes the time was enough for is the tenant's word; which ones they are is not.
		p, err := report.ReadProgress(filepath.Join(c.Workspace, emit.Progress))
		if err != nil {
			return fmt.Errorf("%s: read progress: %w", row.name, err)
		}
		s.Steps[0].Length = min(p.Counts["stdout"], s.Steps[0].Length)
		for _, d := range s.Differences(o.Result, ou03Budget) {
			t.Fail(d.Reason, "%s: %s", row.name, d.Text)
		}
	}
	return nil
}
