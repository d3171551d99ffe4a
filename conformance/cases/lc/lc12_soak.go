// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/underway"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-12. What a worker remembers of sandboxes that are gone costs some memory, and a
// collector some more.
const (
	lc12Cycles = 500
	lc12Every  = 10 // one fault in so many cycles
	lc12Warm   = 10 // cycles before the first inventory
	lc12Within = 30 * time.Second
	lc12Files  = 8        // descriptors
	lc12Memory = 48 << 20 // bytes of resident memory
)

// LC12 makes, uses and ends sandboxes for a long time, with faults.
var LC12 = conformance.Case{
	ID: "LC-12", Revision: 1, Title: "Leak soak",
	Requirement: "After 500 sandboxes, one in ten with a fault, host and engine hold what they held before, and the worker what it needs.",
	Threat:      "Every crash leaves a little, and after a month the host is full of it.",
	Attack:      "500 times create, a command, dispose and purge. In every tenth one of these, in turn: the engine refuses the create, or makes the container and does not say so; it refuses the start; it cuts an answer; it refuses to remove, twice, or denies that the container is there; the sentry is killed while a command runs; the worker is, and started again; the sandbox is disposed while a command runs; a command takes all of its memory.",
	Witness:     "Cycles that ended in a result (at least 400); faults that struck (at least 45).",
	Oracle:      "The suite's inventory of host and engine, by kind, after the first ten cycles and after the last: containers, mounts, loop devices, cgroups, processes; the descriptors and the resident memory of each of the worker's processes, counted by the host, from its tenth cycle to its last.",
	Precedent:   "nsjail#69; ml-intern#163",
	Tier:        conformance.Serial, Exclusive: true, Timeout: 40 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureReconcile, conformance.FeatureProtocol},
	Needs: []conformance.Part{conformance.PartEngine, conformance.PartTape, conformance.PartRestart, conformance.PartWire, conformance.PartWorkspacePath, conformance.PartWorkerProcess,
		conformance.PartConcurrent},
	Oracles: []conformance.Oracle{conformance.OracleEngine, conformance.OracleTape, conformance.OracleProcess, conformance.OracleMemory, conformance.OracleDescriptors},
	Kills:   []conformance.Kill{{Mutant: "m98", Reason: "descriptors-kept"}},
	Run:     runLC12,
}

// soak is one run of LC-12.
type soak struct {
	t      *conformance.T
	engine *oracle.Engine
	random *rand.Rand

	program []byte // of the attack
	cycles  int    // since this worker process was started
	base    *stock // what it had after the first of them
}

// stock is what there is at one moment.
type stock struct {
	things             map[string]int64
	descriptors, bytes int64
}

func runLC12(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(t.TenantOnHost())
	if err != nil {
		return err
	}
	s := &soak{t: t, program: program, engine: engine, random: rand.New(rand.NewPCG(uint64(t.Seed()), 12))}
	t.NeedWitness("results", lc12Cycles*8/10)
	t.NeedWitness("faults", lc12Cycles/lc12Every*9/10)
	for range lc12Warm {
		if err := s.cycle(ctx, nil); err != nil {
			return err
		}
	}
	before, err := s.settled(ctx)
	if err != nil {
		return err
	}
	faults := s.faults()
	for i := range lc12Cycles {
		var f *fault
		if i%lc12Every == lc12Every-1 {
			f = &faults[i/lc12Every%len(faults)]
		}
		if err := s.cycle(ctx, f); err != nil {
			return fmt.Errorf("cycle %d: %w", i+1, err)
		}
		if (i+1)%50 == 0 {
			t.Log("cycle %d of %d", i+1, lc12Cycles)
		}
	}

	// Verdict.
	if err := s.segment(ctx); err != nil {
		return err
	}
	after, err := s.settled(ctx)
	if err != nil {
		return err
	}
	t.Observe("inventory before", before.things)
	t.Observe("inventory after", after.things)
	for kind, n := range after.things {
		if n > before.things[kind] {
			t.Fail("inventory-differs", "%d of kind %s before, %d after", before.things[kind], kind, n)
		}
	}
	return nil
}

// settled looks until two looks a second apart find the same: what has ended goes a little later.
func (s *soak) settled(ctx context.Context) (h stock, err error) {
	last := stock{}
	_, err = attack.Eventually(ctx, lc12Within, func() (bool, error) {
		if err := attack.Pause(ctx, time.Second); err != nil {
			return false, err
		}
		last = h
		h, err = s.hold(ctx)
		return maps.Equal(last.things, h.things), err
	})
	return h, err
}

// segment judges what the worker's process has grown by since its first cycles. Another process is another
// matter: it is judged before it is killed.
func (s *soak) segment(ctx context.Context) error {
	if s.base == nil {
		return nil
	}
	now, err := s.hold(ctx)
	if err != nil {
		return err
	}
	s.t.Observe(fmt.Sprintf("worker after %d cycles", s.cycles), map[string]int64{"descriptorsBefore": s.base.descriptors, "descriptorsAfter": now.descriptors, "bytesBefore": s.base.bytes, "bytesAfter": now.bytes})
	if now.descriptors > s.base.descriptors+lc12Files {
		s.t.Fail("descriptors-kept", "the worker had %d descriptors and has %d", s.base.descriptors, now.descriptors)
	}
	if now.bytes > s.base.bytes+lc12Memory {
		s.t.Fail("memory-grown", "the worker had %d bytes and has %d", s.base.bytes, now.bytes)
	}
	return nil
}

