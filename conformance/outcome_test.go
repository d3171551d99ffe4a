// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// A run whose clean-up failed has no row that shows it.
func TestRunnerFailureThatNoCaseExplains(t *testing.T) {
	row := func(s string) []evidence.CaseRow {
		return []evidence.CaseRow{{Status: evidence.StatusPass}, {Status: s}}
	}
	const leaked = `[{"SuiteSucceeded":false,"SpecReports":[{"LeafNodeType":"SynchronizedAfterSuite","State":"failed"}]}]`
	for _, tt := range []struct {
		name, report string
		rows         []evidence.CaseRow
		fault        bool
	}{
		{"success", `[{"SuiteSucceeded":true}]`, row(evidence.StatusPass), false},
		{"clean-up failed", leaked, row(evidence.StatusNotRun), true},
		{"clean-up failed beside a case", leaked, row(evidence.StatusFail), false},
		{"no report", "", row(evidence.StatusPass), false},
	} {
		dir := t.TempDir()
		if tt.report != "" {
			if err := os.WriteFile(filepath.Join(dir, ginkgoFile), []byte(tt.report), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := unexplained(dir, tt.rows); (got != "") != tt.fault {
			t.Errorf("%s: fault %q", tt.name, got)
		}
	}
}

func TestFalseClaimsAreTold(t *testing.T) {
	r := Report{Findings: []evidence.Finding{{Code: evidence.ReasonCaseMissing, Text: "a"}, {Code: evidence.ReasonClaimAbsent, Text: "b"}}}
	if got := falseClaims(r); len(got) != 1 || got[0] != "b" {
		t.Errorf("%q", got)
	}
}
