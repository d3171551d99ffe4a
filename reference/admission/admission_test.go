// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
)

func sha(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func wantUnqualified(t *testing.T, what string, err error) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.Unqualified {
		t.Errorf("%s: error is %v, want %s", what, err, api.Unqualified)
	}
}

// wantGate asks g about good, and about good with each member changed and emptied.
func wantGate(t *testing.T, g admission.Gate, good admission.Start, pinnedProfile bool) {
	t.Helper()
	if err := errors.Join(g.Precheck(t.Context(), good), g.Admit(t.Context(), good)); err != nil {
		t.Fatalf("the good start is refused: %v", err)
	}
	early := good
	early.LaunchProfileDigest = ""
	if err := g.Precheck(t.Context(), early); err != nil {
		t.Errorf("precheck asks for the launch profile: %v", err)
	}
	for name, member := range map[string]func(*admission.Start) *string{
		"image":          func(s *admission.Start) *string { return &s.ImageDigest },
		"supervisor":     func(s *admission.Start) *string { return &s.SupervisorDigest },
		"quota helper":   func(s *admission.Start) *string { return &s.QuotaDigest },
		"sandbox binary": func(s *admission.Start) *string { return &s.SandboxBinaryDigest },
		"launch profile": func(s *admission.Start) *string { return &s.LaunchProfileDigest },
	} {
		for _, bad := range []string{"", "sha256:", sha("e"), strings.ToUpper(*member(&good)), *member(&good) + "\n"} {
			s := good
			*member(&s) = bad
			if name == "launch profile" && bad == sha("e") && !pinnedProfile {
				continue // a qualification run observes it, see engine.ProfileRecorder
			}
			wantUnqualified(t, name+" "+bad, g.Admit(t.Context(), s))
			if name != "launch profile" {
				wantUnqualified(t, "precheck of "+name+" "+bad, g.Precheck(t.Context(), s))
			}
		}
	}
}

func candidates() admission.CandidatesConfig {
	return admission.CandidatesConfig{
		Images: map[string]string{sha("1"): sha("2")}, CohortID: sha("3"), SupervisorDigest: sha("4"), QuotaDigest: sha("5"), SandboxBinaryDigest: sha("6"),
	}
}

func TestCandidatesAdmitWhatIsUnderTest(t *testing.T) {
	c := candidates()
	g, err := admission.NewCandidates(c)
	if err != nil {
		t.Fatal(err)
	}
	wantGate(t, g, admission.Start{
		ImageDigest: sha("1"), SupervisorDigest: sha("4"), QuotaDigest: sha("5"), SandboxBinaryDigest: sha("6"), LaunchProfileDigest: sha("7"),
	}, false)
	if g.ManifestDigest(sha("1")) != sha("2") || g.ManifestDigest(sha("9")) != "" || g.CohortID() != sha("3") || len(g.EvidenceDigests()) != 0 {
		t.Errorf("gate says %q, %q, %q", g.ManifestDigest(sha("1")), g.ManifestDigest(sha("9")), g.CohortID())
	}
	c.Images[sha("8")] = sha("9") // the caller's map is not the gate's
	if g.ManifestDigest(sha("8")) != "" {
		t.Error("a candidate was added from outside")
	}
	same, err := admission.NewCandidates(candidates())
	if err != nil || same.PinsDigest() != g.PinsDigest() {
		t.Errorf("equal lists have digests %s and %s", same.PinsDigest(), g.PinsDigest())
	}
	more, err := admission.NewCandidates(c)
	if err != nil || more.PinsDigest() == g.PinsDigest() {
		t.Errorf("another list has the same digest, %v", err)
	}
}

