// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/outside"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of FS-03. The race goes on until it has had its hits, or its time is up.
const (
	fs03Least = 40 // operations before and after which the host saw different things at the name
	fs03Ops   = 1200
	fs03Time  = 25 * time.Second
	fs03Life  = 50 * time.Second
)

const symlink = "symlink"

// FS03 works below a folder that turns into a symlink meanwhile.
var FS03 = conformance.Case{
	ID: "FS-03", Revision: 1, Title: "Ancestor swapped for symlink mid-operation",
	Requirement: "A workspace operation acts inside the workspace, whatever a tenant puts in the place of a folder on its path while it runs.",
	Threat:      "What was checked is not what is used: the worker's own hands read, replace or remove a file of the host.",
	Attack:      "A tenant lets a folder and a symlink to a host folder of the suite's own change places without a pause, while the API reads, stats, overwrites and removes a file below the name.",
	Witness:     "Operations before and after which the host saw different things at the name (at least 40); operations that were done (at least 40); operations that were refused while the host saw the symlink there (at least 40).",
	Oracle:      "A hash of the suite's host folder before and after; the bytes that the API returned.",
	Precedent:   "CVE-2018-15664, CVE-2021-30465, CVE-2026-41568; ducks/claux#32",
	Tier:        conformance.Full, Control: true, Timeout: 75 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m01", Reason: "target-read"}, {Mutant: "m103", Reason: "target-altered"}},
	Run:      runFS03,
}

func runFS03(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	out, err := outside.New(t, "x")
	if err != nil {
		return err
	}
	t.NeedWitness("swapped-meanwhile", fs03Least)
	t.NeedWitness("done", fs03Least)
	t.NeedWitness("refused", fs03Least)

	// Attack.
	swapping := make(chan attack.Outcome, 1)
	go func() {
		swapping <- attack.Run(ctx, sb, target.Command{Timeout: fs03Life + 10*time.Second, Argv: attack.Command(program, "swap",
			"-dir", "d", "-link", "link", "-to", out.Dir, "-content", "inside", "-until", "fs03.stop", "-life", fs03Life.String())})
	}()
	name := filepath.Join(c.Workspace, "d")
	if ok, err := attack.Eventually(ctx, 10*time.Second, func() (bool, error) {
		_, err := os.Lstat(name)
		return err == nil, nil
	}); err != nil || !ok {
		return errors.Join(errors.New("the tenant has made no folder"), err)
	}
	files := sb.Files()
	var hits, done, refused int64
	codes := map[string]int{}
	for began, i := time.Now(), 0; i < fs03Ops || min(hits, done, refused) < fs03Least; i++ {
		if time.Since(began) > fs03Time {
			break
		}
		before := place(name)
		op := []string{"read", "write", "stat", "remove", "write", "read"}[i%6]
		var err error
		switch op {
		case "read":
			var body []byte
			body, err = files.Read(ctx, "d/x")
			out.Read(t, "a read", body)
		case "stat":
			_, err = files.Stat(ctx, "d/x")
		case "write":
			err = files.Write(ctx, "d/x", []byte("inside"))
		case "remove":
			err = files.Remove(ctx, "d/x")
		}
		after := place(name)
		switch code := target.CodeOf(err); {
		case err != nil && code == "":
			return err
		case err == nil:
			done++
			codes[op+" done"]++
		default:
			if before == symlink || after == symlink {
				refused++
			}
			codes[op+" "+code]++
		}
		if before != after {
			hits++
		}
	}

	// Witness.
	t.Witness("swapped-meanwhile", hits)
	t.Witness("done", done)
	t.Witness("refused", refused)
	t.Observe("answers", codes)
	if err := files.Write(ctx, "fs03.stop", nil); err != nil {
		return err
	}
	o := <-swapping
	if err := o.Trouble(); err != nil {
		return err
	}
	attack.Witness(t, "swap", o.Report)
	if o.Err != nil || o.Result.ExitCode != 0 {
		return fmt.Errorf("the swapping ended: code %q, exit code %d %s: %.300s", o.Code, o.Result.ExitCode, o.Result.Signal, o.Result.Stderr)
	}

	// Verdict.
	return out.Changed(t, "an operation")
}

// place says what the host sees at a name: nothing, a symlink, or something else.
func place(name string) string {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return ""
	case info.Mode()&iofs.ModeSymlink != 0:
		return symlink
	}
	return "folder"
}
