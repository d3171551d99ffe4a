// SPDX-License-Identifier: Apache-2.0

package labcmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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
	if !strings.Contains(out, "absent   python3") {
		t.Errorf("python3, which one alternative alone needs, is not called absent: %s", out)
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
	plain, _ := hallmark(t, "lab", "status")
	if words := strings.Join(strings.Fields(plain), " "); !strings.Contains(words, " bwrap "+got.Bubblewrap.Package+" "+got.Bubblewrap.Digest) {
		t.Errorf("plain status does not name bubblewrap and its digest: %s", plain)
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

// nobody runs one command line as a user without rights, in a process of this test's binary.
func nobody(t *testing.T, cache string, args ...string) (string, int) {
	t.Helper()
	// Where this binary lies, and the folder that a test gets, that user may not look.
	dir := t.TempDir()
	body, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "labcmd.test")
	if err := errors.Join(os.WriteFile(program, body, 0o755), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HALLMARK_CACHE="+cache, asNobody+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// asNobody makes this test's binary the program.
const asNobody = "HALLMARK_TEST_AS_NOBODY"

func TestMain(m *testing.M) {
	if os.Getenv(asNobody) == "" {
		os.Exit(m.Run())
	}
	root := &cobra.Command{Use: "hallmark", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(labcmd.New()...)
	var typed *exit.Error
	if errors.As(root.Execute(), &typed) {
		fmt.Printf("error: %v.\nremedy: %s.\n", typed, typed.Remedy)
		os.Exit(typed.Status)
	}
}

// A lab of root's is not "not running" for somebody else: root is needed to look at it.
func TestWithoutRootTheAnswerIsThatRootIsNeeded(t *testing.T) {
	l, err := lab.Find()
	if err != nil {
		t.Fatal(err)
	}
	// A folder that lets everybody read the record, wherever the cache of this run lies.
	open := t.TempDir()
	record, err := os.ReadFile(filepath.Join(l.Cache, "lab.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(open, "lab.json"), record, 0o644), os.Chmod(open, 0o755), os.Chmod(filepath.Dir(open), 0o755)); err != nil {
		t.Fatal(err)
	}
	unreadable := t.TempDir()
	if err := os.WriteFile(filepath.Join(unreadable, "lab.json"), record, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, cache, want string
		args              []string
	}{
		{"a running lab's status", open, "the lab belongs to root", []string{"lab", "status"}},
		{"a running lab down", open, "the lab belongs to root", []string{"lab", "down"}},
		{"a record for root only", unreadable, "the lab belongs to root", []string{"lab", "status"}},
		{"down without a record", t.TempDir(), "whether something of a lab is left cannot be told", []string{"lab", "down"}},
		{"up", t.TempDir(), "not root", []string{"lab", "up"}},
		{"cohort outside a clone", t.TempDir(), "no clone of the repository", []string{"cohort", "probe"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, status := nobody(t, tt.cache, tt.args...)
			if status != exit.Failed || !strings.Contains(out, tt.want) || !strings.Contains(out, "remedy: run this ") {
				t.Errorf("status %d: %s", status, out)
			}
		})
	}
	out, status := nobody(t, t.TempDir(), "doctor")
	if status != exit.Failed || !strings.Contains(out, "MISSING  root") {
		t.Errorf("doctor: status %d: %s", status, out)
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
