// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// The command tells each promise, and its exit status says whether all are kept.
func TestTargetCheck(t *testing.T) {
	tenant := filepath.Join(t.TempDir(), "tenant")
	build := exec.Command("go", "build", "-o", tenant, "github.com/hallmark-sandbox/hallmark/fixtures/tenant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build attack program: %v\n%s", err, out)
	}
	suite := conformance.Suite{Drivers: map[string]conformance.Open{"toy": toy.Open,
		"boaster": func(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
			tg, err := toy.Open(ctx, config, dir)
			if err == nil {
				tg.Parts = append(tg.Parts, "observer.cgroup")
			}
			return tg, err
		},
		"absent": func(context.Context, json.RawMessage, string) (*target.Target, error) {
			return nil, errors.New("nobody is there")
		}}}
	for _, tt := range []struct {
		driver string
		status int
		says   []string
	}{
		{"toy", exit.OK, []string{"kept    argv", "absent  foothold", "kept    close", "parts:  observer.workspace-path runtime.concurrent"}},
		{"boaster", exit.Negative, []string{"kept    argv", "BROKEN  observer", "no cgroup is named", "BROKEN  parts", "kept    close"}},
		{"absent", exit.Failed, nil},
		{"unknown", exit.Failed, nil},
	} {
		var out strings.Builder
		err := checkTarget(t.Context(), &out, suite, TargetFile{Driver: tt.driver, Workloads: []string{evidence.Digest([]byte("no image"))}}, tenant)
		status := exit.OK
		var typed *exit.Error
		if errors.As(err, &typed) {
			status = typed.Status
		} else if err != nil {
			t.Errorf("%s: %v", tt.driver, err)
		}
		if status != tt.status {
			t.Errorf("%s: exit status %d, want %d: %v\n%s", tt.driver, status, tt.status, err, out.String())
		}
		for _, line := range tt.says {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: %q is not said:\n%s", tt.driver, line, out.String())
			}
		}
		if n := strings.Count(out.String(), "\nkept ") + strings.Count(out.String(), "\nabsent ") + strings.Count(out.String(), "\nBROKEN "); tt.says != nil && n != len(targettest.Checks())-1 {
			t.Errorf("%s: %d promises are told after the first, there are %d", tt.driver, n, len(targettest.Checks()))
		}
	}
}

// A driver sweeps the folder two above its own: that of this user's runs, never the one for
// everybody's temporary files. Another sweep must take the check for alive.
func TestTargetCheckOpensTheDriverWhereARunDoes(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	tenant := filepath.Join(t.TempDir(), "tenant")
	if err := os.WriteFile(tenant, []byte("#!/bin/false\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	asked := false
	suite := conformance.Suite{Drivers: map[string]conformance.Open{"looks": func(_ context.Context, _ json.RawMessage, dir string) (*target.Target, error) {
		asked = true
		root, err := runsFolder()
		if err != nil || filepath.Dir(filepath.Dir(dir)) != root {
			t.Errorf("the driver is opened with %s, the runs' folder is %s, %v", dir, root, err)
		}
		if err := target.RemoveDeadRuns(filepath.Dir(filepath.Dir(dir))); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), target.RunLock)); err != nil {
			t.Errorf("the check does not hold its folder: %v", err)
		}
		return nil, errors.New("seen enough")
	}}}
	err := checkTarget(t.Context(), io.Discard, suite, TargetFile{Driver: "looks", Workloads: []string{evidence.Digest([]byte("no image"))}}, tenant)
	if err == nil || !asked {
		t.Errorf("the driver was asked: %v, %v", asked, err)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "hallmark-runs-*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
