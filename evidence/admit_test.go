// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// pinned writes everything that a worker on w's cohort needs and returns its configuration. The
// release is of w's evidence and that of others.
func pinned(t testing.TB, w *evidencetest.World, others ...*evidencetest.World) evidence.AdmitConfig {
	t.Helper()
	dir := t.TempDir()
	b, q := bundleAndQuestion(t, w)
	ds := []evidence.Decision{evidence.Decide(q, b)}
	for _, o := range others {
		ob, oq := bundleAndQuestion(t, o)
		ds = append(ds, evidence.Decide(oq, ob))
	}
	for _, d := range ds {
		if !d.Admitted {
			t.Fatal(d.Detail)
		}
	}
	_, pins, err := evidence.MakePins(q.Policy, ds, w.Gate, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(filepath.Join(dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"root.pub": w.Root.PublicKey().PEM(), "trust.json": trust, "pins.json": pins} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := w.Statement.Predicate
	return evidence.AdmitConfig{
		Root: filepath.Join(dir, "root.pub"), Trust: filepath.Join(dir, "trust.json"), Pins: filepath.Join(dir, "pins.json"),
		Bundles: []string{filepath.Join(dir, "bundle")}, StateDir: filepath.Join(dir, "state"), Cohort: p.Cohort.ID,
		WorkerDigest: binaryOf(p, evidence.BinaryWorker), WorkerConfigDigest: p.WorkerConfig.Digest, Now: w.Now,
	}
}

func binaryOf(p evidence.Predicate, role string) string {
	for _, b := range p.Binaries {
		if b.Role == role {
			return b.Digest
		}
	}
	return ""
}

func TestAdmitAndCheckStarts(t *testing.T) {
	w := world(t)
	c := pinned(t, w)
	// A worker need not have the raw artifacts.
	if err := os.RemoveAll(filepath.Join(c.Bundles[0], "blobs")); err != nil {
		t.Fatal(err)
	}
	a, err := evidence.Admit(c)
	if err != nil {
		t.Fatal(err)
	}
	p := w.Statement.Predicate
	good := evidence.Start{
		ImageDigest: p.Images[1].ConfigDigest, SupervisorDigest: binaryOf(p, evidence.BinarySupervisor), QuotaDigest: binaryOf(p, evidence.BinaryQuota),
		SandboxBinaryDigest: binaryOf(p, evidence.BinarySandbox), LaunchProfileDigest: p.LaunchProfile.Digest,
	}
	if err := a.Check(good, w.Now); err != nil {
		t.Errorf("pinned start: %v", err)
	}
	for name, edit := range map[string]func(*evidence.Start){
		"image": func(s *evidence.Start) { s.ImageDigest = evidence.Digest(nil) }, "no image": func(s *evidence.Start) { s.ImageDigest = "" },
		"manifest": func(s *evidence.Start) { s.ImageDigest = p.Images[1].ManifestDigest },
		"helper":   func(s *evidence.Start) { s.SupervisorDigest = s.QuotaDigest }, "no helper": func(s *evidence.Start) { s.QuotaDigest = "" },
		"runsc": func(s *evidence.Start) { s.SandboxBinaryDigest = evidence.Digest(nil) }, "profile": func(s *evidence.Start) { s.LaunchProfileDigest = "" },
	} {
		s := good
		edit(&s)
		if got := evidence.ReasonOf(a.Check(s, w.Now)); got != evidence.ReasonNotPinned {
			t.Errorf("%s: %q, want %q", name, got, evidence.ReasonNotPinned)
		}
	}
	if got := evidence.ReasonOf(a.Check(good, a.NotAfter())); got != evidence.ReasonExpired {
		t.Errorf("at the end: %q", got)
	}
	if a.NotAfter().After(w.Now.Add(14*24*time.Hour)) || !a.NotAfter().After(w.Now) {
		t.Errorf("ends at %s, beyond the age that the policy allows", a.NotAfter())
	}
}

// A policy that binds hosts: a worker starts on the host that the evidence was made on, and nowhere else.
func TestAdmitOnTheHostOnly(t *testing.T) {
	here, there := evidence.Digest([]byte("here")), evidence.Digest([]byte("there"))
	for name, row := range map[string]struct {
		bound      bool
		made, host string
		want       evidence.Reason
	}{
		"bound, here":               {true, here, here, ""},
		"bound, another":            {true, here, there, evidence.ReasonHost},
		"bound, unknown":            {true, here, "", evidence.ReasonHost},
		"not bound, another":        {false, here, there, ""},
		"not bound, none, another":  {false, "", there, ""},
		"not bound, made somewhere": {false, here, "", ""},
	} {
		w := world(t)
		w.Policy.BindHosts, w.Statement.Predicate.Run.Host = row.bound, row.made
		c := pinned(t, w)
		c.Host = row.host
		if _, err := evidence.Admit(c); evidence.ReasonOf(err) != row.want || (err == nil) != (row.want == "") {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// One release has a part for every host that there is evidence of, and each host finds its own.
func TestAdmitOnEachHost(t *testing.T) {
	hosts := []string{evidence.Digest([]byte("here")), evidence.Digest([]byte("there"))}
	const nonce = "0123456789abcdef"
	w := world(t)
	w.Policy.BindHosts = true
	w.Statement.Predicate.Run.Host, w.Statement.Predicate.Run.Nonce = hosts[0], nonce
	there := another(t, w, func(p *evidence.Predicate) { p.Run.Host = hosts[1] })
	c := pinned(t, w, there)
	c.Host = hosts[0]
	a, err := evidence.Admit(c)
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Pins(); p.Host != hosts[0] || len(p.Evidence) != 1 || len(a.Release().Cohorts) != 2 {
		t.Errorf("pins of %q by %q, of %d parts", p.Host, p.Evidence, len(a.Release().Cohorts))
	}
	b, err := there.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	d := c
	d.StateDir, d.Bundles = t.TempDir(), []string{filepath.Join(t.TempDir(), "bundle")}
	if err := b.Write(d.Bundles[0]); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]evidence.Reason{hosts[1]: "", hosts[0]: evidence.ReasonHost, evidence.Digest([]byte("elsewhere")): evidence.ReasonHost} {
		d.Host = host
		if a, err := evidence.Admit(d); evidence.ReasonOf(err) != want || (err == nil) != (want == "") {
			t.Errorf("%s: %v, want %q", host, err, want)
		} else if want == "" && a.Pins().Host != host {
			t.Errorf("%s has the pins of %s", host, a.Pins().Host)
		}
	}
	// A third host has evidence, and the release was made without it.
	third := another(t, w, func(p *evidence.Predicate) { p.Run.Host = evidence.Digest([]byte("third")) })
	if b, err = third.Bundle(); err != nil {
		t.Fatal(err)
	}
	d.StateDir, d.Bundles, d.Host = t.TempDir(), []string{filepath.Join(t.TempDir(), "bundle")}, third.Statement.Predicate.Run.Host
	if err := b.Write(d.Bundles[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.Admit(d); evidence.ReasonOf(err) != evidence.ReasonPinsEvidence {
		t.Errorf("a host that the release does not have: %v", err)
	}
	// Each host answers a nonce once, and two of them answer one nonce.
	_, q := bundleAndQuestion(t, w)
	q.Nonce = nonce
	again := another(t, w, func(p *evidence.Predicate) { p.Run.Sequence += 5 })
	for _, step := range []struct {
		w    *evidencetest.World
		want evidence.Reason
	}{{w, ""}, {there, ""}, {again, evidence.ReasonNonceReused}, {there, ""}} {
		b, err := step.w.Bundle()
		if err != nil {
			t.Fatal(err)
		}
		d := evidence.Decide(q, b)
		if d.Reason != step.want {
			t.Errorf("nonce on %s: %q, want %q", step.w.Statement.Predicate.Run.Host, d.Reason, step.want)
		}
		q.Memory.SeeNonce(d)
	}
}

func TestAdmitRefuses(t *testing.T) {
	tests := []struct {
		name string
		edit func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig)
		want evidence.Reason
	}{
		{"other cohort measured", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) { c.Cohort = evidence.Digest(nil) }, evidence.ReasonCohortOther},
		{"other worker", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) {
			c.WorkerDigest = evidence.Digest(nil)
		}, evidence.ReasonWanted},
		{"another binary as worker", func(_ *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			c.WorkerDigest = binaryOf(w.Statement.Predicate, evidence.BinaryQuota)
		}, evidence.ReasonNotPinned},
		{"other configuration", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) {
			c.WorkerConfigDigest = evidence.Digest(nil)
		}, evidence.ReasonNotPinned},
		{"no measured cohort", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) { c.Cohort = "" }, evidence.ReasonPolicyMissing},
		{"no bundle", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) { c.Bundles = nil }, evidence.ReasonPolicyMissing},
		{"later than the evidence", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) { c.Now = c.Now.AddDate(0, 0, 15) }, evidence.ReasonTooOld},
		{"later than the policy", func(_ *testing.T, _ *evidencetest.World, c *evidence.AdmitConfig) { c.Now = c.Now.AddDate(0, 0, 31) }, evidence.ReasonPolicyExpired},
		{"pins signed by the evidence key", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) { resign(t, c.Pins, nil, w.Evidence) }, evidence.ReasonPinsSignature},
		{"pins edited", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string {
				return strings.Replace(s, `"name":"one","role":"workload"`, `"name":"one","role":"helper"`, 1)
			}, w.Gate)
		}, evidence.ReasonPinsEvidence},
		{"pins of candidates", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string {
				return strings.Replace(s, `"mode":"production"`, `"mode":"qualification"`, 1)
			}, w.Gate)
		}, evidence.ReasonPinsMode},
		{"pins that failed", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string { return strings.Replace(s, `"PASSED"`, `"FAILED"`, 1) }, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"pins without their inputs", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string {
				head, rest, _ := strings.Cut(s, `"inputAttestations":[`)
				_, tail, _ := strings.Cut(rest, `]`)
				return head + `"inputAttestations":[]` + tail
			}, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"pins of another subject", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string {
				return strings.Replace(s, `"subject":[{"name":"one"`, `"subject":[{"name":"eno"`, 1)
			}, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"pins of other levels", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string {
				return strings.Replace(s, `"HALLMARK_QUOTA"`, `"HALLMARK_QUOTA","SLSA_BUILD_LEVEL_3"`, 1)
			}, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"pins of another verifier", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string { return strings.Replace(s, `"verifier":{"id":"`, `"verifier":{"id":"x`, 1) }, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"pins of another resource", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			resign(t, c.Pins, func(s string) string { return strings.Replace(s, `"resourceUri":"`, `"resourceUri":"x`, 1) }, w.Gate)
		}, evidence.ReasonPinsInvalid},
		{"newer policy than the pins", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			w.Policy.Version++
			rewrite(t, c.Trust, w)
		}, evidence.ReasonPinsPolicy},
		{"evidence key revoked", func(t *testing.T, w *evidencetest.World, c *evidence.AdmitConfig) {
			for i := range w.Policy.Keys {
				if w.Policy.Keys[i].Role == evidence.RoleCI {
					w.Policy.Keys[i].RevokedAt = evidence.At(w.Now)
				}
			}
			w.Policy.Version++
			rewrite(t, c.Trust, w)
			// The gate signs such pins again under the new policy, as if it had been fooled.
			resignPolicy(t, c.Pins, c.Trust, w.Gate)
		}, evidence.ReasonKeyRevoked},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := world(t)
			c := pinned(t, w)
			tt.edit(t, w, &c)
			a, err := evidence.Admit(c)
			if got := evidence.ReasonOf(err); got != tt.want || a != nil {
				t.Errorf("%q, want %q (%v)", got, tt.want, err)
			}
		})
	}
}

