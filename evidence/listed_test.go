// SPDX-License-Identifier: Apache-2.0

package evidence_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/evidencetest"
)

// listedWorld is a run of nothing but the cases that the profile "small" lists, as on an emulated machine.
func listedWorld(t *testing.T, claims ...string) *evidencetest.World {
	t.Helper()
	w, err := evidencetest.NewOf(time.Now(), func(c *evidence.Catalogue) {
		i := slices.IndexFunc(c.Profiles, func(p evidence.Profile) bool { return p.Name == "small" })
		c.Profiles[i] = evidence.Profile{
			Name: "small", Features: []string{"exec", "files", "quota"}, Core: []string{"files"}, Tiers: []string{}, Cases: []string{"FS-02", "QT-01"},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return another(t, w, func(p *evidence.Predicate) {
		p.Profiles = claims
		p.Cases = slices.DeleteFunc(p.Cases, func(r evidence.CaseRow) bool { return r.ID != "FS-02" && r.ID != "QT-01" })
		p.Run.Arming.PlannedCases = []string{"FS-02", "QT-01"}
	})
}

// Evidence of a list is admitted where the policy asks for the list, on its own cohort and on no other; a policy for
// production, which asks for a whole profile, denies it, also when the run claims to have been judged by both.
func TestAListIsNoWholeProfile(t *testing.T) {
	other := evidence.Digest([]byte("another cohort"))
	for name, tt := range map[string]struct {
		claims, required []string
		cohort           string
		want             evidence.Reason // "" admits
	}{
		"the list":                     {[]string{"small"}, []string{"small"}, "", ""},
		"production":                   {[]string{"small"}, []string{"quota"}, "", evidence.ReasonProfile},
		"production, and the list":     {[]string{"small"}, []string{"quota", "small"}, "", evidence.ReasonProfile},
		"a claim of the whole profile": {[]string{"quota", "small"}, []string{"quota"}, "", evidence.ReasonCaseMissing},
		"another cohort":               {[]string{"small"}, []string{"small"}, other, evidence.ReasonCohortOther},
	} {
		t.Run(name, func(t *testing.T) {
			w := listedWorld(t, tt.claims...)
			w.Policy.Profiles = tt.required
			q, err := w.Question()
			if err != nil {
				t.Fatal(err)
			}
			if q.Cohort = tt.cohort; q.Cohort == "" {
				q.Cohort = w.Statement.Predicate.Cohort.ID
			}
			q.Depth = evidence.AuditDepth
			if d := decide(t, q, w); d.Admitted != (tt.want == "") || d.Reason != tt.want {
				t.Errorf("admitted %v, %q: %s", d.Admitted, d.Reason, d.Detail)
			}
		})
	}
}
