// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
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
	Raw       string          `json:"raw"`    // folder for records and artifacts
	Shared    string          `json:"shared"` // folder where the processes meet
	Beside    string          `json:"beside"` // [Options.Beside]
	Work      string          `json:"work"`   // folder for the drivers' state, one below for each process
	Dir       string          `json:"dir"`    // working directory, which Ginkgo would change
	Path      string          `json:"path"`   // $PATH, which the launcher empties
	Driver    string          `json:"driver"`
	Config    json.RawMessage `json:"config"`
	Cases     []string        `json:"cases"`
	Workloads []string        `json:"workloads"`
	Tenant    string          `json:"tenant"`
	Seed      int64           `json:"seed"`
	Procs     int             `json:"procs"`
	Unprobed  bool            `json:"unprobed"`  // features are not looked at
	Unarmed   bool            `json:"unarmed"`   // no oracle is tried
	Arguments []string        `json:"arguments"` // of the suite processes, beside Ginkgo's own
	TimeScale int             `json:"timeScale"`
	CohortID  string          `json:"cohortId"`
	Catalogue string          `json:"catalogueDigest"`
}

// IsChild reports whether this process was started by [Run] to execute cases.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// ChildMain executes the cases of the plan, or starts the processes that do, and ends the
// process: 0 when the run went to its end, 2 when not. A program that calls [Run] calls it before
// anything else when [IsChild].
func ChildMain(s Suite) {
	if err := childMain(s); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(2)
	}
	os.Exit(0)
}

func childMain(s Suite) error {
	path := os.Getenv(childEnv)
	var p plan
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if p.Procs > 1 && os.Getenv(launchedEnv) == "" {
		return launch(p)
	}
	// What a suite process starts is none of the suite's, and holds none of its descriptors.
	os.Unsetenv(childEnv)
	os.Unsetenv(launchedEnv)
	for fd := fdEvents; fd <= fdLog; fd++ {
		syscall.CloseOnExec(fd)
	}
	if err := os.Setenv("PATH", p.Path); err != nil {
		return err
	}
	if err := os.Chdir(p.Dir); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	if p.Procs > 1 {
		// Ginkgo keeps its processes' output until they end; what they say is to be read whatever happens.
		for _, fd := range []int{1, 2} {
			if err := syscall.Dup3(fdLog, fd, 0); err != nil {
				return fmt.Errorf("open the log: %w", err)
			}
		}
	}
	testing.Init() // Ginkgo reads the testing package's flags
	if err := flag.CommandLine.Parse(os.Args[1:]); err != nil {
		return err
	}
	return runProcess(s, p)
}

// runProcess executes cases in this process, one of p.Procs.
func runProcess(s Suite, p plan) error {
	sc, rc := ginkgo.GinkgoConfiguration()
	if sc.ParallelTotal != p.Procs {
		return fmt.Errorf("Ginkgo runs %d processes and the plan has %d", sc.ParallelTotal, p.Procs)
	}
	company, err := joinPeers(p.Shared, sc.ParallelProcess, p.Procs)
	if err != nil {
		return err
	}
	removeTemp, err := takeTemp()
	if err != nil {
		return err
	}
	c := &child{suite: s, plan: p, peers: company, events: os.NewFile(fdEvents, "events")}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() { company.mark(markInterrupted, fmt.Sprintf("process %d was told to stop", company.n)) })()
	c.interrupted = func() bool { return ctx.Err() != nil }
	go watchLife(os.NewFile(fdLife, "life"), c.interrupted)
	if err := c.register(); err != nil {
		return errors.Join(err, removeTemp())
	}
	sc.RandomSeed, sc.RandomizeAllSpecs, sc.Timeout = p.Seed, true, 0 // the cases have time-outs of their own
	sc.OutputInterceptorMode = "none"                                 // the output is a file already
	if p.Procs == 1 {
		rc.JSONReport = filepath.Join(p.Raw, ginkgoFile)
	}
	rc.NoColor = true
	ginkgo.RunSpecs(stdT{}, "hallmark "+p.RunID, sc, rc)
	c.leave()
	return errors.Join(c.outcome(), removeTemp())
}