func TestAdmitRemembers(t *testing.T) {
	w := world(t)
	c := pinned(t, w)
	for range 2 {
		if _, err := evidence.Admit(c); err != nil {
			t.Fatal(err)
		}
	}
	newer := *w
	newer.Policy.Version++
	rewrite(t, c.Trust, &newer)
	if _, err := evidence.Admit(c); evidence.ReasonOf(err) != evidence.ReasonPinsPolicy {
		t.Fatalf("under the newer policy: %v", err)
	}
	rewrite(t, c.Trust, w)
	if _, err := evidence.Admit(c); evidence.ReasonOf(err) != evidence.ReasonPolicyRollback {
		t.Errorf("back to the older policy: %v", err)
	}
	if err := os.WriteFile(filepath.Join(c.StateDir, "rollback.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.Admit(c); err == nil {
		t.Error("admitted without a readable memory")
	}
}

func TestMemoryIsHeldByOne(t *testing.T) {
	dir := t.TempDir()
	m, err := evidence.OpenMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.OpenMemory(dir); err == nil {
		t.Error("two processes hold one memory")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, err = evidence.OpenMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// resign edits the payload of an envelope file and signs it with s.
func resign(t *testing.T, path string, edit func(string) string, s *signing.Signer) {
	t.Helper()
	payload := string(payloadOf(t, path))
	if edit != nil {
		changed := edit(payload)
		if changed == payload {
			t.Fatal("nothing was edited")
		}
		payload = changed
	}
	file, err := evidence.SealEnvelope(evidence.InTotoType, []byte(payload), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

func resignPolicy(t *testing.T, pins, trust string, s *signing.Signer) {
	t.Helper()
	text, err := os.ReadFile(trust)
	if err != nil {
		t.Fatal(err)
	}
	digest := strings.TrimPrefix(evidence.Digest(text), "sha256:")
	resign(t, pins, func(p string) string {
		p = strings.Replace(p, `"policyVersion":1`, `"policyVersion":2`, 1)
		head, rest, _ := strings.Cut(p, `trust-policy","digest":{"sha256":"`)
		return head + `trust-policy","digest":{"sha256":"` + digest + rest[64:]
	}, s)
}

func payloadOf(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := evidence.UnverifiedPayload(text)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func rewrite(t *testing.T, path string, w *evidencetest.World) {
	t.Helper()
	trust, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, trust, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPinsBitFlips(t *testing.T) {
	w := world(t)
	c := pinned(t, w)
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(c.Pins)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.VerifyPins(file, q.Policy, w.Now); err != nil {
		t.Fatal(err)
	}
	for i := range file {
		flipped := bytes.Clone(file)
		flipped[i] ^= 1 << (i % 8)
		if _, err := evidence.VerifyPins(flipped, q.Policy, w.Now); evidence.ReasonOf(err).Step() != 20 {
			t.Fatalf("offset %d: %v", i, err)
		}
	}
}

// The admission path must stay small: a worker links it.
func TestImportsOfTheAdmissionPath(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{
		"github.com/go-json-experiment/json", "github.com/gowebpki/jcs", "golang.org/x/sys/unix",
		"github.com/hallmark-sandbox/hallmark/strictjson", "github.com/hallmark-sandbox/hallmark/evidence",
	}
	n := 0
	for _, p := range strings.Fields(string(out)) {
		n++
		ok := false
		for _, a := range allowed {
			ok = ok || p == a || (strings.HasPrefix(p, a+"/") && strings.HasPrefix(a, "github.com/go-json-experiment"))
		}
		if !ok {
			t.Errorf("package evidence links %s", p)
		}
	}
	if n < len(allowed) {
		t.Errorf("only %d packages listed", n)
	}
}
