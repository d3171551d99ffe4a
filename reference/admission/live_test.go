// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/filedigest"
)

// host is a production worker's view of the world, in which everything can be changed while it runs.
// Policy, pins, bundle and programs are real files; the cohort and the clocks are the test's.
type host struct {
	t        *testing.T
	w        *evidencetest.World
	dir      string
	programs admission.Programs
	config   admission.PinnedConfig
	cohort   string
	unread   error // the cohort cannot be measured
	measured int
	id       string // of the host
	now      time.Time
	elapsed  time.Duration
	log      bytes.Buffer
	gate     *admission.Live
}

var hostID = evidence.Digest([]byte("this host"))

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	base, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h.programs = admission.Programs{Supervisor: h.path("supervisor"), Quota: h.path("quota"), SandboxBinary: h.path("runsc")}
	digests := map[string]string{}
	for role, path := range map[string]string{
		evidence.BinarySupervisor: h.programs.Supervisor, evidence.BinaryQuota: h.programs.Quota, evidence.BinarySandbox: h.programs.SandboxBinary,
	} {
		body := []byte("the bytes of " + role)
		h.write(path, body)
		digests[role] = evidence.Digest(body)
	}
	if h.w, err = base.Another(func(p *evidence.Predicate) {
		for i, b := range p.Binaries {
			if d, ok := digests[b.Role]; ok {
				p.Binaries[i].Digest = d
			}
		}
		p.Cohort.Descriptor.Runtime.BinaryDigest = digests[evidence.BinarySandbox]
		p.Run.Host = hostID
	}); err != nil {
		t.Fatal(err)
	}
	p := h.w.Statement.Predicate
	h.now, h.cohort, h.id = h.w.Now, p.Cohort.ID, hostID
	h.w.Policy.BindHosts = true
	h.config = admission.PinnedConfig{
		Root: h.path("root.pub"), Trust: h.path("trust.json"), Pins: h.path("pins.json"), Bundles: []string{h.path("bundle")},
		StateDir: h.path("state"), WorkerConfigDigest: p.WorkerConfig.Digest, Now: func() time.Time { return h.now },
	}
	for _, b := range p.Binaries {
		if b.Role == evidence.BinaryWorker {
			h.config.WorkerDigest = b.Digest
		}
	}
	h.write(h.config.Root, h.w.Root.PublicKey().PEM())
	h.release(h.w)
	reader := &filedigest.Reader{}
	h.gate, err = admission.NewLive(t.Context(), admission.LiveConfig{
		PinnedConfig: h.config, Programs: h.programs, Digest: reader.File,
		Cohort:  func(context.Context) (string, error) { h.measured++; return h.cohort, h.unread },
		Host:    func() (string, error) { return h.id, nil },
		Elapsed: func() time.Duration { return h.elapsed },
		Log:     slog.New(slog.NewTextHandler(&h.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) write(path string, body []byte) {
	h.t.Helper()
	if err := os.WriteFile(path, body, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(path string) []byte {
	h.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// release puts w's policy, its evidence, and the pins that a gate makes of them in place.
func (h *host) release(w *evidencetest.World, images ...string) {
	h.t.Helper()
	h.trust(w)
	bundle, err := w.Bundle()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.RemoveAll(h.path("bundle")); err != nil {
		h.t.Fatal(err)
	}
	if err := bundle.Write(h.path("bundle")); err != nil {
		h.t.Fatal(err)
	}
	q, err := w.Question()
	if err != nil {
		h.t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	d := evidence.Decide(q, bundle)
	_, pins, err := evidence.MakePins(q.Policy, []evidence.Decision{d}, w.Gate, w.Now, images...)
	if err != nil {
		h.t.Fatalf("pins: %v (%s)", err, d.Detail)
	}
	h.write(h.path("pins.json"), pins)
}

func (h *host) trust(w *evidencetest.World) {
	h.t.Helper()
	trust, err := w.Trust()
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(h.path("trust.json"), trust)
}

// newer is the world under the next version of its policy.
func (h *host) newer(edit func(p *evidence.TrustPolicy)) *evidencetest.World {
	w := *h.w
	w.Policy.Keys = slices.Clone(w.Policy.Keys)
	w.Policy.Version++
	edit(&w.Policy)
	return &w
}

// refused demands that no start begins, neither the first question of it nor the last, and that the
// cause names the reason.
func (h *host) refused(when, reason string) {
	h.t.Helper()
	for what, err := range map[string]error{
		"precheck": h.gate.Precheck(h.t.Context(), start(h.w)), "admit": h.gate.Admit(h.t.Context(), start(h.w)),
	} {
		wantUnqualified(h.t, when+", "+what, err)
		if err == nil || !strings.Contains(err.Error(), reason) {
			h.t.Errorf("%s, %s: the cause of %v is not %s", when, what, err, reason)
		}
	}
}

func (h *host) admitted(when string) {
	h.t.Helper()
	if err := errors.Join(h.gate.Precheck(h.t.Context(), start(h.w)), h.gate.Admit(h.t.Context(), start(h.w))); err != nil {
		h.t.Errorf("%s: %v", when, err)
	}
}

// change is one kind of change while a worker runs.
type change struct {
	kind   string
	reason string // in the cause
	change func(h *host) (undo func())
}

func changes() []change {
	rewrite := func(path func(h *host) string, body string) func(*host) func() {
		return func(h *host) func() {
			old := h.read(path(h))
			h.write(path(h), []byte(body))
			return func() { h.write(path(h), old) }
		}
	}
	return []change{
		{"image left out of a newer release", "not-pinned", func(h *host) func() {
			h.release(h.newer(func(*evidence.TrustPolicy) {}), h.w.Statement.Predicate.Images[1].ConfigDigest)
			return nil
		}},
		{"image replaced by another of its name", "not-pinned", func(h *host) func() {
			p := &h.w.Statement.Predicate
			old := p.Images[0].ConfigDigest
			p.Images[0].ConfigDigest = evidence.Digest([]byte("other layers under the same tag"))
			return func() { p.Images[0].ConfigDigest = old }
		}},
		{"host, under a policy that binds hosts", "host-other", func(h *host) func() {
			h.id = evidence.Digest([]byte("another host"))
			return func() { h.id = hostID }
		}},
		{"supervisor bytes", "supervisor", rewrite(func(h *host) string { return h.programs.Supervisor }, "the bytes of SUPERVISOR")},
		{"quota helper bytes", "quota helper", rewrite(func(h *host) string { return h.programs.Quota }, "the bytes of QUOTA")},
		{"runsc bytes", "sandbox binary", rewrite(func(h *host) string { return h.programs.SandboxBinary }, "the bytes of SANDBOX")},
		{"runsc replaced", "sandbox binary", func(h *host) func() {
			old := h.programs.SandboxBinary + ".old"
			if err := os.Rename(h.programs.SandboxBinary, old); err != nil {
				h.t.Fatal(err)
			}
			h.write(h.programs.SandboxBinary, []byte("the bytes of another"))
			return func() {
				if err := os.Rename(old, h.programs.SandboxBinary); err != nil {
					h.t.Fatal(err)
				}
			}
		}},
		{"runsc removed", "sandbox binary", func(h *host) func() {
			old := h.read(h.programs.SandboxBinary)
			if err := os.Remove(h.programs.SandboxBinary); err != nil {
				h.t.Fatal(err)
			}
			return func() { h.write(h.programs.SandboxBinary, old) }
		}},
		{"evidence expired", "too-old", func(h *host) func() {
			h.now = h.now.AddDate(0, 0, 20)
			return func() { h.now = h.w.Now }
		}},
		{"policy expired", "policy-expired", func(h *host) func() {
			h.now = h.now.AddDate(0, 0, 40)
			return func() { h.now = h.w.Now }
		}},
		{"clock set back after the end", "too-old", func(h *host) func() {
			h.elapsed = 20 * 24 * time.Hour
			h.now = h.now.Add(-time.Minute)
			return nil
		}},
		{"another cohort", "cohort-other", func(h *host) func() {
			h.cohort, h.elapsed = sha("a"), admission.CohortAge
			return func() { h.cohort, h.elapsed = h.w.Statement.Predicate.Cohort.ID, 2*admission.CohortAge }
		}},
		{"a cohort that cannot be measured", "no answer", func(h *host) func() {
			h.unread, h.elapsed = errors.New("no answer"), admission.CohortAge
			return func() { h.unread = nil }
		}},
		{"evidence key revoked", "pins-policy", func(h *host) func() {
			h.trust(h.newer(revoke(evidence.RoleCI)))
			return nil
		}},
		{"evidence key revoked, and the pins made again", "key-revoked", func(h *host) func() {
			w := h.newer(revoke(evidence.RoleCI))
			h.trust(w)
			h.sign(w)
			return nil
		}},
		{"gate key revoked", "pins-signature", func(h *host) func() {
			h.trust(h.newer(revoke(evidence.RoleGate)))
			return nil
		}},
		{"digest denied", "digest-denied", func(h *host) func() {
			w := h.newer(func(p *evidence.TrustPolicy) { p.DeniedDigests = []string{h.w.Statement.Predicate.Cohort.ID} })
			h.trust(w)
			h.sign(w)
			return nil
		}},
		{"policy rolled back", "policy-rollback", func(h *host) func() {
			trust, pins := h.read(h.config.Trust), h.read(h.config.Pins)
			h.release(h.newer(func(*evidence.TrustPolicy) {}))
			h.admitted("under the newer policy")
			newTrust, newPins := h.read(h.config.Trust), h.read(h.config.Pins)
			h.write(h.config.Trust, trust)
			h.write(h.config.Pins, pins)
			return func() {
				h.write(h.config.Trust, newTrust)
				h.write(h.config.Pins, newPins)
			}
		}},
		{"pins rolled back", "pins-rollback", func(h *host) func() {
			old := h.read(h.config.Pins)
			h.now = h.now.Add(time.Minute)
			later := *h.w
			later.Now = h.now
			h.release(&later, h.w.Statement.Predicate.Images[0].ConfigDigest)
			h.admitted("by the newer pins")
			newer := h.read(h.config.Pins)
			h.write(h.config.Pins, old)
			return func() { h.write(h.config.Pins, newer) }
		}},
		{"policy of a new root alone", "policy-rotation", func(h *host) func() {
			root, trust, pins := h.read(h.config.Root), h.read(h.config.Trust), h.read(h.config.Pins)
			w := h.newer(func(*evidence.TrustPolicy) {})
			w.Root = w.Mutation
			h.write(h.config.Root, w.Root.PublicKey().PEM())
			h.release(w)
			return func() {
				h.write(h.config.Root, root)
				h.write(h.config.Trust, trust)
				h.write(h.config.Pins, pins)
			}
		}},
		{"policy removed", "no such file", func(h *host) func() {
			trust := h.read(h.config.Trust)
			if err := os.Remove(h.config.Trust); err != nil {
				h.t.Fatal(err)
			}
			return func() { h.write(h.config.Trust, trust) }
		}},
		{"evidence removed", "file-missing", func(h *host) func() {
			name := filepath.Join(h.path("bundle"), evidence.EvidenceFile)
			old := h.read(name)
			if err := os.Remove(name); err != nil {
				h.t.Fatal(err)
			}
			return func() { h.write(name, old) }
		}},
		{"pins of other evidence", "pins-evidence", func(h *host) func() {
			other, err := h.w.Another(func(p *evidence.Predicate) { p.Images = slices.Clone(p.Images) })
			if err != nil {
				h.t.Fatal(err)
			}
			old := h.read(filepath.Join(h.path("bundle"), evidence.EvidenceFile))
			pins := h.read(h.config.Pins)
			h.release(other)
			h.write(filepath.Join(h.path("bundle"), evidence.EvidenceFile), old)
			return func() { h.write(h.config.Pins, pins) }
		}},
		{"memory that cannot be read", "rollback memory", func(h *host) func() {
			name := filepath.Join(h.config.StateDir, "rollback.json")
			old := h.read(name)
			h.write(name, []byte("{"))
			return func() { h.write(name, old) }
		}},
	}
}

// The table that is published has exactly these kinds, with their reasons.
func TestDocumentListsTheChanges(t *testing.T) {
	text, err := os.ReadFile("../../docs/trust.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| What changes | Reason in the log |\n|---|---|\n")
	table, _, closed := strings.Cut(table, "\n\n")
	var want []string
	for _, c := range changes() {
		want = append(want, "| "+c.kind+" | `"+c.reason+"` |")
	}
	if got := strings.Split(table, "\n"); !found || !closed || !slices.Equal(got, want) {
		t.Errorf("the document has\n%s\nwant\n%s", table, strings.Join(want, "\n"))
	}
}

// TestChangesAreNoticedWhileTheWorkerRuns has one row per kind of change. In each the worker has
// admitted a start before, refuses the next without a restart, and admits again when the change is
// taken back, if it can be.
func TestChangesAreNoticedWhileTheWorkerRuns(t *testing.T) {
	for _, tt := range changes() {
		t.Run(tt.kind, func(t *testing.T) {
			h := newHost(t)
			h.admitted("before")
			undo := tt.change(h)
			h.refused("after", tt.reason)
			// An image is a start's matter; everything else is seen without one.
			if err := h.gate.Look(t.Context()); (err == nil) != strings.HasPrefix(tt.kind, "image") {
				t.Errorf("a look without a start: %v", err)
			}
			if undo == nil {
				return
			}
			undo()
			h.admitted("taken back")
		})
	}
}

func revoke(role string) func(*evidence.TrustPolicy) {
	return func(p *evidence.TrustPolicy) {
		for i := range p.Keys {
			if p.Keys[i].Role == role {
				p.Keys[i].RevokedAt = p.Keys[i].NotBefore
			}
		}
	}
}

// sign gives the present pins a signature under w's policy, as a gate would that did not look.
func (h *host) sign(w *evidencetest.World) {
	h.t.Helper()
	old, err := h.w.Question()
	if err != nil {
		h.t.Fatal(err)
	}
	pins, err := evidence.VerifyPins(h.read(h.config.Pins), old.Policy, h.now)
	if err != nil {
		h.t.Fatal(err)
	}
	q, err := w.Question()
	if err != nil {
		h.t.Fatal(err)
	}
	pins.PolicyVersion = w.Policy.Version
	file, err := evidence.SealPins(q.Policy, pins, w.Gate, w.Now)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write(h.config.Pins, file)
}

// New evidence is taken while the worker runs, and its name on the wire changes with it.
func TestRenewedPinsAreTaken(t *testing.T) {
	h := newHost(t)
	before := h.gate.PinsDigest()
	next, err := h.w.Another(func(p *evidence.Predicate) {
		p.Images[0].ConfigDigest, p.Images[1].ConfigDigest = sha("1"), sha("2")
		for i := range p.Cases {
			p.Cases[i].Images = []string{sha("1"), sha("2")}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	h.release(next)
	h.refused("the image of the old pins", "not-pinned")
	h.w = next
	h.admitted("the image of the new pins")
	if h.gate.PinsDigest() == before || h.gate.CohortID() != next.Statement.Predicate.Cohort.ID || !slices.Equal(h.gate.Images(), []string{sha("1"), sha("2")}) ||
		h.gate.ManifestDigest(sha("1")) == "" || len(h.gate.EvidenceDigests()) != 1 {
		t.Errorf("pins %s, before %s, images %q", h.gate.PinsDigest(), before, h.gate.Images())
	}
}

// Between two measurements of the cohort there is at most CohortAge, and starts in between ask once.
func TestCohortIsMeasuredAgainInTime(t *testing.T) {
	h := newHost(t)
	for range 5 {
		h.admitted("at once")
	}
	if h.measured != 1 {
		t.Errorf("measured %d times", h.measured)
	}
	h.elapsed = admission.CohortAge - time.Nanosecond
	h.admitted("just before")
	h.elapsed = admission.CohortAge
	h.admitted("in time")
	if h.measured != 2 {
		t.Errorf("measured %d times", h.measured)
	}
}

// The log tells of a loss and of its end, each once, also when nobody starts anything.
func TestChangesAreLogged(t *testing.T) {
	h := newHost(t)
	old := h.read(h.config.Trust)
	h.write(h.config.Trust, []byte("{}"))
	for range 3 {
		wantUnqualified(t, "look", h.gate.Look(t.Context()))
	}
	h.write(h.config.Trust, old)
	for range 3 {
		if err := h.gate.Look(t.Context()); err != nil {
			t.Error(err)
		}
	}
	text := h.log.String()
	if strings.Count(text, "admission does not hold") != 1 || strings.Count(text, `msg="admission holds"`) != 1 {
		t.Errorf("log:\n%s", text)
	}
}

func TestLiveMustBeComplete(t *testing.T) {
	h := newHost(t)
	good := admission.LiveConfig{
		PinnedConfig: h.config, Programs: h.programs, Digest: (&filedigest.Reader{}).File,
		Cohort: func(context.Context) (string, error) { return h.cohort, nil }, Log: slog.New(slog.DiscardHandler),
		Host: func() (string, error) { return h.id, nil },
	}
	if _, err := admission.NewLive(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*admission.LiveConfig){
		"no digest":           func(c *admission.LiveConfig) { c.Digest = nil },
		"no cohort":           func(c *admission.LiveConfig) { c.Cohort = nil },
		"no log":              func(c *admission.LiveConfig) { c.Log = nil },
		"a configured cohort": func(c *admission.LiveConfig) { c.CohortID = h.cohort },
		"no supervisor":       func(c *admission.LiveConfig) { c.Programs.Supervisor = "" },
		"no memory":           func(c *admission.LiveConfig) { c.StateDir = "" },
	} {
		c := good
		edit(&c)
		if g, err := admission.NewLive(t.Context(), c); err == nil || g != nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Starts that come together while the pins are renewed under them are each admitted or refused; none
// sees a half.
func TestStartsDuringARenewal(t *testing.T) {
	h := newHost(t)
	one, two := h.w.Statement.Predicate.Images[0].ConfigDigest, h.w.Statement.Predicate.Images[1].ConfigDigest
	first := start(h.w)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := h.gate.Admit(context.Background(), first); err != nil {
					wantUnqualified(t, "during a renewal", err)
				}
				if h.gate.PinsDigest() == "" || len(h.gate.Images()) == 0 {
					t.Error("no pins at all")
				}
			}
		})
	}
	for i := range 10 {
		h.release(h.w, []string{one, two}[i%2])
	}
	h.release(h.w, one)
	close(done)
	wg.Wait()
	h.admitted("in the end")
}
