// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cohort.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCohortFile(t *testing.T) {
	good := "name: here\nrequirements: {runtime: runsc, arch: amd64}\nexpectedFailures:\n- {case: KE-06, reason: host-kernel}\n"
	c, err := ReadCohortFile(write(t, good))
	if err != nil || c.Requirements.Runtime != "runsc" || c.ExpectedFailures[0].Reason != "host-kernel" {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := ReadCohortFile(write(t, `{"name":"json","requirements":{"runtime":"runc"}}`)); err != nil {
		t.Errorf("JSON form: %v", err)
	}
	for name, text := range map[string]string{
		"a fact":          good + "cohortId: sha256:00\n",
		"twice":           "name: a\n" + good,
		"second document": good + "---\n" + good,
		"no runtime":      "name: here\n",
		"no reason":       "name: here\nrequirements: {runtime: runsc}\nexpectedFailures:\n- {case: KE-06}\n",
		"case twice":      good + "- {case: KE-06, reason: other}\n",
		"empty":           "",
	} {
		if _, err := ReadCohortFile(write(t, text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRequirementsMustAgreeWithMeasurement(t *testing.T) {
	c := evidence.Cohort{Descriptor: evidence.CohortDescriptor{Arch: "amd64"}, Capabilities: map[string]string{"sentry.openat2": "ENOSYS"}}
	c.Descriptor.Sandbox.Platform = "systrap"
	if err := (Requirements{Platform: "systrap", Capabilities: map[string]string{"sentry.openat2": "ENOSYS"}}).agree(c); err != nil {
		t.Errorf("met requirements: %v", err)
	}
	err := Requirements{Platform: "kvm", Capabilities: map[string]string{"sentry.openat2": "ok"}}.agree(c)
	if err == nil || !strings.Contains(err.Error(), "platform") || !strings.Contains(err.Error(), "sentry.openat2") {
		t.Errorf("unmet requirements: %v", err)
	}
}

func TestDifferencesFindUnexpectedPassAndOtherReason(t *testing.T) {
	report := conformance.Report{Cases: []conformance.ReportCase{
		{ID: "AA-01", Status: conformance.Fail, Reason: "expected"},
		{ID: "AA-02", Status: conformance.Pass},
		{ID: "AA-03", Status: conformance.Fail, Reason: "other"},
		{ID: "AA-04", Status: conformance.Errored, Reason: "panic"},
		{ID: "AA-05", Status: conformance.NotRun, Reason: "not-selected"},
	}}
	got := Differences([]ExpectedFailure{{"AA-01", "expected"}, {"AA-02", "expected"}, {"AA-03", "expected"}, {"AA-09", "expected"}}, report)
	var ids []string
	for _, d := range got {
		ids = append(ids, d[:5])
	}
	if want := []string{"AA-02", "AA-03", "AA-09", "AA-04"}; !slices.Equal(ids, want) {
		t.Errorf("differences of %v, want %v:\n%s", ids, want, strings.Join(got, "\n"))
	}
}

func TestExitStatusFollowsTheVerdict(t *testing.T) {
	for verdict, want := range map[evidence.Outcome]int{evidence.Conformant: exit.OK, evidence.NonConformant: exit.Negative, evidence.Incomplete: exit.Incomplete} {
		var out bytes.Buffer
		err := Conclude(&out, "out", Result{Outcome: conformance.Outcome{Report: conformance.Report{Verdict: verdict, Cohort: "sha256:c"}}})
		status := exit.OK
		var typed *exit.Error
		if errors.As(err, &typed) {
			status = typed.Status
		}
		if status != want || !strings.Contains(out.String(), string(verdict)) || !strings.Contains(out.String(), "sha256:c") {
			t.Errorf("%s: status %d, want %d; printed %q", verdict, status, want, out.String())
		}
	}
}

// A run in which no case failed can be non-conformant all the same: by a claim that is not true.
func TestConclusionNamesTheClaim(t *testing.T) {
	report := conformance.Report{Verdict: evidence.NonConformant, Reasons: []string{"case-missing: tier smoke leaves out 2 cases", "claim-absent: the target claims exec"}}
	err := Conclude(io.Discard, "out", Result{Outcome: conformance.Outcome{Report: report}})
	if err == nil || !strings.Contains(err.Error(), "the target claims exec") {
		t.Errorf("error %v", err)
	}
}

func TestCasesFormats(t *testing.T) {
	suite := conformance.Suite{Cases: []conformance.Case{{ID: "AA-01", Revision: 2, Title: "a | b", Kills: []conformance.Kill{{Mutant: "m07", Reason: "r"}}}}}
	for format, want := range map[string]string{"table": "AA-01  2", "md": `a \| b`, "json": `"m07"`} {
		cmd := casesCommand(suite)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--format", format})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %q:\n%s", format, want, out.String())
		}
		if format == "json" {
			var rows []map[string]any
			if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 1 {
				t.Errorf("json: %v, %d rows", err, len(rows))
			}
		}
	}
	cmd := casesCommand(suite)
	cmd.SetArgs([]string{"--format", "xml"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if cmd.Execute() == nil {
		t.Error("an unknown format was accepted")
	}
}
