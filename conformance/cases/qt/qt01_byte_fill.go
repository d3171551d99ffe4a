// SPDX-License-Identifier: Apache-2.0

package qt

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of QT-01. The attack may write four times the limit per round when nothing stops
// it. A filesystem has metadata of its own that the kernel writes when it is full: 5 % of slack.
// The slack of the host's free space is for what else runs there: logs, the suite's records.
const (
	qt01Limit = 32 << 20
	qt01Bound = qt01Limit + qt01Limit/20
	qt01Slack = 48 << 20
)

// QT01 fills a workspace with bytes.
var QT01 = conformance.Case{
	ID: "QT-01", Revision: 1, Title: "Byte fill",
	Requirement: "A tenant cannot store more bytes than the workspace's limit, however it writes, and is told so by an error.",
	Threat:      "One tenant fills the host's disk.",
	Attack:      "1 and 32 writers, buffered, O_SYNC and O_DIRECT, each until an error, against a limit of 32 MiB.",
	Witness:     "Rounds that ended in ENOSPC or EDQUOT: every round whose mode the sandbox knows (at least 4).",
	Oracle:      "Allocated blocks of the tree, sampled while the attack runs, and statfs of its filesystem, both on the host and at most the limit plus 5 %; the free space of the host's own filesystem.",
	Precedent:   "CubeSandbox#1385",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureQuota},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleUsage},
	Kills:    []conformance.Kill{{Mutant: "m46", Reason: "bytes-above-limit"}},
	Run:      runQT01,
}

func runQT01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{WorkspaceBytes: qt01Limit, WorkspaceInodes: 1024})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	host := filepath.Dir(c.Workspace)
	hostBefore, err := oracle.StatUsage(host)
	if err != nil {
		return err
	}

	// Attack, with the host looking on.
	var peak atomic.Int64
	stop := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, func(context.Context) error {
		u, err := oracle.WalkUsage(c.Workspace)
		peak.Store(max(peak.Load(), u.Bytes))
		return err
	})
	rounds := "buffered:1,buffered:32,sync:1,sync:32,direct:1,direct:32"
	o := attack.Run(ctx, sb, target.Command{
		Argv:    attack.Command(program, "fill-bytes", "-rounds", rounds, "-max", strconv.Itoa(4*qt01Limit), "-progress", "fill.progress"),
		Timeout: 45 * time.Second,
	})
	samples := stop()
	end, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	device, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	hostAfter, err := oracle.StatUsage(host)
	if err != nil {
		return err
	}

	// Witness: a mode that the sandbox's kernel does not know at all counts for nothing.
	attack.Witness(t, "fill", o.Report)
	need := int64(0)
	for round := range strings.SplitSeq(rounds, ",") {
		if strings.HasPrefix(round, "direct") && o.Report.Errno["open "+round]["EINVAL"] > 0 {
			t.Observe("unsupported "+round, "O_DIRECT is EINVAL")
			continue
		}
		need++
	}
	t.NeedWitness("rounds-refused", need)
	t.Witness("rounds-refused", o.Report.Counts["rounds-refused"])
	t.Observe("usage", map[string]int64{"limit": qt01Limit, "peakBytes": peak.Load(), "endBytes": end.Bytes, "deviceBytes": device.BytesTotal,
		"hostFreeDrop": hostBefore.BytesFree - hostAfter.BytesFree, "samples": samples.N})

	// Verdict.
	if used := max(peak.Load(), end.Bytes); used > qt01Bound {
		t.Fail("bytes-above-limit", "%d bytes allocated with a limit of %d", used, int64(qt01Limit))
	}
	if device.Device == hostAfter.Device {
		t.Fail("no-own-filesystem", "the workspace is a plain folder of the host's filesystem")
	} else if device.BytesTotal > qt01Bound {
		t.Fail("bytes-above-limit", "the workspace's filesystem holds %d bytes with a limit of %d", device.BytesTotal, int64(qt01Limit))
	}
	if drop := hostBefore.BytesFree - hostAfter.BytesFree; drop > qt01Limit+qt01Slack {
		t.Fail("host-space-lost", "the host lost %d bytes of free space", drop)
	}
	if o.Err != nil || o.Result.TimedOut || o.Result.ExitCode != 0 {
		t.Fail("fill-hung", "the attack did not end by errors: %v", describe(o))
	}
	return nil
}

func describe(o attack.Outcome) string {
	return fmt.Sprintf("code %q, error %v, exit code %d, signal %q, timed out %v, after %s: %.200s", o.Code, o.Err, o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut, o.Wall.Round(time.Millisecond), o.Result.Stderr)
}
