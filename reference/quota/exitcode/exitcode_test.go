// SPDX-License-Identifier: Apache-2.0

package exitcode

import (
	"errors"
	"fmt"
	"testing"
)

// A caller on the other side of the process border tells the same kinds apart as one on this side.
func TestEachErrorSurvivesTheBorder(t *testing.T) {
	seen := map[int]error{0: nil, Internal: nil}
	for _, e := range exits {
		if other, twice := seen[e.code]; twice {
			t.Errorf("exit code %d is %v and %v", e.code, other, e.err)
		}
		seen[e.code] = e.err
		code := Of(fmt.Errorf("step: %w: cause", e.err))
		back := Error(code, "a sentence")
		if code != e.code || !errors.Is(back, e.err) || back.Error() != "a sentence" {
			t.Errorf("%v: exit code %d, then %v", e.err, code, back)
		}
		for _, other := range exits {
			if other != e && errors.Is(back, other.err) {
				t.Errorf("%v came back as %v", e.err, other.err)
			}
		}
	}
	if Of(nil) != 0 || Of(errors.New("x")) != Internal {
		t.Errorf("nil is %d, an error without a kind %d", Of(nil), Of(errors.New("x")))
	}
	if err := Error(99, "odd"); err == nil || Of(err) != Internal {
		t.Errorf("an unknown exit code is %v", err)
	}
}
