// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/held"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-02. All mounted places together must leave room in the first sandbox, and each
// is asked for twice its memory. In the second, the two objects fit one by one and not together.
const (
	rs02Memory = 256 << 20
	rs02Place  = 2 * rs02Memory
	rs02Small  = 160 << 20
	rs02Object = 120 << 20
)

// rs02Places are where a container usually has a filesystem in memory, or a folder to write to.
const rs02Places = "/tmp,/dev/shm,/run,/dev/mqueue,/dev,/var/tmp,/var/run,/run/lock,/home,/root,/,posix-mq"

// RS02 fills everything that is memory and looks like a file.
var RS02 = conformance.Case{
	ID: "RS-02", Revision: 1, Title: "tmpfs and shm fill",
	Requirement: "A place in memory that the sandbox comes with is bounded by itself: whoever fills it gets an error and the sandbox goes on. What a tenant makes in memory is counted in the memory of the sandbox and ends, at the limit, in an error or in a typed end.",
	Threat:      "Files in memory take what no limit counts, until the host has none left; or a full /tmp ends the sandbox of whoever wrote to it.",
	Attack:      "Every place where a container has a filesystem in memory, and POSIX message queues, are filled with up to 512 MiB each in a sandbox of 256 MiB; in one of 160 MiB a memfd and System V shared memory hold 120 MiB each.",
	Witness:     "Places that refused a write as full (at least 1); MiB in the memfd and the shared memory when the second sandbox came to its end or its refusal (at least 64).",
	Oracle:      "The kernel's peaks of the sandbox's memory on the host, against its limit; how the runtime says that the command ended; the next command.",
	Precedent:   "gvisor#2536; docker/docs#25741",
	Tier:        conformance.Full, Control: true, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m32", Reason: "memory-unbounded"}, {Mutant: "m40", Reason: "place-unbounded"}},
	Run:      runRS02,
}

func runRS02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{MemoryBytes: rs02Memory})
	program := t.Tenant(ctx, sb)
	w, err := held.Begin(ctx, t, sb, "sinks.progress")
	if err != nil {
		return err
	}

	// Attack: the places.
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "fill-sinks", "-sinks", rs02Places, "-bytes", strconv.Itoa(rs02Place), "-progress", "sinks.progress"), Timeout: 25 * time.Second})
	w.Stop(t, "places", o)
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness.
	t.NeedWitness("places-full", 1)
	for step, names := range w.Report.Errno {
		if strings.HasPrefix(step, "fill ") && names["ENOSPC"] > 0 {
			t.Witness("places-full", 1)
		}
	}

	// Verdict: who writes gets the error, and nobody else anything.
	w.Judge(t, rs02Memory)
	switch {
	case o.Err != nil:
		t.Fail("place-unbounded", "the fill of %q ended the sandbox: code %q of kind %q", w.Report.Facts["at"], o.Code, o.Kind)
	case o.Result.ExitCode != 0:
		t.Fail("place-unbounded", "the fill of %q ended the command: exit code %d %s, timed out %v; memory was refused %d times, %d tasks were killed",
			w.Report.Facts["at"], o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut, w.Peaks.MemoryRefused, w.Peaks.MemoryKills)
	default:
		if err := held.Usable(ctx, t, sb, program); err != nil {
			return err
		}
	}

	// Attack: the objects.
	sb = t.Sandbox(ctx, target.Spec{MemoryBytes: rs02Small})
	program = t.Tenant(ctx, sb)
	if w, err = held.Begin(ctx, t, sb, "sinks.progress"); err != nil {
		return err
	}
	o = attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "fill-sinks", "-sinks", "memfd,sysv-shm", "-bytes", strconv.Itoa(rs02Object), "-progress", "sinks.progress"), Timeout: 20 * time.Second})
	w.Stop(t, "objects", o)
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness and verdict.
	taken := w.Report.Counts["bytes memfd"] + w.Report.Counts["bytes sysv-shm"]
	t.NeedWitness("mib-taken", 64)
	t.Witness("mib-taken", taken>>20)
	w.Judge(t, rs02Small)
	if o.Err == nil && o.Result.ExitCode == 0 && taken >= 2*rs02Object {
		t.Fail("objects-uncounted", "%d bytes are in a memfd and in shared memory of a sandbox of %d; the kernel's peak is %d", taken, int64(rs02Small), w.Held())
	}
	return w.Ended(ctx, t, sb, program)
}
