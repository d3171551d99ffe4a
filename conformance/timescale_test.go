// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A time scale gives a slow case its time, and ends one that takes more still.
func TestTimeScale(t *testing.T) {
	const bound = 200 * time.Millisecond
	slow := func(d time.Duration) func(context.Context, *T) error {
		return func(ctx context.Context, ct *T) error {
			ct.Witness("ran", 1)
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for _, tt := range []struct {
		name   string
		scale  int
		takes  time.Duration
		status Status
	}{
		{"none", 0, 10 * bound, Errored},
		{"one", 1, 10 * bound, Errored},
		{"twenty", 20, 3 * bound, Pass},
		{"two, and longer", 2, time.Hour, Errored},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := fakeBench(t, &fake{}, time.Second)
			b.timeScale = tt.scale
			e := b.execute(t.Context(), Case{ID: "AA-01", Timeout: bound, Run: slow(tt.takes)}, "image")
			if e.Status != tt.status || tt.status == Errored && e.Reason != "timeout" {
				t.Errorf("%s %s: %s", e.Status, e.Reason, e.Text)
			}
		})
	}
	for scale, want := range map[int]string{-1: "time scale", MaxTimeScale + 1: "time scale", 0: "", MaxTimeScale: ""} {
		err := Options{TimeScale: scale}.check()
		if err == nil || strings.Contains(err.Error(), "time scale") != (want != "") {
			t.Errorf("scale %d: %v", scale, err)
		}
	}
	b := &bench{timeScale: 3}
	if b.patience() != 3*returnGrace || b.settling() != 3*settleTime {
		t.Errorf("patience %s, settling %s", b.patience(), b.settling())
	}
}