// hold looks at host, engine and worker.
func (s *soak) hold(ctx context.Context) (h stock, err error) {
	if h.things, err = s.t.Inventory(ctx); err != nil {
		return h, err
	}
	pid, err := s.t.Target().Observer.WorkerPid()
	if err != nil {
		return h, err
	}
	if h.descriptors, err = oracle.Descriptors(pid); err != nil {
		return h, err
	}
	h.bytes, _, err = oracle.ResidentMemory(pid)
	return h, err
}

// fault is what goes wrong in a cycle: rules of the tape, or something that happens while a command runs.
type fault struct {
	name   string
	rules  []target.TapeRule
	during func(ctx context.Context, sb target.Sandbox, c target.Container) error
	argv   []string
}

func (s *soak) faults() []fault {
	beat := []string{"beat", "-life", "1m"}
	return []fault{
		{name: "create refused", rules: []target.TapeRule{{Method: "POST", Match: `/containers/create$`, Nth: 1, Status: 500}}},
		{name: "create not answered", rules: []target.TapeRule{{Method: "POST", Match: `/containers/create$`, Nth: 1, Fault: target.FaultLost}}},
		{name: "start refused", rules: []target.TapeRule{{Method: "POST", Match: `/start$`, Nth: 1, Status: 500}}},
		{name: "answer cut", rules: []target.TapeRule{{Method: "GET", Match: `/containers/.*/json$`, Nth: 1 + s.random.IntN(3), Fault: target.FaultCut}}},
		{name: "removal refused", rules: []target.TapeRule{{Method: "DELETE", Match: `/containers/`, Nth: 1, Times: 2, Status: 500}}},
		{name: "removal denied", rules: []target.TapeRule{{Method: "DELETE", Match: `/containers/`, Nth: 1, Times: 2, Status: 404}}},
		{name: "sentry killed", argv: beat, during: func(_ context.Context, _ target.Sandbox, c target.Container) error {
			_, err := kill(c, func(p, _ oracle.Process) bool { return p.Pid == c.Pid })
			return err
		}},
		{name: "worker killed", argv: beat, during: func(ctx context.Context, _ target.Sandbox, _ target.Container) error {
			if err := s.segment(ctx); err != nil {
				return err
			}
			s.base, s.cycles = nil, 0
			if err := s.t.Target().Controller.Kill(ctx); err != nil {
				return err
			}
			return s.t.Target().Controller.Start(ctx)
		}},
		{name: "disposed", argv: beat, during: func(ctx context.Context, sb target.Sandbox, _ target.Container) error {
			if err := sb.Dispose(ctx); err != nil && target.CodeOf(err) == "" {
				return err
			}
			return nil
		}},
		{name: "memory taken", argv: []string{"memory-hog", "-bytes", strconv.Itoa(512 << 20), "-hold", "5s"}},
	}
}

// cycle makes, uses and ends one sandbox, with f or without a fault. Codes are not judged here: what is
// left is.
func (s *soak) cycle(ctx context.Context, f *fault) error {
	_, mark, err := s.t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	if f == nil {
		f = &fault{}
	}
	for _, r := range f.rules {
		if err := s.t.Target().Controller.Inject(r); err != nil {
			return err
		}
	}
	spec := s.t.Spec(target.Spec{})
	sb, err := s.t.TrySandbox(ctx, spec)
	if err != nil && target.CodeOf(err) == "" {
		return err
	}
	if err == nil {
		if err := s.use(ctx, sb, *f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if len(f.rules) > 0 {
		if _, found, err := underway.Struck(s.t, mark); err != nil {
			return err
		} else if found {
			s.t.Witness("faults", 1)
		}
		if err := s.t.Target().Controller.Calm(); err != nil {
			return err
		}
	}
	if s.cycles++; s.base == nil && s.cycles >= lc12Warm {
		base, err := s.hold(ctx)
		if err != nil {
			return err
		}
		s.base = &base
	}
	free, err := underway.Freed(ctx, s.t, spec.WorkspaceID, lc12Within)
	if err == nil && !free {
		s.t.Fail("workspace-held", "%s: %s after the cycle its workspace is held", f.name, lc12Within)
	}
	return err
}

// use runs the cycle's command and disposes.
func (s *soak) use(ctx context.Context, sb target.Sandbox, f fault) error {
	if err := sb.Files().Write(ctx, "kept", []byte("x")); err != nil && target.CodeOf(err) == "" {
		return err
	}
	if len(f.argv) > 0 {
		if err := s.disturbed(ctx, sb, f); err != nil {
			return err
		}
	} else if err := sb.Files().Write(ctx, "program", s.program); err == nil {
		o := attack.Run(ctx, sb, target.Command{Argv: attack.Command("./program", "noop")})
		if err := o.Trouble(); err != nil {
			return err
		}
		if o.Err == nil && o.Result.ExitCode == 0 {
			s.t.Witness("results", 1)
		}
	} else if target.CodeOf(err) == "" {
		return err
	}
	if err := sb.Files().Remove(ctx, "kept"); err != nil && target.CodeOf(err) == "" {
		return err
	}
	if err := sb.Dispose(ctx); err != nil && target.CodeOf(err) == "" {
		return err
	}
	return nil
}

// disturbed runs a command to which something happens.
func (s *soak) disturbed(ctx context.Context, sb target.Sandbox, f fault) error {
	program := s.t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, s.t, sb)
	if err != nil {
		return err
	}
	over := make(chan attack.Outcome, 1)
	go func() {
		over <- attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, f.argv...), Timeout: 30 * time.Second})
	}()
	if f.during != nil {
		if err := oracle.WaitBeating(ctx, filepath.Join(c.Workspace, "beat"), 2, lc12Within); err != nil {
			return err
		}
		if err := f.during(ctx, sb, c); err != nil {
			return err
		}
	}
	o := <-over
	if o.Err != nil || o.Result.ExitCode != 0 {
		s.t.Witness("faults", 1)
	}
	return nil
}
