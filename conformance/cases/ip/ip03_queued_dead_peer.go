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
	ip03N       = 160
	ip03K       = 20
	ip03Greeted = 16
)

// IP03 queues requests whose root sender is dead before they are accepted.
var IP03 = conformance.Case{
	ID: "IP-03", Revision: 1, Title: "Queued dead-peer request",
	Requirement: "A request is executed only when its sender proves that it lives after it was accepted.",
	Threat:      "A process that was root for an instant leaves an order behind; its credentials are right and it is gone.",
	Attack:      "160 root senders, put into the sandbox by the suite, queue behind connections that are refused one by one, write one whole request, whose MAC must be a guess before accept, and exit; every second connection stays open in another process. Besides, 16 senders read the challenge, send a request with the right MAC and exit at once: they lived after accept, so what becomes of these is recorded and not judged.",
	Witness:     "Senders whose end the kernel had reported while a connection ahead of theirs in the listener's queue was still waiting (at least 20): dead before accept, with the request queued.",
	Oracle:      "Files that an executed request leaves, seen on the host; the supervisor's count of invocations. Either the look at the peer or the MAC may refuse: both stand between the request and its execution. Arming: the same request of a living sender is executed.",
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
	t.NeedWitness("dead-before-accept", ip03K)
	t.Witness("dead-before-accept", dead.Counts["dead-before-accept"])
	t.Observe("senders", dead.Counts)

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
	t.Observe("counters", counted(before, after))
	if len(effects) > 0 || ran > 0 {
		t.Fail("dead-peer-executed", "%d invocations were counted and %d files left for senders that were dead", ran, len(effects))
	}

	// Beyond the verdict: senders that have proven themselves alive and are gone a moment later.
	greeted, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "greeted", "-n", strconv.Itoa(ip03Greeted), "-file", "/workspace/ip03g")
	if err != nil {
		return err
	}
	last, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	attack.Witness(t, "greeted", greeted)
	t.Observe("greeted", map[string]any{"senders": greeted.Counts, "counters": counted(after, last)})

	if next, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return err
	} else if err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", err)
	}
	return nil
}
