// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Test runs the suite from an ordinary test, without a TestMain, and shows every case as a subtest of
// t. A case that passed passes; fail, error, inconclusive and not-run fail the subtest with status,
// reason and text. A case that does not apply, because the target does not claim its feature, gets no
// subtest, so that nothing that did not run is counted as green; one log line of t names it. t itself
// fails when the run as a whole has a fault, when no case ran, and, unless o narrows the run to a tier
// below full or to single cases, when the verdict is not conformant; a claim that was seen to be false
// fails it however narrow the run. Waived is shown like a failure:
// whose waivers count is the gate's matter.
//
// The cases run in processes of the same test binary, started with -test.run for this very test: what
// the test function does before the call happens in them too, and must lead to a call with an equal
// o.Suite; what it does after does not. Executable and Arguments are therefore set here.
//
// Empty members of o get: Out, the test's artifact folder (testing.T.ArtifactDir); Work, a folder below
// that for temporary files, removed afterwards; Progress, the test's output. The deadline of
// `go test -timeout` interrupts the run in time for its clean-up. A package that declares Ginkgo nodes
// of its own uses [Register] instead. The go command knows nothing of the target, so it takes a
// repeated test from its cache: use -count=1.
func Test(t *testing.T, o Options) {
	t.Helper()
	if IsChild() {
		testChild(t, o)
	}
	if o.Out == "" {
		o.Out = t.ArtifactDir()
	}
	if o.Work == "" {
		o.Work = openFolder(t)
	}
	if o.Progress == nil {
		o.Progress, o.Live = t.Output(), false
	}
	o.Executable, o.Arguments = "", []string{"-test.run=" + exactly(t.Name()), "-test.count=1", "-test.timeout=0"}
	ctx, cancel := inTime(t)
	defer cancel()
	out, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	show(t, o, out)
}

// testChild executes cases instead of the test, and ends the process.
func testChild(t *testing.T, o Options) {
	// The tree belongs to the whole process: other nodes in it would run as if they were cases.
	if n := len(ginkgo.PreviewSpecs("hallmark").SpecReports); n > 0 {
		fmt.Fprintf(os.Stderr, "error: %s is in a package with %d Ginkgo specs of its own: use conformance.Register there\n", t.Name(), n)
		os.Exit(2)
	}
	ChildMain(o.Suite)
}

// exactly is the -test.run pattern of one test or subtest, element by element.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// openFolder makes a work folder that tenants may walk through; those of testing.T are closed to them.
func openFolder(t interface {
	Helper()
	Fatal(...any)
	Error(...any)
	Cleanup(func())
}) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A program that was killed may have left a host folder bound below.
		if err := target.RemoveTree(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "work")
}

// inTime ends before the test's own deadline, with time left for what an interrupted run cleans up.
func inTime(t *testing.T) (context.Context, context.CancelFunc) {
	end, ok := t.Deadline()
	if !ok {
		return context.WithCancel(t.Context())
	}
	return context.WithDeadline(t.Context(), end.Add(-min(stopBudget, time.Until(end)/2)))
}

// show turns an outcome into subtests.
func show(t *testing.T, o Options, out Outcome) {
	t.Helper()
	ran := 0
	var unclaimed, others []string
	for _, c := range out.Report.Cases {
		switch {
		case c.Reason == "not-selected":
			others = append(others, c.ID)
		case c.Status == NotApplicable:
			unclaimed = append(unclaimed, fmt.Sprintf("%s (%s)", c.ID, c.Text))
		default:
			ran++
			t.Run(c.ID, func(t *testing.T) { showCase(t, c) })
		}
	}
	if len(unclaimed) > 0 {
		t.Logf("not applicable, and neither passed nor failed: %s", strings.Join(unclaimed, "; "))
	}
	if len(others) > 0 {
		t.Logf("not selected: %s", strings.Join(others, ", "))
	}
	if ran == 0 {
		t.Error("no case applies to this target: nothing was tested")
	}
	for _, fault := range out.Faults {
		t.Errorf("the run: %s", fault)
	}
	narrowed := len(o.CaseIDs) > 0 || o.Tier == Smoke
	if !narrowed && out.Report.Verdict != evidence.Conformant {
		t.Errorf("the verdict is %s: %s", out.Report.Verdict, strings.Join(out.Report.Reasons, "; "))
	} else if narrowed {
		for _, text := range falseClaims(out.Report) {
			t.Error(text) // as false of a part of the cases as of all
		}
		t.Logf("the run was narrowed, so the verdict on the whole is %s", out.Report.Verdict)
	}
	if t.Failed() {
		t.Logf("report: %s", filepath.Join(o.Out, "report.json"))
		if log, err := os.ReadFile(filepath.Join(o.Out, "raw", childLog)); err == nil {
			t.Logf("end of the suite's log:\n%s", tail(log, 4096))
		}
	}
}

// falseClaims are what the target says of itself and the suite saw not to be so.
func falseClaims(r Report) []string {
	var out []string
	for _, f := range r.Findings {
		if f.Code == evidence.ReasonClaimAbsent {
			out = append(out, f.Text)
		}
	}
	return out
}

func showCase(t *testing.T, c ReportCase) {
	t.Helper()
	if c.Status == Pass {
		return
	}
	t.Errorf("%s %s %s: %s", c.ID, c.Status, c.Reason, c.Text)
	for _, e := range c.Workloads {
		for _, f := range slices.Compact(e.Failures) {
			t.Logf("%s: %s", e.Workload, f)
		}
	}
}
