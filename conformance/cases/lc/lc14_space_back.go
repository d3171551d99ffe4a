// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// lc14Limit is the workspace's bound, in bytes. The second fill has to come within 5 % of the first.
const lc14Limit = 32 << 20

// LC14 fills a workspace, deletes through the API, and fills it again.
var LC14 = conformance.Case{
	ID: "LC-14", Revision: 1, Title: "Space comes back",
	Requirement: "What is deleted through the API is free again, for the tenant too: a second fill reaches what the first one did.",
	Threat:      "A descriptor that something keeps pins deleted bytes to the tenant's account, and a long-lived sandbox becomes useless.",
	Attack:      "A command fills the workspace until an error; its file is deleted by the API; another command fills it again.",
	Witness:     "Fills that ended in ENOSPC or EDQUOT (2), and deletions after which the name was gone (1).",
	Oracle:      "Allocated blocks of the tree, read on the host after each fill; what statfs says of its filesystem is recorded.",
	Precedent:   "measured on runsc: a cached descriptor pins the charge",
	Tier:        conformance.Full, Control: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureQuota},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleUsage},
	Kills:    []conformance.Kill{{Mutant: "m68", Reason: "space-lost"}, {Mutant: "m99", Reason: "space-lost"}},
	Run:      runLC14,
}

func runLC14(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{WorkspaceBytes: lc14Limit, WorkspaceInodes: 1024})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	t.NeedWitness("rounds-refused", 2)
	t.NeedWitness("deleted", 1)
	fill := func() (int64, error) {
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "fill-bytes", "-rounds", "buffered:1", "-max", strconv.Itoa(4*lc14Limit)), Timeout: 20 * time.Second})
		if err := o.Trouble(); err != nil {
			return 0, err
		}
		t.Witness("rounds-refused", o.Report.Counts["rounds-refused"])
		u, err := oracle.WalkUsage(c.Workspace)
		return u.Bytes, err
	}
	empty, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}

	// Attack.
	first, err := fill()
	if err != nil {
		return err
	}
	if err := sb.Files().Remove(ctx, "fill/buffered-0"); err != nil {
		return err
	}
	deleted, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	if deleted.Bytes < first/2 {
		t.Witness("deleted", 1)
	}
	second, err := fill()
	if err != nil {
		return err
	}

	// Verdict.
	device, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	t.Observe("used by statfs", device.Bytes)
	t.Observe("bytes", map[string]int64{"empty": empty.Bytes, "first": first, "deleted": deleted.Bytes, "second": second})
	if second-empty.Bytes < (first-empty.Bytes)*95/100 {
		t.Fail("space-lost", "the second fill stored %d bytes, the first one %d", second-empty.Bytes, first-empty.Bytes)
	}
	return nil
}
