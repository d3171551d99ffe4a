// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/outside"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// FS02 plants symlinks that leave the workspace and asks the API to work through them.
var FS02 = conformance.Case{
	ID: "FS-02", Revision: 1, Title: "Leaf symlink read and write",
	Requirement: "A workspace operation whose last component is a symlink never returns or alters the target's bytes; removal removes the link only.",
	Threat:      "A tenant turns the worker's own file API into a read and write of the host.",
	Attack:      "The tenant links to /etc/shadow, to a canary in a host folder of the suite's own by absolute and by relative path, and to a file missing there; the API reads and stats each link, and writes through and removes those that lead into the suite's folder.",
	Witness:     "Links that the host sees planted before the operations (at least 4).",
	Oracle:      "A hash of the suite's host folder before and after; bytes and kinds that the API returned.",
	Precedent:   "criyle/go-judge#176; compiler-explorer#6026; CVE-2024-28185",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 30 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m01", Reason: "target-read"}},
	Run:      runFS02,
}

// link is one symlink in the workspace and what it leads to.
type link struct{ name, to string }

func runFS02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	out, err := outside.New(t, "canary")
	if err != nil {
		return err
	}
	canary := filepath.Join(out.Dir, "canary")
	relative, err := filepath.Rel(c.Workspace, canary)
	if err != nil {
		return err
	}
	links := []link{
		{"out-shadow", "/etc/shadow"}, {"out-absolute", canary}, {"out-relative", relative}, {"out-dangling", filepath.Join(out.Dir, "made")},
	}
	// What is written or removed lies in the suite's own folder: a runtime that fails here must not
	// damage the host, and the folder is what the hash watches.
	own := links[1:]
	plant := []string{"symlinks"}
	for _, l := range links {
		plant = append(plant, l.name+"="+l.to)
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, plant...)}); err != nil {
		return err
	}

	// Witness: the host sees each link as it was asked for.
	t.NeedWitness("links-planted", int64(len(links)))
	for _, l := range links {
		if to, err := os.Readlink(filepath.Join(c.Workspace, l.name)); err == nil && to == l.to {
			t.Witness("links-planted", 1)
		}
	}

	// Attack and verdict, operation by operation.
	files := sb.Files()
	for _, l := range links {
		body, err := files.Read(ctx, l.name)
		switch {
		case err == nil:
			out.Read(t, "reading "+l.name, body)
			t.Fail("target-read", "reading %s returned %d bytes", l.name, len(body))
		case target.CodeOf(err) == "":
			return err
		}
		entry, err := files.Stat(ctx, l.name)
		switch {
		case err == nil && entry.Kind != "symlink":
			t.Fail("target-stat", "stat of %s says %s of %d bytes", l.name, entry.Kind, entry.Size)
		case err != nil && target.CodeOf(err) == "":
			return err
		}
	}
	for _, l := range own {
		err := files.Write(ctx, l.name, []byte("overwritten"))
		if err != nil && target.CodeOf(err) == "" {
			return err
		}
		t.Observe("write "+l.name, map[bool]string{true: "replaced the link", false: target.CodeOf(err)}[err == nil])
	}
	if err := out.Changed(t, "a write"); err != nil {
		return err
	}

	// Removal, then once more on fresh links where a write has replaced them.
	for range 2 {
		for _, l := range own {
			err := files.Remove(ctx, l.name)
			switch {
			case err != nil && target.CodeOf(err) == "":
				return err
			case err != nil:
				t.Fail("link-not-removed", "removing %s: %v", l.name, err)
			default:
				if _, err := os.Lstat(filepath.Join(c.Workspace, l.name)); !errors.Is(err, iofs.ErrNotExist) {
					t.Fail("link-not-removed", "%s is still there", l.name)
				}
			}
		}
		if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, plant...)}); err != nil {
			return err
		}
	}
	return out.Changed(t, "a removal")
}
