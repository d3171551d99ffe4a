// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// fleet is a policy of two cohorts, the host with loop images and a machine with XFS, and evidence of
// both. The machine is judged by the small profile.
type fleet struct {
	host, vm *evidencetest.World
	q        evidence.Question
}

func another(t *testing.T, w *evidencetest.World, edit func(*evidence.Predicate)) *evidencetest.World {
	t.Helper()
	out, err := w.Another(edit)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func onXFS(p *evidence.Predicate) {
	p.Cohort.Descriptor.Quota = evidence.CohortQuota{Backend: "prjquota", Filesystem: "xfs"}
	p.Profiles = []string{"small"}
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	w := world(t)
	w.Policy.Fleet = []evidence.FleetCohort{
		{Name: "host", Profiles: []string{"quota"}, QuotaBackend: "loop"},
		{Name: "vm", Profiles: []string{"small"}, Filesystem: "xfs", Capabilities: map[string]string{"sentry.openat2": "ENOSYS"}},
	}
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	return fleet{host: w, vm: another(t, w, onXFS), q: q}
}

func decide(t *testing.T, q evidence.Question, w *evidencetest.World) evidence.Decision {
	t.Helper()
	b, err := w.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	return evidence.Decide(q, b)
}

func TestFleetReleasesWhatEveryCohortAdmits(t *testing.T) {
	f := newFleet(t)
	ds := []evidence.Decision{decide(t, f.q, f.vm), decide(t, f.q, f.host)}
	for i, d := range ds {
		if !d.Admitted || d.Place != []string{"vm", "host"}[i] {
			t.Fatalf("bundle %d of %q: %s", i, d.Place, d.Detail)
		}
	}
	r := evidence.DecideFleet(f.q.Policy, ds, nil)
	if !r.Released || len(r.Images) != 2 || len(r.Cohorts) != 2 || !r.Images[0].Released || r.Cohorts[1].NotAfter == "" {
		t.Fatalf("decision %+v", r)
	}
	pins, file, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := evidence.VerifyPins(file, f.q.Policy, f.host.Now)
	if err != nil || len(got.Cohorts) != 2 || len(got.Cohorts[0].Images) != 2 || got.NotAfter != pins.NotAfter {
		t.Errorf("pins %+v, %v", got, err)
	}
	// The summary's levels are those that hold everywhere, and here no profile is on both.
	if text, err := evidence.UnverifiedPayload(file); err != nil || !strings.Contains(string(text), `"verifiedLevels":[]`) {
		t.Errorf("%s, %v", text, err)
	}
	// The order in which evidence is given says nothing.
	slices.Reverse(ds)
	if again, _, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now); err != nil || again.Cohorts[0].Cohort != pins.Cohorts[0].Cohort {
		t.Errorf("in the other order: %v", err)
	}
}

func TestFleetNamesTheCohortThatBlocks(t *testing.T) {
	onlyFirst := func(p *evidence.Predicate) {
		onXFS(p)
		p.Images = p.Images[:1]
		for i := range p.Cases {
			p.Cases[i].Images = []string{p.Images[0].ConfigDigest}
		}
	}
	fails := func(p *evidence.Predicate) {
		onXFS(p)
		p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "escaped"
	}
	ended := func(p *evidence.Predicate) {
		onXFS(p)
		p.Validity.NotAfter = p.Run.FinishedAt
	}
	other := func(p *evidence.Predicate) {
		p.Cohort.Descriptor.Quota = evidence.CohortQuota{Backend: "prjquota", Filesystem: "ext4"}
	}
	for _, tt := range []struct {
		name  string
		given []func(*evidence.Predicate) // beside the host's
		want  []evidence.Reason           // that keep the first and the second image back; "" releases
		by    string
	}{
		{"nothing of the vm", nil, []evidence.Reason{evidence.ReasonCohortEvidence, evidence.ReasonCohortEvidence}, "vm"},
		{"one image in the vm", []func(*evidence.Predicate){onlyFirst}, []evidence.Reason{"", evidence.ReasonImageEvidence}, "vm"},
		{"a failure in the vm", []func(*evidence.Predicate){fails}, []evidence.Reason{evidence.ReasonCaseFailed, evidence.ReasonCaseFailed}, "vm"},
		{"a pass and a failure in the vm", []func(*evidence.Predicate){onXFS, fails}, []evidence.Reason{evidence.ReasonCaseFailed, evidence.ReasonCaseFailed}, "vm"},
		{"expired in the vm", []func(*evidence.Predicate){ended}, []evidence.Reason{evidence.ReasonExpired, evidence.ReasonExpired}, "vm"},
		{"a cohort of no fleet", []func(*evidence.Predicate){onXFS, other}, []evidence.Reason{evidence.ReasonFleetOther, evidence.ReasonFleetOther}, "host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t)
			ds := []evidence.Decision{decide(t, f.q, f.host)}
			for _, edit := range tt.given {
				ds = append(ds, decide(t, f.q, another(t, f.host, edit)))
			}
			r := evidence.DecideFleet(f.q.Policy, ds, nil)
			if r.Released || len(r.Images) != 2 {
				t.Fatalf("released %v, %d images", r.Released, len(r.Images))
			}
			for i, m := range r.Images {
				got, by := evidence.Reason(""), ""
				if len(m.Blocked) > 0 {
					got, by = m.Blocked[0].Reason, m.Blocked[0].Cohort
				}
				if got != tt.want[i] || (got != "" && by != tt.by) || m.Released != (got == "") {
					t.Errorf("image %d is kept back by %q for %q, want %q for %q", i, by, got, tt.by, tt.want[i])
				}
			}
			if _, _, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now); err == nil {
				t.Error("pins were made")
			}
		})
	}
}

