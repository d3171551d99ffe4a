// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-05: the kill budget is counted from the reply; quiet is ten missed beats.
const (
	pr05Budget = 2 * time.Second
	pr05Quiet  = 10 * oracle.BeatPeriod
	pr05Beats  = 2 // that the host must have seen before the reply
)

// PR05 leaves daemons behind that gave up everything that ties them to the invocation.
var PR05 = conformance.Case{
	ID: "PR-05", Revision: 2, Title: "Daemonise",
	Requirement: "Everything that an invocation started ends with it; the reply still carries the leader's exit code and says that descendants were killed.",
	Threat:      "A daemon outlives its invocation and acts in the next one.",
	Attack:      "Three grandchildren after a double fork, in sessions of their own, with every descriptor closed and TERM, INT, HUP ignored, append to files every 50 ms; the parent of one ends only after the leader has cleared its mark of a subreaper by prctl(2), which on some kernels takes the orphan from the subreaper above. The leader exits 0.",
	Witness:     "Daemons whose heartbeat the host saw grow before the reply (3).",
	Oracle:      "Growth of the heartbeat files, watched on the host.",
	Precedent:   "E2B#1031; openclaw#110735; langfuse#15955",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 30 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m06", Reason: "survivor-heartbeat"}},
	Run:      runPR05,
}

func runPR05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	names := []string{"beat", "beat1", "beat2"}

	// Attack: the host watches the daemons live before the leader is answered for.
	beats := make([]func() int64, len(names))
	for i, name := range names {
		if beats[i], err = oracle.WatchBeats(ctx, filepath.Join(c.Workspace, name)); err != nil {
			return err
		}
	}
	o, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "daemonise", "-file", "beat", "-n", "2", "-unmarked", "1", "-life", "60s"), Timeout: 20 * time.Second})
	if err != nil {
		return err
	}

	// Witness.
	t.NeedWitness("daemons-beating", int64(len(names)))
	for _, stop := range beats {
		if stop() >= pr05Beats {
			t.Witness("daemons-beating", 1)
		}
	}

	// Verdict on each daemon, from the reply on and all at the same time.
	ends := make([]oracle.Stillness, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			ends[i], errs[i] = oracle.WatchStill(ctx, filepath.Join(c.Workspace, name), pr05Quiet, pr05Budget+pr05Quiet)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, name := range names {
		s := ends[i]
		t.Observe("heartbeat "+name, map[string]int64{"beatsAfterReply": s.Beats, "lastBeatMs": s.After.Milliseconds()})
		if s.Gone {
			return fmt.Errorf("heartbeat file %s is missing", name)
		}
		if !s.Still || s.After > pr05Budget {
			t.Fail("survivor-heartbeat", "%s still beat %s after the reply", name, s.After.Round(time.Millisecond))
		}
	}
	t.Observe("reply", map[string]any{"descendantsKilled": o.Result.DescendantsKilled, "cleanupProven": o.Result.CleanupProven, "wallMs": o.Wall.Milliseconds()})
	if o.Result.DescendantsKilled < int64(len(names)) {
		t.Fail("descendants-not-flagged", "the reply says that %d descendants were killed", o.Result.DescendantsKilled)
	}
	if next, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}); next.Trouble() != nil {
		return err
	} else if err != nil {
		t.Fail("sandbox-unusable", "the next command: %v", err)
	} else if next.Result.DescendantsKilled != 0 {
		t.Fail("survivor-attributed", "the next command is said to have left %d descendants", next.Result.DescendantsKilled)
	}
	return nil
}
