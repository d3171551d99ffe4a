// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

func suite() conformance.Suite {
	return conformance.Suite{Cases: All(), Arming: Arming(), Probes: Probes(), Drivers: map[string]conformance.Open{"toy": toy.Open, "refusing": refusing}}
}

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(suite())
		return
	}
	os.Exit(m.Run())
}

// refusing is a runtime that claims what the toy claims, and makes no sandbox.
func refusing(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
	t, err := toy.Open(ctx, config, dir)
	if err == nil {
		t.Runtime = closed{t.Runtime}
	}
	return t, err
}

type closed struct{ target.Runtime }

func (closed) Create(context.Context, target.Spec) (target.Sandbox, error) {
	return nil, &target.Error{Code: "TOY_NO_ROOM"}
}

// seen runs the suite and returns the features that it saw, with the outcome.
func seen(t *testing.T, driver string, cases ...string) (map[conformance.Feature]conformance.FeatureRecord, conformance.Outcome) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-probes-") // the tenant must be able to walk to its workspace
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
	o := conformance.Options{
		Suite: suite(), Driver: driver, Workloads: []string{evidence.Digest([]byte("no image"))}, Profiles: []string{conformance.ProfileBaseline},
		Tier: conformance.Full, CaseIDs: cases, Out: filepath.Join(dir, "out"), Work: filepath.Join(dir, "work"), Tenant: tenant,
	}
	out, err := conformance.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	var setup conformance.Setup
	body, err := os.ReadFile(filepath.Join(o.Out, "raw", "setup.json"))
	if err == nil {
		err = json.Unmarshal(body, &setup)
	}
	if err != nil {
		t.Fatal(err)
	}
	records := map[conformance.Feature]conformance.FeatureRecord{}
	for _, f := range setup.Features {
		records[f.Feature] = f
	}
	return records, out
}

// network is what the suite must see of a command that runs in the network namespace of this test.
func network(t *testing.T) conformance.Presence {
	t.Helper()
	list, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			return conformance.Absent
		}
	}
	return conformance.Present
}

// The toy runs commands on the host in a folder: it bounds nothing, starts anything and offers
// neither an engine nor a way to restart it.
func TestProbesSeeTheToyAsItIs(t *testing.T) {
	records, _ := seen(t, "toy", "FS-02")
	for f, want := range map[conformance.Feature]conformance.Presence{
		conformance.FeatureExec: conformance.Present, conformance.FeatureFiles: conformance.Present, conformance.FeatureOpenat2: conformance.Present,
		conformance.FeatureQuota: conformance.Absent, conformance.FeatureAdmission: conformance.Absent,
		// Its commands run in the namespace of this test: what is there is seen.
		conformance.FeatureNoNetwork: network(t), conformance.FeatureSupervisor: conformance.Unknown,
		conformance.FeatureProtocol: conformance.Unknown, conformance.FeatureReconcile: conformance.Unknown, conformance.FeatureCreds: conformance.Unknown,
	} {
		if r := records[f]; r.Observed != want {
			t.Errorf("%s is %s (%s), want %s", f, r.Observed, r.Text, want)
		}
	}
	if !strings.Contains(records[conformance.FeatureExec].Text, "on the host") {
		t.Errorf("the effect of a command was not looked for from outside: %s", records[conformance.FeatureExec].Text)
	}
}

// A runtime that makes no sandbox claims what it has not: that is its failure, and neither that of
// the suite nor a heap of errors.
func TestARuntimeThatHostsNothingIsNonConformant(t *testing.T) {
	records, out := seen(t, "refusing")
	for _, f := range []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles} {
		if r := records[f]; r.Observed != conformance.Absent || !strings.Contains(r.Text, "TOY_NO_ROOM") {
			t.Errorf("%s is %s (%s), want absent with the target's code", f, r.Observed, r.Text)
		}
	}
	if out.Report.Verdict != evidence.NonConformant || !slices.ContainsFunc(out.Report.Reasons, func(s string) bool { return strings.HasPrefix(s, string(evidence.ReasonClaimAbsent)) }) {
		t.Errorf("verdict %s because %q", out.Report.Verdict, out.Report.Reasons)
	}
	if c := out.Report.Counts; c.Error > 0 || c.Fail > 0 || c.NotRun == 0 {
		t.Errorf("counts %+v", c)
	}
	if c, _ := out.Report.Case("FS-02"); c.Status != conformance.NotRun || c.Reason != "feature-absent" {
		t.Errorf("FS-02 is %s %s (%s)", c.Status, c.Reason, c.Text)
	}
}

// Each case is required by a profile, and each profile that the reference worker is qualified with
// has its cases.
func TestProfilesCoverTheCatalogue(t *testing.T) {
	cat := suite().Catalogue()
	for _, c := range cat.Cases {
		if !slices.ContainsFunc(cat.Profiles, func(p evidence.Profile) bool {
			if c.Tier == string(conformance.Serial) { // never required, but its features are of a profile
				c.Tier = string(conformance.Full)
			}
			return p.Requires(c)
		}) {
			t.Errorf("%s lies in no profile: features %q", c.ID, c.Features)
		}
	}
	var names []string
	for _, p := range cat.Profiles {
		names = append(names, p.Name)
		served := slices.Contains(conformance.ReferenceProfiles(), p.Name) || len(p.Cases) > 0
		if served == (len(cat.Lacks(p)) > 0) {
			t.Errorf("profile %s: of the reference worker or a list %v, without a case of %q", p.Name, served, cat.Lacks(p))
		}
		for _, f := range p.Features {
			if !slices.ContainsFunc(cat.Cases, func(c evidence.CaseRef) bool { return slices.Contains(c.Features, f) && p.Requires(c) }) && !slices.Contains(p.Core, f) {
				t.Errorf("profile %s names %s, and requires no case of it", p.Name, f)
			}
		}
	}
	if !slices.Equal(names, conformance.Profiles()) {
		t.Errorf("the catalogue has the profiles %q, Profiles gives %q", names, conformance.Profiles())
	}
	for _, p := range Probes() {
		if !slices.ContainsFunc(cat.Profiles, func(q evidence.Profile) bool { return slices.Contains(q.Features, string(p.Feature)) }) {
			t.Errorf("feature %s is looked at and of no profile", p.Feature)
		}
	}
}