// What is asked for is released although another image is kept back, and only that is pinned.
func TestFleetReleasesTheImageThatIsAskedFor(t *testing.T) {
	f := newFleet(t)
	one := f.host.Statement.Predicate.Images[0].ConfigDigest
	vm := another(t, f.host, func(p *evidence.Predicate) {
		onXFS(p)
		p.Images = p.Images[:1]
		for i := range p.Cases {
			p.Cases[i].Images = []string{one}
		}
	})
	ds := []evidence.Decision{decide(t, f.q, f.host), decide(t, f.q, vm)}
	pins, _, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now, one)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range pins.Cohorts {
		if len(c.Images) != 1 || c.Images[0].ConfigDigest != one {
			t.Errorf("cohort %s pins %+v", c.Name, c.Images)
		}
	}
}

// The weaker profile of one cohort must not judge the evidence of another.
func TestFleetJudgesEachCohortByItsOwnProfiles(t *testing.T) {
	f := newFleet(t)
	host := another(t, f.host, func(p *evidence.Predicate) { p.Profiles = []string{"small"} })
	if d := decide(t, f.q, host); d.Reason != evidence.ReasonProfile {
		t.Errorf("the host with the machine's profile: %q", d.Reason)
	}
	w := *f.host
	w.Policy.Fleet = nil
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	if d := decide(t, q, f.vm); d.Reason != evidence.ReasonProfile {
		t.Errorf("the machine under a policy that demands more: %q", d.Reason)
	}
}

