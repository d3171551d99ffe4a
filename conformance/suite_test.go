// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(suites[os.Getenv(suiteEnv)]())
		return
	}
	if what := os.Getenv(offlineEnv); what != "" {
		offlineMain(what)
		return
	}
	if file := os.Getenv(parentEnv); file != "" {
		parentMain(file)
		return
	}
	os.Exit(m.Run())
}

// markerEnv names a file that the blocking case writes once it runs.
const markerEnv = "HALLMARK_TEST_MARKER"

const (
	imageA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	imageB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// testSuite has one case for every way in which a case can end, through the toy target.
func testSuite() conformance.Suite {
	attack := func(ctx context.Context, t *conformance.T) error {
		sb := t.Sandbox(ctx, target.Spec{})
		program := t.Tenant(ctx, sb)
		res, err := sb.Exec(ctx, target.Command{Argv: []string{program}})
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(res.Stdout)) == "65532" {
			t.Witness("ran-as-tenant", 1)
		}
		c, err := t.Target().Observer.Container(ctx, sb.ID())
		if err != nil {
			return err
		}
		seen, err := os.ReadFile(filepath.Join(c.Workspace, "proof"))
		if err != nil || string(seen) != "written inside" {
			t.Fail("not-on-host", "host sees %q, %v", seen, err)
		}
		t.NeedWitness("ran-as-tenant", 1)
		t.Observe("exit", res.ExitCode)
		t.Observe("nothing", []string(nil))
		t.Observe("markup", map[string]any{"<&>\u2028": []byte{0xff, 0}})
		t.Artifact("proof", seen)
		return nil
	}
	mk := func(id string, run func(ctx context.Context, t *conformance.T) error) conformance.Case {
		return conformance.Case{
			ID: id, Revision: 1, Title: "case " + id, Tier: conformance.Full, Timeout: 30 * time.Second,
			Features: []conformance.Feature{conformance.FeatureExec}, Run: run,
			Kills: []conformance.Kill{{Mutant: "m01", Reason: "judged"}},
		}
	}
	pass := mk("TA-01", attack)
	pass.PerImage, pass.Oracles, pass.Needs = true, []conformance.Oracle{conformance.OracleUsage}, []conformance.Part{conformance.PartWorkspacePath}
	unarmed := mk("TA-05", attack)
	unarmed.Oracles = []conformance.Oracle{conformance.OracleTreeHash}
	slow := mk("TA-06", func(ctx context.Context, t *conformance.T) error { <-ctx.Done(); return ctx.Err() })
	slow.Timeout = 200 * time.Millisecond
	slowFail := mk("TA-07", func(ctx context.Context, t *conformance.T) error {
		t.Fail("judged", "seen before the time-out")
		<-ctx.Done()
		return ctx.Err()
	})
	slowFail.Timeout = 200 * time.Millisecond
	unclaimed := mk("TA-08", attack)
	unclaimed.Features = []conformance.Feature{conformance.FeatureQuota}
	partless := mk("TA-09", attack)
	partless.Needs = []conformance.Part{conformance.PartCgroup}
	second := mk("TA-12", func(ctx context.Context, t *conformance.T) error {
		t.Witness("looked", 2)
		if t.Image() == imageB {
			t.Witness("looked", -1)
			t.Fail("judged", "only in the second image")
		}
		t.Observe("image", t.Image()[7:8])
		return nil
	})
	second.PerImage = true
	leaky := mk("TA-13", func(ctx context.Context, t *conformance.T) error {
		t.Sandbox(ctx, target.Spec{})
		t.Witness("made", 1)
		t.Cleanup(func(context.Context) error { return errors.New("could not undo") })
		return nil
	})
	dying := mk("TA-20", func(ctx context.Context, t *conformance.T) error { os.Exit(9); return nil })
	dying.Tier = conformance.Serial
	blocking := mk("TA-21", func(ctx context.Context, t *conformance.T) error {
		t.Sandbox(ctx, target.Spec{})
		if err := os.WriteFile(os.Getenv(markerEnv), nil, 0o600); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	blocking.Tier, blocking.Timeout = conformance.Serial, 5*time.Minute
	smoke := mk("TA-22", attack)
	smoke.Tier = conformance.Smoke
	return conformance.Suite{
		Drivers: map[string]conformance.Open{
			"toy": toy.Open,
			"absent": func(context.Context, json.RawMessage, string) (*target.Target, error) {
				return nil, errors.New("nobody there")
			},
			// The next two say that they have left nothing.
			"holding": func(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
				go func() { select {} }()
				return toy.Open(ctx, config, dir)
			},
			"orphaning": func(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
				t, err := toy.Open(ctx, config, dir)
				if err == nil {
					orphan := exec.Command("setsid", "-f", "sh", "-c", "echo $$ >"+os.Getenv(markerEnv)+"; exec sleep 300")
					orphan.Dir = dir
					err = orphan.Run()
				}
				return t, err
			},
			"messy": func(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
				t, err := toy.Open(ctx, config, dir)
				if err == nil {
					t.Close = func() error { return errors.New("a mount was left") }
				}
				return t, err
			},
		},
		Cases: []conformance.Case{
			pass,
			mk("TA-02", func(ctx context.Context, t *conformance.T) error {
				t.Witness("tried", 1)
				t.Fail("judged", "first")
				t.FailNow("later", "second")
				return errors.New("not reached")
			}),
			mk("TA-03", func(ctx context.Context, t *conformance.T) error { panic("a bug in the case") }),
			mk("TA-04", func(ctx context.Context, t *conformance.T) error {
				t.NeedWitness("hits", 3)
				t.Witness("hits", 2)
				return nil
			}),
			unarmed, slow, slowFail, unclaimed, partless,
			mk("TA-10", func(ctx context.Context, t *conformance.T) error { return errors.New("the probe broke") }),
			mk("TA-11", func(ctx context.Context, t *conformance.T) error {
				t.Fail("judged", "before the bug")
				panic("after a verdict")
			}),
			second, leaky,
			mk("TA-14", func(ctx context.Context, t *conformance.T) error { return target.ErrUnavailable }),
			mk("TA-15", func(ctx context.Context, t *conformance.T) error { t.Inconclusive("no-window", "0 hits"); return nil }),
			mk("TA-16", func(ctx context.Context, t *conformance.T) error { return nil }),
			mk("TA-17", func(ctx context.Context, t *conformance.T) error {
				t.Observe("ratio", 0.5)
				t.Witness("x", 1)
				return nil
			}),
			dying, blocking, smoke,
		},
		Probes: []conformance.Probe{
			{Feature: conformance.FeatureExec, Look: func(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
				return conformance.Present, "a process started", nil
			}},
			{Feature: conformance.FeatureFiles, Look: func(ctx context.Context, t *conformance.T) (conformance.Presence, string, error) {
				return conformance.Present, "a file was written", nil
			}},
		},
		Arming: []conformance.Arming{
			{Oracle: conformance.OracleTreeHash, Arm: func(ctx context.Context, t *conformance.T) error {
				return errors.New("the planted change was not found")
			}},
			{Oracle: conformance.OracleUsage, Arm: func(ctx context.Context, t *conformance.T) error { t.Witness("planted", 1); return nil }},
		},
	}
}

func options(t *testing.T) conformance.Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-suite-") // the tenant must be able to walk to its workspace
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tenant := filepath.Join(dir, "tenant")
	if err := os.WriteFile(tenant, []byte("#!/bin/sh\nprintf 'written inside' >proof\nid -u\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return conformance.Options{
		Suite: testSuite(), Driver: "toy", Workloads: []string{imageA, imageB}, Profiles: []string{conformance.ProfileBaseline}, Tier: conformance.Full, Seed: 42,
		Out: filepath.Join(dir, "out"), Work: filepath.Join(dir, "work"), Tenant: tenant, CohortID: imageA,
	}
}

func run(t *testing.T, ctx context.Context, o conformance.Options) conformance.Outcome {
	t.Helper()
	out, err := conformance.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if t.Failed() || testing.Verbose() {
		if log, err := os.ReadFile(filepath.Join(o.Out, "raw", "child.log")); err == nil {
			t.Logf("child log:\n%s", log)
		}
	}
	if _, err := os.Stat(o.Work); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work folder was left behind: %v", err)
	}
	return out
}

func TestEveryWayInWhichACaseEnds(t *testing.T) {
	o := options(t)
	var progress bytes.Buffer
	o.Progress = &progress
	out := run(t, context.Background(), o)
	want := map[string]string{
		"TA-01": "pass ", "TA-02": "fail judged", "TA-03": "error panic", "TA-04": "inconclusive no-witness",
		"TA-05": "inconclusive oracle-unarmed.tree-hash", "TA-06": "error timeout", "TA-07": "fail judged",
		"TA-08": "not-applicable feature-not-claimed", "TA-09": "not-run part-unavailable", "TA-10": "error suite-error",
		"TA-11": "error panic", "TA-12": "fail judged", "TA-13": "error cleanup-failed", "TA-14": "not-run part-unavailable",
		"TA-15": "inconclusive no-window", "TA-16": "inconclusive no-witness", "TA-17": "error suite-error",
		"TA-20": "not-run not-selected", "TA-21": "not-run not-selected", "TA-22": "pass ",
	}
	for _, c := range out.Report.Cases {
		if got := string(c.Status) + " " + c.Reason; got != want[c.ID] {
			t.Errorf("%s: %s (%s), want %s", c.ID, got, c.Text, want[c.ID])
		}
		if c.Status != conformance.NotRun && !strings.Contains(progress.String(), strings.ToUpper(string(c.Status))+" "+c.ID) {
			t.Errorf("progress lacks a line for %s", c.ID)
		}
	}
	if len(out.Report.Cases) != len(want) {
		t.Errorf("%d rows, want %d", len(out.Report.Cases), len(want))
	}
	if out.Report.Verdict != evidence.NonConformant {
		t.Errorf("verdict %s, want non-conformant: cases failed", out.Report.Verdict)
	}
	if !strings.Contains(progress.String(), "UNARMED tree-hash") || !strings.Contains(progress.String(), "ARMED usage") {
		t.Errorf("progress does not tell the arming:\n%s", progress.String())
	}
	first, _ := out.Report.Case("TA-01")
	if len(first.Workloads) != 2 || first.Workloads[0].Witness["ran-as-tenant"] != 1 || len(first.Workloads[1].Artifacts) != 1 {
		t.Errorf("TA-01 ran as %+v, want both images with witness and artifact", first.Workloads)
	}
	checkGolden(t, o.Out)
}

func TestNarrowedRunIsIncomplete(t *testing.T) {
	o := options(t)
	o.CaseIDs = []string{"TA-01", "TA-22"}
	o.Evidence = signable(t) // in vain: whoever picks the cases picks the result
	out := run(t, context.Background(), o)
	checkUnsigned(t, o, out)
	if out.Report.Verdict != evidence.Incomplete || out.Report.Counts.Pass != 2 {
		t.Errorf("verdict %s with %d passes, want incomplete with 2", out.Report.Verdict, out.Report.Counts.Pass)
	}
	if !strings.Contains(strings.Join(out.Report.Reasons, "\n"), "narrowed") {
		t.Errorf("reasons do not say why: %q", out.Report.Reasons)
	}
}

func TestSmokeTierRunsSmokeOnly(t *testing.T) {
	o := options(t)
	o.Tier = conformance.Smoke
	out := run(t, context.Background(), o)
	if out.Report.Counts.Pass != 1 || out.Report.Counts.NotRun != int64(len(out.Report.Cases)-1) || out.Report.Verdict != evidence.Incomplete {
		t.Errorf("counts %+v, verdict %s", out.Report.Counts, out.Report.Verdict)
	}
	reasons := strings.Join(out.Report.Reasons, "\n")
	left := 0
	for _, c := range o.Suite.Catalogue().Cases {
		if p, _ := o.Suite.Catalogue().Profile(conformance.ProfileBaseline); p.Requires(c) && c.Tier != string(conformance.Smoke) {
			left++
		}
	}
	if !strings.Contains(reasons, fmt.Sprintf("tier smoke leaves out %d cases that profile baseline requires", left)) || strings.Count(reasons, string(evidence.ReasonCaseMissing)) != 1 {
		t.Errorf("the reasons do not say in one sentence what the tier leaves out: %s", reasons)
	}
}

func TestTargetThatDoesNotOpenOrCloseMakesTheRunIncomplete(t *testing.T) {
	for driver, want := range map[string]string{
		"absent": "not opened", "messy": "a mount was left", "holding": "still holds 1 things: goroutine in", "orphaning": "1 things are left that were not there before the run: process",
	} {
		t.Run(driver, func(t *testing.T) {
			marker := filepath.Join(t.TempDir(), "pid")
			t.Setenv(markerEnv, marker)
			t.Cleanup(func() {
				if b, err := os.ReadFile(marker); err == nil {
					pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
					if err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
						t.Errorf("the orphan %q cannot be ended", b)
					}
				}
			})
			o := options(t)
			o.Driver, o.Tier, o.Evidence = driver, conformance.Smoke, signable(t)
			out := run(t, context.Background(), o)
			if reasons := strings.Join(out.Report.Reasons, "\n"); out.Report.Verdict != evidence.Incomplete || !strings.Contains(reasons, want) {
				t.Errorf("verdict %s because %s", out.Report.Verdict, reasons)
			}
			if out.Bundle == "" {
				return
			}
			// What is signed of such a run says that it did not succeed, which nobody admits.
			b, err := evidence.ReadBundle(out.Bundle, evidence.AuditDepth)
			if err != nil {
				t.Fatal(err)
			}
			said := false
			for _, name := range b.Names() {
				body, _ := b.File(name)
				said = said || bytes.Contains(body, []byte(`"SuiteSucceeded": false`)) || bytes.Contains(body, []byte(`"SuiteSucceeded":false`))
			}
			if !said {
				t.Error("the signed report says that the suite succeeded")
			}
		})
	}
}

