// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"fmt"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// here is a fleet cohort that means the bundle's own, and elsewhere one that means another.
func (d *draft) here(name string) evidence.FleetCohort {
	return evidence.FleetCohort{Name: name, Profiles: d.policy.Profiles, SandboxBinary: d.st.Predicate.Cohort.Descriptor.Runtime.BinaryDigest}
}

func (d *draft) elsewhere(name string) evidence.FleetCohort {
	return evidence.FleetCohort{Name: name, Profiles: d.policy.Profiles, Filesystem: "none-such"}
}

// fleetRows are about releases over several cohorts.
func fleetRows() []row {
	const g = "Fleet"
	fleet := func(f func(d *draft) []evidence.FleetCohort) func(*draft) {
		return func(d *draft) { d.policy.Fleet = f(d) }
	}
	other := evidence.Digest([]byte("an image that nobody has tested"))
	return []row{
		{"fleet-of-one", g, "", fleet(func(d *draft) []evidence.FleetCohort { return []evidence.FleetCohort{d.here("a")} })},
		{"fleet-cohort-without-evidence", g, evidence.ReasonCohortEvidence, fleet(func(d *draft) []evidence.FleetCohort {
			return []evidence.FleetCohort{d.here("a"), d.elsewhere("b")}
		})},
		{"fleet-image-without-evidence", g, evidence.ReasonImageEvidence, func(d *draft) { d.args = []string{"--image", other} }},
		{"fleet-other-cohort", g, evidence.ReasonFleetOther, fleet(func(d *draft) []evidence.FleetCohort { return []evidence.FleetCohort{d.elsewhere("a")} })},
		{"fleet-two-meanings", g, evidence.ReasonFleetAmbiguous, fleet(func(d *draft) []evidence.FleetCohort {
			return []evidence.FleetCohort{d.here("a"), {Name: "b", Profiles: d.policy.Profiles}}
		})},
		{"fleet-capability", g, evidence.ReasonCapability, fleet(func(d *draft) []evidence.FleetCohort {
			c := d.here("a")
			c.Capabilities = map[string]string{"none.such": "yes"}
			return []evidence.FleetCohort{c}
		})},
		{"fleet-order", g, evidence.ReasonPolicyInvalid, fleet(func(d *draft) []evidence.FleetCohort {
			return []evidence.FleetCohort{d.elsewhere("b"), d.here("a")}
		})},
		{"fleet-same-name", g, evidence.ReasonPolicyInvalid, fleet(func(d *draft) []evidence.FleetCohort {
			return []evidence.FleetCohort{d.here("a"), d.elsewhere("a")}
		})},
		{"fleet-no-profile", g, evidence.ReasonPolicyInvalid, fleet(func(d *draft) []evidence.FleetCohort { return []evidence.FleetCohort{{Name: "a"}} })},
		{"fleet-unknown-profile", g, evidence.ReasonPolicyInvalid, fleet(func(d *draft) []evidence.FleetCohort {
			return []evidence.FleetCohort{{Name: "a", Profiles: []string{"no-such"}}}
		})},
	}
}

// expressionRows are about the policy's expression. It is asked last, so that one that is always
// true admits nothing that was denied.
func expressionRows() []row {
	const g = "Expression"
	expression := func(text string) func(*draft) { return func(d *draft) { d.policy.Expression = text } }
	// One walk over the cases within another, deep enough for a bundle of two cases.
	costly := "true"
	for i := range 30 {
		costly = fmt.Sprintf("statement.predicate.cases.all(c%d, %s)", i, costly)
	}
	return []row{
		{"expression-holds", g, "", expression(`statement.predicate.run.sequence > 0 && statement.predicate.cases.all(c, c.attempts <= 1)`)},
		{"expression-false", g, evidence.ReasonExpression, expression(`statement.predicate.target.driver == "none-such"`)},
		{"expression-missing-member", g, evidence.ReasonExpressionError, expression(`statement.predicate.noSuch == 1`)},
		{"expression-no-boolean", g, evidence.ReasonExpressionError, expression(`statement.predicate.run.id`)},
		{"expression-integer", g, evidence.ReasonExpressionError, expression(`1 + 1`)},
		{"expression-unknown-variable", g, evidence.ReasonExpressionError, expression(`admitted || true`)},
		{"expression-not-cel", g, evidence.ReasonExpressionError, expression(`true &&`)},
		{"expression-too-costly", g, evidence.ReasonExpressionError, expression(costly)},
		{"expression-too-long", g, evidence.ReasonPolicyInvalid, func(d *draft) {
			d.policy.Expression = "true" + string(make([]byte, evidence.MaxExpression))
		}},
		{"expression-allows-a-failure", g, evidence.ReasonCaseFailed, func(d *draft) {
			d.policy.Expression = "true"
			c := &d.st.Predicate.Cases[0]
			c.Status, c.Reason = evidence.StatusFail, "escaped"
			d.reseal()
		}},
	}
}
