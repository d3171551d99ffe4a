// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
)

// Which cohorts a release needs: by default those that expect a conformant worker.
func TestMembersOfTheRelease(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	j := &job{repo: repo, steps: io.Discard, lab: &lab.Lab{Missing: map[string]string{lab.RuntimeRunsc: "it was not built"}}}
	names := func(ms []member) []string {
		var out []string
		for _, m := range ms {
			if m.place.Name != m.file.Name || m.cohort != nil || m.place.SandboxBinary != "" {
				t.Errorf("%s: place %+v, cohort %v", m.file.Name, m.place, m.cohort)
			}
			out = append(out, m.file.Name)
		}
		return out
	}
	some, err := j.members(t.Context(), nil, false, nil)
	if got := names(some); err != nil || !slices.Contains(got, "worker-runsc") || slices.Contains(got, "runc-control") {
		t.Errorf("by default %q, %v", got, err)
	}
	if some[slices.Index(names(some), "worker-runsc")].why != "it was not built" {
		t.Errorf("%+v", some)
	}
	all, err := j.members(t.Context(), nil, true, map[string]string{"runc-control": "/b"})
	got := names(all)
	if err != nil || !slices.IsSorted(got) || !slices.Contains(got, "runc-control") || !slices.Contains(got, "worker-runsc-deb") || slices.Contains(got, "bubblewrap") || slices.Contains(got, "docker-runc") {
		t.Errorf("all are %q, %v", got, err)
	}
	if all[slices.Index(got, "runc-control")].bundle != "/b" {
		t.Error("evidence from elsewhere is not taken")
	}
	// Its runtime tells its cohort from those that require less.
	f := newFleetWorld(t, "here")
	given := f.members[slices.IndexFunc(f.members, func(m member) bool { return m.file.Name == "control" })].bundle
	if got := runtimeOf(given); got != evidence.Digest([]byte("another runtime")) {
		t.Errorf("the runtime of given evidence is %q", got)
	}
	taken, err := j.members(t.Context(), []string{"runc-control"}, false, map[string]string{"runc-control": given})
	if err != nil || taken[0].place.SandboxBinary != runtimeOf(given) {
		t.Errorf("%+v, %v", taken, err)
	}
	one, err := j.members(t.Context(), []string{"runc-control"}, false, nil)
	if got := names(one); err != nil || !slices.Equal(got, []string{"runc-control"}) {
		t.Errorf("one is %q, %v", got, err)
	}
	for want, ask := range map[string]func() ([]member, error){
		"has no cohort": func() ([]member, error) { return j.members(t.Context(), []string{"bubblewrap"}, false, nil) },
		"does not need": func() ([]member, error) {
			return j.members(t.Context(), nil, false, map[string]string{"runc-control": "/b"})
		},
		"has no cohort ": func() ([]member, error) { return j.members(t.Context(), nil, true, map[string]string{"no-such": "/b"}) },
	} {
		if _, err := ask(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for path, want := range map[string]string{filepath.Join(repo, "out", "x"): "out/x", "/elsewhere/bundle": "/elsewhere/bundle"} {
		if got := j.relative(path); got != want {
			t.Errorf("%s is shown as %s", path, got)
		}
	}
	j.out = filepath.Join(t.TempDir(), "out")
	for _, ask := range []struct {
		bundle, key string
		want        bool
	}{
		{"/elsewhere/bundle", "ci,lab,/elsewhere/evidence.pub", true}, {j.out + "/worker-runsc/bundle", "", false}, {"/elsewhere/bundle", "ci,lab," + j.out + "/evidence.pub", false},
		{filepath.Dir(j.out) + "/outer", "", true},
	} {
		if err := j.outside(map[string]string{"vm": ask.bundle}, []string{ask.key}); (err == nil) != ask.want {
			t.Errorf("%s, %s: %v", ask.bundle, ask.key, err)
		}
	}
	if _, err := namedBundles([]string{"vm=" + t.TempDir(), "vm=" + t.TempDir()}); err == nil {
		t.Error("one cohort has two bundles")
	}
	for _, bad := range []string{"vm", "=x", "vm=", "vm=" + filepath.Join(t.TempDir(), "none")} {
		if _, err := namedBundles([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// fleetWorld is evidence of one run on each of three cohorts: one conforms, one is of another lab, one fails.
type fleetWorld struct {
	release release
	members []member
	w       *evidencetest.World
}

func newFleetWorld(t *testing.T, needed ...string) *fleetWorld {
	t.Helper()
	dir := t.TempDir()
	w, err := evidencetest.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(dir, "elsewhere.key")
	if _, err := signing.Generate(elsewhere, gate.PublicPath(elsewhere), evidence.Ed25519); err != nil {
		t.Fatal(err)
	}
	place := func(name, binary, filesystem string) evidence.FleetCohort {
		return evidence.FleetCohort{Name: name, Profiles: []string{"quota"}, SandboxBinary: binary, Filesystem: filesystem}
	}
	runsc := w.Statement.Predicate.Cohort.Descriptor.Runtime.BinaryDigest
	other := evidence.Digest([]byte("another runtime"))
	f := &fleetWorld{w: w, release: release{
		dir: filepath.Join(dir, "fleet"), catalogue: w.Catalogue, keys: []string{"ci,vm-lab," + gate.PublicPath(elsewhere)},
		fleet: []evidence.FleetCohort{place("control", other, ""), place("here", runsc, "ext4"), place("vm", "", "xfs")},
	}}
	f.release.fleet = slices.DeleteFunc(f.release.fleet, func(c evidence.FleetCohort) bool { return !slices.Contains(needed, c.Name) })
	if err := f.release.init(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		name, key, issuer string
		edit              func(*evidence.Predicate)
	}{
		{"control", filepath.Join(f.release.dir, gate.EvidenceKeyFile), issuerID, func(p *evidence.Predicate) {
			p.Cohort.Descriptor.Runtime.BinaryDigest = other
			for i := range p.Binaries {
				if p.Binaries[i].Role == evidence.BinarySandbox {
					p.Binaries[i].Digest = other
				}
			}
			p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "host-kernel-visible"
		}},
		{"here", filepath.Join(f.release.dir, gate.EvidenceKeyFile), issuerID, func(*evidence.Predicate) {}},
		{"vm", elsewhere, "vm-lab", func(p *evidence.Predicate) {
			p.Cohort.Descriptor.Quota = evidence.CohortQuota{Backend: "prjquota", Filesystem: "xfs"}
			// Evidence from elsewhere is older than the keys that are made here.
			hour := evidence.At(time.Now().Add(-time.Hour))
			p.Run.StartedAt, p.Run.FinishedAt, p.Validity.NotBefore = hour, hour, hour
		}},
	} {
		signer, err := signing.Open(context.Background(), m.key, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.Evidence, w.Mutation = signer, signer
		sequence := w.Statement.Predicate.Run.Sequence
		run, err := w.Another(func(p *evidence.Predicate) {
			p.Issuer.ID, p.MutationEvidence = m.issuer, nil
			p.Run.Sequence = sequence + int64(len(f.members)) + 1
			// The key has been there for a minute.
			p.Run.StartedAt, p.Run.FinishedAt = evidence.At(time.Now()), evidence.At(time.Now())
			p.Validity = evidence.Validity{NotBefore: p.Run.StartedAt, NotAfter: evidence.At(time.Now().Add(time.Hour))}
			m.edit(p)
		})
		if err != nil {
			t.Fatal(err)
		}
		run.Blobs = slices.DeleteFunc(run.Blobs, func(b evidence.Blob) bool { return b.Role == evidence.ArtifactMutation })
		b, err := run.Bundle()
		if err != nil {
			t.Fatal(err)
		}
		bundle := filepath.Join(dir, m.name, "bundle")
		if err := b.Write(bundle); err != nil {
			t.Fatal(err)
		}
		f.members = append(f.members, member{file: runcmd.CohortFile{Name: m.name}, bundle: bundle})
	}
	return f
}

// decide gives the bundles of the named cohorts only, and returns what is printed.
func (f *fleetWorld) decide(names ...string) (string, error) {
	f.release.bundles = nil
	members := slices.Clone(f.members)
	for i, m := range members {
		if slices.Contains(names, m.file.Name) {
			f.release.bundles = append(f.release.bundles, m.bundle)
		} else {
			members[i].bundle, members[i].why = "", "the machine is away"
		}
	}
	d, err := f.release.decide()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	j := &job{out: f.release.dir, repo: filepath.Dir(f.release.dir), answer: &out}
	err = j.released(members, d)
	return out.String(), err
}

func TestFleetDecisionNamesWhatBlocks(t *testing.T) {
	f := newFleetWorld(t, "control", "here", "vm")
	pins := filepath.Join(f.release.dir, gate.PinsFile)
	for _, tt := range []struct {
		give []string
		want []string
	}{
		{[]string{"control", "here", "vm"}, []string{
			"kept back for 3 cohorts\n", "control: blocks: case-failed", "here: admitted until", "vm: admitted until", "kept back by control (case-failed)\n",
		}},
		{[]string{"here"}, []string{
			"control: blocks: cohort-without-evidence", "vm: blocks: cohort-without-evidence", "here: admitted", "no evidence of vm: the machine is away\n",
			"kept back by control (cohort-without-evidence), vm (cohort-without-evidence)\n",
		}},
	} {
		said, err := f.decide(tt.give...)
		var typed *exit.Error
		if !errors.As(err, &typed) || typed.Status != exit.Negative || typed.Remedy == "" {
			t.Errorf("%q: %v", tt.give, err)
		}
		for _, line := range tt.want {
			if !strings.Contains(said, line) {
				t.Errorf("%q does not say %q:\n%s", tt.give, line, said)
			}
		}
		if _, err := os.Stat(pins); err == nil {
			t.Errorf("%q: pins were written", tt.give)
		}
	}
	var typed *exit.Error
	if _, err := f.decide(); !errors.As(err, &typed) || typed.Status != exit.Incomplete {
		t.Errorf("without any evidence: %v", err)
	}
}

func TestFleetIsReleased(t *testing.T) {
	f := newFleetWorld(t, "here", "vm")
	said, err := f.decide("here", "vm")
	if err != nil || !strings.HasPrefix(said, "released for 2 cohorts\n") || !strings.Contains(said, "pins ") || strings.Contains(said, "blocks") {
		t.Errorf("%v\n%s", err, said)
	}
	if _, err := os.Stat(filepath.Join(f.release.dir, gate.PinsFile)); err != nil {
		t.Error(err)
	}
	// Without its key, evidence from elsewhere is nobody's, and blocks whatever it may be of.
	f = newFleetWorld(t, "here", "vm")
	f.release.keys, f.release.dir = nil, filepath.Join(t.TempDir(), "fleet")
	if err := f.release.init(); err != nil {
		t.Fatal(err)
	}
	said, err = f.decide("vm")
	if err == nil || !strings.Contains(said, "vm: blocks: key-unknown") || !strings.Contains(said, "here: blocks: key-unknown") {
		t.Errorf("%v\n%s", err, said)
	}
}
