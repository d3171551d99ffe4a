// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-11. Removals are held for long enough to see all of them under way together.
const (
	lc11Together = 4
	lc11Hold     = 3 * time.Second
	lc11End      = time.Minute
	lc11Second   = 5 * time.Second
	lc11Within   = 20 * time.Second
)

// LC11 asks the worker to end, with removals that do not succeed.
var LC11 = conformance.Case{
	ID: "LC-11", Revision: 1, Title: "Shutdown fan-out",
	Requirement: "A worker that is asked to end removes all its sandboxes side by side, lets one that cannot be removed keep none of the others, ends in bounded time with a status that says whether something is left, ends at once at the second signal, and its next start removes what is left.",
	Threat:      "A shutdown that hangs at one container is killed by the host, and the rest runs on; or one that leaves something says that all is well.",
	Attack:      "SIGTERM with four sandboxes whose removals the engine begins 3 s late; with two, one of which the engine refuses to remove; with one whose removal is not answered, and a second SIGTERM meanwhile.",
	Witness:     "Removals that were held at the same time (4); sandboxes that were there when the worker had ended (2); second signals that came while a removal was under way (1).",
	Oracle:      "The process's exit status; removals under way on the tape at one moment; the engine's own list when the process has ended, and when the next one serves.",
	Precedent:   "synthorg#2777; AutoResearchClaw#120",
	Tier:        conformance.Full, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureReconcile},
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartTape, conformance.PartRestart, conformance.PartTerminate, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleEngine, conformance.OracleTape},
	Kills:    []conformance.Kill{{Mutant: "m69", Reason: "not-parallel"}, {Mutant: "m75", Reason: "claimed-clean"}},
	Run:      runLC11,
}

// shutdown is one run of LC-11.
type shutdown struct {
	t      *conformance.T
	engine *oracle.Engine
	worker string // value of the worker's label
}

func runLC11(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	s := &shutdown{t: t, engine: engine}
	t.NeedWitness("held-together", lc11Together)
	t.NeedWitness("left-behind", 2)
	t.NeedWitness("second-signals", 1)
	for _, step := range []func(context.Context) error{s.together, s.refused, s.twice} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sandboxes makes n.
func (s *shutdown) sandboxes(ctx context.Context, n int) (list []target.Container, err error) {
	for range n {
		c, err := attack.Container(ctx, s.t, s.t.Sandbox(ctx, target.Spec{}))
		if err != nil {
			return nil, err
		}
		s.worker = c.Labels[attack.LabelWorker]
		list = append(list, c)
	}
	return list, nil
}

// end sends SIGTERM and waits for the process's end.
func (s *shutdown) end(ctx context.Context, again func()) (status int, took time.Duration, err error) {
	bounded, cancel := context.WithTimeout(ctx, lc11End)
	defer cancel()
	began := time.Now()
	status, err = s.t.Target().Controller.Terminate(bounded, again)
	took = time.Since(began)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		s.t.Fail("hung", "the worker has not ended %s after SIGTERM", lc11End)
		err = nil
	}
	return status, took, err
}

// next starts the worker again and judges that nothing of before is left.
func (s *shutdown) next(ctx context.Context, what string) error {
	if err := s.t.Target().Controller.Calm(); err != nil {
		return err
	}
	if err := s.t.Target().Controller.Start(ctx); err != nil && target.CodeOf(err) == "" {
		return fmt.Errorf("%s: start the worker again: %w", what, err)
	} else if err != nil {
		s.t.FailNow("restart-failed", "%s: the worker does not come back: %v", what, err)
	}
	none, err := underway.Gone(ctx, s.engine, attack.LabelWorker, s.worker, lc11Within)
	if err == nil && !none {
		s.t.Fail("leftover-forgotten", "%s: %s after the next start a container of before is still there", what, lc11Within)
	}
	return err
}