func TestDeadSuiteProcessIsAnErrorOfItsCase(t *testing.T) {
	o := options(t)
	o.Tier, o.CaseIDs = conformance.Serial, []string{"TA-20"}
	o.Evidence = signable(t) // would be signed if the run were sealed
	out := run(t, context.Background(), o)
	if c, _ := out.Report.Case("TA-20"); c.Status != conformance.Errored || c.Reason != "suite-died" {
		t.Errorf("TA-20 is %s %s, want error suite-died", c.Status, c.Reason)
	}
	checkUnsigned(t, o, out)
}

func TestInterruptedRunIsCleanedUpAndNeverSigned(t *testing.T) {
	o := options(t)
	o.Tier, o.CaseIDs = conformance.Serial, []string{"TA-21", "TA-22"}
	o.Evidence = signable(t)
	marker := filepath.Join(t.TempDir(), "running")
	t.Setenv(markerEnv, marker)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(marker); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	start := time.Now()
	out := run(t, ctx, o)
	if d := time.Since(start); d > time.Minute {
		t.Errorf("the interrupted run took %s", d)
	}
	if !out.Interrupted {
		t.Error("the outcome does not say that it was interrupted")
	}
	if c, _ := out.Report.Case("TA-21"); c.Status != conformance.Errored || c.Reason != "interrupted" {
		t.Errorf("TA-21 is %s %s (%s), want error interrupted", c.Status, c.Reason, c.Text)
	}
	checkUnsigned(t, o, out)
}

