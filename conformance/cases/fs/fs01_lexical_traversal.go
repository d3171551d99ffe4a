// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/outside"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// fs01Long is beyond PATH_MAX, limits.h(0p), in bytes.
const fs01Long = 5 << 10

// FS01 asks for paths that leave the workspace by their spelling alone.
var FS01 = conformance.Case{
	ID: "FS-01", Revision: 1, Title: "Lexical traversal in workspace API",
	Requirement: "A path that leaves the workspace by its spelling is refused by every operation, with a stable code, and nothing outside is read or changed.",
	Threat:      "A caller who may write to one workspace reads and writes the host.",
	Attack:      "The API reads, stats, overwrites and removes a canary in a host folder of the suite's own by dot-dot chains, through folders that exist, through doubled slashes and dots, and by absolute path; and it is asked for paths with NUL, with a slash at the end and of 5 KiB. On the worker API the same paths are asked for as bytes, too.",
	Witness:     "Paths which the host itself would walk to the canary from the workspace, and about which every operation gave an answer (at least 5).",
	Oracle:      "A hash of the suite's host folder before and after; the bytes that the API returned; on the worker API its codes.",
	Precedent:   "CWE-22; nextlevelbuilder/goclaw#1201",
	Tier:        conformance.Full, Timeout: 30 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleTreeHash},
	Kills:    []conformance.Kill{{Mutant: "m102", Reason: "target-read"}},
	Run:      runFS01,
}

func runFS01(ctx context.Context, t *conformance.T) error {
	// Arrange: a folder and a file inside, so that a path can lead through what is there.
	sb := t.Sandbox(ctx, target.Spec{})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	program := t.Tenant(ctx, sb)
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "symlinks", "link=.")}); err != nil {
		return err
	}
	out, err := outside.New(t, "canary")
	if err != nil {
		return err
	}
	canary := filepath.Join(out.Dir, "canary")
	up, err := filepath.Rel(c.Workspace, canary)
	if err != nil {
		return err
	}
	paths := []string{
		up, "./" + up, "../" + filepath.Base(c.Workspace) + "/" + up, "link/" + up, strings.ReplaceAll(up, "../", "..//"), up + "/.", "link/../" + filepath.Base(c.Workspace) + "/" + up,
		canary, "/" + canary, "/proc/self/root" + canary,
		"..", "../..", ".", "./link", "link//x", "link/", "/", "link/./x", "missing/../link", up + "\x00", "x\x00/" + up,
		strings.Repeat("a/", fs01Long/2) + "a", strings.Repeat("../", fs01Long/3) + canary[1:],
	}
	t.NeedWitness("led-out", 5)

	// Attack.
	files := sb.Files()
	answers := map[string]int{}
	for i, p := range paths {
		what := "path " + strconv.Itoa(i) + " " + strconv.QuoteToASCII(p[:min(len(p), 80)])
		leads := leadsTo(c.Workspace, p, canary)
		var errs []error
		body, err := files.Read(ctx, p)
		out.Read(t, what, body)
		errs = append(errs, err)
		_, err = files.Stat(ctx, p)
		errs = append(errs, err)
		errs = append(errs, files.Write(ctx, p, []byte("overwritten")), files.Remove(ctx, p))
		for n, err := range errs {
			op := []string{"read", "stat", "write", "remove"}[n]
			code := target.CodeOf(err)
			switch {
			case err != nil && code == "":
				return err
			case err == nil && leads:
				t.Fail("path-accepted", "%s of %s was done", op, what)
			case t.Target().Wire != nil && code != wire.PathUnsafe && code != wire.RequestInvalid:
				t.Fail("code-differs", "%s of %s was answered with %q", op, what, code)
			}
			answers[op+" "+code]++
		}
		if err := inBytes(ctx, t, sb, what, p, out); err != nil {
			return err
		}
		if leads {
			t.Witness("led-out", 1)
		}
	}
	t.Observe("answers", answers)

	// Verdict.
	return out.Changed(t, "an operation")
}

// leadsTo reports whether the host's kernel walks from dir, or where a path is absolute from its root, to file.
func leadsTo(dir, path, file string) bool {
	want, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, p := range []string{dir + "/" + path, path} {
		if got, err := os.Stat(p); err == nil && os.SameFile(got, want) && (p != path || filepath.IsAbs(path)) {
			return true
		}
	}
	return false
}

// inBytes reads p as bytes of the worker API, where a target speaks it.
func inBytes(ctx context.Context, t *conformance.T, sb target.Sandbox, what, p string, out *outside.Folder) error {
	if t.Target().Wire == nil {
		return nil
	}
	query := url.Values{"pathBytes": {base64.StdEncoding.EncodeToString([]byte(p))}}
	res, err := t.Target().Wire.Raw(ctx, wire.On(sb, "read", "GET", "/files?"+query.Encode(), nil))
	if err != nil {
		return err
	}
	out.Read(t, what+" as bytes", res.Body)
	if res.Code != wire.PathUnsafe && res.Code != wire.RequestInvalid {
		t.Fail("code-differs", "read of %s as bytes was answered with status %d and %q", what, res.Status, res.Code)
	}
	return nil
}
