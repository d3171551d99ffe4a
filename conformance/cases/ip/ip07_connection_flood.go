// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of IP-07. A supervisor that bounds its peers bounds them by a few: 64 is four times what the
// reference has, and far below what the attack keeps. A new root peer must be served within 40 s of the
// flood's end, when what is left in the queue was worked off: peers that hang on silently are ended by a
// deadline, see IP-08. The floods take the sandbox's one CPU, which a command in it then shares with them:
// the floor of its bound says that it is served, not that it is fast.
const (
	ip07Peers  = 64
	ip07Served = 40 * time.Second
	ip07Floor  = 10 * time.Second
	ip07Time   = "10s" // of one flood at most; a quiet machine has done its work in one
)

// IP07 floods the control socket with connections.
var IP07 = conformance.Case{
	ID: "IP-07", Revision: 3, Title: "Connection flood",
	Requirement: "However many connect, the supervisor keeps a bounded number of them, goes on accepting, and the worker's commands keep their pace.",
	Threat:      "A tenant makes its sandbox deaf, and the worker wait, by connecting.",
	Attack:      "Each until it has done its work, at most 10 s: the tenant connects by path; a child of root with gid 65532, whom the file modes let through, connects and leaves; root peers, put into the sandbox by the suite, connect and leave; root peers connect, say nothing and hold on, up to 1,024 at a time; root peers connect while PID 1 may open no further descriptor.",
	Witness:     "Refused tries of the tenant (at least 100); connections of the others that were made (at least 100 of each kind); root peers that were greeted in the flood (at least 4), and others that were turned away or ended while these were kept (at least 50; none where more are kept than may be); connections that were left in the queue, or ended without a word, while PID 1 was out of descriptors (at least 4, where root may take them away), less what the supervisor says it turned away as too many.",
	Oracle:      "Commands through the worker meanwhile, against the quiet median of the same command. The attack counts how many connections were greeted and alive at one time. Afterwards a new root peer is served.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 4 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartFoothold, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m71", Reason: "peers-unbounded"}, {Mutant: "m72", Reason: "socket-deaf"}},
	Run:      runIP07,
}

func runIP07(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	op, base, err := quiet(ctx, sb, program)
	if err != nil {
		return err
	}

	// Attack: the tenant's flood is a command itself, so the probe is the neighbour of it.
	stop := oracle.Probe(ctx, 100*time.Millisecond, 20*time.Second, op)
	defer stop()
	tenant, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "control-flood", "-time", ip07Time), Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	attack.Witness(t, "tenant", tenant.Report)
	t.NeedWitness("tenant-refused", 100)
	t.Witness("tenant-refused", tenant.Report.Counts["refused"])
	var starved int64
	var full report.Report
	for _, mode := range []string{"hold", "other", "churn", "starve"} {
		if mode == "starve" { // who is turned away as one too many says nothing of descriptors, and is counted by the supervisor
			if _, err := attack.Foothold(ctx, t, sb, "control-served", "-within", ip07Served.String()); err != nil {
				return err
			}
			if full, err = attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats"); err != nil {
				return err
			}
		}
		r, err := attack.Foothold(ctx, t, sb, "control-flood", "-mode", mode, "-time", ip07Time)
		if err != nil {
			return err
		}

		// Witness.
		attack.Witness(t, mode, r)
		t.Observe(mode, r.Counts)
		switch mode {
		case "hold":
			t.NeedWitness("greeted", 4)
			t.Witness("greeted", r.Counts["greeted"])
			t.NeedWitness("ended", 50)
			t.Witness("ended", r.Counts["ended"])
			// Verdict.
			if n := r.Counts["greeted-at-once"]; n > ip07Peers {
				t.Fail("peers-unbounded", "%d peers that said nothing were kept at one time, bound %d", n, ip07Peers)
			}
			fallthrough
		case "other", "churn":
			t.NeedWitness("connects-"+mode, 100)
			t.Witness("connects-"+mode, r.Counts["connects"])
		case "starve":
			if r.Errno["starve"]["ok"] == 0 {
				t.Observe("not-starved", r.Errno["starve"])
				break
			}
			t.NeedWitness("starved", 4)
			starved = r.Counts["starved"]
		}
	}
	served, err := attack.Foothold(ctx, t, sb, "control-served", "-within", ip07Served.String())
	if err != nil {
		return err
	}
	during := stop()
	attack.ObserveLatencies(t, "quiet", base)
	attack.ObserveLatencies(t, "meanwhile", during)
	attack.Witness(t, "served", served)

	// Verdict.
	if served.Counts["served"] == 0 {
		t.Fail("socket-deaf", "after the flood no new root peer is served within %v: %v", ip07Served, served.Errno)
	}
	judgeCalls(t, base, during, ip07Floor)
	if served.Counts["served"] > 0 {
		after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
		if err != nil {
			return err
		}
		t.Observe("counters", counted(before, after))
		starved = outOfDescriptors(starved, counted(full, after))
	}
	t.Witness("starved", starved)
	return nil
}

// outOfDescriptors is how many of those that were not greeted were so for want of a descriptor, at least: a
// supervisor that has too many peers ends a new one without a word, too, and by then has a descriptor for it.
func outOfDescriptors(notGreeted int64, counters map[string]int64) int64 {
	return max(0, notGreeted-counters["refused.busy"])
}
