// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of FS-13, in bytes where nothing else is said.
const (
	fs13Limit = 32 << 20
	fs13Bound = fs13Limit + fs13Limit/20
	fs13Least = 16      // MiB
	fs13Slack = 2 << 20 // the program, the heartbeat and what the filesystem keeps for itself
	fs13Back  = 5 * time.Second
	fs13Life  = 40 * time.Second // of what the command leaves behind
)

// FS13 stores bytes in files that have no name.
var FS13 = conformance.Case{
	ID: "FS-13", Revision: 1, Title: "O_TMPFILE and unlinked-open inode",
	Requirement: "Bytes in a file without a name count against the workspace's limit, and come back when the command that made it has ended, whatever it has left behind.",
	Threat:      "What no listing shows fills the disk, and stays until the sandbox goes.",
	Attack:      "A command fills a file that never had a name, where the sandbox knows such, and eight that it has unlinked, up to five times the limit of 32 MiB; a child in a session of its own keeps them open when the command exits.",
	Witness:     "MiB in files without a name (at least 16); that a write was refused (at least 1); the keeper's heartbeat, seen on the host (1).",
	Oracle:      "Used blocks of the workspace's own filesystem, read on the host: while everything is there, at most the limit plus 5 %; and 5 s after the reply, what they were before plus 2 MiB at most. Where a workspace shares its filesystem, nobody outside can see such a file, and the case is not run.",
	Tier:        conformance.Full, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureQuota},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleUsage},
	Kills:    []conformance.Kill{{Mutant: "m06", Reason: "space-kept"}, {Mutant: "m46", Reason: "bytes-above-limit"}},
	Run:      runFS13,
}

func runFS13(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{WorkspaceBytes: fs13Limit, WorkspaceInodes: 1024})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	host, err := oracle.StatUsage(filepath.Dir(c.Workspace))
	if err != nil {
		return err
	}
	before, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	if before.Device == host.Device {
		t.NotRun("shared-filesystem", "the workspace has no filesystem of its own")
	}

	// Attack: the command holds what it has stored until the host has looked.
	if err := sb.Files().Write(ctx, "fs13.hold", nil); err != nil {
		return err
	}
	running := make(chan attack.Outcome, 1)
	go func() {
		running <- attack.Run(ctx, sb, target.Command{Timeout: 40 * time.Second, Argv: attack.Command(program, "keep-unlinked",
			"-max", strconv.Itoa(5*fs13Limit), "-beat", "fs13.beat", "-life", fs13Life.String(), "-hold", "fs13.hold", "-progress", "fs13.progress")})
	}()
	filled := attack.Progress(ctx, c.Workspace, "fs13.progress")
	if ok, err := attack.Eventually(ctx, 25*time.Second, func() (bool, error) { return filled().Counts["filled"] > 0, nil }); err != nil || !ok {
		return errors.Join(errors.New("the tenant has filled nothing"), err)
	}
	full, err := oracle.StatUsage(c.Workspace)
	if err != nil {
		return err
	}
	if err := sb.Files().Remove(ctx, "fs13.hold"); err != nil {
		return err
	}
	o := <-running
	replied := time.Now()
	if err := o.Trouble(); err != nil {
		return err
	}
	var after oracle.Usage
	back, err := attack.Eventually(ctx, fs13Back, func() (bool, error) {
		after, err = oracle.StatUsage(c.Workspace)
		return after.Bytes <= before.Bytes+fs13Slack, err
	})
	if err != nil {
		return err
	}
	took := time.Since(replied)

	// Witness.
	attack.Witness(t, "unlinked", o.Report)
	t.NeedWitness("mib-unnamed", fs13Least)
	t.Witness("mib-unnamed", o.Report.Counts["bytes"]>>20)
	t.NeedWitness("refused", 1)
	t.Witness("refused", o.Report.Counts["refused"])
	t.NeedWitness("kept", 1)
	if size, err := oracle.FileSize(filepath.Join(c.Workspace, "fs13.beat")); err != nil {
		return err
	} else if size > 0 {
		t.Witness("kept", 1)
	}
	t.Observe("usage", map[string]int64{"before": before.Bytes, "full": full.Bytes, "after": after.Bytes, "backMs": took.Milliseconds(), "files": o.Report.Counts["files"]})

	// Verdict.
	if full.Bytes > fs13Bound {
		t.Fail("bytes-above-limit", "the workspace's filesystem held %d bytes with a limit of %d", full.Bytes, int64(fs13Limit))
	}
	if !back {
		t.Fail("space-kept", "%s after the reply %d bytes are used, %d were before", fs13Back, after.Bytes, before.Bytes)
	}
	if o.Err != nil || o.Result.TimedOut || o.Result.ExitCode != 0 {
		t.Fail("fill-hung", "the command did not end by itself: code %q, exit code %d %s, timed out %v", o.Code, o.Result.ExitCode, o.Result.Signal, o.Result.TimedOut)
	}
	return nil
}
