// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// IP01 connects to the control socket as everybody who may not.
var IP01 = conformance.Case{
	ID: "IP-01", Revision: 1, Title: "Tenant connects",
	Requirement: "A peer without uid 0 and gid 0 is refused before a frame of it is parsed.",
	Threat:      "A tenant gives the supervisor orders.",
	Attack:      "The tenant connects by six paths, tries a bind mount and squats the abstract name; a child of root with gid 65532, which every file mode lets through, connects; a child of root that became 65532 connects. Each asks for an execution, with the right MAC when it is greeted.",
	Witness:     "Connection attempts of the tenant (at least 6), and connections that the supervisor refused for their uid or gid (at least 1).",
	Oracle:      "Files that an executed request leaves, seen on the host; the supervisor's counters, read by a root peer: every connection that was made is refused for its uid or gid, none for what it sent, and no request is counted beyond those that the same steps cost without the attack.",
	Precedent:   "nono#1639; lens-sandbox#69",
	Tier:        conformance.Smoke, PerImage: true, Timeout: 60 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m10", Reason: "peer-served"}},
	Run:      runIP01,
}

func runIP01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	// The suite's own traffic, measured: one exec by the worker between two readings.
	first, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	if _, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); err != nil {
		return err
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}

	// Attack.
	tenant, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "control-tenant", "-file", "/workspace/ip01-tenant"), Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	group, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "group", "-file", "/workspace/ip01-group")
	if err != nil {
		return err
	}
	user, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "user", "-file", "/workspace/ip01-user")
	if err != nil {
		return err
	}
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "tenant", tenant.Report)
	attack.Witness(t, "group", group)
	attack.Witness(t, "user", user)
	t.NeedWitness("attempts", 6)
	t.Witness("attempts", tenant.Report.Counts["attempts"])
	own, delta := counted(first, before), counted(before, after)
	refused := delta["refused.uid"] + delta["refused.gid"]
	connected := group.Counts["connected"] + user.Counts["connected"] + tenant.Report.Counts["connected"]
	t.NeedWitness("refused-by-credentials", 1)
	t.Witness("refused-by-credentials", refused)
	t.Observe("connected", connected)
	t.Observe("counters", delta)
	t.Observe("counters-without-attack", own)

	// Verdict.
	effects, err := filepath.Glob(filepath.Join(c.Workspace, "ip01-*"))
	if err != nil {
		return err
	}
	greeted := tenant.Report.Counts["hello"] + group.Counts["hello"] + user.Counts["hello"]
	parsed := int64(0)
	for _, reason := range []string{"mac", "frame", "hello", "silent", "slow"} {
		parsed += delta["refused."+reason]
	}
	switch {
	case len(effects) > 0:
		t.Fail("peer-served", "%d requests of peers that may not speak were executed", len(effects))
	case greeted > 0:
		t.Fail("peer-greeted", "%d peers that may not speak were sent the challenge", greeted)
	case parsed > 0:
		t.Fail("frame-parsed", "%d connections were refused for what they sent", parsed)
	case delta["requests"] != own["requests"] || delta["invocations"] != own["invocations"] || delta["accepted"] != own["accepted"]:
		t.Fail("frame-parsed", "the supervisor counts %d requests, %d invocations and %d accepted peers; without the attack %d, %d and %d",
			delta["requests"], delta["invocations"], delta["accepted"], own["requests"], own["invocations"], own["accepted"])
	case refused < connected:
		t.Fail("refusal-not-recorded", "%d connections were made and %d refusals by credentials counted", connected, refused)
	}
	return nil
}

// counted is what each of the supervisor's counters gained between two readings.
func counted(before, after report.Report) map[string]int64 {
	delta := map[string]int64{}
	for name, n := range after.Counts {
		delta[name] = n - before.Counts[name]
	}
	return delta
}
