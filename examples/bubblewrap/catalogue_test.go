// SPDX-License-Identifier: Apache-2.0

package bubblewrap_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
)

func suite() conformance.Suite {
	return conformance.Suite{Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(), Drivers: map[string]conformance.Open{"exec": execdriver.Open}}
}

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(suite())
		return
	}
	os.Exit(m.Run())
}

func TestCatalogue(t *testing.T) {
	dir, err := os.MkdirTemp("", "hallmark-bubblewrap-") // the tenant must be able to walk to its workspace
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	tenant := filepath.Join(dir, "tenant")
	build := exec.Command("go", "build", "-o", tenant, "github.com/hallmark-sandbox/hallmark/fixtures/tenant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build attack program: %v\n%s", err, out)
	}
	config, _ := json.Marshal(map[string]any{"command": []string{"python3", "bubblewrap.py", os.Getenv("HALLMARK_BWRAP")}})
	image, err := execdriver.Workload(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	o := conformance.Options{
		Suite: suite(), Driver: "exec", Target: config, Workloads: []string{image}, Tier: conformance.Serial, Profiles: []string{conformance.ProfileBaseline, conformance.ProfileQuota},
		Out: filepath.Join(dir, "out"), Work: filepath.Join(dir, "work"), Tenant: tenant, Progress: os.Stderr,
	}
	out, err := conformance.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Report.Cases {
		t.Logf("%s %s %s %s", c.ID, c.Status, c.Reason, c.Text)
	}
	log, _ := os.ReadFile(filepath.Join(o.Out, "raw", "child.log"))
	os.WriteFile("/tmp/w-exe-scratch/child.log", log, 0o644)
	log, _ = os.ReadFile(filepath.Join(o.Out, "report.json"))
	os.WriteFile("/tmp/w-exe-scratch/report.json", log, 0o644)
}
