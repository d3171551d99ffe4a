// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"context"
	iofs "io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// cr10Planted is how many of the 18 planted files the look-ups have to reach, in both invocations.
const cr10Planted = 16

// CR10 plants configuration for usual tools in the workspace, and has a secret-bearing command run them.
//
// The working folder is the workspace there, too: a tool that takes its configuration from the working
// folder, as git does from a repository, reads what the tenant wrote. That is the command's own choice
// and not judged; judged is what is read unasked, because it is the user's home. passwd(5) names a home,
// too, which ssh(1) takes whatever HOME is; that file is the image's, so every image is judged.
var CR10 = conformance.Case{
	ID: "CR-10", Revision: 1, Title: "Planted dotfiles",
	Requirement: "HOME of a secret-bearing invocation is an empty folder that nobody has written to, and the image's passwd names no home in the workspace; no configuration that an earlier invocation left in the workspace is read, or its commands run, because it lies in the user's home.",
	Threat:      "A file such as .profile, .gitconfig or .npmrc, planted by whoever ran before, is executed beside the secret by a tool that reads its user's home at every start.",
	Attack:      "An ordinary command plants the usual tools' files, with commands in them, in the workspace, which is its HOME. The secret-bearing command then looks for each of them in its HOME and in whatever its environment and passwd name, and starts the image's shells as login and as interactive shells.",
	Witness:     "Planted files that the same look-ups read in an ordinary invocation, seen on the host (at least 16); look-ups that the secret-bearing command made (at least 16).",
	Oracle:      "Reads and opens of the planted files, watched on the host while the secret-bearing command runs. Whether a planted command ran, and what HOME holds, the command reports.",
	Precedent:   "sandboxed-agent reports of config execution",
	Tier:        conformance.Full, PerImage: true, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleAccess},
	Kills:    []conformance.Kill{{Mutant: "m94", Reason: "dotfile-read"}},
	Run:      runCR10,
}

func runCR10(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	word := "cr10-" + b.WorkspaceID() // random
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "dotfiles-plant", "-dir", "/workspace", "-word", word)}); err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	files, err := hidden(c.Workspace)
	if err != nil {
		return err
	}
	watch, err := oracle.WatchAccess(files...)
	if err != nil {
		return err
	}
	defer watch.Close()

	// The same look-ups where they must be seen.
	read := attack.Command(b.Program, "dotfiles-read", "-word", word)
	ordinary, err := attack.Must(ctx, b, target.Command{Argv: read})
	if err != nil {
		return err
	}
	attack.Witness(t, "ordinary", ordinary.Report)
	seen, err := watch.Take()
	if err != nil {
		return err
	}
	t.NeedWitness("read-in-ordinary", cr10Planted)
	for _, s := range seen {
		if s.Read > 0 {
			t.Witness("read-in-ordinary", 1)
		}
	}
	t.Observe("planted", len(files))
	t.Observe("commands-run-in-ordinary", ordinary.Report.Counts["fired"])

	// Attack.
	r, err := b.Run(ctx, "cr10-secret", read[2:]...)
	if err != nil {
		return err
	}
	attack.Witness(t, "dotfiles-read", r)
	t.NeedWitness("lookups", cr10Planted)
	t.Witness("lookups", r.Counts["lookups"])
	t.Observe("shells", r.Counts["shells"])

	// Verdict.
	if seen, err = watch.Take(); err != nil {
		return err
	}
	for path, s := range seen {
		if s.Read+s.Opened > 0 {
			rel, _ := filepath.Rel(c.Workspace, path)
			t.Fail("dotfile-read", "%s was opened %d times and read %d times while the secret-bearing command ran", rel, s.Opened, s.Read)
		}
	}
	if n := r.Counts["fired"]; n > 0 {
		t.Fail("dotfile-executed", "planted commands ran in %d of %d shells", n, r.Counts["shells"])
	}
	if r.Counts["read"] > 0 || r.Counts["entries"] > 0 || r.Errno["home"] != nil || strings.HasPrefix(r.Facts["home"]+"/", "/workspace/") {
		t.Fail("home-not-empty", "HOME is %q with %d entries, the image's passwd says %q, and %d files were found", r.Facts["home"], r.Counts["entries"], r.Facts["passwd-home"], r.Counts["read"])
	}
	return nil
}

// hidden are the regular files below the workspace whose path has a part that begins with a dot.
func hidden(workspace string) (files []string, err error) {
	err = filepath.WalkDir(workspace, func(path string, d iofs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(strings.TrimPrefix(path, workspace), "/.") {
			files = append(files, path)
		}
		return err
	})
	return files, err
}
