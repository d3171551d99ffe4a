// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"slices"
	"strings"
	"time"
)

// FleetCohort is a cohort that a release needs evidence of. It holds no facts: the members that
// are not "" say which measured descriptors it means, and a descriptor must be meant by exactly
// one of a policy's. Capabilities are demanded of those, beside the policy's own.
type FleetCohort struct {
	Name           string            `json:"name"`
	Profiles       []string          `json:"profiles"` // judged by these instead of the policy's; sorted, not empty
	Arch           string            `json:"arch,omitempty"`
	CgroupMode     string            `json:"cgroupMode,omitempty"`
	SandboxBinary  string            `json:"sandboxBinary,omitempty"` // digest
	SandboxVersion string            `json:"sandboxVersion,omitempty"`
	Platform       string            `json:"platform,omitempty"`
	QuotaBackend   string            `json:"quotaBackend,omitempty"`
	Filesystem     string            `json:"filesystem,omitempty"` // of the workspaces
	Capabilities   map[string]string `json:"capabilities,omitempty"`
}

// MaxFleet bounds the cohorts of a policy.
const MaxFleet = 64

// differs names the first member of c that d does not have, or "".
func (c FleetCohort) differs(d CohortDescriptor) string {
	for _, f := range []struct{ name, want, got string }{
		{"arch", c.Arch, d.Arch}, {"cgroupMode", c.CgroupMode, d.CgroupMode}, {"sandboxBinary", c.SandboxBinary, d.Runtime.BinaryDigest},
		{"sandboxVersion", c.SandboxVersion, d.Sandbox.Version}, {"platform", c.Platform, d.Sandbox.Platform},
		{"quotaBackend", c.QuotaBackend, d.Quota.Backend}, {"filesystem", c.Filesystem, d.Quota.Filesystem},
	} {
		if f.want != "" && f.want != f.got {
			return f.name
		}
	}
	return ""
}

func (c *checker) fleet(d TrustPolicy) {
	c.want(len(d.Fleet) <= MaxFleet, "fleet")
	for i, f := range d.Fleet {
		c.want(i == 0 || d.Fleet[i-1].Name < f.Name, "fleet: order")
		c.want(wordPattern.MatchString(f.Name), "fleet.name")
		c.want(len(f.Profiles) > 0 && sortedUnique(f.Profiles), "fleet.profiles")
		for _, name := range f.Profiles {
			_, ok := d.Catalogue.Profile(name)
			c.want(ok, "fleet.profiles: not in the catalogue")
		}
		c.capabilities(f.Capabilities, "fleet.capabilities")
		if f.SandboxBinary != "" {
			c.digest(f.SandboxBinary, "fleet.sandboxBinary")
		}
	}
}

// place is the policy's fleet cohort that a descriptor belongs to. A policy without a fleet has one
// place without a name, for every cohort that its keys may speak for.
func (p *Policy) place(d CohortDescriptor) (FleetCohort, error) {
	if len(p.doc.Fleet) == 0 {
		return FleetCohort{Profiles: p.doc.Profiles}, nil
	}
	var found []FleetCohort
	var names, why []string
	for _, f := range p.doc.Fleet {
		if m := f.differs(d); m != "" {
			why = append(why, f.Name+" by "+m)
			continue
		}
		found, names = append(found, f), append(names, f.Name)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return FleetCohort{}, deny(ReasonFleetOther, "other than %s", strings.Join(why, ", "))
	}
	// The weaker of two must not be chosen for evidence that the stronger would deny.
	return FleetCohort{}, deny(ReasonFleetAmbiguous, "%s", strings.Join(names, ", "))
}

// Fleet is the decision about all evidence that was given together: which images are released,
// and which cohort keeps the others back. A policy without a fleet gives one cohort without a name.
type Fleet struct {
	Released bool            `json:"released"` // every image that was asked for, and there is one
	Cohorts  []FleetStanding `json:"cohorts"`  // in the policy's order
	Images   []ImageRelease  `json:"images"`   // sorted by digest
}

// FleetStanding is what was given for one required cohort.
type FleetStanding struct {
	Name     string    `json:"name"`
	Profiles []string  `json:"profiles"`
	Admitted bool      `json:"admitted"`
	Reason   Reason    `json:"reason"` // "" when admitted
	Detail   string    `json:"detail"`
	Cohorts  []string  `json:"cohorts"`  // ids of the measured cohorts with admitting evidence
	NotAfter Timestamp `json:"notAfter"` // when the first of that evidence ends; "" without any
}

// ImageRelease says whether an image is released, or by which cohorts it is kept back.
type ImageRelease struct {
	Name         string  `json:"name"`
	ConfigDigest string  `json:"configDigest"`
	Released     bool    `json:"released"`
	Blocked      []Block `json:"blocked"`
}

// Block is one required cohort without live admitting evidence of an image.
type Block struct {
	Cohort string `json:"cohort"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail"`
}