// watchLife turns the end of the life line into one interrupt, if there was none. Ginkgo skips its
// clean-up at the second.
func watchLife(life *os.File, interrupted func() bool) {
	life.Read(make([]byte, 1)) // nobody writes: it returns at the end
	if !interrupted() {
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
}

// stdT is what RunSpecs wants of a testing.T; failures are read from the records instead.
type stdT struct{}

func (stdT) Fail() {}

// child is one process of a run.
type child struct {
	suite       Suite
	plan        plan
	peers       *peers
	interrupted func() bool
	embedded    bool // in somebody else's suite, whose process it shares

	busy atomic.Int64 // nodes that run, also after Ginkgo has given them up

	mu     sync.Mutex // of what follows
	events *os.File
	bench  *bench
	before *baseline // what was there before the target was opened
	claims []string
	ledger *journal
	closed bool
	fault  string // why the run did not go to its end here, "" as long as it does
	sealed bool
}

// Bounds of the suite's own nodes.
const (
	openTimeout  = 3 * time.Minute // start a daemon and arm every oracle
	closeTimeout = 2 * time.Minute
)

// register makes the Ginkgo tree, the same in every process: one spec per planned case, and the
// arming before them.
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
	// The second function runs in all processes at the same time, and in each before its first case.
	ginkgo.SynchronizedBeforeSuite(func(ginkgo.SpecContext) []byte { return nil },
		func(ctx ginkgo.SpecContext, _ []byte) { c.node(func() { c.begin(ctx, open, cases) }) },
		ginkgo.NodeTimeout(scaled(c.plan.TimeScale, openTimeout+featuresTimeout+cleanupBudget+(armingTimeout+cleanupBudget)*time.Duration(len(c.suite.Arming)))), ginkgo.GracePeriod(cleanupBudget+openTimeout))
	for _, cs := range cases {
		// The grace is long: an interrupted case cleans up before the target is closed.
		args := []any{ginkgo.NodeTimeout(scaled(c.plan.TimeScale, cs.bound(len(c.plan.Workloads)))), ginkgo.GracePeriod(returnGrace + cleanupBudget),
			func(ctx ginkgo.SpecContext) { c.node(func() { c.run(ctx, cs) }) }}
		if cs.Exclusive {
			args = append(args, ginkgo.Serial) // in process 1, once all others have closed their targets
		}
		ginkgo.It(cs.ID+" "+cs.Title, args...)
	}
	ginkgo.SynchronizedAfterSuite(func(ginkgo.SpecContext) { c.node(c.close) }, func(ginkgo.SpecContext) { c.node(c.seal) },
		ginkgo.NodeTimeout(scaled(c.plan.TimeScale, closeTimeout+time.Minute)), ginkgo.GracePeriod(closeTimeout))
	return nil
}

// scaled is a bound of patience by [Options.TimeScale].
func scaled(scale int, d time.Duration) time.Duration { return time.Duration(max(1, scale)) * d }

// bound is Ginkgo's bound on cs over so many workloads, a backstop behind the runner's own, which
// alone decides.
func (c Case) bound(workloads int) time.Duration {
	passes := time.Duration(1)
	if c.PerImage {
		passes = time.Duration(workloads)
	}
	return passes*(c.Timeout+returnGrace+2*cleanupBudget) + time.Minute
}

// node runs the body of a Ginkgo node that [child.leave] waits for.
func (c *child) node(body func()) {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	body()
}

// run executes one case over its images, puts the record on disk, and only then tells Ginkgo.
func (c *child) run(ctx context.Context, cs Case) {
	start := time.Now()
	c.tell(event{Kind: "start", ID: cs.ID})
	r := Record{ID: cs.ID, Revision: cs.Revision, Status: Pass, Attempts: 1, StartedAt: string(evidence.At(start)), Workloads: []Execution{}}
	if text, lost := marked(c.plan.Shared, markLost); lost {
		r.Status, r.Reason, r.Text = NotRun, markLost, text
	} else if s, reason, text := c.bench.prerequisite(cs, c.claims); s != "" {
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
		if ctx.Err() == nil && (r.Status == Errored || r.Reason == "target-died") {
			if text := c.bench.lost(ctx); text != "" {
				c.peers.mark(markLost, "since "+cs.ID+": "+text)
			}
		}
	}
	r.DurationMs = time.Since(start).Milliseconds()
	if err := c.ledger.add(r); err != nil {
		ginkgo.Fail(err.Error())
	}
	c.tell(event{Kind: "end", ID: r.ID, Status: r.Status, Reason: r.Reason, Text: r.Text, Ms: r.DurationMs})
	ginkgo.AddReportEntry("hallmark.status", fmt.Sprintf("%s@%d %s %s", r.ID, r.Revision, r.Status, r.Reason), types.ReportEntryVisibilityNever)
	switch {
	case r.Status == Pass:
	case r.Status == NotApplicable, r.Status == NotRun && !c.embedded:
		ginkgo.Skip(string(r.Status) + " " + r.Reason + ": " + r.Text)
	default:
		ginkgo.Fail(string(r.Status) + " " + r.Reason + ": " + r.Text)
	}
}
