// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestFeaturesAreSeen(t *testing.T) {
	f := &fake{}
	b := &bench{target: &target.Target{Runtime: f}, armed: map[Oracle]bool{}, log: func(string) {}}
	var shared []*T
	look := func(f Feature, run func(ctx context.Context, t *T) (Presence, string, error)) Probe {
		return Probe{Feature: f, Look: func(ctx context.Context, t *T) (Presence, string, error) {
			shared = append(shared, t)
			return run(ctx, t)
		}}
	}
	s := Suite{Probes: []Probe{
		look("a-error", func(context.Context, *T) (Presence, string, error) {
			return Present, "not so", errors.New("no way there")
		}),
		look("b-panic", func(context.Context, *T) (Presence, string, error) { panic("a bug in the probe") }),
		look("c-part", func(context.Context, *T) (Presence, string, error) { return Absent, "", target.ErrUnavailable }),
		look("d-ended", func(ctx context.Context, t *T) (Presence, string, error) { runtime.Goexit(); return Present, "", nil }),
		look("e-failed", func(ctx context.Context, t *T) (Presence, string, error) {
			t.Fail("judged", "a probe does not judge")
			return Present, "", nil
		}),
		look("f-word", func(context.Context, *T) (Presence, string, error) { return "perhaps", "who knows", nil }),
		look("g-there", func(ctx context.Context, t *T) (Presence, string, error) {
			t.Sandbox(ctx, target.Spec{WorkspaceID: "one"})
			return Present, "seen", nil
		}),
		look(FeatureExec, func(context.Context, *T) (Presence, string, error) { return Absent, "refused", nil }),
	}}
	want := map[Feature]struct {
		seen Presence
		text string
	}{
		"a-error": {Unknown, "no way there"}, "b-panic": {Unknown, "a bug in the probe"}, "c-part": {Unknown, "unavailable"}, "d-ended": {Unknown, "without a return"},
		"e-failed": {Unknown, "a probe does not judge"}, "f-word": {Unknown, "who knows"}, "g-there": {Present, "seen"},
		FeatureExec: {Absent, "refused"}, FeatureCreds: {Unknown, "nothing in this suite looks at it"},
	}
	records := b.see(t.Context(), s, []string{"exec", "g-there", "elsewhere"}, "image")
	for i, r := range records {
		if i > 0 && records[i-1].Feature >= r.Feature {
			t.Errorf("%s is out of order", r.Feature)
		}
		if w, ok := want[r.Feature]; ok && (r.Observed != w.seen || !strings.Contains(r.Text, w.text)) {
			t.Errorf("%s is %s, %q; want %s, %q", r.Feature, r.Observed, r.Text, w.seen, w.text)
		}
		delete(want, r.Feature)
		if claimed := r.Feature == FeatureExec || r.Feature == "g-there"; r.Claimed != claimed {
			t.Errorf("%s claimed: %v", r.Feature, r.Claimed)
		}
	}
	if len(want) > 0 {
		t.Errorf("no record of %v", want)
	}
	if len(shared) != len(s.Probes) {
		t.Errorf("%d of %d probes looked", len(shared), len(s.Probes))
	}
	for _, u := range shared {
		if u != shared[0] {
			t.Error("the probes do not share what they create")
		}
	}
	if len(f.disposed) != 1 || len(f.purged) != 1 || f.purged[0] != "one" {
		t.Errorf("disposed %v, purged %v", f.disposed, f.purged)
	}
	// Whoever runs nothing is not attacked.
	if s, reason, _ := b.prerequisite(Case{Features: []Feature{FeatureExec}}, []string{"exec"}); s != NotRun || reason != "feature-absent" {
		t.Errorf("a case that needs exec: %s %s", s, reason)
	}
	if s, reason, _ := b.prerequisite(Case{Features: []Feature{"g-there"}}, []string{"g-there"}); s != "" {
		t.Errorf("a case that does not: %s %s", s, reason)
	}
}

func TestFeaturesEndWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &bench{target: &target.Target{Runtime: &fake{}}, armed: map[Oracle]bool{}, log: func(string) {}}
	s := Suite{Probes: []Probe{{Feature: FeatureExec, Look: func(context.Context, *T) (Presence, string, error) {
		t.Error("an interrupted run looks at features")
		return Present, "", nil
	}}}}
	for _, r := range b.see(ctx, s, nil, "image") {
		if r.Observed != Unknown {
			t.Errorf("%s is %s", r.Feature, r.Observed)
		}
	}
}