// fleetPins writes what a worker of one cohort reads: its own bundle, and the pins of the release.
func fleetPins(t *testing.T, f fleet, edit func(*evidence.Pins), images ...string) evidence.AdmitConfig {
	t.Helper()
	ds := []evidence.Decision{decide(t, f.q, f.host), decide(t, f.q, f.vm)}
	pins, file, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now, images...)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(&pins)
		if file, err = evidence.SealPins(f.q.Policy, pins, f.host.Gate, f.host.Now); err != nil {
			t.Fatal(err)
		}
	}
	c := pinned(t, f.host, f.vm)
	if err := os.WriteFile(c.Pins, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWorkerReadsItsPartOfARelease(t *testing.T) {
	f := newFleet(t)
	one := f.host.Statement.Predicate.Images[0].ConfigDigest
	a, err := evidence.Admit(fleetPins(t, f, nil, one))
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Pins(); p.Name != "host" || len(p.Images) != 1 || len(p.Evidence) != 1 || len(a.Release().Cohorts) != 2 {
		t.Errorf("pins %+v of %d cohorts", p, len(a.Release().Cohorts))
	}
}

// A gate key alone releases nothing: what is pinned here must follow from the evidence here, and the
// release must have every cohort that the policy requires.
func TestWorkerRefusesAReleaseThatIsNone(t *testing.T) {
	own := func(p *evidence.Pins) *evidence.CohortPins {
		return &p.Cohorts[slices.IndexFunc(p.Cohorts, func(c evidence.CohortPins) bool { return c.Name == "host" })]
	}
	for _, tt := range []struct {
		name string
		edit func(*evidence.Pins)
		want evidence.Reason
	}{
		{"without the vm", func(p *evidence.Pins) { p.Cohorts = []evidence.CohortPins{*own(p)} }, evidence.ReasonPinsInvalid},
		{"without this cohort", func(p *evidence.Pins) {
			p.Cohorts = slices.DeleteFunc(p.Cohorts, func(c evidence.CohortPins) bool { return c.Name == "host" })
		}, evidence.ReasonPinsInvalid},
		{"with an image that the vm lacks", func(p *evidence.Pins) {
			for i := range p.Cohorts {
				if p.Cohorts[i].Name == "vm" {
					p.Cohorts[i].Images = p.Cohorts[i].Images[:1]
				}
			}
		}, evidence.ReasonPinsInvalid},
		{"with an image of no evidence", func(p *evidence.Pins) {
			for i := range p.Cohorts {
				m := p.Cohorts[i].Images[0]
				m.ConfigDigest = evidence.Digest([]byte("stranger"))
				p.Cohorts[i].Images = append(p.Cohorts[i].Images, m)
			}
		}, evidence.ReasonPinsEvidence},
		{"with another sandbox", func(p *evidence.Pins) {
			own(p).Binaries = slices.Clone(own(p).Binaries)
			own(p).Binaries[1].Digest = evidence.Digest([]byte("stranger"))
		}, evidence.ReasonPinsEvidence},
		{"of a cohort outside the fleet", func(p *evidence.Pins) { own(p).Name = "stranger" }, evidence.ReasonPinsInvalid},
		{"by weaker profiles", func(p *evidence.Pins) { own(p).Profiles = []string{"small"} }, evidence.ReasonPinsInvalid},
		{"longer than its evidence", func(p *evidence.Pins) {
			own(p).NotAfter = evidence.At(time.Now().AddDate(1, 0, 0))
		}, evidence.ReasonPinsEvidence},
		{"longer than a cohort's part", func(p *evidence.Pins) { p.NotAfter = evidence.At(time.Now().AddDate(1, 0, 0)) }, evidence.ReasonPinsInvalid},
		{"without an end", func(p *evidence.Pins) { p.NotAfter = "" }, evidence.ReasonPinsInvalid},
		{"of another catalogue", func(p *evidence.Pins) { p.CatalogueDigest = evidence.Digest(nil) }, evidence.ReasonPinsInvalid},
		{"of candidates", func(p *evidence.Pins) { p.Mode = "qualification" }, evidence.ReasonPinsMode},
		{"ended", func(p *evidence.Pins) { p.NotAfter = evidence.At(time.Now().Add(-time.Hour)) }, evidence.ReasonExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := fleetPins(t, newFleet(t), tt.edit)
			if _, err := evidence.Admit(c); evidence.ReasonOf(err) != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// A fleet's pins name the policy in their resource too: under another policy they are pins of that, and not
// pins that are none.
func TestFleetPinsOfAnotherPolicy(t *testing.T) {
	f := newFleet(t)
	c := fleetPins(t, f, nil)
	newer := *f.host
	newer.Policy.Version++
	rewrite(t, c.Trust, &newer)
	if _, err := evidence.Admit(c); evidence.ReasonOf(err) != evidence.ReasonPinsPolicy {
		t.Errorf("%v", err)
	}
}

// A digest that is a helper in one run and a workload in another is neither.
func TestAnImageHasOneRole(t *testing.T) {
	w := world(t)
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	other := another(t, w, func(p *evidence.Predicate) {
		p.Images[1].Role = evidence.ImageHelper
		for i := range p.Cases {
			p.Cases[i].Images = []string{p.Images[0].ConfigDigest}
		}
	})
	for _, ds := range [][]evidence.Decision{{decide(t, q, w), decide(t, q, other)}, {decide(t, q, other), decide(t, q, w)}} {
		if _, _, err := evidence.MakePins(q.Policy, ds, w.Gate, w.Now); evidence.ReasonOf(err) != evidence.ReasonSplit {
			t.Errorf("%v, want %s", err, evidence.ReasonSplit)
		}
	}
}

// Pins that the gate has replaced do not come back: else an image that was taken back would.
func TestOlderPinsAreRefused(t *testing.T) {
	f := newFleet(t)
	c := fleetPins(t, f, nil)
	if _, err := evidence.Admit(c); err != nil {
		t.Fatal(err)
	}
	older, err := os.ReadFile(c.Pins)
	if err != nil {
		t.Fatal(err)
	}
	one := f.host.Statement.Predicate.Images[0].ConfigDigest
	ds := []evidence.Decision{decide(t, f.q, f.host), decide(t, f.q, f.vm)}
	c.Now = c.Now.Add(time.Minute)
	_, newer, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, c.Now, one)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		pins []byte
		want evidence.Reason
	}{{newer, ""}, {older, evidence.ReasonPinsRollback}, {newer, ""}} {
		if err := os.WriteFile(c.Pins, step.pins, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := evidence.Admit(c); evidence.ReasonOf(err) != step.want {
			t.Errorf("%v, want %q", err, step.want)
		}
	}
}

// Pins of the future are not pins: their time would outlaw all that come before it.
func TestPinsOfTheFutureAreRefused(t *testing.T) {
	f := newFleet(t)
	c := fleetPins(t, f, nil)
	ds := []evidence.Decision{decide(t, f.q, f.host), decide(t, f.q, f.vm)}
	_, file, err := evidence.MakePins(f.q.Policy, ds, f.host.Gate, f.host.Now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Pins, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := evidence.Admit(c); evidence.ReasonOf(err) != evidence.ReasonPinsInvalid {
		t.Errorf("%v", err)
	}
}

// Gate and worker are given the bundles in an order of their own, and must come to the same pins, also
// when two runs name an image differently.
func TestPinsDoNotDependOnTheOrderOfBundles(t *testing.T) {
	w := world(t)
	q, err := w.Question()
	if err != nil {
		t.Fatal(err)
	}
	q.Depth = evidence.AuditDepth
	other := another(t, w, func(p *evidence.Predicate) {
		p.Images[0].Name, p.Images[0].ManifestDigest = "renamed", evidence.Digest([]byte("packed again"))
	})
	a, b := decide(t, q, w), decide(t, q, other)
	first, _, err := evidence.MakePins(q.Policy, []evidence.Decision{a, b}, w.Gate, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := evidence.MakePins(q.Policy, []evidence.Decision{b, a}, w.Gate, w.Now)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("%v\n%+v\n%+v", err, first, second)
	}
}
