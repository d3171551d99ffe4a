// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Pins that are renewed while the worker runs are those of its health and those that a create must
// expect.
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
	req := r.createRequest("ws")
	req.Expected.PinsDigest = r.health.PinsDigest
	_, err = r.client.Create(t.Context(), req)
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.Unqualified {
		t.Errorf("a create that expects the pins of before: %v", err)
	}
}