func TestCandidatesMustBeComplete(t *testing.T) {
	for name, change := range map[string]func(*admission.CandidatesConfig){
		"no image":   func(c *admission.CandidatesConfig) { c.Images = nil },
		"tag":        func(c *admission.CandidatesConfig) { c.Images = map[string]string{"busybox:1": sha("2")} },
		"manifest":   func(c *admission.CandidatesConfig) { c.Images = map[string]string{sha("1"): ""} },
		"cohort":     func(c *admission.CandidatesConfig) { c.CohortID = "this host" },
		"supervisor": func(c *admission.CandidatesConfig) { c.SupervisorDigest = "" },
		"quota":      func(c *admission.CandidatesConfig) { c.QuotaDigest = "" },
		"sandbox":    func(c *admission.CandidatesConfig) { c.SandboxBinaryDigest = "" },
	} {
		c := candidates()
		c.Images = maps.Clone(c.Images)
		change(&c)
		if _, err := admission.NewCandidates(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// trust writes everything that a production worker reads.
func trust(t *testing.T) (*evidencetest.World, admission.PinnedConfig) {
	t.Helper()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	policy, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Cohort, q.Depth = w.Statement.Predicate.Cohort.ID, evidence.AuditDepth
	d := evidence.Decide(q, bundle)
	if !d.Admitted {
		t.Fatalf("the good bundle is denied: %s %s", d.Reason, d.Detail)
	}
	_, pins, err := evidence.MakePins(q.Policy, []evidence.Decision{d}, w.Gate, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := bundle.Write(filepath.Join(dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	p := w.Statement.Predicate
	c := admission.PinnedConfig{
		Root: filepath.Join(dir, "root.pub"), Trust: filepath.Join(dir, "trust.json"), Pins: filepath.Join(dir, "pins.json"),
		Bundles: []string{filepath.Join(dir, "bundle")}, StateDir: filepath.Join(dir, "state"), CohortID: p.Cohort.ID,
		WorkerConfigDigest: p.WorkerConfig.Digest, Now: func() time.Time { return w.Now },
	}
	for _, b := range p.Binaries {
		if b.Role == evidence.BinaryWorker {
			c.WorkerDigest = b.Digest
		}
	}
	for path, body := range map[string][]byte{c.Root: w.Root.PublicKey().PEM(), c.Trust: policy, c.Pins: pins} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w, c
}

func start(w *evidencetest.World) admission.Start {
	p := w.Statement.Predicate
	s := admission.Start{ImageDigest: p.Images[0].ConfigDigest, LaunchProfileDigest: p.LaunchProfile.Digest}
	for _, b := range p.Binaries {
		switch b.Role {
		case evidence.BinarySupervisor:
			s.SupervisorDigest = b.Digest
		case evidence.BinaryQuota:
			s.QuotaDigest = b.Digest
		case evidence.BinarySandbox:
			s.SandboxBinaryDigest = b.Digest
		}
	}
	return s
}

func TestPinnedAdmitsExactlyThePins(t *testing.T) {
	w, c := trust(t)
	now := w.Now
	c.Now = func() time.Time { return now }
	g, err := admission.NewPinned(c)
	if err != nil {
		t.Fatal(err)
	}
	wantGate(t, g, start(w), true)
	img := w.Statement.Predicate.Images[1]
	if g.ManifestDigest(img.ConfigDigest) != img.ManifestDigest || g.ManifestDigest(sha("0")) != "" || g.CohortID() != c.CohortID ||
		!strings.HasPrefix(g.PinsDigest(), "sha256:") || len(g.EvidenceDigests()) != 1 {
		t.Errorf("gate says manifest %q, cohort %q, pins %q, evidence %q", g.ManifestDigest(img.ConfigDigest), g.CohortID(), g.PinsDigest(), g.EvidenceDigests())
	}
	if got, want := g.Images(), []string{w.Statement.Predicate.Images[0].ConfigDigest, img.ConfigDigest}; !slices.Equal(got, want) {
		t.Errorf("images are %q, want %q", got, want)
	}
	now = g.NotAfter().Add(-time.Second)
	if err := g.Admit(t.Context(), start(w)); err != nil {
		t.Errorf("refused a second before its end: %v", err)
	}
	now = g.NotAfter()
	wantUnqualified(t, "at its end", g.Admit(t.Context(), start(w)))
}

func TestPinnedIsRefused(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, c *admission.PinnedConfig){
		"other cohort":        func(_ *testing.T, c *admission.PinnedConfig) { c.CohortID = sha("a") },
		"other worker":        func(_ *testing.T, c *admission.PinnedConfig) { c.WorkerDigest = sha("a") },
		"other configuration": func(_ *testing.T, c *admission.PinnedConfig) { c.WorkerConfigDigest = sha("a") },
		"no bundle":           func(_ *testing.T, c *admission.PinnedConfig) { c.Bundles = nil },
		"no memory":           func(_ *testing.T, c *admission.PinnedConfig) { c.StateDir = "" },
		"expired": func(_ *testing.T, c *admission.PinnedConfig) {
			end := time.Now().AddDate(0, 3, 0)
			c.Now = func() time.Time { return end }
		},
		"pins flipped":   func(t *testing.T, c *admission.PinnedConfig) { flip(t, c.Pins) },
		"policy flipped": func(t *testing.T, c *admission.PinnedConfig) { flip(t, c.Trust) },
		"bundle flipped": func(t *testing.T, c *admission.PinnedConfig) {
			flip(t, filepath.Join(c.Bundles[0], "evidence.sigstore.json"))
		},
		"pins are a policy": func(_ *testing.T, c *admission.PinnedConfig) { c.Pins = c.Trust },
	} {
		t.Run(name, func(t *testing.T) {
			_, c := trust(t)
			change(t, &c)
			g, err := admission.NewPinned(c)
			wantUnqualified(t, name, err)
			if g != nil {
				t.Error("a gate came with the refusal")
			}
		})
	}
	_, c := trust(t)
	c.Pins = filepath.Join(t.TempDir(), "absent")
	if _, err := admission.NewPinned(c); err == nil {
		t.Error("absent pins were accepted")
	}
}

// TestPinsOfOtherEvidenceAreRefused puts the pins of one run beside the bundle of another.
func TestPinsOfOtherEvidenceAreRefused(t *testing.T) {
	_, one := trust(t)
	_, two := trust(t)
	one.Pins = two.Pins
	_, err := admission.NewPinned(one)
	wantUnqualified(t, "pins of another run", err)
}

// flip changes one bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
