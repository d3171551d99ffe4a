// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// processSetup is what one process has opened and armed; in process 1, at last, what all have.
type processSetup struct {
	Target   TargetRecord    `json:"target"`
	Oracles  []OracleRecord  `json:"oracles"`
	Features []FeatureRecord `json:"features"` // by process 1
	Scope    scope           `json:"scope"`
}

// begin opens this process's target, arms its oracles, and returns when the arming record of the
// whole run is on disk.
func (c *child) begin(ctx context.Context, open Open, cases []Case) {
	started := time.Now()
	own, err := c.prepare(ctx, open, cases)
	if err == nil && ctx.Err() != nil {
		err = errors.New("interrupted while arming")
	}
	switch {
	case err != nil:
	case c.peers.n == 1:
		err = c.record(ctx, own, started)
	default:
		err = errors.Join(c.peers.put(setupName(c.peers.n), own), c.join(ctx))
	}
	if err != nil {
		text := fmt.Sprintf("process %d of the suite: %v", c.peers.n, err)
		c.fail("the run did not begin: " + text)
		ginkgo.Fail(errors.Join(err, c.peers.mark(markFailed, text)).Error())
	}
}

// prepare opens the target and arms the oracles of the cases that may run in this process.
func (c *child) prepare(ctx context.Context, open Open, cases []Case) (processSetup, error) {
	s := processSetup{Oracles: []OracleRecord{}}
	c.announce("open target")
	work := workFolder(c.plan.Work, c.peers.n)
	if err := os.Mkdir(work, 0o700); err != nil {
		return s, fmt.Errorf("make work folder: %w", err)
	}
	before, err := takeBaseline(c.plan, c.embedded)
	if err != nil {
		return s, err
	}
	tg, err := open(ctx, c.plan.Config, work)
	if err != nil {
		return s, fmt.Errorf("open target: %w", err)
	}
	b := &bench{
		target: tg, tenant: c.plan.Tenant, blobs: filepath.Join(c.plan.Raw, blobsDir), work: work, seed: c.plan.Seed, sharing: c.embedded,
		armed: map[Oracle]bool{}, log: func(line string) { ginkgo.GinkgoWriter.Println(line) },
		proc: c.peers.n, procs: c.peers.total, shared: c.plan.Shared, run: c.plan.RunID, beside: c.plan.Beside, scope: scope{WorkDir: work}, timeScale: c.plan.TimeScale,
	}
	c.mu.Lock()
	c.bench, c.before = b, before
	c.mu.Unlock()
	if err := before.note(ctx, tg); err != nil {
		return s, err
	}
	if tg.Observer != nil {
		if b.scope.CgroupParent, err = tg.Observer.CgroupParent(); err != nil && !errors.Is(err, target.ErrUnavailable) {
			return s, fmt.Errorf("cgroup parent: %w", err)
		}
	}
	s.Scope = b.scope
	if err := b.publishScope(); err != nil {
		return s, err
	}
	d, err := tg.Runtime.Describe(ctx)
	if err != nil {
		return s, fmt.Errorf("describe target: %w", err)
	}
	c.claims = d.Claims
	s.Target = TargetRecord{Driver: d.Driver, Mode: d.Mode, Version: d.Version, WorkerID: d.WorkerID,
		Claims: orEmpty(d.Claims), Parts: orEmpty(tg.Parts), CohortID: d.CohortID, Digests: d.Digests} // nil maps are written as empty
	if s.Features, err = c.features(ctx); err != nil {
		return s, err
	}
	if c.plan.Unarmed {
		return s, nil
	}
	shared, alone := c.armings(cases)
	arm := func(a Arming) {
		c.announce("arm " + string(a.Oracle))
		r := b.arm(ctx, a, c.plan.Workloads[0])
		b.armed[a.Oracle] = r.Armed
		s.Oracles = append(s.Oracles, r)
	}
	for _, a := range shared {
		arm(a)
	}
	if len(alone) > 0 {
		if _, err := c.others(ctx); err != nil {
			return s, err
		}
	}
	for _, a := range alone {
		arm(a)
	}
	return s, nil
}

// features has process 1 look at the target's features, and the others take over what it saw: what
// is there decides which oracles are needed.
func (c *child) features(ctx context.Context) (seen []FeatureRecord, err error) {
	if c.peers.n > 1 {
		err := c.peers.await(ctx, 1, featuresName, &seen)
		c.bench.know(seen)
		return nil, err
	}
	if c.plan.Unprobed {
		seen = c.suite.unseen(c.claims, "the run was made without a look at it")
	} else {
		c.announce("look at features")
		seen = c.bench.see(ctx, c.suite, c.claims, c.plan.Workloads[0])
	}
	return seen, c.peers.put(featuresName, seen)
}

