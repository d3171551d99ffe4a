// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"context"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// CR04 writes a secret into every place of the sandbox, and looks for it from the next invocation and
// from the host.
var CR04 = conformance.Case{
	ID: "CR-04", Revision: 1, Title: "Persistence by workspace",
	Requirement: "Nothing that a secret-bearing invocation writes outlives its container, wherever it writes: the workspace takes nothing, and every other writable place goes with the container.",
	Threat:      "A command, or a tool that it runs, leaves a secret in a file, a history, a configuration or a kernel object, where another authority finds it.",
	Attack:      "With a secret on descriptor 3: write it into every folder of the sandbox by content, name, symlink target, extended attribute and time, into HOME and its histories and configurations, cron, git's configuration, /tmp, /dev/shm, /run, POSIX queues, host and domain name, the user's keyring, System V memory and queues. The next command searches everything that it can read.",
	Witness:     "Attempts (at least 100), places outside of the workspace in which the secret was kept until the command's end (at least 2), and places that the next command searched (at least 100).",
	Oracle:      "A search of the workspace on the host, and of every block of its file system where that is an image, for the secret; a hash of the workspace with all metadata, before and after; the engine, for the container. What the next command found is reported by it, which had the secret from the suite to compare.",
	Precedent:   "origin; OpenSandbox#743, deer-flow#4171",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartWorkspacePath, conformance.PartEngine, conformance.PartTape},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleSearch, conformance.OracleTreeHash, conformance.OracleTape, conformance.OracleEngine},
	Kills: []conformance.Kill{
		{Mutant: "m16", Reason: "next-refused"}, {Mutant: "m35", Reason: "workspace-changed"}, {Mutant: "m91", Reason: "secret-persisted"},
	},
	Run: runCR04,
}

func runCR04(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "effect", "-file", "cr04-file")}); err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	before, err := oracle.HashTree(c.Workspace)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}

	// Attack.
	r, err := b.Run(ctx, "cr04-secret", "secret-spread")
	if err != nil {
		return err
	}
	attack.Witness(t, "secret-spread", r)
	t.NeedWitness("attempts", 100)
	t.Witness("attempts", r.Counts["attempts"])
	t.NeedWitness("kept-elsewhere", 2)
	t.Witness("kept-elsewhere", r.Counts["kept"]-r.Counts["kept-in-workspace"])

	// Verdict on the host.
	after, err := oracle.HashTree(c.Workspace)
	if err != nil {
		return err
	}
	if changed := before.Diff(after); len(changed) > 0 {
		t.Fail("workspace-changed", "the secret-bearing invocation changed %q", changed[:min(len(changed), 8)])
	}
	if err := cr04Search(t, c.Workspace, b.Secret); err != nil {
		return err
	}
	// Verdict in the next invocation.
	token := []byte(b.Secret)
	slices.Reverse(token)
	t.NeedWitness("searched-inside", 100)
	next := attack.Run(ctx, b, target.Command{Argv: attack.Command(b.Program, "secret-search"), Stdin: token})
	if err := next.Trouble(); err != nil {
		return err
	}
	if next.Code != "" || next.Report.Attack == "" {
		t.Fail("next-refused", "the next invocation ends with code %q, exit %d: %.200s", next.Code, next.Result.ExitCode, next.Result.Stderr)
		return nil
	}
	attack.Witness(t, "secret-search", next.Report)
	t.Witness("searched-inside", next.Report.Counts["looked"])
	if n := next.Report.Counts["found"]; n > 0 {
		t.Fail("secret-persisted", "the next invocation finds the secret in %d places: %.300s", n, next.Report.Facts["found"])
	}

	// And its containers are gone.
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, id := range append(delivery.Started(calls)[:min(1, len(delivery.Started(calls)))], c.ID) {
		if _, found, err := engine.Inspect(ctx, id); err != nil {
			return err
		} else if found {
			t.Fail("container-kept", "a container that the secret-bearing invocation ran in or after is still there")
		}
	}
	return nil
}

// cr04Search looks for the secret in the workspace as the host sees it, free blocks included.
func cr04Search(t *conformance.T, workspace, secret string) error {
	places, n, err := oracle.Search(workspace, []byte(secret))
	if err != nil {
		return err
	}
	t.Observe("searched-on-host", n)
	if len(places) > 0 {
		t.Fail("secret-in-workspace", "the secret is in the %q of the workspace", places[:min(len(places), 8)])
	}
	image, err := oracle.BackingFile(workspace)
	if err != nil || image == "" {
		return err
	}
	found, err := oracle.SearchFile(image, []byte(secret))
	t.Observe("image-searched", 1)
	if found {
		t.Fail("secret-in-workspace", "the secret is in the blocks of the workspace's file system")
	}
	return err
}
