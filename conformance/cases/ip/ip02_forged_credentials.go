// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// ip02N is how often each way is tried: the supervisor may look early or late.
const ip02N = 8

// IP02 connects with one identity and speaks with another.
var IP02 = conformance.Case{
	ID: "IP-02", Revision: 1, Title: "Forged credentials",
	Requirement: "What a peer may do is decided by the credentials that the kernel recorded when it connected; neither what a message says nor what the process has become since counts.",
	Threat:      "A connection that a tenant could make becomes root's by a control message, a change of identity, a user namespace, or by the process that holds it.",
	Attack:      "The tenant writes messages with the credentials of root and of PID 1 over a socket pair, and connects by path, also as root of a user namespace of its own. A child of root connects with gid 65532, whom the file modes let through, and then takes gid 0 back, sends SCM_CREDENTIALS of root, or leaves the connection to a process that always was root; another is gid 0 of a user namespace in which that is 65532. Each asks for an execution, with the right MAC when it is greeted.",
	Witness:     "Connections that were made with gid 65532 and then used with a better identity (at least 8); messages of the tenant that the kernel was asked to send (3).",
	Oracle:      "Files that an executed request leaves, seen on the host; the supervisor's counters: no such peer is greeted or heard. A peer that connected as root and gave it up is recorded and not judged: it is what it was. Arming: the same request of a root peer is executed.",
	Precedent:   "gvisor#14594; gvisor#14595; gvisor PR #11291",
	Tier:        conformance.Full, Timeout: 3 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m70", Reason: "forged-peer-served"}},
	Run:      runIP02,
}

func runIP02(ctx context.Context, t *conformance.T) error {
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
	tenant, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "forged-tenant", "-file", "/workspace/ip02-tenant"), Timeout: 40 * time.Second})
	if err != nil {
		return err
	}
	forged, err := attack.Foothold(ctx, t, sb, "control-forged", "-file", "/workspace/ip02")
	if err != nil {
		return err
	}
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "tenant", tenant.Report)
	attack.Witness(t, "forged", forged)
	t.NeedWitness("connected-below-root", ip02N)
	t.Witness("connected-below-root", forged.Counts["connected"])
	t.NeedWitness("messages", 3)
	t.Witness("messages", tenant.Report.Counts["attempts"]-1) // the connection by path is one
	t.Observe("messages-let-through", tenant.Report.Counts["forged"])
	t.Observe("user-namespaces", map[string]int64{"tenant": tenant.Report.Counts["userns"], "root": forged.Counts["userns"]})
	t.Observe("dropped-root", map[string]int64{"connected": forged.Counts["drop.connected"], "executed": forged.Counts["drop.executed"]})
	delta := counted(before, after)
	t.Observe("counters", delta)

	// Verdict.
	var effects []string
	for _, name := range []string{"tenant-*", "regain-*", "message-*", "pass-*", "userns*"} {
		found, err := filepath.Glob(filepath.Join(c.Workspace, "ip02-"+name))
		if err != nil {
			return err
		}
		effects = append(effects, found...)
	}
	switch greeted := tenant.Report.Counts["hello"] + forged.Counts["hello"]; {
	case len(effects) > 0:
		t.Fail("forged-peer-served", "%d requests were executed of peers that were not root when they connected", len(effects))
	case greeted > 0:
		t.Fail("forged-peer-greeted", "%d peers that were not root when they connected were sent the challenge", greeted)
	case delta["refused.uid"]+delta["refused.gid"] < forged.Counts["connected"]:
		t.Fail("refusal-not-recorded", "%d connections were made and %d refusals by credentials counted", forged.Counts["connected"], delta["refused.uid"]+delta["refused.gid"])
	}
	return nil
}
