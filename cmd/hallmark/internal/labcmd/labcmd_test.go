// SPDX-License-Identifier: Apache-2.0

package labcmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/labcmd"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// hallmark runs one command line and returns its output and exit status.
func hallmark(t *testing.T, args ...string) (string, int) {
	t.Helper()
	root := &cobra.Command{Use: "hallmark", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(labcmd.New()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	var e *exit.Error
	switch {
	case err == nil:
		return out.String(), exit.OK
	case errors.As(err, &e):
		if e.Sentence == "" || e.Remedy == "" {
			t.Errorf("%v: the error %q has no sentence or no remedy", args, e)
		}
		return out.String(), e.Status
	default:
		return out.String(), exit.Failed
	}
}

func TestDoctorOnThisMachine(t *testing.T) {
	out, status := hallmark(t, "doctor", "--json")
	var got struct {
		Ready  bool
		Checks []lab.Check
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if status != exit.OK || !got.Ready {
		t.Errorf("status %d, ready %v: this machine runs the tests, so it has what they need: %s", status, got.Ready, out)
	}
	for _, c := range got.Checks {
		if !c.OK && c.Remedy == "" {
			t.Errorf("%s is missing without a remedy", c.Name)
		}
	}
	plain, _ := hallmark(t, "doctor")
	if !strings.Contains(plain, "openat2") {
		t.Errorf("plain output does not speak of openat2: %s", plain)
	}
}

func TestDoctorFindsAMissingTool(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	out, status := hallmark(t, "doctor")
	if status != exit.Failed || !strings.Contains(out, "MISSING  apt-get") || !strings.Contains(out, "remedy: run this on Debian") {
		t.Errorf("status %d, output %s", status, out)
	}
	if _, status := hallmark(t, "lab", "up"); status != exit.Failed {
		t.Errorf("lab up on a machine without apt: status %d", status)
	}
}

// TestStatusOfTheRunningLab needs the main cache's lab: it fails without one.
func TestStatusOfTheRunningLab(t *testing.T) {
	l, err := lab.Find()
	if err != nil {
		t.Fatal(err)
	}
	out, status := hallmark(t, "lab", "status", "--json")
	var got struct {
		Running bool
		lab.Lab
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if status != exit.OK || !got.Running || got.EnginePid != l.EnginePid {
		t.Errorf("status %d: %s", status, out)
	}
}

func TestStatusAndDownWithoutALab(t *testing.T) {
	t.Setenv("HALLMARK_CACHE", t.TempDir())
	if out, status := hallmark(t, "lab", "status", "--json"); status != exit.Negative || !strings.Contains(out, `"running": false`) {
		t.Errorf("status %d: %s", status, out)
	}
	if out, status := hallmark(t, "lab", "down"); status != exit.OK || !strings.Contains(out, "No lab was running") {
		t.Errorf("down: status %d: %s", status, out)
	}
}

// TestCohortProbe uses the running lab and must leave it running.
func TestCohortProbe(t *testing.T) {
	before, err := lab.Find()
	if err != nil {
		t.Fatal(err)
	}
	out, status := hallmark(t, "cohort", "probe", "--json")
	var got evidence.Cohort
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	id, err := evidence.CohortID(got.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	if status != exit.OK || got.ID != id || got.Capabilities["sentry.openat2"] == "" {
		t.Errorf("status %d: %s", status, out)
	}
	for _, private := range []string{before.Cache, before.RunDir, before.ID} {
		if strings.Contains(out, private) {
			t.Errorf("%q of this lab is in the cohort", private)
		}
	}
	after, err := lab.Find()
	if err != nil || after.EnginePid != before.EnginePid {
		t.Errorf("the lab that ran before does not run any more: %v", err)
	}
}
