// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// Presence is what the suite saw of a feature, whatever the target claims.
type Presence string

// The closed set of presences. A claimed feature that is absent is the target's failure; a present
// one that is not claimed is reported.
const (
	Present Presence = "present"
	Absent  Presence = "absent"
	Unknown Presence = "unknown" // nothing could be looked at, for example for want of a part
)

// Probe looks whether a target has a feature. Look runs once per run, before the first case, for
// every feature, claimed or not; an error or a panic is the suite's fault and gives [Unknown].
//
// All probes of a run share one T, so that they can share a sandbox too; what they created is
// removed after the last.
type Probe struct {
	Feature Feature
	Look    func(ctx context.Context, t *T) (seen Presence, text string, err error)
}

// FeatureRecord is one feature as claimed and as seen.
type FeatureRecord struct {
	Feature  Feature  `json:"feature"`
	Claimed  bool     `json:"claimed"`
	Observed Presence `json:"observed"`
	Text     string   `json:"text"`
}

// Bounds of the looks at features: of one, and of all together. What is not looked at in time is
// unknown.
const (
	probeTimeout    = 20 * time.Second
	featuresTimeout = time.Minute
)

// see looks at every feature that the suite knows: of its cases, its probes and the profiles. The
// records are sorted by feature. A target that was seen to have no exec runs no case that needs it:
// look before the oracles are armed, which would try in vain too.
func (b *bench) see(ctx context.Context, s Suite, claims []string, image string) []FeatureRecord {
	ctx, cancel := context.WithTimeout(ctx, scaled(b.timeScale, featuresTimeout))
	defer cancel()
	records := map[Feature]FeatureRecord{}
	for _, r := range s.unseen(claims, "nothing in this suite looks at it") {
		records[r.Feature] = r
	}
	t := b.newT("features", image)
	for _, p := range s.Probes {
		r := records[p.Feature]
		r.Observed, r.Text = b.look(ctx, t, p)
		records[p.Feature] = r
	}
	t.cleanUp(b.target)
	for _, n := range t.settle() {
		t.Log("features: %s", n)
	}
	out := slices.Collect(maps.Values(records))
	slices.SortFunc(out, func(x, y FeatureRecord) int { return cmp.Compare(x.Feature, y.Feature) })
	b.know(out)
	return out
}

// unseen are the records of features before anything was looked at, sorted by feature.
func (s Suite) unseen(claims []string, why string) []FeatureRecord {
	var out []FeatureRecord
	for _, f := range s.features() {
		out = append(out, FeatureRecord{Feature: f, Claimed: slices.Contains(claims, string(f)), Observed: Unknown, Text: why})
	}
	return out
}

// know takes in what was seen of the target, also by another process of the same run.
func (b *bench) know(records []FeatureRecord) {
	b.hostless = slices.ContainsFunc(records, func(r FeatureRecord) bool { return r.Feature == FeatureExec && r.Observed == Absent })
}

// look runs one probe as a case is run, bounded and caught, and returns what it saw.
func (b *bench) look(ctx context.Context, t *T, p Probe) (Presence, string) {
	if ctx.Err() != nil {
		return Unknown, "not looked at: the time for looking at features had ended"
	}
	type sight struct {
		seen Presence
		text string
	}
	done := make(chan sight, 1)
	b.attempt(ctx, t, probeTimeout, func(ctx context.Context, t *T) error {
		seen, text, err := p.Look(ctx, t)
		if err == nil {
			done <- sight{seen, text}
		}
		return err
	})
	if notes := t.settle(); len(notes) > 0 {
		return Unknown, "not seen: " + notes[0]
	}
	select {
	case s := <-done:
		if s.seen != Present && s.seen != Absent {
			return Unknown, s.text
		}
		return s.seen, s.text
	default: // Look ended its goroutine without a word
		return Unknown, "not seen: the probe gave no answer"
	}
}

// settle returns how the last use of t ended, and what it judged, and makes t ready for the next.
func (t *T) settle() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var notes []string
	if t.ended != nil {
		notes = append(notes, t.ended.reason+": "+t.ended.text)
	}
	for _, f := range t.failures {
		notes = append(notes, f.reason+": "+f.text)
	}
	t.ended, t.broken, t.failures, t.expired = nil, false, nil, false
	return notes
}

// features are those of the suite's cases, probes and profiles, each once.
func (s Suite) features() []Feature {
	all := map[Feature]bool{}
	for _, c := range s.Cases {
		for _, f := range c.Features {
			all[f] = true
		}
	}
	for _, p := range s.Probes {
		all[p.Feature] = true
	}
	for _, p := range profiles() {
		for _, f := range p.Features {
			all[Feature(f)] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
