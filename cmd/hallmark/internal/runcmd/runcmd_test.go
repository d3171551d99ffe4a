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
	good := "name: here\nrequirements: {runtime: runsc, arch: amd64}\nexpected:\n- {cases: [KE-06], status: fail, reason: host-kernel, why: there is no sandbox}\n"
	c, err := ReadCohortFile(write(t, good))
	if err != nil || c.Requirements.Runtime != "runsc" || c.Expected[0].Reason != "host-kernel" {
		t.Fatalf("%+v, %v", c, err)
	}
	for name, text := range map[string]string{
		"JSON":                     `{"name":"json","requirements":{"runtime":"runc"}}`,
		"a driver without runtime": "name: here\ndriver: exec\nprofiles: [baseline]\nverdict: incomplete\n",
	} {
		if _, err := ReadCohortFile(write(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"a fact":          good + "cohortId: sha256:00\n",
		"twice":           "name: a\n" + good,
		"second document": good + "---\n" + good,
		"no runtime":      "name: here\n",
		"no name":         "requirements: {runtime: runsc}\n",
		"no reason":       strings.Replace(good, "reason: host-kernel, ", "", 1),
		"no why":          strings.Replace(good, ", why: there is no sandbox", "", 1),
		"no cases":        strings.Replace(good, "[KE-06]", "[]", 1),
		"a pass":          strings.Replace(good, "status: fail", "status: pass", 1),
		"no such status":  strings.Replace(good, "status: fail", "status: failed", 1),
		"unknown driver":  good + "driver: podman\n",
		"unknown verdict": good + "verdict: good\n",
		"case twice":      good + "- {cases: [KE-06], status: fail, reason: other, why: twice}\n",
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
	if err := (Requirements{Platform: "systrap", Capabilities: map[string]string{"sentry.openat2": "ENOSYS"}}).Agree(c); err != nil {
		t.Errorf("met requirements: %v", err)
	}
	c.Descriptor.Sandbox.Version = "2"
	err := Requirements{Platform: "kvm", Version: "1", Capabilities: map[string]string{"sentry.openat2": "ok"}}.Agree(c)
	if !errors.Is(err, ErrOtherCohort) || !strings.Contains(err.Error(), "version") || !strings.Contains(err.Error(), "platform") || !strings.Contains(err.Error(), "sentry.openat2") {
		t.Errorf("unmet requirements: %v", err)
	}
}

func TestDifferencesFindUnexpectedPassAndOtherReason(t *testing.T) {
	report := conformance.Report{Verdict: evidence.NonConformant, Cases: []conformance.ReportCase{
		{ID: "AA-01", Status: conformance.Fail, Reason: "expected"},
		{ID: "AA-02", Status: conformance.Pass},
		{ID: "AA-03", Status: conformance.Fail, Reason: "other"},
		{ID: "AA-04", Status: conformance.Errored, Reason: "panic"},
		{ID: "AA-06", Status: conformance.NotApplicable, Reason: "expected"},
		{ID: "AA-07", Status: conformance.NotApplicable, Reason: "feature"},
	}}
	file := CohortFile{Verdict: "non-conformant", Expected: []Expected{
		{Cases: []string{"AA-01", "AA-02", "AA-03", "AA-06", "AA-09"}, Status: "fail", Reason: "expected"},
		{Cases: []string{"AA-07"}, Status: "not-applicable", Reason: "feature"},
	}}
	differ(t, file.Differences(report), "AA-02", "AA-03", "AA-06", "AA-09", "AA-04")
	report.Features = []conformance.FeatureRecord{
		{Feature: "exec", Claimed: true, Observed: conformance.Present}, {Feature: "files", Claimed: true, Observed: conformance.Absent},
		{Feature: "quota", Observed: conformance.Absent}, {Feature: "protocol", Claimed: true, Observed: conformance.Unknown},
	}
	differ(t, file.Differences(report), "claim", "AA-02", "AA-03", "AA-06", "AA-09", "AA-04")
	file.AbsentClaims = []string{"files"}
	differ(t, file.Differences(report), "AA-02", "AA-03", "AA-06", "AA-09", "AA-04")
	report.Verdict = evidence.Incomplete
	differ(t, file.Differences(report), "the v", "AA-02", "AA-03", "AA-06", "AA-09", "AA-04")
}

// A run that was narrowed to some cases says nothing about the others, expected to fail or not.
func TestDifferencesOfANarrowedRunAreOfItsCases(t *testing.T) {
	report := conformance.Report{Verdict: evidence.Incomplete, Cases: []conformance.ReportCase{
		{ID: "AA-01", Status: conformance.Fail, Reason: "other"},
		{ID: "AA-02", Status: conformance.NotRun, Reason: "not-selected"},
		{ID: "AA-03", Status: conformance.NotRun, Reason: "not-selected"},
	}}
	file := CohortFile{Verdict: "non-conformant", Expected: []Expected{{Cases: []string{"AA-01", "AA-02"}, Status: "fail", Reason: "expected"}}}
	differ(t, file.Differences(report), "AA-01")
}

func differ(t *testing.T, got []string, want ...string) {
	t.Helper()
	var heads []string
	for _, d := range got {
		heads = append(heads, d[:5])
	}
	if !slices.Equal(heads, want) {
		t.Errorf("differences of %v, want %v:\n%s", heads, want, strings.Join(got, "\n"))
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

func TestLastLines(t *testing.T) {
	report := conformance.Report{
		Verdict: evidence.NonConformant, Cohort: "sha256:c", Counts: evidence.Counts{Total: 20, Pass: 17, Fail: 1, NotRun: 2},
		Features: []conformance.FeatureRecord{{Feature: "quota", Claimed: true, Observed: conformance.Present}, {Feature: "credentials", Observed: conformance.Present}, {Feature: "supervisor", Observed: conformance.Absent}},
		Cases:    []conformance.ReportCase{{ID: "FS-02", Status: conformance.Fail}},
	}
	differences := []string{"FS-02 is expected to pass \x1b[2J"}
	for range maxDifferences + 2 {
		differences = append(differences, "another")
	}
	for name, tt := range map[string]struct {
		res   Result
		lines string
		err   string
	}{
		"non-conformant": {
			Result{Outcome: conformance.Outcome{Report: report, Unsigned: "no evidence was asked for"}, Differences: differences},
			"verdict    non-conformant (17 of 20 pass, 1 fail, 2 not run)\ncohort     sha256:c\nunclaimed  credentials\ndiffers    FS-02 is expected to pass \\x1b[2J\n" +
				strings.Repeat("differs    another\n", maxDifferences-1) + "differs    and 3 more, see the reports\nunsigned   no evidence was asked for\nreports    out/run/report.html, report.json, junit.xml\n",
			"non-conformant: FS-02 failed",
		},
		"claim not kept": {
			Result{Outcome: conformance.Outcome{Report: conformance.Report{Verdict: evidence.NonConformant, Reasons: []string{"claim-absent: quota"}}, Bundle: "out/run/bundle"}},
			"verdict    non-conformant (0 of 0 pass)\ncohort     not measured\nbundle     out/run/bundle\nreports    out/run/report.html, report.json, junit.xml\n",
			"non-conformant: claim-absent: quota",
		},
		"interrupted": {
			Result{Outcome: conformance.Outcome{Interrupted: true, Unsigned: "the run was interrupted", Report: conformance.Report{Verdict: evidence.Incomplete}}, Differences: differences},
			"verdict    incomplete (0 of 0 pass)\ncohort     not measured\nunsigned   the run was interrupted\nreports    out/run/report.html, report.json, junit.xml\n",
			"the run was interrupted; nothing was signed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Conclude(&out, "out/run", tt.res)
			if out.String() != tt.lines {
				t.Errorf("printed\n%s\nwant\n%s", out.String(), tt.lines)
			}
			if err == nil || err.Error() != tt.err {
				t.Errorf("ends with %v, want %s", err, tt.err)
			}
		})
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
