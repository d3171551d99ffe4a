// SPDX-License-Identifier: Apache-2.0

package qt

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of QT-02. The attack creates at most five times the limit of each kind.
const qt02Limit = 1024

// QT02 fills a workspace with inodes.
var QT02 = conformance.Case{
	ID: "QT-02", Revision: 3, Title: "Inode fill",
	Requirement: "A tenant cannot create more inodes than the workspace's limit, of any kind; others still can.",
	Threat:      "A million empty files make the host's disk unusable while it is empty.",
	Attack:      "Empty files, directories and symlinks, in turn, each until an error, against a limit of 1,024.",
	Witness:     "Kinds that ended in ENOSPC or EDQUOT (all 3).",
	Oracle:      "Inodes counted by a walk on the host after each kind, while its entries are there: the limit exactly. Meanwhile, where the workspace has a filesystem of its own, its count is sampled; never by a walk, whose open folders keep what the tenant deletes. A neighbour's write. What statfs says of the workspace's and the host's filesystem is recorded.",
	Tier:        conformance.Full, Control: true, PerImage: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureQuota},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleUsage},
	Kills:    []conformance.Kill{{Mutant: "m44", Reason: "inodes-above-limit"}},
	Run:      runQT02,
}

func runQT02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{WorkspaceInodes: qt02Limit})
	program := t.Tenant(ctx, sb)
	neighbour := t.Sandbox(ctx, target.Spec{WorkspaceInodes: qt02Limit})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	host := filepath.Dir(c.Workspace)
	hostBefore, err := oracle.StatUsage(host)
	if err != nil {
		return err
	}

	device, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	walk, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	own := device.Device != hostBefore.Device // else statfs speaks of others' inodes as well
	others := device.Inodes - (walk.Inodes - 1)

	// Attack, kind by kind: after each the host counts what is there. The workspace itself is not the
	// tenant's.
	var peak atomic.Int64
	stop := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, func(context.Context) error {
		if !own {
			return nil
		}
		now, err := oracle.StatUsage(c.Workspace)
		peak.Store(max(peak.Load(), now.Inodes-others))
		return err
	})
	defer stop()
	t.NeedWitness("kinds-refused", 3)
	most := int64(0)
	for _, kind := range []string{"file", "dir", "symlink"} {
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "fill-inodes", "-kinds", kind, "-max", strconv.Itoa(5*qt02Limit)), Timeout: 20 * time.Second})
		if err := o.Trouble(); err != nil {
			return err
		}
		if walk, err = oracle.WalkUsage(c.Workspace); err != nil {
			return err
		}

		// Witness.
		attack.Witness(t, "fill-"+kind, o.Report)
		t.Witness("kinds-refused", o.Report.Counts["kinds-refused"])
		used := walk.Inodes - 1
		most = max(most, used)
		t.Observe("used after "+kind, map[string]int64{"limit": qt02Limit, "walked": used, "created": o.Report.Counts["created "+kind]})

		// Verdict.
		if used > qt02Limit {
			t.Fail("inodes-above-limit", "%d inodes of kind %s and others with a limit of %d", used, kind, qt02Limit)
		}
		if o.Report.Counts["kinds-refused"] > 0 && used < qt02Limit {
			t.Fail("refused-below-limit", "a %s was refused at %d inodes of %d", kind, used, qt02Limit)
		}
		if o.Err != nil || o.Result.TimedOut || o.Result.ExitCode != 0 {
			t.Fail("fill-hung", "the attack did not end by errors: %v", describe(o))
		}
	}
	samples := stop()
	if most = max(most, peak.Load()); most > qt02Limit {
		t.Fail("inodes-above-limit", "%d inodes at one time with a limit of %d", most, qt02Limit)
	}
	neighbourErr := neighbour.Files().Write(ctx, "mine", []byte("mine"))
	if neighbourErr != nil && target.CodeOf(neighbourErr) == "" {
		return neighbourErr
	}
	if neighbourErr != nil {
		t.Fail("neighbour-cannot-create", "a neighbour's write: %v", neighbourErr)
	}
	if device, err = oracle.StatUsage(c.Workspace); err != nil {
		return err
	}
	hostAfter, err := oracle.StatUsage(host)
	if err != nil {
		return err
	}
	t.Observe("usage", map[string]int64{"peak": most, "samples": samples.N, "deviceUsed": device.Inodes, "deviceTotal": device.InodesTotal,
		"deviceFree": device.InodesFree, "hostFreeDrop": hostBefore.InodesFree - hostAfter.InodesFree})
	t.Observe("own-filesystem", own)
	return nil
}