// signable is complete evidence, with a key of this test.
func signable(t *testing.T) *conformance.Evidence {
	t.Helper()
	key, err := signing.Throwaway()
	if err != nil {
		t.Fatal(err)
	}
	image := func(config string) evidence.Image {
		return evidence.Image{Name: "image", Role: evidence.ImageWorkload, ConfigDigest: config, ManifestDigest: evidence.Digest([]byte(config))}
	}
	digest := evidence.Digest(nil)
	d := evidence.CohortDescriptor{
		Arch: "amd64", Kernel: evidence.CohortKernel{Release: "6", Build: "1"}, CgroupMode: "v1",
		Engine:  evidence.CohortEngine{Version: "1", EngineDigest: digest, ContainerdDigest: digest, ShimDigest: digest},
		Runtime: evidence.CohortRuntime{BinaryDigest: digest}, Sandbox: evidence.CohortSandbox{Version: "1", Platform: "toy"},
		Quota: evidence.CohortQuota{Backend: "none", Filesystem: "none"},
	}
	return &conformance.Evidence{
		Signers: []evidence.Signer{key}, Sequence: func() (int64, error) { return 1, nil },
		Issuer: evidence.Issuer{ID: "test", Role: evidence.RoleCI, Runtime: "toy"},
		Cohort: evidence.Cohort{ID: imageA, Descriptor: d, Capabilities: map[string]string{}},
		Images: []evidence.Image{image(imageA), image(imageB)}, Validity: time.Hour, Limitations: []string{"a test"},
	}
}

