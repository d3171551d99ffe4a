// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// verdictOf judges w's rows after an edit, for its own profile or for another.
func TestVerdict(t *testing.T) {
	const serial = "ZZ-01"
	small := func(c *evidence.Catalogue) { c.Profiles[2].Tiers = []string{"full", "smoke"} }
	type test struct {
		name string
		edit func(cat *evidence.Catalogue, p *evidence.Predicate, need *evidence.Need)
		want evidence.Outcome
		code evidence.Reason // of the first finding
	}
	tests := []test{
		{"all pass", func(*evidence.Catalogue, *evidence.Predicate, *evidence.Need) {}, evidence.Conformant, ""},
		{"fail outweighs missing", func(_ *evidence.Catalogue, p *evidence.Predicate, _ *evidence.Need) {
			p.Cases = p.Cases[1:]
			p.Cases[0].Status = evidence.StatusFail
		}, evidence.NonConformant, evidence.ReasonCaseMissing},
		{"no rows", func(_ *evidence.Catalogue, p *evidence.Predicate, _ *evidence.Need) { p.Cases = nil }, evidence.Incomplete, evidence.ReasonCaseMissing},
		{"no profile", func(_ *evidence.Catalogue, _ *evidence.Predicate, n *evidence.Need) { n.Profiles = nil }, evidence.Incomplete, evidence.ReasonProfile},
		{"no image", func(_ *evidence.Catalogue, _ *evidence.Predicate, n *evidence.Need) { n.Images = nil }, evidence.Incomplete, evidence.ReasonCaseImages},
		{"no catalogue", func(c *evidence.Catalogue, p *evidence.Predicate, _ *evidence.Need) {
			*c = evidence.Catalogue{}
			p.Cases = nil
		}, evidence.Incomplete, evidence.ReasonCatalogue},
		{"failure outside the profile", func(_ *evidence.Catalogue, p *evidence.Predicate, _ *evidence.Need) {
			row := p.Cases[0]
			row.ID, row.Status, row.Reason = serial, evidence.StatusFail, "escaped"
			p.Cases = append(p.Cases, row)
		}, evidence.NonConformant, evidence.ReasonCaseFailed},
		{"not run outside the profile", func(_ *evidence.Catalogue, p *evidence.Predicate, _ *evidence.Need) {
			row := p.Cases[0]
			row.ID, row.Status = serial, evidence.StatusNotRun
			p.Cases = append(p.Cases, row)
		}, evidence.Incomplete, evidence.ReasonCaseNotRun},
		{"not applicable outside the profile and not claimed", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			i := slices.IndexFunc(p.Cases, func(r evidence.CaseRow) bool { return r.ID == "QT-01" })
			p.Cases[i].Status = evidence.StatusNotApplicable
			n.Profiles, n.Claims = []string{"small"}, []string{"exec", "files"}
		}, evidence.Conformant, ""},
		{"not applicable though claimed", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			i := slices.IndexFunc(p.Cases, func(r evidence.CaseRow) bool { return r.ID == "QT-01" })
			p.Cases[i].Status = evidence.StatusNotApplicable
			n.Profiles = []string{"small"}
		}, evidence.Incomplete, evidence.ReasonCaseNotApplicable},
		{"left out though claimed", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			small(c)
			n.Profiles, p.Cases = []string{"small"}, p.Cases[:3] // which does not demand QT-01
		}, evidence.Incomplete, evidence.ReasonCaseMissing},
		{"left out, and one of its features is not claimed", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			small(c)
			n.Profiles, n.Claims = []string{"small"}, []string{"exec", "files"}
			p.Cases = p.Cases[:3]
		}, evidence.Conformant, ""},
		{"left out in a tier that the profile does not run", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Profiles, p.Cases = []string{"small"}, p.Cases[:2]
		}, evidence.Conformant, ""},
		{"two profiles", func(_ *evidence.Catalogue, _ *evidence.Predicate, n *evidence.Need) {
			n.Profiles = []string{"quota", "small"}
		}, evidence.Conformant, ""},
		{"empty profile", func(_ *evidence.Catalogue, _ *evidence.Predicate, n *evidence.Need) {
			n.Profiles = []string{"credentials"} // it requires two cases, and none of credentials
		}, evidence.Incomplete, evidence.ReasonProfile},
		{"empty profile beside a full one", func(_ *evidence.Catalogue, _ *evidence.Predicate, n *evidence.Need) {
			n.Profiles = []string{"credentials", "quota"}
		}, evidence.Incomplete, evidence.ReasonProfile},
		{"claimed and absent", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Features = saw(n.Features, "quota", evidence.FeatureAbsent)
		}, evidence.NonConformant, evidence.ReasonClaimAbsent},
		{"claimed, absent and outside the profiles", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Profiles, n.Features = []string{"small"}, saw(n.Features, "quota", evidence.FeatureAbsent)
		}, evidence.NonConformant, evidence.ReasonClaimAbsent},
		{"claimed and unknown", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Features = saw(n.Features, "quota", evidence.FeatureUnknown)
		}, evidence.Incomplete, evidence.ReasonClaimUnchecked},
		{"claimed and not looked at", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Features = nil
		}, evidence.Incomplete, evidence.ReasonClaimUnchecked},
		{"claimed and seen in two ways", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Features = append(slices.Clone(n.Features), evidence.SeenFeature{Feature: "quota", Observed: evidence.FeatureAbsent})
		}, evidence.Incomplete, evidence.ReasonClaimUnchecked},
		{"claimed, in no case and not seen", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Claims, n.Features = []string{"credentials", "exec", "files", "quota"}, saw(n.Features, "credentials", evidence.FeatureUnknown)
		}, evidence.Incomplete, evidence.ReasonClaimUnchecked},
		{"claimed beyond the vocabulary", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Claims = append([]string{"acceleration"}, n.Claims...)
		}, evidence.Conformant, ""},
		{"present and not claimed", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			n.Features = saw(n.Features, "credentials", evidence.FeaturePresent)
		}, evidence.Conformant, ""},
		{"claimed, unknown, and its only case could not run", func(_ *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			p.Cases[3].Status = evidence.StatusNotRun
			n.Profiles, n.Features = []string{"small"}, saw(n.Features, "quota", evidence.FeatureUnknown)
		}, evidence.Incomplete, evidence.ReasonCaseNotRun},
	}
	// A profile that lists its cases demands those, whatever their tiers and whatever else the target claims.
	list := func(c *evidence.Catalogue, n *evidence.Need, ids ...string) {
		i := slices.IndexFunc(c.Profiles, func(p evidence.Profile) bool { return p.Name == "small" })
		c.Profiles[i].Features, c.Profiles[i].Core = []string{"exec", "files", "quota"}, []string{"quota"}
		c.Profiles[i].Tiers, c.Profiles[i].Cases = []string{}, ids
		n.Profiles = []string{"small"}
	}
	only := func(p *evidence.Predicate, id string) {
		p.Cases = slices.DeleteFunc(p.Cases, func(r evidence.CaseRow) bool { return r.ID != id })
	}
	tests = append(tests, []test{
		{"exactly the list", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01")
			only(p, "QT-01")
		}, evidence.Conformant, ""},
		{"one of the list is missing", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, p.Cases[0].ID, "QT-01")
			only(p, "QT-01")
		}, evidence.Incomplete, evidence.ReasonCaseMissing},
		{"one of the list fails", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01")
			only(p, "QT-01")
			p.Cases[0].Status, p.Cases[0].Reason = evidence.StatusFail, "unbounded"
		}, evidence.NonConformant, evidence.ReasonCaseFailed},
		{"the list names a case that the catalogue has not", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01", "QT-77")
			only(p, "QT-01")
		}, evidence.Incomplete, evidence.ReasonProfile},
		{"a list beside a whole profile", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01")
			only(p, "QT-01")
			n.Profiles = []string{"quota", "small"}
		}, evidence.Incomplete, evidence.ReasonCaseMissing},
		{"a list with tiers", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01")
			c.Profiles[2].Tiers = []string{"smoke"}
		}, evidence.Incomplete, evidence.ReasonCatalogue},
		{"a list beyond its features", func(c *evidence.Catalogue, p *evidence.Predicate, n *evidence.Need) {
			list(c, n, "QT-01")
			c.Profiles[2].Features, c.Profiles[2].Core = []string{"exec", "files"}, []string{"exec"}
		}, evidence.Incomplete, evidence.ReasonCatalogue},
	}...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := world(t)
			cat, p := w.Catalogue, w.Statement.Predicate
			need := evidence.Need{
				Profiles: p.Profiles, Claims: p.Target.Claims, Features: p.Run.Arming.Features, Oracles: p.Run.Arming.Oracles, Now: w.Now,
				Images: []string{p.Images[0].ConfigDigest, p.Images[1].ConfigDigest},
			}
			tt.edit(&cat, &p, &need)
			j := evidence.Verdict(cat, p.Cases, need)
			if j.Verdict != tt.want {
				t.Errorf("verdict %s, want %s: %+v", j.Verdict, tt.want, j.Findings)
			}
			var code evidence.Reason
			if len(j.Findings) > 0 {
				code = j.Findings[0].Code
			}
			if code != tt.code {
				t.Errorf("first finding %q, want %q", code, tt.code)
			}
			if len(j.Waived) > 0 {
				t.Errorf("waived %+v without a waiver", j.Waived)
			}
			if j.Counts.Total != int64(len(p.Cases)) {
				t.Errorf("counts %+v over %d rows", j.Counts, len(p.Cases))
			}
		})
	}
}

