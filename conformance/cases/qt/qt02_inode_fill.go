// SPDX-License-Identifier: Apache-2.0

package qt

import (
	"context"
	"path/filepath"
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
	ID: "QT-02", Revision: 1, Title: "Inode fill",
	Requirement: "A tenant cannot create more inodes than the workspace's limit, of any kind; others still can.",
	Threat:      "A million empty files make the host's disk unusable while it is empty.",
	Attack:      "Empty files, directories and symlinks, in turn, each until an error, against a limit of 1,024.",
	Witness:     "Kinds that ended in ENOSPC or EDQUOT (all 3).",
	Oracle:      "Inodes counted by a walk on the host and by statfs of the workspace's filesystem; a neighbour's write; inodes of the host's own filesystem.",
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

	// Attack.
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "fill-inodes", "-max", "5120"), Timeout: 45 * time.Second})
	walk, err := oracle.WalkUsage(c.Workspace)
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
	neighbourErr := neighbour.Files().Write(ctx, "mine", []byte("mine"))

	// Witness.
	attack.Witness(t, "fill", o.Report)
	t.NeedWitness("kinds-refused", 3)
	t.Witness("kinds-refused", o.Report.Counts["kinds-refused"])
	most := int64(0)
	for _, kind := range []string{"file", "dir", "symlink"} {
		most = max(most, o.Report.Counts["created "+kind])
	}
	t.Observe("usage", map[string]int64{"limit": qt02Limit, "walked": walk.Inodes, "deviceUsed": device.Inodes, "deviceTotal": device.InodesTotal,
		"deviceFree": device.InodesFree, "mostOfOneKind": most, "hostFreeDrop": hostBefore.InodesFree - hostAfter.InodesFree})

	// Verdict. The last kind's entries are still there.
	if device.Device == hostAfter.Device {
		t.Fail("no-own-filesystem", "the workspace is a plain folder of the host's filesystem")
	}
	used := walk.Inodes - 1 // the workspace itself is not the tenant's
	if max(used, most) > qt02Limit {
		t.Fail("inodes-above-limit", "%d inodes with a limit of %d", max(used, most), qt02Limit)
	}
	if o.Report.Counts["kinds-refused"] > 0 && used < qt02Limit {
		t.Fail("refused-below-limit", "creation was refused at %d inodes of %d", used, qt02Limit)
	}
	if neighbourErr != nil {
		t.Fail("neighbour-cannot-create", "a neighbour's write: %v", neighbourErr)
	}
	if drop := hostBefore.InodesFree - hostAfter.InodesFree; drop > qt02Limit+512 {
		t.Fail("host-inodes-lost", "the host lost %d free inodes", drop)
	}
	if o.Err != nil || o.Result.ExitCode != 0 {
		t.Fail("fill-hung", "the attack did not end by errors: %v", describe(o))
	}
	return nil
}