func TestSealedRunIsSignedAndItsBundleReadsBack(t *testing.T) {
	o := options(t)
	o.Evidence = signable(t)
	out := run(t, context.Background(), o)
	if out.Bundle == "" {
		t.Fatalf("not signed: %s", out.Unsigned)
	}
	b, err := evidence.ReadBundle(out.Bundle, evidence.AuditDepth)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Names()) < 10 {
		t.Errorf("the bundle holds %d files only", len(b.Names()))
	}
}

// The mutants are asked for once, with what every case came to, and never for a run that is not signed.
func TestMutantsAreAskedWhenTheCasesHaveRun(t *testing.T) {
	for name, row := range map[string]struct {
		fault  error
		cases  []string
		asked  int
		signed bool
	}{
		"without results": {nil, nil, 1, true},
		"a survivor":      {errors.New("m01 survived"), nil, 1, false},
		"narrowed":        {nil, []string{"TA-01"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			o.Evidence, o.CaseIDs = signable(t), row.cases
			asked := 0
			o.Evidence.Mutants = func(r conformance.Report) (*evidence.MutationEvidence, []byte, error) {
				asked++
				first, _ := r.Case("TA-01")
				second, _ := r.Case("TA-02")
				if first.Status != conformance.Pass || second.Status != conformance.Fail || first.Attempts != 1 {
					t.Errorf("TA-01 is %s, TA-02 %s", first.Status, second.Status)
				}
				return nil, nil, row.fault
			}
			out := run(t, context.Background(), o)
			if asked != row.asked {
				t.Errorf("asked %d times", asked)
			}
			if !row.signed {
				checkUnsigned(t, o, out)
			} else if out.Bundle == "" {
				t.Errorf("not signed: %s", out.Unsigned)
			}
			if row.fault != nil && !strings.Contains(out.Unsigned, row.fault.Error()) {
				t.Errorf("unsigned because %q", out.Unsigned)
			}
		})
	}
}