// DecideFleet joins decisions under one policy. images are the config digests that are asked for;
// none asks for every workload that the evidence names. Every denied bundle among ds blocks its
// cohort: who has both a pass and a failure has to take one of them away, and say so by that.
func DecideFleet(policy *Policy, ds []Decision, images []string) Fleet {
	out := Fleet{Cohorts: []FleetStanding{}, Images: []ImageRelease{}}
	cohorts := policy.doc.Fleet
	if len(cohorts) == 0 {
		cohorts = []FleetCohort{{Profiles: policy.doc.Profiles}}
	}
	for _, c := range cohorts {
		out.Cohorts = append(out.Cohorts, standing(policy, c, ds))
	}
	for _, m := range askedImages(ds, images) {
		for _, s := range out.Cohorts {
			switch {
			case !s.Admitted:
				m.Blocked = append(m.Blocked, Block{s.Name, s.Reason, s.Detail})
			case !slices.ContainsFunc(ds, func(d Decision) bool { return d.Place == s.Name && d.Admitted && d.ran(m.ConfigDigest) }):
				m.Blocked = append(m.Blocked, Block{s.Name, ReasonImageEvidence, "no evidence of this cohort is about the image"})
			}
		}
		m.Released = len(m.Blocked) == 0
		out.Images = append(out.Images, m)
	}
	out.Released = len(out.Images) > 0 && !slices.ContainsFunc(out.Images, func(m ImageRelease) bool { return !m.Released })
	return out
}

func standing(policy *Policy, c FleetCohort, ds []Decision) FleetStanding {
	s := FleetStanding{Name: c.Name, Profiles: c.Profiles, Cohorts: []string{}, Reason: ReasonCohortEvidence, Detail: "no evidence was given"}
	var end time.Time
	for _, d := range ds {
		// What could not be read far enough to belong anywhere blocks every cohort: it may be of this one.
		if !d.Admitted && (d.Place == c.Name || !d.placed) {
			s.Admitted, s.Reason, s.Detail = false, d.Reason, d.Detail
			return s
		}
		if d.Place != c.Name || !d.Admitted {
			continue
		}
		s.Admitted, s.Reason, s.Detail = true, "", ""
		s.Cohorts = append(s.Cohorts, d.Cohort)
		if t := endOf(policy, d); end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if s.Admitted {
		slices.Sort(s.Cohorts)
		s.Cohorts, s.NotAfter = slices.Compact(s.Cohorts), At(end)
	}
	return s
}

func askedImages(ds []Decision, asked []string) []ImageRelease {
	found := map[string]ImageRelease{}
	for _, digest := range asked {
		found[digest] = ImageRelease{ConfigDigest: digest, Blocked: []Block{}}
	}
	for _, d := range ds {
		if d.statement == nil {
			continue
		}
		for _, m := range d.statement.Predicate.Images {
			old, ok := found[m.ConfigDigest]
			if m.Role == ImageWorkload && (len(asked) == 0 || ok) && old.Name == "" {
				found[m.ConfigDigest] = ImageRelease{Name: m.Name, ConfigDigest: m.ConfigDigest, Blocked: []Block{}}
			}
		}
	}
	var out []ImageRelease
	for _, digest := range slices.Sorted(keysOf(found)) {
		out = append(out, found[digest])
	}
	return out
}

// ran says whether cases of an admitted run ran in a workload image.
func (d Decision) ran(configDigest string) bool {
	return d.statement != nil && slices.Contains(workloads(d.statement.Predicate.Images), configDigest)
}

// endOf is when an admitted decision stops to hold, whatever is decided later: the earliest of the
// policy, the evidence, its age, its keys and the waivers that it needed.
func endOf(policy *Policy, d Decision) time.Time {
	p := d.statement.Predicate
	end, _ := p.Validity.NotAfter.Time()
	earlier := func(t time.Time) {
		if t.Before(end) {
			end = t
		}
	}
	earlier(policy.Expires())
	finished, _ := p.Run.FinishedAt.Time()
	earlier(finished.Add(time.Duration(policy.doc.MaxAgeSeconds) * time.Second))
	for _, w := range d.Waivers {
		t, _ := w.Expires.Time()
		earlier(t)
	}
	for _, k := range policy.doc.Keys {
		if slices.Contains(d.keys, k.SPKIDigest) {
			t, _ := k.NotAfter.Time()
			earlier(t)
		}
	}
	return end
}

func (b Block) where() string {
	if b.Cohort == "" {
		return b.Detail
	}
	return "cohort " + b.Cohort + ": " + b.Detail
}

// Blocks returns the first required cohort that keeps an image back, for the reason of a denial.
func (f Fleet) Blocks() (Block, bool) {
	for _, m := range f.Images {
		if len(m.Blocked) > 0 {
			return m.Blocked[0], true
		}
	}
	return Block{Reason: ReasonImageEvidence, Detail: "no image is named by any evidence"}, len(f.Images) == 0
}
