// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// suiteEnv chooses the suite that a child of this test program executes.
const suiteEnv = "HALLMARK_TEST_SUITE"

var suites = map[string]func() conformance.Suite{"": testSuite, "procs": procSuite, "crowded": crowdedSuite}

// notesEnv names a folder where the cases of procSuite note what they did, and when.
const notesEnv = "HALLMARK_TEST_NOTES"

// note is one execution of a case; times are nanoseconds of the monotonic clock's wall reading.
type note struct {
	ID              string
	Pid, Parent     int
	Started, Ended  int64
	Exclusive, Left bool
}

func writeNote(n note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(os.Getenv(notesEnv), "notes"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// procSuite has cases that pass and say when they ran, two that want to be alone, and in the serial
// tier the ways in which a process of several can end.
func procSuite() conformance.Suite {
	mk := func(id string, exclusive bool, run func(ctx context.Context, t *conformance.T, n *note) error) conformance.Case {
		return conformance.Case{
			ID: id, Revision: 1, Title: "case " + id, Tier: conformance.Full, Timeout: time.Minute, Exclusive: exclusive,
			Features: []conformance.Feature{conformance.FeatureExec}, Oracles: []conformance.Oracle{conformance.OracleUsage},
			Kills: []conformance.Kill{{Mutant: "m01", Reason: "judged"}},
			Run: func(ctx context.Context, t *conformance.T) error {
				n := note{ID: id, Pid: os.Getpid(), Parent: os.Getppid(), Started: time.Now().UnixNano(), Exclusive: exclusive}
				t.Sandbox(ctx, target.Spec{})
				t.Witness("ran", 1)
				err := run(ctx, t, &n)
				n.Ended = time.Now().UnixNano()
				return errors.Join(err, writeNote(n))
			},
		}
	}
	brief := func(ctx context.Context, _ *conformance.T, _ *note) error {
		select {
		case <-ctx.Done():
		case <-time.After(150 * time.Millisecond):
		}
		return ctx.Err()
	}
	block := func(ctx context.Context, t *conformance.T, n *note) error {
		t.Cleanup(func(context.Context) error {
			time.Sleep(300 * time.Millisecond) // long enough for a second interrupt
			n.Left = true
			return writeNote(*n)
		})
		if err := writeNote(note{ID: n.ID, Pid: n.Pid, Parent: n.Parent, Started: n.Started}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	s := conformance.Suite{
		Drivers: map[string]conformance.Open{"toy": toy.Open, "fading": openFading, "uneven": openUneven},
		Arming: []conformance.Arming{
			{Oracle: conformance.OracleUsage, Arm: func(ctx context.Context, t *conformance.T) error {
				t.Witness("planted", int64(os.Getpid()))
				return nil
			}},
			{Oracle: conformance.OracleMemory, Arm: func(ctx context.Context, t *conformance.T) error {
				if err := os.Mkdir(filepath.Join(os.Getenv(notesEnv), "armed-once"), 0o700); err != nil {
					return err
				}
				t.Witness("planted", 1)
				return nil
			}},
		},
	}
	for i := range 10 {
		s.Cases = append(s.Cases, mk(fmt.Sprintf("PA-%02d", i+1), false, brief))
	}
	alone := mk("PX-02", true, brief)
	alone.Oracles = append(alone.Oracles, conformance.OracleMemory) // armed in process 1 only
	s.Cases = append(s.Cases, mk("PX-01", true, brief), alone)
	for _, c := range []conformance.Case{
		mk("PK-01", false, func(context.Context, *conformance.T, *note) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }),
		mk("PB-01", false, block), mk("PB-02", false, block),
		mk("PL-01", false, func(context.Context, *conformance.T, *note) error {
			return errors.Join(os.WriteFile(filepath.Join(os.Getenv(notesEnv), "gone"), nil, 0o600), errors.New("the engine went away"))
		}),
	} {
		c.Tier, c.Timeout = conformance.Serial, 5*time.Minute
		s.Cases = append(s.Cases, c)
	}
	return s
}

// openFading opens a toy that does not answer any more once a case has said so.
func openFading(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
	t, err := toy.Open(ctx, config, dir)
	if err == nil {
		t.Runtime = fading{t.Runtime}
	}
	return t, err
}

type fading struct{ target.Runtime }

func (f fading) Describe(ctx context.Context) (target.Description, error) {
	if _, err := os.Stat(filepath.Join(os.Getenv(notesEnv), "gone")); err == nil {
		return target.Description{}, errors.New("connection refused")
	}
	return f.Runtime.Describe(ctx)
}

// openUneven opens another target in each process.
func openUneven(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
	t, err := toy.Open(ctx, config, dir)
	if err == nil {
		t.Parts = append(t.Parts, filepath.Base(dir))
	}
	return t, err
}

func procOptions(t *testing.T, procs int) conformance.Options {
	t.Helper()
	o := options(t)
	o.Suite, o.Procs = procSuite(), procs
	t.Setenv(suiteEnv, "procs")
	t.Setenv(notesEnv, t.TempDir())
	return o
}

func notes(t *testing.T) (out []note) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(os.Getenv(notesEnv), "notes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var n note
		if err := json.Unmarshal(line, &n); err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b note) int { return int(a.Started - b.Started) })
	return out
}

func TestProcessesShareTheCasesAndExclusiveOnesRunAlone(t *testing.T) {
	o := procOptions(t, 2)
	o.Evidence = signable(t)
	out := run(t, context.Background(), o)
	if out.Bundle == "" {
		t.Errorf("not signed: %s; %q", out.Unsigned, out.Report.Reasons)
	}
	all := notes(t)
	pids := map[int]bool{}
	together := false
	for i, a := range all {
		pids[a.Pid] = true
		for _, b := range all[i+1:] {
			overlap := a.Started < b.Ended && b.Started < a.Ended
			together = together || overlap
			if overlap && (a.Exclusive || b.Exclusive) {
				t.Errorf("%s and %s ran at the same time", a.ID, b.ID)
			}
		}
	}
	if len(all) != 12 || len(pids) != 2 || !together {
		t.Errorf("%d executions in %d processes, two of them at once: %v; want 12 in 2, true", len(all), len(pids), together)
	}
	for _, c := range out.Report.Cases {
		if want := map[bool]conformance.Status{true: conformance.Pass, false: conformance.NotRun}[c.Tier == conformance.Full]; c.Status != want {
			t.Errorf("%s is %s %s (%s), want %s", c.ID, c.Status, c.Reason, c.Text, want)
		}
	}
	for _, r := range out.Report.Oracles {
		if want := map[bool]int{true: min2(pids), false: 1}[r.Oracle == conformance.OracleUsage]; !r.Armed || r.Witness["planted"] != int64(want) {
			t.Errorf("oracle %s: armed %v, witness %v, want %d", r.Oracle, r.Armed, r.Witness, want)
		}
	}
	report, err := os.ReadFile(filepath.Join(o.Out, "raw", "ginkgo.json"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := evidence.ReportGinkgo(report, types.VERSION)
	if err != nil || g.Parallel != 2 || g.Seed != o.Seed || !g.Succeeded || len(g.SpecialFailures) != 0 {
		t.Errorf("the runner's report says %+v, %v", g, err)
	}
	if n := bytes.Count(report, []byte(`"LeafNodeType": "It"`)); n != 12 {
		t.Errorf("the runner's report has %d specs, want 12", n)
	}
	for _, name := range []string{"seal.json", "target/launch-profile.json", "target/p2-launch-profile.json"} {
		if _, err := os.Stat(filepath.Join(o.Out, "raw", name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(o.Out, "raw", "procs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the processes was left: %v", err)
	}
}

func min2(pids map[int]bool) int {
	least := 0
	for pid := range pids {
		if least == 0 || pid < least {
			least = pid
		}
	}
	return least
}

func TestOrderFollowsTheSeed(t *testing.T) {
	order := func(procs int, seed int64) (ids []string) {
		o := procOptions(t, procs)
		o.Seed = seed
		if out := run(t, context.Background(), o); out.Report.Seed != seed || out.Report.Counts.Pass != 12 {
			t.Errorf("seed %d: recorded %d, %d passes", seed, out.Report.Seed, out.Report.Counts.Pass)
		}
		for _, n := range notes(t) {
			ids = append(ids, n.ID)
		}
		return ids
	}
	if a, b := order(1, 7), order(1, 7); !slices.Equal(a, b) {
		t.Errorf("one seed gave %v and %v", a, b)
	} else if c := order(1, 8); slices.Equal(a, c) {
		t.Errorf("two seeds gave the order %v", a)
	}
	if a, b := order(2, 7), order(2, 8); slices.Equal(a, b) {
		t.Errorf("two seeds gave two processes the order %v", a)
	}
}

func TestKilledProcessCostsItsCaseAndTheSignature(t *testing.T) {
	o := procOptions(t, 2)
	o.Tier, o.Evidence = conformance.Serial, signable(t)
	o.CaseIDs = []string{"PA-01", "PA-02", "PA-03", "PA-04", "PA-05", "PA-06", "PK-01"}
	start := time.Now()
	out, err := conformance.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("it took %s", d)
	}
	died := 0
	for _, c := range out.Report.Cases {
		switch {
		case c.Reason == "suite-died":
			died++
			if c.ID != "PK-01" || c.Status != conformance.Errored {
				t.Errorf("%s is %s %s", c.ID, c.Status, c.Reason)
			}
		case slices.Contains(o.CaseIDs, c.ID) && c.Status != conformance.Pass:
			t.Errorf("%s is %s %s (%s): the other process goes on", c.ID, c.Status, c.Reason, c.Text)
		}
	}
	if died != 1 {
		t.Errorf("%d cases died with their process, want 1", died)
	}
	checkUnsigned(t, o, out)
}

// Whoever is told to stop, and however: the cases that run are cleaned up, nothing is signed, and
// no process is left.
func TestInterruptsOfSeveralProcesses(t *testing.T) {
	send := func(pid int, sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended by the others' end
			t.Error(err)
		}
	}
	for name, stop := range map[string]func(ns []note, cancel func()){
		"the parent is":              func(_ []note, cancel func()) { cancel() },
		"the launcher is":            func(ns []note, _ func()) { send(ns[0].Parent, syscall.SIGTERM) },
		"the launcher is, by Ctrl-C": func(ns []note, _ func()) { send(ns[0].Parent, syscall.SIGINT) },
		"the launcher is killed":     func(ns []note, _ func()) { send(ns[0].Parent, syscall.SIGKILL) },
		"a process is":               func(ns []note, cancel func()) { send(ns[0].Pid, syscall.SIGTERM); afterLeft(t, 1); cancel() },
		"a process is, and impatient": func(ns []note, cancel func()) {
			send(ns[1].Pid, syscall.SIGINT)
			time.Sleep(20 * time.Millisecond)
			send(ns[1].Pid, syscall.SIGINT)
			cancel()
		},
		"everybody is": func(ns []note, cancel func()) {
			for _, pid := range []int{ns[0].Parent, ns[0].Pid, ns[1].Pid} {
				send(pid, syscall.SIGTERM)
			}
			cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := procOptions(t, 2)
			o.Tier, o.Evidence = conformance.Serial, signable(t)
			o.CaseIDs = []string{"PB-01", "PB-02", "PX-01"}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var running []note
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				for ctx.Err() == nil && len(running) < 2 {
					time.Sleep(10 * time.Millisecond)
					running = notes(t)
				}
				if len(running) == 2 {
					stop(running, cancel)
				}
			}()
			start := time.Now()
			out := run(t, ctx, o)
			<-stopped
			if d := time.Since(start); d > time.Minute {
				t.Errorf("the interrupted run took %s", d)
			}
			if len(running) != 2 {
				t.Fatalf("%d cases ran, want 2", len(running))
			}
			for _, n := range running {
				for _, pid := range []int{n.Pid, n.Parent} {
					if living(pid) {
						t.Errorf("process %d of the run is left", pid)
					}
				}
			}
			if !out.Interrupted {
				t.Error("the outcome does not say that it was interrupted")
			}
			if n := left(t); n != 2 {
				t.Errorf("%d cases were cleaned up, want 2", n)
			}
			for _, id := range o.CaseIDs[:2] {
				if c, _ := out.Report.Case(id); c.Status != conformance.Errored || c.Reason != "interrupted" {
					t.Errorf("%s is %s %s (%s), want error interrupted", id, c.Status, c.Reason, c.Text)
				}
			}
			if c, _ := out.Report.Case("PX-01"); c.Status != conformance.NotRun || c.Reason != "run-ended" {
				t.Errorf("PX-01 is %s %s (%s), want not-run run-ended", c.Status, c.Reason, c.Text)
			}
			checkUnsigned(t, o, out)
		})
	}
}

// living reports whether a process runs; one that its new parent has not asked for yet does not.
func living(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// afterLeft waits until n cases have been cleaned up.
func afterLeft(t *testing.T, n int) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left(t) >= n {
			return
		}
	}
	t.Errorf("not %d cases were cleaned up", n)
}