func checkUnsigned(t *testing.T, o conformance.Options, out conformance.Outcome) {
	t.Helper()
	if out.Bundle != "" || out.Unsigned == "" || out.Report.Verdict != evidence.Incomplete {
		t.Errorf("bundle %q, unsigned because %q, verdict %s", out.Bundle, out.Unsigned, out.Report.Verdict)
	}
	if _, err := os.Stat(filepath.Join(o.Out, "bundle")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a bundle folder exists: %v", err)
	}
}

// A run that looks at nothing says so, in every feature and in its verdict.
func TestRunWithoutProbesIsIncomplete(t *testing.T) {
	o := options(t)
	looked := filepath.Join(t.TempDir(), "looked")
	o.Suite.Probes = []conformance.Probe{{Feature: conformance.FeatureExec, Look: func(context.Context, *conformance.T) (conformance.Presence, string, error) {
		return conformance.Present, "seen", os.WriteFile(looked, nil, 0o600)
	}}}
	o.WithoutProbes = true
	out := run(t, context.Background(), o)
	if out.Report.Verdict != evidence.Incomplete || !slices.ContainsFunc(out.Report.Reasons, func(r string) bool { return strings.Contains(r, "was not looked at") }) {
		t.Errorf("verdict %s, %q", out.Report.Verdict, out.Report.Reasons)
	}
	if c, _ := out.Report.Case("TA-01"); c.Status != conformance.Pass {
		t.Errorf("TA-01 is %s %s", c.Status, c.Text)
	}
	if len(out.Report.Features) == 0 {
		t.Error("no feature is told of")
	}
	for _, f := range out.Report.Features {
		if f.Observed != conformance.Unknown || f.Feature == conformance.FeatureExec && !f.Claimed {
			t.Errorf("%+v", f)
		}
	}
	if _, err := os.Stat(looked); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a probe ran: %v", err)
	}
}

