// SPDX-License-Identifier: Apache-2.0

package rs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of RS-07.
const (
	rs07Bytes  = 64 << 20
	rs07Excess = 1 << 20 // what the attack leaves itself, and the heads of cores that were cut off
)

const rs07Pattern = "/proc/sys/kernel/core_pattern"

// RS07 crashes processes that are full of a secret.
var RS07 = conformance.Case{
	ID: "RS-07", Revision: 1, Title: "Core dumps",
	Requirement: "A tenant's crash leaves no core, on the host or in the workspace, and a tenant decides nothing of where cores go.",
	Threat:      "Memory with secrets is written to a disk that outlives it; cores fill the host; a pattern that a tenant writes is a program that the host's kernel starts as root.",
	Attack:      "The limit of cores is raised and core_pattern is written, as far as they let themselves; then two processes that hold 64 MiB full of a secret end by SIGABRT and SIGSEGV, with everything chosen for the dump, and the command itself by SIGABRT; it got the secret on its standard input.",
	Witness:     "Processes that crashed (2).",
	Oracle:      "core_pattern on the host before and after; the workspace on the host: its files, their size and the secret in them; the folder where the host's pattern puts cores; the log of the runtime.",
	Precedent:   "CVE-2022-0811",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleUsage, conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m97", Reason: "core-in-workspace"}},
	Run:      runRS07,
}

func runRS07(ctx context.Context, t *conformance.T) error {
	// Arrange.
	secret := t.Canary("core")
	sb := t.Sandbox(ctx, target.Spec{MemoryBytes: 256 << 20, WorkspaceBytes: 192 << 20})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	patternBefore, err := os.ReadFile(rs07Pattern)
	if err != nil {
		return err
	}
	folder := filepath.Dir(strings.TrimSpace(string(patternBefore)))
	hostBefore := coresIn(folder)
	before, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}

	// Attack.
	o := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "dump-core", "-bytes", strconv.Itoa(rs07Bytes)), Stdin: []byte(secret), Timeout: 30 * time.Second})
	if err := o.Trouble(); err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "crash", o.Report)
	t.NeedWitness("crashed", 2)
	t.Witness("crashed", o.Report.Counts["crashed"])
	patternAfter, err := os.ReadFile(rs07Pattern)
	if err != nil {
		return err
	}
	after, err := oracle.WalkUsage(c.Workspace)
	if err != nil {
		return err
	}
	t.Observe("inside", o.Report.Counts)
	t.Observe("pattern", strings.TrimSpace(string(patternBefore)))
	t.Observe("workspace", map[string]int64{"before": before.Bytes, "after": after.Bytes, "inodesBefore": before.Inodes, "inodesAfter": after.Inodes})
	t.Observe("end", map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "signal": o.Result.Signal})

	// Verdict.
	if !bytes.Equal(patternBefore, patternAfter) {
		err := os.WriteFile(rs07Pattern, patternBefore, 0)
		t.Fail("pattern-changed", "the host's core_pattern is %.100q and was %.100q; put back: %v", patternAfter, patternBefore, err)
	}
	found, err := filesWith(c.Workspace, []byte(secret))
	if err != nil {
		return err
	}
	if len(found) > 0 || after.Bytes-before.Bytes > rs07Excess {
		t.Fail("core-in-workspace", "the workspace has grown by %d bytes; files that hold the secret: %q", after.Bytes-before.Bytes, found)
	}
	if o.Report.Counts["cores-reported"] > 0 {
		t.Fail("core-dumped", "the kernel says that %d processes left a core", o.Report.Counts["cores-reported"])
	}
	for name := range coresIn(folder) {
		if hostBefore[name] {
			continue
		}
		if holds, err := fileHolds(filepath.Join(folder, name), []byte(secret)); err == nil && holds {
			t.Fail("core-on-host", "%s holds the secret", filepath.Join(folder, name))
		}
	}
	if o.Err != nil {
		t.Fail("sandbox-ended", "crashes ended the sandbox: code %q of kind %q", o.Code, o.Kind)
	}
	return nil
}

// coresIn lists what lies in the folder of the host's pattern. A pattern that names none, or a
// program, has none that can be listed: a relative one is a file in the working folder of who crashed.
func coresIn(folder string) map[string]bool {
	names := map[string]bool{}
	if !filepath.IsAbs(folder) {
		return names
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return names
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			names[e.Name()] = true
		}
	}
	return names
}

// filesWith lists the regular files below root that hold token.
func filesWith(root string, token []byte) (found []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		holds, err := fileHolds(path, token)
		if holds {
			found = append(found, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	return found, err
}

// fileHolds looks for token in a file that may be large.
func fileHolds(path string, token []byte) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for have := 0; ; {
		n, err := f.Read(buf[have:])
		have += n
		if bytes.Contains(buf[:have], token) {
			return true, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		}
		tail := buf[max(0, have-len(token)+1):have] // a token may lie across two reads
		have = copy(buf, tail)
	}
}
