// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Catalogue is the golden list that a verifier holds: what must have run. It is data of the
// case model, without the code.
type Catalogue struct {
	ID       string    `json:"id"`       // "hallmark-2026.3"
	Cases    []CaseRef `json:"cases"`    // sorted by id
	Profiles []Profile `json:"profiles"` // sorted by name
}

// CaseRef is one case of the golden list.
type CaseRef struct {
	ID       string   `json:"id"`
	Revision int64    `json:"revision"`
	Tier     string   `json:"tier"`
	Features []string `json:"features"` // sorted
	Oracles  []string `json:"oracles"`  // sorted
	PerImage bool     `json:"perImage"`
}

// Profile is a named set of features. It requires every case of its tiers whose features are
// all in the set, or instead exactly the cases that it lists, for a cohort on which no more can be run: such a
// profile has no tiers, and shows that much and no more. Core are those that it is about: without a required case of each it shows
// nothing, however many other cases it requires; see [Catalogue.Lacks].
type Profile struct {
	Name     string   `json:"name"`
	Features []string `json:"features"`        // sorted
	Core     []string `json:"core"`            // sorted, not empty, all in Features
	Tiers    []string `json:"tiers"`           // sorted; empty where Cases is not
	Cases    []string `json:"cases,omitempty"` // ids, sorted
}

// Digest returns the digest of c's RFC 8785 form, after [Catalogue.Check].
func (c Catalogue) Digest() (string, error) {
	if err := c.Check(); err != nil {
		return "", err
	}
	b, err := strictjson.Canonical(c)
	if err != nil {
		return "", fmt.Errorf("catalogue digest: %w", err)
	}
	return Digest(b), nil
}

// Sort puts every list of c into its order.
func (c *Catalogue) Sort() {
	for i := range c.Cases {
		slices.Sort(c.Cases[i].Features)
		slices.Sort(c.Cases[i].Oracles)
	}
	for i := range c.Profiles {
		slices.Sort(c.Profiles[i].Features)
		slices.Sort(c.Profiles[i].Core)
		slices.Sort(c.Profiles[i].Tiers)
		slices.Sort(c.Profiles[i].Cases)
	}
	sort.Slice(c.Cases, func(i, j int) bool { return c.Cases[i].ID < c.Cases[j].ID })
	sort.Slice(c.Profiles, func(i, j int) bool { return c.Profiles[i].Name < c.Profiles[j].Name })
}

// Check returns everything that is wrong with c: a catalogue without cases, without profiles,
// with a profile that is about nothing, or out of order. A profile that no case serves yet is not
// wrong: whoever demands it is told, by [Verdict].
func (c Catalogue) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("catalogue: "+format, args...)) }
	if !wordPattern.MatchString(c.ID) {
		bad("id %q", c.ID)
	}
	if len(c.Cases) == 0 || len(c.Profiles) == 0 {
		bad("%d cases and %d profiles", len(c.Cases), len(c.Profiles))
	}
	for i, r := range c.Cases {
		if !caseIDPattern.MatchString(r.ID) || r.Revision < 1 || r.Tier == "" {
			bad("case %q revision %d tier %q", r.ID, r.Revision, r.Tier)
		}
		if i > 0 && c.Cases[i-1].ID >= r.ID {
			bad("case %q out of order", r.ID)
		}
		if !sortedUnique(r.Features) || !sortedUnique(r.Oracles) {
			bad("case %q: features or oracles out of order", r.ID)
		}
	}
	for i, p := range c.Profiles {
		if !wordPattern.MatchString(p.Name) || !sortedUnique(p.Features) || !sortedUnique(p.Tiers) {
			bad("profile %q", p.Name)
		}
		if i > 0 && c.Profiles[i-1].Name >= p.Name {
			bad("profile %q out of order", p.Name)
		}
		if len(p.Core) == 0 || !sortedUnique(p.Core) || !subset(p.Core, p.Features) {
			bad("profile %q: core %q", p.Name, p.Core)
		}
		if len(p.Cases) > 0 && (len(p.Tiers) > 0 || !sortedUnique(p.Cases)) {
			bad("profile %q: cases %q beside tiers %q", p.Name, p.Cases, p.Tiers)
		}
		for _, id := range p.Cases {
			if i := slices.IndexFunc(c.Cases, func(r CaseRef) bool { return r.ID == id }); i >= 0 && !subset(c.Cases[i].Features, p.Features) {
				bad("profile %q: case %q needs other features", p.Name, id)
			}
		}
	}
	return errors.Join(errs...)
}

// Requires says whether the profile demands a pass of r.
func (p Profile) Requires(r CaseRef) bool {
	if len(p.Cases) > 0 {
		return slices.Contains(p.Cases, r.ID)
	}
	return slices.Contains(p.Tiers, r.Tier) && subset(r.Features, p.Features)
}

// Lacks returns the core features of p that no case required by it needs, sorted, and then the cases that p lists and
// c does not have. While there is one, a run that p judges shows nothing of it: p is empty.
func (c Catalogue) Lacks(p Profile) []string {
	var out []string
	for _, f := range p.Core {
		if !slices.ContainsFunc(c.Cases, func(r CaseRef) bool { return slices.Contains(r.Features, f) && p.Requires(r) }) {
			out = append(out, f)
		}
	}
	for _, id := range p.Cases {
		if !slices.ContainsFunc(c.Cases, func(r CaseRef) bool { return r.ID == id }) {
			out = append(out, id)
		}
	}
	return out
}

// knows says whether a feature is of c's vocabulary: that of its cases and profiles.
func (c Catalogue) knows(feature string) bool {
	return slices.ContainsFunc(c.Cases, func(r CaseRef) bool { return slices.Contains(r.Features, feature) }) ||
		slices.ContainsFunc(c.Profiles, func(p Profile) bool { return slices.Contains(p.Features, feature) })
}

// Profile returns the profile of that name.
func (c Catalogue) Profile(name string) (Profile, bool) {
	i := slices.IndexFunc(c.Profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return c.Profiles[i], true
}

func sortedUnique(s []string) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] >= s[i] {
			return false
		}
	}
	return true
}

func subset(a, b []string) bool {
	for _, x := range a {
		if !slices.Contains(b, x) {
			return false
		}
	}
	return true
}