// together lets all removals wait for each other.
func (s *shutdown) together(ctx context.Context) error {
	if _, err := s.sandboxes(ctx, lc11Together); err != nil {
		return err
	}
	_, mark, err := s.t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	rule := target.TapeRule{Method: "DELETE", Match: `/containers/`, Nth: 1, Times: lc11Together, Fault: target.FaultLate, For: lc11Hold}
	if err := s.t.Target().Controller.Inject(rule); err != nil {
		return err
	}
	most := int64(0)
	stop := oracle.Probe(ctx, 50*time.Millisecond, time.Second, func(context.Context) error {
		calls, _, err := s.t.Target().Observer.Tape(mark)
		held := int64(0)
		for _, c := range calls {
			if c.Fault != "" && c.Status == 0 {
				held++
			}
		}
		most = max(most, held)
		return err
	})
	status, took, err := s.end(ctx, nil)
	stop()
	if err != nil {
		return err
	}
	s.t.Observe("shutdown of four", map[string]int64{"status": int64(status), "ms": took.Milliseconds(), "together": most})
	calls, _, err := s.t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	asked := int64(0)
	for _, c := range calls {
		if c.Fault != "" {
			asked++
		}
	}
	s.t.Witness("held-together", most)
	if most < asked {
		s.t.Fail("not-parallel", "of %d removals at most %d were under way at one moment, though each took %s", asked, most, lc11Hold)
	}
	list, err := s.engine.Labelled(ctx, attack.LabelWorker, s.worker)
	if err != nil {
		return err
	}
	if len(list) > 0 || status != 0 {
		s.t.Fail("shutdown-left", "when the worker had ended with status %d, %d containers were there", status, len(list))
	}
	return s.next(ctx, "all removed")
}

// refused lets the engine refuse one of two removals.
func (s *shutdown) refused(ctx context.Context) error {
	list, err := s.sandboxes(ctx, 2)
	if err != nil {
		return err
	}
	rule := target.TapeRule{Method: "DELETE", Match: `/containers/` + list[0].ID, Nth: 1, Times: 1 << 20, Status: 500}
	if err := s.t.Target().Controller.Inject(rule); err != nil {
		return err
	}
	status, took, err := s.end(ctx, nil)
	if err != nil {
		return err
	}
	s.t.Observe("shutdown with one refused", map[string]int64{"status": int64(status), "ms": took.Milliseconds()})
	_, kept, err := s.engine.Inspect(ctx, list[0].ID)
	if err != nil {
		return err
	}
	if kept {
		s.t.Witness("left-behind", 1)
		if status == 0 {
			s.t.Fail("claimed-clean", "the worker ended with status 0 and a container of it is there")
		}
	}
	if _, other, err := s.engine.Inspect(ctx, list[1].ID); err != nil {
		return err
	} else if other {
		s.t.Fail("rest-abandoned", "because one container could not be removed, another one was left too")
	}
	return s.next(ctx, "one refused")
}

// twice sends the second signal while a removal is under way.
func (s *shutdown) twice(ctx context.Context) error {
	list, err := s.sandboxes(ctx, 1)
	if err != nil {
		return err
	}
	_, mark, err := s.t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	rule := target.TapeRule{Method: "DELETE", Match: `/containers/`, Nth: 1, Times: 1 << 20, Fault: target.FaultStall, For: lc11End}
	if err := s.t.Target().Controller.Inject(rule); err != nil {
		return err
	}
	var second time.Time
	status, _, err := s.end(ctx, func() {
		seen, _ := attack.Eventually(ctx, lc11Within, func() (bool, error) {
			_, found, err := underway.Struck(s.t, mark)
			return found, err
		})
		if seen {
			s.t.Witness("second-signals", 1)
		}
		second = time.Now()
	})
	if err != nil {
		return err
	}
	late := time.Since(second)
	s.t.Observe("shutdown with a second signal", map[string]int64{"status": int64(status), "ms": late.Milliseconds()})
	if late > lc11Second {
		s.t.Fail("second-ignored", "the worker ended %s after the second signal", late.Round(time.Millisecond))
	}
	_, kept, err := s.engine.Inspect(ctx, list[0].ID)
	if err != nil {
		return err
	}
	if kept {
		s.t.Witness("left-behind", 1)
		if status == 0 {
			s.t.Fail("claimed-clean", "the worker ended with status 0 and a container of it is there")
		}
	}
	return s.next(ctx, "a second signal")
}
