// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// CR05 leaves processes with the secret behind, and lets the next invocation look for them.
var CR05 = conformance.Case{
	ID: "CR-05", Revision: 1, Title: "Persistence by process",
	Requirement: "A secret-bearing invocation runs in a container of its own, which no other invocation has run in or runs in later; nothing of it is left when the next one begins.",
	Threat:      "A process, a descriptor or a socket keeps the secret for whoever comes next in the same sandbox.",
	Attack:      "The secret-bearing command leaves a daemon that holds descriptor 3 and a memory file with the secret, a listener on an abstract socket that gives it away, and files in /tmp, /run and /dev/shm. The next invocation connects, searches every process's descriptors and reads the files.",
	Witness:     "Ways of keeping the secret that the first command saw in place before it ended (at least 3); places where the second one looked (at least 3).",
	Oracle:      "The engine calls recorded meanwhile, and the engine itself: which containers were started, and that the earlier ones are gone. What the second command fetched is compared by digest.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartSecrets, conformance.PartTape, conformance.PartEngine},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m16", Reason: "not-replaced"}},
	Run:      runCR05,
}

func runCR05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, b, target.Command{Argv: attack.Command(b.Program, "noop")}); err != nil {
		return err
	}
	before, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}

	// Attack.
	r, err := b.Run(ctx, "cr05-secret", "secret-keep")
	if err != nil {
		return err
	}
	attack.Witness(t, "secret-keep", r)
	t.NeedWitness("kept", 3)
	t.Witness("kept", r.Counts["kept"])
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}

	// Verdict: a container before, another after, and neither of the earlier ones.
	started := delivery.Started(calls)
	t.Observe("containers-started", len(started))
	after, err := attack.Container(ctx, t, b)
	if err != nil {
		return err
	}
	if len(started) != 2 || slices.Contains(started, before.ID) || started[0] == started[1] || after.ID != started[1] {
		t.Fail("not-replaced", "around one secret-bearing invocation %d containers were started; it ran beside or before others", len(started))
	}
	for _, id := range append(started[:min(1, len(started))], before.ID) {
		if _, found, err := engine.Inspect(ctx, id); err != nil {
			return err
		} else if found && id != after.ID {
			t.Fail("container-left", "an earlier container is still there")
		}
	}
	next := attack.Run(ctx, b, target.Command{Argv: attack.Command(b.Program, "secret-fetch")})
	if err := next.Trouble(); err != nil {
		return err
	}
	attack.Witness(t, "secret-fetch", next.Report)
	t.NeedWitness("looked", 3)
	t.Witness("looked", next.Report.Counts["looked"])
	sum := sha256.Sum256(delivery.Frame(delivery.Name, b.Secret))
	for place, digest := range next.Report.Facts {
		if digest == hex.EncodeToString(sum[:]) {
			t.Fail("secret-fetched", "the next invocation got the secret from %s", place)
		}
	}
	return nil
}
