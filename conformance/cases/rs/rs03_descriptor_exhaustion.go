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
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of RS-03. A build or a browser is content with some thousand descriptors for each process. A
// sentry needs up to two of the host's for a file (measured: 8,191 for 4,091 files), so what one process of
// the host may hold is 10,000, and a tenant's process that nobody stops asks for more than that. After
// the command some may stay open in a cache: gVisor's gofer filesystem keeps the 1,000 files that it saw
// last (measured: 2,003 descriptors more than before), a quarter of what one process of the attack holds.
const (
	rs03Asked = 12_000
	rs03Most  = 10_000
	rs03Cache = 2*1000 + 500
	rs03Hold  = 2 * time.Second
	rs03Back  = 10 * time.Second
)

// RS03 opens descriptors until nobody gives it more.
var RS03 = conformance.Case{
	ID: "RS-03", Revision: 1, Title: "FD exhaustion",
	Requirement: "A tenant's process holds a bounded number of descriptors, so the host's open files and the runtime's own are bounded; after the command they are closed, and the next command runs.",
	Threat:      "One tenant takes the open files of the host, or those of the process that stands between it and the host.",
	Attack:      "Four processes ask for 12,000 descriptors each, after they raised what they may have: sockets, eventfds, epolls, and distinct files of the workspace, opened for writing. They hold them for 2 s; the one with the files lives on when the command has ended.",
	Witness:     "Descriptors that the attack held by its own account (at least 4,000), or refusals to make one (at least 1 process).",
	Oracle:      "Descriptors of every process in the sandbox's cgroup, in /proc on the host: the highest while they are held, and again after the command; the host's own open files beside it.",
	Precedent:   "gvisor#6547, #5982",
	Tier:        conformance.Full, Control: true, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartCgroup, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup, conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m95", Reason: "descriptors-unbounded"}},
	Run:      runRS03,
}

func runRS03(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{WorkspaceInodes: rs03Asked + 4096})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	group := oracle.Cgroup{Dirs: c.Cgroups}
	if err := held.Usable(ctx, t, sb, program); err != nil { // what a first command opens is no leak
		return err
	}
	look := func() (most, sum int64, err error) {
		pids, err := group.Procs()
		if err != nil {
			return 0, 0, err
		}
		return oracle.MostDescriptors(pids)
	}
	before, sumBefore, err := look()
	if err != nil {
		return err
	}
	hostBefore, err := oracle.OpenFiles()
	if err != nil {
		return err
	}

	// Attack.
	var most, sum, host int64
	var lookErr error
	stop := oracle.Probe(ctx, 50*time.Millisecond, 5*time.Second, func(context.Context) error {
		m, s, err := look()
		if err != nil {
			lookErr = err
			return err
		}
		most, sum = max(most, m), max(sum, s)
		if n, err := oracle.OpenFiles(); err == nil {
			host = max(host, n)
		}
		return nil
	})
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "exhaust-descriptors", "-max", strconv.Itoa(rs03Asked), "-hold", rs03Hold.String(), "-survive", "-progress", "descriptors.progress"), Timeout: 40 * time.Second})
	looked := stop()
	if err := o.Trouble(); err != nil {
		return err
	}
	got := o.Report
	if got.Attack == "" {
		if got, err = report.ReadProgress(filepath.Join(c.Workspace, "descriptors.progress")); err != nil {
			return err
		}
	}

	// Witness.
	attack.Witness(t, "descriptors", got)
	t.NeedWitness("descriptors-held", 4000)
	t.Witness("descriptors-held", got.Counts["socket"]+got.Counts["eventfd"]+got.Counts["epoll"]+got.Counts["file"])
	t.Observe("inside", got.Counts)
	t.Observe("host", map[string]int64{"before": before, "most": most, "sumBefore": sumBefore, "sum": sum, "openFilesBefore": hostBefore, "openFiles": host, "looks": looked.N - looked.Errors})
	t.Observe("end", map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "descendantsKilled": o.Result.DescendantsKilled, "wallMs": o.Wall.Milliseconds()})
	if looked.N == looked.Errors && o.Err == nil {
		return lookErr
	}

	// Verdict.
	if most-before > rs03Most {
		t.Fail("descriptors-unbounded", "one process of the sandbox holds %d descriptors on the host, %d before; the bound is %d", most, before, int64(rs03Most))
	}
	if got.Counts["refused"] == 0 && o.Err == nil {
		t.Fail("descriptors-unbounded", "no process was refused: each holds %d descriptors", int64(rs03Asked))
	}
	if o.Err != nil {
		t.Fail("sandbox-ended", "descriptors ended the sandbox: code %q of kind %q", o.Code, o.Kind)
		return nil
	}
	var after int64
	back, err := attack.Eventually(ctx, rs03Back, func() (bool, error) {
		m, _, err := look()
		after = m
		return m-before <= rs03Cache, err
	})
	if err != nil {
		return err
	}
	t.Observe("after", after)
	if !back {
		t.Fail("descriptors-kept", "%s after the command one process still holds %d descriptors, %d before; a cache explains %d", rs03Back, after, before, int64(rs03Cache))
	}
	return held.Usable(ctx, t, sb, program)
}
