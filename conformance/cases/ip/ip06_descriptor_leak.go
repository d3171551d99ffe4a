// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of IP-06: commands in all, and how many run side by side where the target can, since a
// fork of one command is when another's descriptors may slip through. The first tries every number
// from 0 to 65535; in a sandbox that takes a second or two.
const (
	ip06N     = 32
	ip06Lanes = 4
)

// IP06 looks for descriptors that a command was given and should not have.
var IP06 = conformance.Case{
	ID: "IP-06", Revision: 1, Title: "Control fd leak to tenant",
	Requirement: "A command starts with the descriptors 0, 1 and 2 and no other, whatever its number.",
	Threat:      "A descriptor of the runtime that reaches a command is a way around every path that is closed to it: to the host's files, to the control channel, to another command's output.",
	Attack:      "32 commands, four at a time where the target can, list their descriptors, and the first tries every number up to 65535. Where there is a supervisor, root starts its launch stage from a process that holds descriptors with low and with high numbers and no close-on-exec mark.",
	Witness:     "Commands whose look found two descriptors that they had planted themselves, one of them above 1030 (all 32); descriptors that the launch stage was handed (at least 5).",
	Oracle:      "What is open and without the close-on-exec mark when the command's program starts has come from the runtime: the program marks its own. The program is the suite's, and its look is armed in every command by what it plants.",
	Precedent:   "nsjail#328; cplt#329; CVE-2024-21626",
	Tier:        conformance.Full, Control: true, Timeout: 2 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Oracles:  []conformance.Oracle{conformance.OracleDescriptors},
	Kills:    []conformance.Kill{{Mutant: "m14", Reason: "descriptor-leaked"}},
	Run:      runIP06,
}

func runIP06(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	lanes := 1
	if slices.Contains(t.Target().Parts, string(conformance.PartConcurrent)) {
		lanes = ip06Lanes
	}

	// Attack.
	var mu sync.Mutex
	var wg sync.WaitGroup
	outcomes := make([]attack.Outcome, ip06N)
	var failed error
	for lane := range lanes {
		wg.Go(func() {
			for i := lane; i < ip06N; i += lanes {
				argv := attack.Command(program, "descriptors")
				if i == 0 {
					argv = append(argv, "-all")
				}
				o, err := attack.Must(ctx, sb, target.Command{Argv: argv, Timeout: time.Minute})
				mu.Lock()
				outcomes[i] = o
				if failed == nil {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	supervised, err := claims(ctx, t, conformance.FeatureSupervisor)
	if err != nil {
		return err
	}
	stage := attack.Outcome{}
	if supervised = supervised && slices.Contains(t.Target().Parts, string(conformance.PartFoothold)); supervised {
		if stage.Report, err = attack.Foothold(ctx, t, sb, "launch-stage"); err != nil {
			return err
		}
	}

	// Witness.
	t.NeedWitness("armed-looks", ip06N)
	for _, o := range outcomes {
		if o.Report.Counts["planted"] == 2 && o.Report.Counts["planted-seen"] == 2 {
			t.Witness("armed-looks", 1)
		}
	}
	attack.Witness(t, "first", outcomes[0].Report)
	t.Observe("lanes", lanes)
	if supervised {
		attack.Witness(t, "launch-stage", stage.Report)
		t.NeedWitness("handed", 5)
		t.Witness("handed", stage.Report.Counts["handed"])
	}

	// Verdict.
	leaked, leaks := 0, map[string]string{}
	for _, o := range outcomes {
		if o.Report.Counts["inherited"] > 0 {
			leaked++
			leaks = o.Report.Facts
		}
	}
	if leaked > 0 {
		t.Fail("descriptor-leaked", "%d of %d commands started with a descriptor beyond 0, 1 and 2: %v", leaked, ip06N, leaks)
	}
	if n := stage.Report.Counts["inherited"]; n > 0 {
		t.Fail("stage-passes-descriptors", "%d descriptors came through the launch stage: %v", n, stage.Report.Facts)
	}
	return nil
}

// claims says whether the target claims a feature.
func claims(ctx context.Context, t *conformance.T, f conformance.Feature) (bool, error) {
	d, err := t.Target().Runtime.Describe(ctx)
	return slices.Contains(d.Claims, string(f)), err
}