func left(t *testing.T) (n int) {
	for _, one := range notes(t) {
		if one.Left {
			n++
		}
	}
	return n
}

func TestLostTargetIsReportedOnce(t *testing.T) {
	o := procOptions(t, 1)
	o.Driver, o.Tier, o.CaseIDs = "fading", conformance.Serial, []string{"PL-01", "PA-01", "PA-02", "PA-03", "PX-01"}
	out := run(t, context.Background(), o)
	first, after := true, 0
	for _, c := range out.Report.Cases {
		switch {
		case c.ID == "PL-01" && c.Reason != "suite-error":
			t.Errorf("PL-01 is %s %s", c.Status, c.Reason)
		case c.Reason == "target-lost":
			after++
			if c.Status != conformance.NotRun || !strings.Contains(c.Text, "since PL-01: the runtime does not answer") {
				t.Errorf("%s is %s: %s", c.ID, c.Status, c.Text)
			}
		case c.Status == conformance.Pass:
			first = false
		}
	}
	if after == 0 || first && after != 4 {
		t.Errorf("%d cases were not run for want of a target", after)
	}
	if n := strings.Count(strings.Join(out.Report.Reasons, "\n"), "target-lost: since PL-01"); n != 1 || out.Report.Verdict != evidence.Incomplete {
		t.Errorf("said %d times, verdict %s: %q", n, out.Report.Verdict, out.Report.Reasons)
	}
}

