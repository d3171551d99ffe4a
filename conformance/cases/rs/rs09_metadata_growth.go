// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/held"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-09. What stays is bounded by the attack itself at three times the limit.
const (
	rs09Memory  = 160 << 20
	rs09Kept    = 3 * rs09Memory
	rs09Seconds = 8
)

// RS09 makes metadata without data.
var RS09 = conformance.Case{
	ID: "RS-09", Revision: 1, Title: "Metadata heap growth",
	Requirement: "Names, links and attributes that a sentry or a kernel keeps for a tenant are counted in the sandbox's memory: it goes on, or ends with a name; the host does not notice.",
	Threat:      "What no quota of files counts grows in the heap of whoever keeps it, until the host has no memory.",
	Attack:      "In the workspace and in /tmp distinct names are made and removed and absent ones looked for; then links with targets of 4 KiB and extended attributes of 64 KiB stay in /tmp, up to 480 MiB in a sandbox of 160 MiB, unless they are refused.",
	Witness:     "Names that were made, removed or looked for (at least 500); MiB of metadata that stayed by the attack's account (at least 8).",
	Oracle:      "The kernel's peaks of the sandbox's memory on the host, against its limit; how the runtime says that the command ended; the next command, or the end of container and cgroup; the host's own fsync and fork afterwards.",
	Precedent:   "gvisor#8267",
	Tier:        conformance.Full, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup},
	Kills:    []conformance.Kill{{Mutant: "m32", Reason: "memory-unbounded"}},
	Run:      runRS09,
}

func runRS09(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{MemoryBytes: rs09Memory})
	program := t.Tenant(ctx, sb)
	w, err := held.Begin(ctx, t, sb, "names.progress")
	if err != nil {
		return err
	}

	// Attack.
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "name-churn", "-dirs", ".,/tmp", "-keep", "/tmp", "-bytes", strconv.Itoa(rs09Kept),
		"-seconds", strconv.Itoa(rs09Seconds), "-progress", "names.progress"), Timeout: 40 * time.Second})
	w.Stop(t, "names", o)
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness.
	t.NeedWitness("names", 500)
	t.Witness("names", w.Report.Counts["names"])
	t.NeedWitness("mib-kept", 8)
	t.Witness("mib-kept", w.Report.Counts["kept bytes"]>>20)
	t.Observe("inside", w.Report.Counts)

	// Verdict.
	w.Judge(t, rs09Memory)
	if err := w.Ended(ctx, t, sb, program); err != nil {
		return err
	}
	host, done, err := oracle.HostProbe(os.TempDir(), "/bin/true")
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return done() })
	if err := host(ctx); err != nil {
		t.Fail("host-hurt", "an fsync and a fork of the host: %v", err)
	}
	return nil
}
