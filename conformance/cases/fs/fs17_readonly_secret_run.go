// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// FS17 tries to change the workspace from inside a secret-bearing invocation, in every way there is.
var FS17 = conformance.Case{
	ID: "FS-17", Revision: 1, Title: "Read-only workspace in secret run",
	Requirement: "A secret-bearing invocation can read the workspace and change nothing of it: no byte, name, mode, time or attribute. The next invocation can again.",
	Threat:      "A secret is left in the workspace, where another authority reads it later.",
	Attack:      "With a secret on descriptor 3: open for writing, truncate, create, link, symlink, rename, remove, make and remove folders, chmod, chown, utimes, extended attributes, a shared writable mapping, writing through a descriptor that is opened anew by /proc, remount and bind mounts.",
	Witness:     "Attempts that were made (at least 20), by a command that read the workspace's file and the whole frame.",
	Oracle:      "A hash of the workspace on the host with all metadata, before and after; afterwards a write that the host sees.",
	Precedent:   "origin; Kilocode#11596",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleTreeHash, conformance.OracleWire},
	Kills:    []conformance.Kill{{Mutant: "m35", Reason: "workspace-changed"}},
	Run:      runFS17,
}

func runFS17(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "effect", "-file", "fs17-file")}); err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	before, err := oracle.HashTree(c.Workspace)
	if err != nil {
		return err
	}

	// Attack.
	r, err := b.Run(ctx, "fs17-secret", "change-workspace", "-file", "fs17-file")
	if err != nil {
		return err
	}
	attack.Witness(t, "change-workspace", r)
	t.NeedWitness("attempts", 20)
	if r.Counts["read"] > 0 && r.Counts["frame-bytes"] > 0 {
		t.Witness("attempts", r.Counts["attempts"])
	}

	// Verdict.
	after, err := oracle.HashTree(c.Workspace)
	if err != nil {
		return err
	}
	if changed := before.Diff(after); len(changed) > 0 {
		t.Fail("workspace-changed", "the secret-bearing invocation changed %q", changed[:min(len(changed), 8)])
	}
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "effect", "-file", "fs17-after")}); err != nil {
		t.Fail("stays-read-only", "the next invocation cannot write: %v", err)
	} else if _, err := os.Lstat(filepath.Join(c.Workspace, "fs17-after")); err != nil {
		t.Fail("stays-read-only", "what the next invocation wrote is not on the host: %v", err)
	}
	return nil
}