// armings are those that the cases of this process need. Exclusive cases run in process 1 alone:
// what only they need is armed there alone too, when the others are ready, since it is as easily
// disturbed as they are.
func (c *child) armings(cases []Case) (shared, alone []Arming) {
	needed := func(a Arming, exclusive bool) bool {
		return slices.ContainsFunc(cases, func(cs Case) bool {
			return cs.Exclusive == exclusive && slices.Contains(cs.Oracles, a.Oracle) && c.runnable(cs)
		})
	}
	for _, a := range c.suite.Arming {
		switch {
		case needed(a, false):
			shared = append(shared, a)
		case needed(a, true) && c.peers.n == 1:
			alone = append(alone, a)
		}
	}
	return shared, alone
}

// others are the setups of the other processes, once they are ready.
func (c *child) others(ctx context.Context) (setups []processSetup, err error) {
	for n := 2; n <= c.peers.total; n++ {
		var s processSetup
		if err := c.peers.await(ctx, n, setupName(n), &s); err != nil {
			return nil, err
		}
		setups = append(setups, s)
	}
	return setups, nil
}

// runnable reports whether nothing but an oracle can keep cs from running.
func (c *child) runnable(cs Case) bool {
	cs.Oracles = nil
	s, _, _ := c.bench.prerequisite(cs, c.claims)
	return s == ""
}

// record waits for the other processes, puts the arming record on disk and lets them go on.
func (c *child) record(ctx context.Context, own processSetup, started time.Time) error {
	others, err := c.others(ctx)
	if err != nil {
		return err
	}
	all, err := together(append([]processSetup{own}, others...))
	if err != nil {
		return err
	}
	c.adopt(all)
	for _, r := range all.Oracles {
		c.tell(event{Kind: "armed", ID: string(r.Oracle), Status: map[bool]Status{true: Pass, false: Fail}[r.Armed], Text: r.Text})
	}
	c.ledger, err = newJournal(c.plan.Raw, Setup{
		RunID: c.plan.RunID, Catalogue: c.plan.Catalogue, Planned: c.plan.Cases, CohortID: c.plan.CohortID, Seed: c.plan.Seed,
		StartedAt: string(evidence.At(started)), Oracles: all.Oracles, Target: all.Target, Features: all.Features,
	})
	if err != nil {
		return err
	}
	return c.peers.put(armedName, all)
}

// join waits for the arming record, and takes over what it says.
func (c *child) join(ctx context.Context) error {
	var all processSetup
	if err := c.peers.await(ctx, 1, armedName, &all); err != nil {
		return err
	}
	c.adopt(all)
	var err error
	c.ledger, err = openJournal(c.plan.Raw)
	return err
}

// adopt makes the whole run's arming this process's.
func (c *child) adopt(all processSetup) {
	c.bench.armed = map[Oracle]bool{}
	for _, r := range all.Oracles {
		c.bench.armed[r.Oracle] = r.Armed
	}
	if c.bench.unarmed = c.plan.Unarmed; c.bench.unarmed {
		for _, a := range c.suite.Arming {
			c.bench.armed[a.Oracle] = true // until a case passes: see [bench.execute]
		}
	}
}

// together makes one setup of those of all processes, the first one's first. An oracle is armed
// when it is in every process that has tried it, and then a witness counts as often as it did where
// it counted least. Targets that differ in more than their names are no one target, and those that
// share a cgroup parent cannot be told apart.
func together(setups []processSetup) (processSetup, error) {
	all := setups[0]
	all.Oracles = slices.Clone(all.Oracles)
	for i, s := range setups[1:] {
		t := s.Target
		t.WorkerID = all.Target.WorkerID
		if !reflect.DeepEqual(t, all.Target) {
			return all, fmt.Errorf("process %d of the suite has opened another target: %+v, the first one has %+v", i+2, t, all.Target)
		}
		for n, other := range setups[:i+1] {
			if s.Scope.holds(other.Scope.CgroupParent) || other.Scope.holds(s.Scope.CgroupParent) {
				return all, fmt.Errorf("processes %d and %d of the suite share the cgroup parent %s: what one leaves would be laid to the other; run this target in one process",
					n+1, i+2, s.Scope.CgroupParent)
			}
		}
		for _, r := range s.Oracles {
			at := slices.IndexFunc(all.Oracles, func(o OracleRecord) bool { return o.Oracle == r.Oracle })
			switch {
			case at < 0:
				return all, fmt.Errorf("process %d of the suite has tried the oracle %s, the first one has not", i+2, r.Oracle)
			case !all.Oracles[at].Armed:
			case !r.Armed:
				r.Text = fmt.Sprintf("in process %d: %s", i+2, r.Text)
				all.Oracles[at] = r
			default:
				all.Oracles[at].Witness = least(all.Oracles[at].Witness, r.Witness)
			}
		}
	}
	return all, nil
}

func least(a, b map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for name, n := range a {
		out[name] = min(n, b[name])
	}
	return out
}

// announce tells of a step that every process takes, once.
func (c *child) announce(step string) {
	if c.peers.n == 1 {
		c.tell(event{Kind: "phase", Text: step})
	}
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