// Without an armed oracle a failure counts and a pass does not.
func TestRunWithoutArmingPassesNothing(t *testing.T) {
	o := options(t)
	armed := filepath.Join(t.TempDir(), "armed")
	for i := range o.Suite.Arming {
		o.Suite.Arming[i].Arm = func(context.Context, *conformance.T) error { return os.WriteFile(armed, nil, 0o600) }
	}
	o.WithoutArming = true
	out := run(t, context.Background(), o)
	if out.Report.Verdict == evidence.Conformant || !slices.ContainsFunc(out.Report.Reasons, func(r string) bool { return strings.Contains(r, "no oracle was tried") }) {
		t.Errorf("verdict %s, %q", out.Report.Verdict, out.Report.Reasons)
	}
	failed := 0
	for _, c := range out.Report.Cases {
		if c.Status == conformance.Pass && len(c.Oracles) > 0 {
			t.Errorf("%s passed by %q, which nobody has tried", c.ID, c.Oracles)
		}
		if c.Status == conformance.Fail {
			failed++
		}
	}
	if failed == 0 {
		t.Error("a case that fails did not count")
	}
	if c, _ := out.Report.Case("TA-01"); c.Status != conformance.Inconclusive || !strings.HasPrefix(c.Reason, "oracle-unarmed.") {
		t.Errorf("TA-01 is %s %s", c.Status, c.Reason)
	}
	if _, err := os.Stat(armed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an oracle was tried: %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*conformance.Options){
		"no workload":     func(o *conformance.Options) { o.Workloads = nil },
		"tag":             func(o *conformance.Options) { o.Workloads = []string{"busybox:latest"} },
		"unknown driver":  func(o *conformance.Options) { o.Driver = "none" },
		"unknown case":    func(o *conformance.Options) { o.CaseIDs = []string{"ZZ-99"} },
		"no profile":      func(o *conformance.Options) { o.Profiles = nil },
		"unknown profile": func(o *conformance.Options) { o.Profiles = []string{"no-such"} },
		"profile twice": func(o *conformance.Options) {
			o.Profiles = []string{conformance.ProfileBaseline, conformance.ProfileBaseline}
		},
		"probe twice":        func(o *conformance.Options) { o.Suite.Probes = append(o.Suite.Probes, o.Suite.Probes[0]) },
		"unknown tier":       func(o *conformance.Options) { o.Tier = "quick" },
		"no tenant":          func(o *conformance.Options) { o.Tenant = "/nonexistent" },
		"evidence unfounded": func(o *conformance.Options) { o.Evidence, o.CohortID = signable(t), "" },
		"evidence keyless":   func(o *conformance.Options) { o.Evidence = signable(t); o.Evidence.Signers = nil },
		"evidence other":     func(o *conformance.Options) { o.Evidence = signable(t); o.Workloads = []string{imageB} },
		"evidence twice": func(o *conformance.Options) {
			o.Evidence = signable(t)
			o.Evidence.Mutation = &evidence.MutationEvidence{}
			o.Evidence.Mutants = func(conformance.Report) (*evidence.MutationEvidence, []byte, error) { return nil, nil, nil }
		},
		"evidence unprobed": func(o *conformance.Options) { o.Evidence, o.WithoutProbes = signable(t), true },
		"evidence unarmed":  func(o *conformance.Options) { o.Evidence, o.WithoutArming = signable(t), true },
		"evidence beside":   func(o *conformance.Options) { o.Evidence, o.Beside = signable(t), t.TempDir() },
		"beside nowhere":    func(o *conformance.Options) { o.Beside = filepath.Join(t.TempDir(), "none") },
		"beside, relative":  func(o *conformance.Options) { o.Beside = "." },
		"case twice":        func(o *conformance.Options) { o.Suite.Cases = append(o.Suite.Cases, o.Suite.Cases[0]) },
		"oracle unarmable":  func(o *conformance.Options) { o.Suite.Arming = nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			spoil(&o)
			if _, err := conformance.Run(context.Background(), o); err == nil {
				t.Error("the run was done")
			}
		})
	}
}

// An unproven case is in no tier and no catalogue, and runs where it is named.
func TestUnprovenCasesRunWhereTheyAreNamed(t *testing.T) {
	one := func(id string) conformance.Case {
		return conformance.Case{ID: id, Revision: 1, Title: id, Tier: conformance.Smoke, Timeout: time.Second, Run: func(context.Context, *conformance.T) error { return nil }}
	}
	s := conformance.Suite{Cases: []conformance.Case{one("XX-01")}, Unproven: []conformance.Case{one("XX-02")}}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ids  []string
		want string
	}{
		{nil, "XX-01"},
		{[]string{"XX-02"}, "XX-02"},
		{[]string{"XX-02", "XX-01"}, "XX-01 XX-02"},
	} {
		cases, err := s.Select(conformance.Serial, tt.ids)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range cases {
			got = append(got, c.ID)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("named %q: %q", tt.ids, got)
		}
	}
	if refs := s.Catalogue().Cases; len(refs) != 1 || refs[0].ID != "XX-01" {
		t.Errorf("the catalogue has %v", refs)
	}
	s.Unproven = append(s.Unproven, one("XX-01"))
	if s.Check() == nil {
		t.Error("a case that is proven and unproven is accepted")
	}
}