// saw is list with another answer for one feature.
func saw(list []evidence.SeenFeature, feature, observed string) []evidence.SeenFeature {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Feature == feature {
			list[i].Observed = observed
		}
	}
	return list
}

func TestCohortIDCoversEveryFact(t *testing.T) {
	d := world(t).Statement.Predicate.Cohort.Descriptor
	seen := map[string]string{}
	for name, edit := range map[string]func(*evidence.CohortDescriptor){
		"same": func(*evidence.CohortDescriptor) {}, "arch": func(c *evidence.CohortDescriptor) { c.Arch = "arm64" },
		"build": func(c *evidence.CohortDescriptor) { c.Kernel.Build += "x" }, "lsm": func(c *evidence.CohortDescriptor) { c.LSMs = []string{"apparmor"} },
		"shim": func(c *evidence.CohortDescriptor) { c.Engine.ShimDigest = c.Engine.EngineDigest }, "args": func(c *evidence.CohortDescriptor) { c.Runtime.Args = nil },
		"platform": func(c *evidence.CohortDescriptor) { c.Sandbox.Platform = "ptrace" }, "swap": func(c *evidence.CohortDescriptor) { c.SwapAccounting = true },
		"cmdline": func(c *evidence.CohortDescriptor) { c.KernelCmdline = []string{"mitigations=off"} },
		"sysctl":  func(c *evidence.CohortDescriptor) { c.Sysctls = map[string]string{"fs.protected_hardlinks": "0"} },
	} {
		c := d
		edit(&c)
		id, err := evidence.CohortID(c)
		if err != nil || !evidence.ValidDigest(id) {
			t.Fatalf("%s: %s, %v", name, id, err)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s have one id", name, other)
		}
		seen[id] = name
	}
	empty := d
	empty.LSMs = []string{}
	a, _ := evidence.CohortID(d)
	if b, err := evidence.CohortID(empty); err != nil || a != b {
		t.Errorf("nil and empty list give %s and %s (%v)", a, b, err)
	}
}

func TestTimestamp(t *testing.T) {
	for s, want := range map[evidence.Timestamp]bool{
		"2026-11-29T20:39:00Z": true, "2026-11-29T20:39:60Z": false, "2026-11-29T20:39:00+00:00": false,
		"2026-11-29T20:39:00.0Z": false, "2026-11-29t20:39:00z": false, "2026-02-30T00:00:00Z": false, "": false,
	} {
		if _, ok := s.Time(); ok != want {
			t.Errorf("%q accepted: %v", s, ok)
		}
	}
}
