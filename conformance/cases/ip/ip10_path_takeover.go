// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// ip10Impostors are who listens in the supervisor's place, as the attack names them. The last one needs
// namespaces, which not every sandbox's kernel gives to root.
var ip10Impostors = []string{"tenant", "root", "symlink", "namespaces"}

// IP10 puts others in the supervisor's place.
var IP10 = conformance.Case{
	ID: "IP-10", Revision: 1, Title: "Socket path takeover",
	Requirement: "A tenant can change nothing at the control socket's path, and the bridge sends nothing before the kernel has said that the listener is PID 1 of the sandbox, uid 0 and gid 0.",
	Threat:      "Whoever listens in the supervisor's place is given every command, and the secrets with them.",
	Attack:      "The tenant tries sixteen ways to unlink, rename, exchange, link, cover or open up the socket and its folder. Then root, put into the sandbox by the suite, moves the socket away and lets others listen in its place: a tenant's process, a root process that is not PID 1, a tenant's process behind a symlink, and, where the kernel gives namespaces, a root process that is PID 1 of its own. Each time the bridge is started as the worker starts it, with a fresh secret on its standard input.",
	Witness:     "Ways that the tenant tried (at least 16); impostors that listened, that a bridge came to, and whose ear was shown to work by a planted word that the host reads (at least 3).",
	Oracle:      "The files of what the impostors heard, read on the host, are searched for the secret; afterwards a root peer and the worker's next command are served at the old place.",
	Precedent:   "inspect_ai#4652; fletch#513 (predictable temporary file)",
	Tier:        conformance.Full, Timeout: 3 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m36", Reason: "secret-sent-to-impostor"}, {Mutant: "m74", Reason: "path-taken-over"}},
	Run:      runIP10,
}

func runIP10(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	secret, plant := rand.Text(), rand.Text()

	// Attack, and the witness and verdict of its first half: a path that was taken over leaves nothing to
	// put impostors at.
	argv := attack.Command(program, "control-takeover")
	for _, name := range ip10Impostors {
		argv = append(argv, "heard-"+name)
	}
	taken, err := attack.Must(ctx, sb, target.Command{Argv: argv})
	if err != nil {
		return err
	}
	attack.Witness(t, "takeover", taken.Report)
	t.NeedWitness("ways-tried", 16)
	t.Witness("ways-tried", taken.Report.Counts["attempts"])
	if n := taken.Report.Counts["succeeded"]; n > 0 {
		t.FailNow("path-taken-over", "%d of the tenant's ways succeeded: %v", n, taken.Report.Facts)
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	met, err := attack.Foothold(ctx, t, sb, "control-impostor", "-out", "/workspace/heard", "-secret", secret, "-plant", plant)
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "impostors", met)
	t.NeedWitness("impostors-met", 3)
	for _, name := range ip10Impostors {
		heard, err := os.ReadFile(filepath.Join(c.Workspace, "heard-"+name))
		if err != nil {
			return err
		}
		// The plant's connection is one; the bridge's another.
		if bytes.Contains(heard, []byte(plant)) && met.Counts["came."+name] >= 2 {
			t.Witness("impostors-met", 1)
		}
		t.Observe("heard-"+name, len(heard))

		// Verdict.
		if bytes.Contains(heard, []byte(secret)) {
			t.Fail("secret-sent-to-impostor", "the bridge gave its secret to the impostor %q", name)
		}
	}
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		t.Fail("socket-unusable", "a root peer afterwards: %v", err)
		return nil
	}
	t.Observe("counters", counted(before, after))
	if next := attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return next.Trouble()
	} else if next.Err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", next.Err)
	}
	return nil
}
