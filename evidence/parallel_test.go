// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"encoding/json"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// parallel turns a report of one process into the merged one of two, as Ginkgo writes it: the
// specs of both, and the nodes around them once for each process.
func parallel(t *testing.T, one []byte) map[string]any {
	t.Helper()
	var suites []map[string]any
	if err := json.Unmarshal(one, &suites); err != nil {
		t.Fatal(err)
	}
	r := suites[0]
	r["SuiteConfig"].(map[string]any)["ParallelTotal"] = 2
	r["SuiteConfig"].(map[string]any)["ParallelProcess"] = 2 // that of whoever reported first
	specs := r["SpecReports"].([]any)
	node := func(kind string, process int) any {
		return map[string]any{"LeafNodeType": kind, "LeafNodeText": "", "State": "passed", "NumAttempts": 1, "ParallelProcess": process, "RunningInParallel": true}
	}
	var merged []any
	for process := 2; process >= 1; process-- {
		merged = append(merged, node("SynchronizedBeforeSuite", process))
		for i, s := range specs {
			if s.(map[string]any)["ParallelProcess"] = process; i%2 == process%2 {
				merged = append(merged, s)
			}
		}
		merged = append(merged, node("SynchronizedAfterSuite", process))
	}
	r["SpecReports"] = append(merged, node("ReportAfterSuite", 1))
	return r
}

// A report of several processes counts as one of one process does, and no less is asked of it.
func TestReportOfSeveralProcesses(t *testing.T) {
	spec := func(r map[string]any, i int) map[string]any { return r["SpecReports"].([]any)[i].(map[string]any) }
	config := func(r map[string]any) map[string]any { return r["SuiteConfig"].(map[string]any) }
	for name, tt := range map[string]struct {
		spoil  func(r map[string]any) // of what the runner wrote
		sign   func(g *evidence.Ginkgo)
		reason evidence.Reason
	}{
		"as it is":       {},
		"filtered":       {spoil: func(r map[string]any) { config(r)["LabelFilter"] = "fast" }, reason: evidence.ReasonFilter},
		"focused":        {spoil: func(r map[string]any) { r["SuiteHasProgrammaticFocus"] = true }, reason: "run-focused"},
		"attempts":       {spoil: func(r map[string]any) { config(r)["FlakeAttempts"] = 3 }, reason: "run-retries"},
		"second attempt": {spoil: func(r map[string]any) { spec(r, 1)["NumAttempts"] = 2 }, reason: evidence.ReasonReport},
		"one process's end": {spoil: func(r map[string]any) { spec(r, len(r["SpecReports"].([]any))-2)["State"] = "failed" },
			reason: evidence.ReasonSuite},
		"a spec is missing": {spoil: func(r map[string]any) {
			all := r["SpecReports"].([]any)
			r["SpecReports"] = append(all[:1:1], all[2:]...)
		}, reason: evidence.ReasonReport},
		"signed as one": {sign: func(g *evidence.Ginkgo) { g.Parallel = 1 }, reason: evidence.ReasonReport},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t)
			p := &w.Statement.Predicate
			r := parallel(t, evidencetest.GinkgoReport(p.Cases))
			if tt.spoil != nil {
				tt.spoil(r)
			}
			text, err := json.Marshal([]any{r})
			if err != nil {
				t.Fatal(err)
			}
			if p.Suite.Ginkgo, err = evidence.ReportGinkgo(text, "2.34.0"); err != nil {
				t.Fatal(err)
			}
			if p.Suite.Ginkgo.Parallel != 2 {
				t.Errorf("recorded as %d processes", p.Suite.Ginkgo.Parallel)
			}
			if tt.sign != nil {
				tt.sign(&p.Suite.Ginkgo)
			}
			w.Blobs[1].Body = text
			b, q := bundleAndQuestion(t, w)
			q.Depth = evidence.AuditDepth
			if d := evidence.Decide(q, b); d.Reason != tt.reason || d.Admitted != (tt.reason == "") {
				t.Errorf("admitted %v, %q (%s), want %q", d.Admitted, d.Reason, d.Detail, tt.reason)
			}
		})
	}
}
