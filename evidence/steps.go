// SPDX-License-Identifier: Apache-2.0

package evidence

import "slices"

// What can be said of a step in one decision.
const (
	StepHeld       = "held"
	StepDenied     = "denied"
	StepNotReached = "not-reached"
	StepNotAsked   = "not-asked" // nothing demands it
)

// StepState is one of the gate's steps in a decision.
type StepState struct {
	Step  int    `json:"step"`
	Title string `json:"title"`
	State string `json:"state"`
}

// stepTitles are the gate's steps about one bundle, from 1. Two more stand around them: 0 is the
// trust policy, and 19, the release, is about all bundles together.
var stepTitles = []string{
	"size and kind of files", "strict JSON of the bundle", "media type, one signature, canonical base64", "payload type",
	"key of the policy, signature", "role, scope, validity and revocation of the key", "strict JSON of the payload, types", "schema",
	"subjects", "cohort", "completeness against the own catalogue", "hygiene of the run, mutation evidence",
	"summary, artifacts and derived statement", "times", "sequence, memory, denied digests", "threshold of signers",
	"log proof", "expression",
}

// Steps of a decision that other packages carry out.
const (
	StepLog        = 17
	StepExpression = 18
)

func (x *examination) states(r Reason) []StepState {
	out := make([]StepState, 0, len(stepTitles))
	for i, title := range stepTitles {
		s := StepState{Step: i + 1, Title: title, State: StepNotReached}
		switch {
		case r != "" && r.Step() == s.Step:
			s.State = StepDenied
		case slices.Contains(x.held, s.Step):
			s.State = StepHeld
		case r == "" && s.Step >= StepLog:
			s.State = StepNotAsked
		}
		out = append(out, s)
	}
	return out
}

// Hold notes that a later step held. It admits nothing.
func (d *Decision) Hold(step int) {
	if d.Admitted && step >= StepLog && step <= len(d.Steps) {
		d.Steps[step-1].State = StepHeld
	}
}

// Deny turns an admitted decision into a denial, for steps that only the gate carries out. There is
// no way back, and an earlier denial stays the reason.
func (d *Decision) Deny(r Reason, detail string) {
	if !d.Admitted || r == "" {
		return
	}
	err := &Denied{Reason: r, Detail: detail}
	d.Admitted, d.Reason, d.Step, d.Detail = false, r, r.Step(), err.Error()
	for i := range d.Steps {
		switch {
		case d.Steps[i].Step == d.Step:
			d.Steps[i].State = StepDenied
		case d.Steps[i].Step > d.Step:
			d.Steps[i].State = StepNotReached
		}
	}
}
