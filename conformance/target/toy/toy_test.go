// SPDX-License-Identifier: Apache-2.0

package toy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

func suite() conformance.Suite {
	return conformance.Suite{Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(), Drivers: map[string]conformance.Open{"toy": toy.Open}}
}

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(suite())
		return
	}
	os.Exit(m.Run())
}

// TestContract: the toy keeps every promise that it makes.
func TestContract(t *testing.T) {
	dir := folder(t)
	targettest.Run(t, func(t *testing.T) *target.Target {
		tg, err := toy.Open(t.Context(), nil, dir)
		if err != nil {
			t.Fatal(err)
		}
		return tg
	}, targettest.Options{Dir: dir})
}

// folder is one that the tenant can walk through.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-toy-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSeam runs real cases of the catalogue, with their real attack program, against a runtime
// that has neither an engine nor the worker API: FS-02 passes, the host's kernel is found, and a case
// whose feature or part is not there says so instead of failing.
func TestSeam(t *testing.T) {
	dir := folder(t)
	tenant := filepath.Join(dir, "tenant")
	build := exec.Command("go", "build", "-o", tenant, "github.com/hallmark-sandbox/hallmark/fixtures/tenant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build attack program: %v\n%s", err, out)
	}
	image := evidence.Digest([]byte("no image"))
	o := conformance.Options{
		Suite: suite(), Driver: "toy", Workloads: []string{image}, Profiles: []string{conformance.ProfileBaseline}, Tier: conformance.Serial, CaseIDs: []string{"FS-02", "QT-01", "KE-06", "PR-01"},
		Out: filepath.Join(dir, "out"), Work: filepath.Join(dir, "work"), Tenant: tenant,
	}
	out, err := conformance.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]conformance.Status{"FS-02": conformance.Pass, "QT-01": conformance.NotApplicable, "KE-06": conformance.Fail, "PR-01": conformance.NotRun} {
		if c, _ := out.Report.Case(id); c.Status != want {
			t.Errorf("%s is %s %s (%s), want %s", id, c.Status, c.Reason, c.Text, want)
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(o.Out, "raw", "child.log"))
		t.Logf("%s", log)
	}
}