func TestProcessesOfDifferentTargetsAreRefused(t *testing.T) {
	o := procOptions(t, 2)
	o.Driver, o.Evidence = "uneven", signable(t)
	out := run(t, context.Background(), o)
	if len(notes(t)) != 0 {
		t.Error("cases ran")
	}
	checkUnsigned(t, o, out)
}

func TestTwoRunsDoNotShareAnOutputFolder(t *testing.T) {
	o := procOptions(t, 2)
	o.Tier, o.CaseIDs = conformance.Serial, []string{"PB-01", "PB-02"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var refused atomic.Value
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		for ctx.Err() == nil && len(notes(t)) < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		other := o
		other.Work += "-other"
		_, err := conformance.Run(context.Background(), other)
		refused.Store(fmt.Sprint(err))
		if !errors.Is(err, conformance.ErrOutInUse) {
			t.Errorf("the second run: %v", err)
		}
	}()
	out := run(t, ctx, o)
	<-done
	if out.RunID == "" || !strings.Contains(refused.Load().(string), o.Out) {
		t.Errorf("the refusal %q does not name the folder", refused.Load())
	}
	// The first one has ended: what it left, a report of an older version too, gives way.
	stale := filepath.Join(o.Out, "report.html")
	if err := os.WriteFile(stale, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.CaseIDs = []string{"PA-01"}
	again := run(t, context.Background(), o)
	if b, err := os.ReadFile(stale); err == nil && string(b) == "old" {
		t.Error("a report of the earlier run is left")
	}
	if again.Report.Counts.Pass != 1 {
		t.Errorf("the next run: %+v", again.Report.Counts)
	}
}

// parentEnv makes this test program the parent of a run, so that it can be killed.
const parentEnv = "HALLMARK_TEST_PARENT"

func parentMain(file string) {
	var o conformance.Options
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err == nil {
		o.Suite = procSuite()
		_, err = conformance.Run(context.Background(), o)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestProcessesOfAKilledParentCleanUp(t *testing.T) {
	for _, procs := range []int{1, 2} {
		t.Run(strconv.Itoa(procs), func(t *testing.T) {
			o := procOptions(t, procs)
			o.Tier, o.CaseIDs = conformance.Serial, []string{"PB-01", "PB-02"}[:procs]
			parent := startParent(t, o)
			var running []note
			for deadline := time.Now().Add(30 * time.Second); len(running) < procs; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the cases did not start")
				}
				running = notes(t)
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			parent.Wait()
			// Until they are done the folder is theirs.
			again := o
			again.Work += "-again"
			if _, err := conformance.Run(context.Background(), again); !errors.Is(err, conformance.ErrOutInUse) {
				t.Errorf("a run on the folder of living processes: %v", err)
			}
			gone := func() bool {
				for _, n := range running {
					if living(n.Pid) || procs > 1 && living(n.Parent) {
						return false
					}
				}
				return true
			}
			for deadline := time.Now().Add(30 * time.Second); !gone(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("processes of the run are left")
				}
			}
			if _, err := os.Stat(o.Work); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the work folder was left behind: %v", err)
			}
			if _, err := os.Stat(filepath.Join(o.Out, "raw", "seal.json")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the run is sealed: %v", err)
			}
		})
	}
}

func startParent(t *testing.T, o conformance.Options) *exec.Cmd {
	t.Helper()
	o.Suite, o.Evidence = conformance.Suite{}, nil
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "options.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), parentEnv+"="+file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}
