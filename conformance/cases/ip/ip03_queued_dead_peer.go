// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of IP-03: the shipped supervisor is hammered, and at least K senders must be dead
// with their request queued before it was accepted.
const (
	ip03N = 160
	ip03K = 20
)

// IP03 queues requests whose root sender is dead before they are accepted.
var IP03 = conformance.Case{
	ID: "IP-03", Revision: 1, Title: "Queued dead-peer request",
	Requirement: "A request is executed only when its sender proves that it lives after it was accepted.",
	Threat:      "A process that was root for an instant leaves an order behind; its credentials are right and it is gone.",
	Attack:      "160 root senders, put into the sandbox by the suite, connect, queue one whole valid request and exit at once, in groups of eight; every second connection stays open in another process.",
	Witness:     "Senders that were dead with the request queued before the supervisor said anything (at least 20).",
	Oracle:      "Files that an executed request leaves, seen on the host; the supervisor's count of invocations. Arming: the same request of a living sender is executed.",
	Precedent:   "gvisor#13397, PR #13445",
	Tier:        conformance.Full, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m41", Reason: "dead-peer-executed"}},
	Run:      runIP03,
}

func runIP03(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}

	// Attack.
	dead, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "dead", "-n", strconv.Itoa(ip03N), "-file", "/workspace/ip03")
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "dead", dead)
	t.NeedWitness("dead-and-queued", ip03K)
	t.Witness("dead-and-queued", dead.Counts["queued"])
	t.Observe("senders", map[string]int64{"n": ip03N, "queued": dead.Counts["queued"], "late": dead.Counts["late"], "failed": dead.Counts["failed"]})

	// Verdict, once the queue has been worked off: a living peer's answer comes after it.
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	effects, err := filepath.Glob(filepath.Join(c.Workspace, "ip03-*"))
	if err != nil {
		return err
	}
	ran := after.Counts["invocations"] - before.Counts["invocations"]
	t.Observe("invocations", ran)
	if len(effects) > 0 || ran > 0 {
		t.Fail("dead-peer-executed", "%d invocations were counted and %d files left for senders that were dead", ran, len(effects))
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", err)
	}
	return nil
}
