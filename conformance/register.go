// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// notEvidence is what the report of an embedded run says first.
const notEvidence = "the run was embedded in another suite, which can filter, repeat and reorder it: it is never signed and is no evidence"

// Register adds the cases to the Ginkgo tree that is being built: one ordered container that goes on
// after a failure, opens and arms the target before its first case and closes it after the last, with a
// spec for each case. The order of the cases follows o.Seed, or Ginkgo's own seed when that is 0. It
// may be called several times, for several targets, each with folders of its own. In a parallel run
// the whole container runs in one of the processes.
//
// Register declares no node at the level of the suite, starts no process, reads no flag and keeps no
// global state: it runs the cases in the process that it finds. What appears in that process during a
// case may be somebody else's, so goroutines and descriptors are logged and not judged there. A case
// that passed passes; one that does not apply is skipped, which Ginkgo counts apart; everything else,
// not-run included, fails.
//
// The reports, report.json and junit.xml below o.Out, say that the run was embedded. It is never
// signed: o.Evidence must be nil. Procs, Progress, Live, Executable and Arguments are not used.
func Register(o Options) {
	e := &embedded{o: o}
	cases, err := e.selected()
	name := "hallmark " + o.Driver
	if err != nil {
		// Here nothing can fail yet: the container does, and says why.
		ginkgo.Describe(name, func() { ginkgo.It("can be run", func() { ginkgo.Fail(err.Error()) }) })
		return
	}
	decorators := []any{ginkgo.Ordered, ginkgo.ContinueOnFailure}
	if slices.ContainsFunc(cases, func(c Case) bool { return c.Exclusive }) {
		decorators = append(decorators, ginkgo.Serial)
	}
	ginkgo.Describe(name, append(decorators, func() { e.container(cases) })...)
}

// embedded is one registration.
type embedded struct {
	o      Options
	child  *child
	locks  []*os.File  // on the folders
	cut    atomic.Bool // a node's context has ended
	begun  time.Time
	faults []string
}

// selected checks what can be checked while the tree is built; the rest waits for the first node,
// since others may prepare it in theirs.
func (e *embedded) selected() ([]Case, error) {
	if e.o.Evidence != nil {
		return nil, errors.New("an embedded run is never signed: Options.Evidence must be nil")
	}
	if err := e.o.Suite.Check(); err != nil {
		return nil, err
	}
	return e.o.selected()
}

func (e *embedded) container(cases []Case) {
	if e.o.Seed == 0 {
		e.o.Seed = ginkgo.GinkgoRandomSeed() // equal in all processes, as the tree must be
	}
	rand.New(rand.NewSource(e.o.Seed)).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	ginkgo.BeforeAll(func(ctx ginkgo.SpecContext) { e.begin(ctx, cases) },
		ginkgo.NodeTimeout(openTimeout+(armingTimeout+cleanupBudget)*time.Duration(len(e.o.Suite.Arming))), ginkgo.GracePeriod(cleanupBudget+openTimeout))
	for _, cs := range cases {
		ginkgo.It(cs.ID+" "+cs.Title, func(ctx ginkgo.SpecContext) {
			defer e.watch(ctx)()
			e.child.run(ctx, cs)
		}, ginkgo.NodeTimeout(cs.bound(len(e.o.Workloads))), ginkgo.GracePeriod(returnGrace+cleanupBudget))
	}
	// Two nodes: the second runs although the first has failed.
	ginkgo.AfterAll(func(ginkgo.SpecContext) { e.close() }, ginkgo.NodeTimeout(closeTimeout+time.Minute), ginkgo.GracePeriod(closeTimeout))
	ginkgo.AfterAll(func(ginkgo.SpecContext) { e.report() })
}

// watch remembers whether a node's context ended before the node.
func (e *embedded) watch(ctx context.Context) (stop func()) {
	end := context.AfterFunc(ctx, func() { e.cut.Store(true) })
	return func() { end() }
}

func (e *embedded) begin(ctx context.Context, cases []Case) {
	defer e.watch(ctx)()
	e.begun = time.Now()
	plan, err := e.plan(cases)
	if err != nil {
		ginkgo.Fail("run options: " + err.Error())
	}
	company, err := joinPeers(plan.Shared, 1, 1)
	if err != nil {
		ginkgo.Fail(err.Error())
	}
	e.child = &child{suite: e.o.Suite, plan: plan, peers: company, interrupted: e.cut.Load, embedded: true}
	e.child.begin(ctx, e.o.Suite.Drivers[e.o.Driver], cases)
}

// plan makes the run's folders.
func (e *embedded) plan(cases []Case) (plan, error) {
	if err := e.o.check(); err != nil {
		return plan{}, err
	}
	catalogue, err := e.o.Suite.CatalogueDigest()
	if err != nil {
		return plan{}, err
	}
	out, err := lockOut(e.o.Out)
	if err != nil {
		return plan{}, err
	}
	e.locks = append(e.locks, out)
	p, work, err := e.o.prepare()
	if err != nil {
		return plan{}, err
	}
	e.locks = append(e.locks, work)
	p.Procs, p.Catalogue = 1, catalogue
	for _, c := range cases {
		p.Cases = append(p.Cases, c.ID)
	}
	return p, p.write()
}

// close closes the target and looks for what the run left.
func (e *embedded) close() {
	if e.child == nil {
		return
	}
	defer func() {
		c := e.child
		if c.bench != nil {
			if err := c.before.hostLeft([]scope{c.bench.scope}, c.bench.besideScopes); err != nil {
				e.faults = append(e.faults, err.Error())
			}
		}
	}()
	e.child.close()
}

// report writes the reports and lets everything go. It fails with what is wrong with the run as a whole.
func (e *embedded) report() {
	for _, lock := range e.locks {
		defer lock.Close()
	}
	if e.child == nil {
		return // begin has failed with the reason
	}
	c := e.child
	defer c.letGo()
	res, err := collect(e.o, c.plan, nil, nil)
	if err != nil {
		ginkgo.Fail("collect records: " + err.Error())
	}
	res.started, res.finished, res.interrupted = e.begun, time.Now(), e.cut.Load()
	var end processEnd
	now, cancel := context.WithCancel(context.Background())
	cancel() // it is there, or close did not come so far
	if err := c.peers.await(now, 1, endName(1), &end); err == nil && end.Teardown != "" {
		e.faults = append(e.faults, "closing the target: "+end.Teardown)
	}
	if err := target.RemoveRun(c.plan.Work); err != nil {
		e.faults = append(e.faults, "the driver left files in its work folder")
	}
	res.incomplete = append([]string{notEvidence}, e.faults...)
	done, err := res.conclude(e.o, c.plan)
	if err != nil {
		ginkgo.Fail(err.Error())
	}
	e.faults = append(e.faults, falseClaims(done.Report)...)
	if len(e.faults) > 0 {
		ginkgo.Fail(strings.Join(e.faults, "; "))
	}
}

// letGo closes what a process of the suite's own would hold until its end.
func (c *child) letGo() {
	if c.ledger != nil {
		c.ledger.rows.Close()
		c.ledger.details.Close()
	}
	c.peers.lock.Close()
	os.RemoveAll(c.plan.Shared)
}
