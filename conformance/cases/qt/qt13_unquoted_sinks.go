// SPDX-License-Identifier: Apache-2.0

package qt

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of QT-13, in bytes.
const (
	qt13Place = 32 << 20
	qt13Slack = 1 << 20 // what the engine and the runtime write for themselves meanwhile
	qt13Least = 8       // MiB
)

// QT13 writes wherever it may.
var QT13 = conformance.Case{
	ID: "QT-13", Revision: 1, Title: "Unquoted sinks",
	Requirement: "Whatever a tenant writes outside of its workspace goes to memory that counts as the sandbox's own: the host's disk does not grow by it.",
	Threat:      "The workspace is bounded and the container's root is not: a tenant fills the engine's disk, and with it everybody's.",
	Attack:      "In every folder of the sandbox but the workspace a file is made, and every regular file is lengthened, by up to 32 MiB each, wherever that is allowed; it all stays until the host has looked.",
	Witness:     "MiB that places outside of the workspace took (at least 8).",
	Oracle:      "Blocks on the host of the container's writable layer and of the engine's own files of it, before and while everything is there.",
	Precedent:   "gvisor#11504, #10256; microsandbox#1007; kata#12203",
	Tier:        conformance.Full, Control: true, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m104", Reason: "disk-grown"}},
	Run:      runQT13,
}

func runQT13(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	before, err := engine.WritableLayer(ctx, c.ID)
	if err != nil {
		return err
	}

	// Attack.
	filling := make(chan attack.Outcome, 1)
	go func() {
		filling <- attack.Run(ctx, sb, target.Command{Timeout: time.Minute, Argv: attack.Command(program, "fill-everywhere",
			"-bytes", strconv.Itoa(qt13Place), "-until", "qt13.stop", "-progress", "qt13.progress")})
	}()
	filled := attack.Progress(ctx, c.Workspace, "qt13.progress")
	if ok, err := attack.Eventually(ctx, 30*time.Second, func() (bool, error) { return filled().Counts["done"] > 0, nil }); err != nil || !ok {
		return errors.Join(errors.New("the tenant has not tried every place"), err)
	}
	after, err := engine.WritableLayer(ctx, c.ID)
	if err != nil {
		return err
	}
	if err := sb.Files().Write(ctx, "qt13.stop", nil); err != nil {
		return err
	}
	o := <-filling
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness.
	r := filled()
	attack.Witness(t, "filled", r)
	t.NeedWitness("mib-taken", qt13Least)
	t.Witness("mib-taken", r.Counts["bytes"]>>20)
	t.Observe("places", map[string]any{"tried": r.Counts["folders"] + r.Counts["files"], "taken": r.Counts["taken"], "most": r.Facts["most"]})
	t.Observe("layer", map[string]int64{"before": before.Bytes, "after": after.Bytes, "inodesBefore": before.Inodes, "inodesAfter": after.Inodes})

	// Verdict.
	if grown := after.Bytes - before.Bytes; grown > qt13Slack {
		t.Fail("disk-grown", "the tenant wrote %d bytes outside of its workspace, most of it to %s, and the engine's disk holds %d bytes more for its container", r.Counts["bytes"], r.Facts["most"], grown)
	}
	return nil
}
