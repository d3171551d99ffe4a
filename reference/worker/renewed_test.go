// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"net/http"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Pins that are renewed while the worker runs are those of its health.
func TestRenewedPinsAreThoseOfHealth(t *testing.T) {
	r := newRig(t, tweak{})
	evidence := []string{hexOf("3")}
	pins := hexOf("1")
	r.server.o.Admitted = func() (string, string, []string) { return r.health.CohortID, pins, evidence } // no request is in progress
	h, err := r.client.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.PinsDigest != pins || h.CohortID != r.health.CohortID || !slices.Equal(h.EvidenceDigests, evidence) {
		t.Errorf("health says %+v", h)
	}
	// Whether a create may expect the pins of before is not decided here: it may be a repetition.
	create, err := strictjson.Marshal(r.createRequest("ws"))
	if err != nil {
		t.Fatal(err)
	}
	if res := r.raw(r.createRaw("ws", string(create))); res.Status != http.StatusCreated {
		t.Errorf("a create that expects the pins of before: %d %s", res.Status, res.Code)
	}
}
