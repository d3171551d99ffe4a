// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// childEnv names the plan file of a child. Its presence is what makes a process one.
const childEnv = "HALLMARK_SUITE_PLAN"

// plan is all that a child knows of its run beyond the compiled-in suite.
type plan struct {
	RunID     string          `json:"runId"`
	Raw       string          `json:"raw"`  // folder for records and artifacts
	Work      string          `json:"work"` // folder for the driver's state
	Driver    string          `json:"driver"`
	Config    json.RawMessage `json:"config"`
	Cases     []string        `json:"cases"`
	Workloads []string        `json:"workloads"`
	Tenant    string          `json:"tenant"`
	Seed      int64           `json:"seed"`
	CohortID  string          `json:"cohortId"`
	Catalogue string          `json:"catalogueDigest"`
}

// IsChild reports whether this process was started by [Run] to execute cases.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// ChildMain executes the cases of the plan and ends the process: 0 when a seal was written, 2
// when not. A program that calls [Run] calls it before anything else when [IsChild].
func ChildMain(s Suite) {
	path := os.Getenv(childEnv)
	os.Unsetenv(childEnv) // children of the child are not children of the suite
	testing.Init()        // Ginkgo reads the testing package's flags
	var p plan
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: read the plan: %v\n", err)
		os.Exit(2)
	}
	c := &child{suite: s, plan: p, events: json.NewEncoder(os.NewFile(3, "events"))}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.interrupted = func() bool { return ctx.Err() != nil }
	defer interruptOnOrphanhood()()
	if err := c.register(); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(2)
	}
	sc, rc := ginkgo.GinkgoConfiguration()
	sc.RandomSeed, sc.RandomizeAllSpecs = p.Seed, true
	sc.OutputInterceptorMode = "none" // one process, whose output is a file already
	rc.JSONReport = filepath.Join(p.Raw, ginkgoFile)
	rc.NoColor = true
	ginkgo.RunSpecs(stdT{}, "hallmark "+p.RunID, sc, rc)
	if !c.sealed {
		os.Exit(2)
	}
}

// interruptOnOrphanhood turns the parent-death signal into one interrupt. The kernel sends that
// signal once per dying thread of the parent, and Ginkgo skips the clean-up at the second.
func interruptOnOrphanhood() (stop func()) {
	orphaned := make(chan os.Signal, 1)
	signal.Notify(orphaned, orphanSignal)
	go func() {
		if _, ok := <-orphaned; ok {
			syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}
	}()
	return func() { signal.Stop(orphaned); close(orphaned) }
}

// orphanSignal is sent to a child whose parent has died.
const orphanSignal = syscall.SIGHUP

// stdT is what RunSpecs wants of a testing.T; failures are read from the records instead.
type stdT struct{}

func (stdT) Fail() {}

// event is one line of live progress from child to parent.
type event struct {
	Kind   string `json:"kind"` // phase, start, end
	Text   string `json:"text"`
	ID     string `json:"id"`
	Status Status `json:"status"`
	Reason string `json:"reason"`
	Ms     int64  `json:"ms"`
}

type child struct {
	suite       Suite
	plan        plan
	interrupted func() bool

	mu      sync.Mutex
	events  *json.Encoder
	bench   *bench
	claims  []string
	journal *journal
	sealed  bool
}

func (c *child) tell(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events.Encode(e) // a parent that has gone is noticed by its signal, not here
}

// Bounds of the suite's own nodes.
const (
	openTimeout  = 3 * time.Minute // start a daemon and arm every oracle
	closeTimeout = 2 * time.Minute
)

// register makes the Ginkgo tree: one spec per planned case, and the arming before them.
func (c *child) register() error {
	var cases []Case
	for _, id := range c.plan.Cases {
		cs, ok := c.suite.find(id)
		if !ok {
			return fmt.Errorf("the plan names the unknown case %q", id)
		}
		cases = append(cases, cs)
	}
	open, ok := c.suite.Drivers[c.plan.Driver]
	if !ok {
		return fmt.Errorf("unknown driver %q", c.plan.Driver)
	}
	ginkgo.BeforeSuite(func(ctx ginkgo.SpecContext) { c.begin(ctx, open, cases) }, ginkgo.NodeTimeout(openTimeout+featuresTimeout+cleanupBudget+(armingTimeout+cleanupBudget)*time.Duration(len(c.suite.Arming))), ginkgo.GracePeriod(cleanupBudget+openTimeout))
	for _, cs := range cases {
		passes := time.Duration(1)
		if cs.PerImage {
			passes = time.Duration(len(c.plan.Workloads))
		}
		// Ginkgo's bound is a backstop behind the runner's own, which alone decides.
		bound := passes*(cs.Timeout+returnGrace+2*cleanupBudget) + time.Minute
		// The grace is long: an interrupted case cleans up before the target is closed.
		ginkgo.It(cs.ID+" "+cs.Title, ginkgo.NodeTimeout(bound), ginkgo.GracePeriod(returnGrace+cleanupBudget), func(ctx ginkgo.SpecContext) { c.run(ctx, cs) })
	}
	ginkgo.AfterSuite(func(ctx ginkgo.SpecContext) { c.end() }, ginkgo.NodeTimeout(closeTimeout+time.Minute))
	return nil
}

