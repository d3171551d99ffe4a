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
const (
	qt01Limit = 32 << 20
	qt01Bound = qt01Limit + qt01Limit/20
)

// QT01 fills a workspace with bytes.
var QT01 = conformance.Case{
	ID: "QT-01", Revision: 2, Title: "Byte fill",
	Requirement: "A tenant cannot store more bytes than the workspace's limit, however it writes, and is told so by an error.",
	Threat:      "One tenant fills the host's disk.",
	Attack:      "1 and 32 writers, buffered, O_SYNC and O_DIRECT, each until an error, against a limit of 32 MiB.",
	Witness:     "Rounds that ended in ENOSPC or EDQUOT: every round whose mode the sandbox knows (at least 4).",
	Oracle:      "Allocated blocks of the tree, and used blocks of its filesystem where it has one of its own, both read on the host after each round and sampled meanwhile, at most the limit plus 5 %; what the file behind a loop device grew by. The host's free space is recorded: others use it too.",
	Precedent:   "CubeSandbox#1385",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 150 * time.Second,
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
	image, backingBefore, backed, err := oracle.Backing(c.Workspace)
	if err != nil {
		return err
	}
	usage := func() (tree oracle.TreeUsage, device oracle.Usage, err error) {
		if tree, err = oracle.WalkUsage(c.Workspace); err == nil {
			device, err = oracle.StatUsage(c.Workspace)
		}
		return tree, device, err
	}

	// Attack, round by round, with the host looking on; after each, what it wrote is still there.
	var treePeak, devicePeak atomic.Int64
	stop := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, func(context.Context) error {
		tree, device, err := usage()
		treePeak.Store(max(treePeak.Load(), tree.Bytes))
		devicePeak.Store(max(devicePeak.Load(), device.Bytes))
		return err
	})
	defer stop()
	var treeMost, deviceMost int64
	var device oracle.Usage
	need := int64(0)
	var hung []string
	for _, round := range []string{"buffered:1", "buffered:32", "sync:1", "sync:32", "direct:1", "direct:32"} {
		o := attack.Run(ctx, sb, target.Command{
			Argv: attack.Command(program, "fill-bytes", "-rounds", round, "-max", strconv.Itoa(4*qt01Limit)), Timeout: 20 * time.Second,
		})
		if err := o.Trouble(); err != nil {
			return err
		}
		var tree oracle.TreeUsage
		if tree, device, err = usage(); err != nil {
			return err
		}
		treeMost, deviceMost = max(treeMost, tree.Bytes), max(deviceMost, device.Bytes)

		// Witness: a mode that the sandbox's kernel does not know at all counts for nothing.
		attack.Witness(t, "fill "+round, o.Report)
		t.Observe("bytes after "+round, map[string]int64{"tree": tree.Bytes, "device": device.Bytes, "wallMs": o.Wall.Milliseconds()})
		if strings.HasPrefix(round, "direct") && o.Report.Errno["open "+round]["EINVAL"] > 0 {
			t.Observe("unsupported "+round, "O_DIRECT is EINVAL")
		} else {
			need++
		}
		t.Witness("rounds-refused", o.Report.Counts["rounds-refused"])
		if o.Err != nil || o.Result.TimedOut || o.Result.ExitCode != 0 {
			hung = append(hung, round+": "+describe(o))
		}
	}
	t.NeedWitness("rounds-refused", need)
	samples := stop()
	treeMost, deviceMost = max(treeMost, treePeak.Load()), max(deviceMost, devicePeak.Load())
	hostAfter, err := oracle.StatUsage(host)
	if err != nil {
		return err
	}
	own := device.Device != hostAfter.Device // else statfs speaks of others' bytes as well
	t.Observe("usage", map[string]int64{"limit": qt01Limit, "peakBytes": treeMost, "devicePeakBytes": deviceMost, "deviceTotalBytes": device.BytesTotal,
		"hostFreeDrop": hostBefore.BytesFree - hostAfter.BytesFree, "samples": samples.N, "sampleErrors": samples.Errors})
	t.Observe("own-filesystem", own)

	// Verdict: what was stored, never a limit that is written down.
	if treeMost > qt01Bound {
		t.Fail("bytes-above-limit", "%d bytes allocated with a limit of %d", treeMost, int64(qt01Limit))
	}
	if own && deviceMost > qt01Bound {
		t.Fail("bytes-above-limit", "the workspace's filesystem holds %d bytes with a limit of %d", deviceMost, int64(qt01Limit))
	}
	if backed {
		_, now, found, err := oracle.Backing(c.Workspace)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("the file %s behind the workspace is gone", image)
		}
		t.Observe("backing", map[string]int64{"before": backingBefore, "after": now})
		if grown := now - backingBefore; grown > qt01Bound {
			t.Fail("host-space-lost", "the file behind the workspace grew by %d bytes on the host", grown)
		}
	}
	for _, h := range hung {
		t.Fail("fill-hung", "round %s: it did not end by errors", h)
	}
	return nil
}

func describe(o attack.Outcome) string {
	return fmt.Sprintf("code %q, error %v, exit code %d, signal %q, timed out %v, after %s: %.200s", o.Code, o.Err, o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut, o.Wall.Round(time.Millisecond), o.Result.Stderr)
}
