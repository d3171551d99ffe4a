// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Arming shows that one oracle detects a planted positive. Arm runs once per run, before the
// first case; a returned error, a judged failure or a missing witness leaves the oracle unarmed.
type Arming struct {
	Oracle Oracle
	Arm    func(ctx context.Context, t *T) error
}

// Open makes a target from its driver's configuration. dir is a folder for this run's state,
// new and empty; what the driver leaves elsewhere it removes in Target.Close.
type Open func(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error)

// Suite is what parent and child both hold: values compiled into the binary.
type Suite struct {
	Cases []Case
	// Unproven cases run when a run names them, and then that run is incomplete. They are in no catalogue, so no
	// evidence speaks of them. May be nil.
	Unproven []Case
	Arming   []Arming
	Probes   []Probe
	Drivers  map[string]Open
	// Families names the prefixes of the cases' ids for people, for example "FS"; may be nil.
	Families map[string]string
}

// Check returns the first fault of the suite's own data: an id twice, a case without an end
// or a time bound, an oracle that nobody can arm, a feature that two probes look at.
func (s Suite) Check() error {
	seen := map[string]bool{}
	for _, c := range slices.Concat(s.Cases, s.Unproven) {
		switch {
		case c.ID == "" || strings.TrimSpace(c.ID) != c.ID || seen[c.ID]:
			return fmt.Errorf("case id %q is empty, padded or there twice", c.ID)
		case c.Revision < 1 || c.Title == "" || c.Run == nil || c.Timeout <= 0:
			return fmt.Errorf("case %s lacks revision, title, time-out or Run", c.ID)
		case !slices.Contains([]Tier{Smoke, Full, Serial}, c.Tier):
			return fmt.Errorf("case %s has the unknown tier %q", c.ID, c.Tier)
		}
		seen[c.ID] = true
		for _, o := range c.Oracles {
			if !slices.ContainsFunc(s.Arming, func(a Arming) bool { return a.Oracle == o }) {
				return fmt.Errorf("case %s needs the oracle %q, which nothing arms", c.ID, o)
			}
		}
	}
	looked := map[Feature]bool{}
	for _, p := range s.Probes {
		if p.Feature == "" || p.Look == nil || looked[p.Feature] {
			return fmt.Errorf("the probe of feature %q is empty, or there twice", p.Feature)
		}
		looked[p.Feature] = true
	}
	return nil
}

// Select returns the cases of tier (serial includes full, full includes smoke), narrowed to ids
// when there are any, in catalogue order; unproven ones only where ids name them. An unknown id or tier, or nothing left, is an error.
func (s Suite) Select(tier Tier, ids []string) ([]Case, error) {
	tiers := map[Tier][]Tier{Smoke: {Smoke}, Full: {Smoke, Full}, Serial: {Smoke, Full, Serial}}[tier]
	if tiers == nil {
		return nil, fmt.Errorf("unknown tier %q: it is smoke, full or serial", tier)
	}
	for _, id := range ids {
		if _, ok := s.find(id); !ok {
			return nil, fmt.Errorf("unknown case %q", id)
		}
	}
	var out []Case
	for _, c := range s.Cases {
		if len(ids) > 0 && slices.Contains(ids, c.ID) || len(ids) == 0 && slices.Contains(tiers, c.Tier) {
			out = append(out, c)
		}
	}
	for _, c := range s.Unproven {
		if slices.Contains(ids, c.ID) {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no case is left to run in tier %s", tier)
	}
	return out, nil
}

func (s Suite) find(id string) (Case, bool) {
	for _, c := range slices.Concat(s.Cases, s.Unproven) {
		if c.ID == id {
			return c, true
		}
	}
	return Case{}, false
}