// begin opens the target, arms the oracles and puts the arming record on disk.
func (c *child) begin(ctx context.Context, open Open, cases []Case) {
	started := time.Now()
	c.tell(event{Kind: "phase", Text: "open target"})
	tg, err := open(ctx, c.plan.Config, c.plan.Work)
	if err != nil {
		ginkgo.Fail("open target: " + err.Error())
	}
	c.bench = &bench{
		target: tg, tenant: c.plan.Tenant, blobs: filepath.Join(c.plan.Raw, blobsDir), work: c.plan.Work, seed: c.plan.Seed,
		armed: map[Oracle]bool{}, log: func(line string) { ginkgo.GinkgoWriter.Println(line) },
	}
	d, err := tg.Runtime.Describe(ctx)
	if err != nil {
		ginkgo.Fail("describe target: " + err.Error())
	}
	c.claims = d.Claims
	record := Setup{
		RunID: c.plan.RunID, Catalogue: c.plan.Catalogue, Planned: c.plan.Cases, CohortID: c.plan.CohortID, Seed: c.plan.Seed,
		StartedAt: string(evidence.At(started)), Oracles: []OracleRecord{},
		Target: TargetRecord{Driver: d.Driver, Mode: d.Mode, Version: d.Version, WorkerID: d.WorkerID,
			Claims: orEmpty(d.Claims), Parts: orEmpty(tg.Parts), CohortID: d.CohortID, Digests: d.Digests}, // nil maps are written as empty
	}
	c.tell(event{Kind: "phase", Text: "look at features"})
	record.Features = c.bench.see(ctx, c.suite, d.Claims, c.plan.Workloads[0])
	for _, a := range c.suite.Arming {
		if !slices.ContainsFunc(cases, func(cs Case) bool { return slices.Contains(cs.Oracles, a.Oracle) && c.runnable(cs) }) {
			continue
		}
		c.tell(event{Kind: "phase", Text: "arm " + string(a.Oracle)})
		r := c.bench.arm(ctx, a, c.plan.Workloads[0])
		c.bench.armed[a.Oracle] = r.Armed
		record.Oracles = append(record.Oracles, r)
		c.tell(event{Kind: "armed", ID: string(a.Oracle), Status: map[bool]Status{true: Pass, false: Fail}[r.Armed], Text: r.Text})
	}
	if ctx.Err() != nil {
		ginkgo.Fail("interrupted while arming")
	}
	c.journal, err = newJournal(c.plan.Raw, record)
	if err != nil {
		ginkgo.Fail(err.Error())
	}
}

// runnable reports whether nothing but an oracle can keep cs from running.
func (c *child) runnable(cs Case) bool {
	cs.Oracles = nil
	s, _, _ := c.bench.prerequisite(cs, c.claims)
	return s == ""
}

// run executes one case over its images, puts the record on disk, and only then tells Ginkgo.
func (c *child) run(ctx context.Context, cs Case) {
	start := time.Now()
	c.tell(event{Kind: "start", ID: cs.ID})
	r := Record{ID: cs.ID, Revision: cs.Revision, Status: Pass, Attempts: 1, StartedAt: string(evidence.At(start)), Workloads: []Execution{}}
	if s, reason, text := c.bench.prerequisite(cs, c.claims); s != "" {
		r.Status, r.Reason, r.Text = s, reason, text
	} else {
		images := c.plan.Workloads
		if !cs.PerImage {
			images = images[:1]
		}
		for _, image := range images {
			e := c.bench.execute(ctx, cs, image)
			if e.Status.rank() > r.Status.rank() {
				r.Status, r.Reason, r.Text = e.Status, e.Reason, e.Text
			}
			r.Workloads = append(r.Workloads, e)
			if ctx.Err() != nil {
				break
			}
		}
	}
	r.DurationMs = time.Since(start).Milliseconds()
	if err := c.journal.add(r); err != nil {
		ginkgo.Fail(err.Error())
	}
	c.tell(event{Kind: "end", ID: r.ID, Status: r.Status, Reason: r.Reason, Text: r.Text, Ms: r.DurationMs})
	ginkgo.AddReportEntry("hallmark.status", fmt.Sprintf("%s@%d %s %s", r.ID, r.Revision, r.Status, r.Reason), types.ReportEntryVisibilityNever)
	switch r.Status {
	case Pass:
	case NotApplicable, NotRun:
		ginkgo.Skip(string(r.Status) + " " + r.Reason + ": " + r.Text)
	default:
		ginkgo.Fail(string(r.Status) + " " + r.Reason + ": " + r.Text)
	}
}

// end closes the target, and seals the records when every planned case has one.
func (c *child) end() {
	c.tell(event{Kind: "phase", Text: "close target"})
	teardown := ""
	if c.bench != nil {
		if err := c.keepDocuments(); err != nil {
			teardown = err.Error()
		}
		if c.bench.target.Close != nil {
			if err := c.bench.target.Close(); err != nil {
				teardown = strings.TrimPrefix(teardown+"; "+err.Error(), "; ")
			}
		}
		// Here and not in the parent alone, which may have been killed. What is not empty stays
		// for the parent to complain about, or for the driver's next start to sweep.
		os.Remove(c.plan.Work)
	}
	if c.journal == nil || c.interrupted() || c.journal.n != len(c.plan.Cases) {
		return
	}
	if err := c.journal.seal(time.Now(), teardown); err != nil {
		ginkgo.Fail(err.Error())
	}
	c.sealed = true
	if teardown != "" {
		ginkgo.Fail("close target: " + teardown)
	}
}

// keepDocuments stores what the target wants kept, before Close removes it.
func (c *child) keepDocuments() error {
	if c.bench.target.Documents == nil {
		return nil
	}
	docs, err := c.bench.target.Documents()
	if err != nil {
		return fmt.Errorf("target's documents: %w", err)
	}
	dir := filepath.Join(c.plan.Raw, documentsDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("target's documents: %w", err)
	}
	for name, body := range docs {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), body, 0o644); err != nil {
			return fmt.Errorf("target's documents: %w", err)
		}
	}
	return nil
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
