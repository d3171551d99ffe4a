// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// What a keeper calls proven is not so when PID 1 has given the keeper up, or could not look itself.
func TestOutcomeOfAKeeperThatWasGivenUpIsUnproven(t *testing.T) {
	sum := control.Summary{Killed: 3, Proven: true}
	got, err := control.ParseSummary(unproven(control.Frame{Type: control.Result, Payload: sum.Encode()}).Payload)
	if err != nil || got.Proven || got.Killed != 3 {
		t.Errorf("a result comes to %+v, %v", got, err)
	}
	for _, f := range []control.Frame{{Type: control.Lost}, {Type: control.SpawnFailed, Payload: control.EncodeSpawnFailed(control.StepFork, 11)}} {
		if got := unproven(f); got.Type != f.Type || string(got.Payload) != string(f.Payload) {
			t.Errorf("%v comes to %v", f, got)
		}
	}
	if got := unproven(control.Frame{Type: control.Result}); got.Type != control.Lost {
		t.Errorf("a result that cannot be read comes to %v", got)
	}
}
