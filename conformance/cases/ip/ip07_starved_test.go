// SPDX-License-Identifier: Apache-2.0

package ip

import "testing"

// A supervisor that turns peers away as too many has shown nothing of what it does without a descriptor.
func TestTurnedAwayIsNotStarved(t *testing.T) {
	for _, tt := range []struct {
		notGreeted, busy, want int64
	}{{300, 0, 300}, {300, 290, 10}, {20, 20, 0}, {20, 500, 0}, {0, 0, 0}} {
		if got := outOfDescriptors(tt.notGreeted, map[string]int64{"refused.busy": tt.busy, "refused.slow": 7}); got != tt.want {
			t.Errorf("%d not greeted, %d turned away: %d, want %d", tt.notGreeted, tt.busy, got, tt.want)
		}
	}
}
