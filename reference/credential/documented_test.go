// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/internal/documented"
)

// TestBoundsAreDocumented: an operator and the writer of a provider find each bound in the document, as it is.
func TestBoundsAreDocumented(t *testing.T) {
	const page = "docs/credentials.md"
	says, count, text := documented.Says, documented.Count, fmt.Sprintf
	documented.Check(t, "../..", []documented.Bound{
		says("maxProviders maxBindings maxWorkspaces maxArgs", page, text("At most %d providers and %s bindings, a binding with at most %s workspaces, a program with at most %d arguments.",
			maxProviders, count(maxBindings), count(maxWorkspaces), maxArgs)),
		says("MaxPayloadBytes", page, "print the payload, at most "+documented.Size(MaxPayloadBytes)+", and exit 0"),
		says("MaxFields MaxValueBytes", page, text("The values for one command, of all its references, are at most %d and %s together.", MaxFields, documented.Size(MaxValueBytes))),
		says("maxProviderMs providerBudget", page, "the same time as a `lease`: `timeoutMs`, at most "+documented.Time(providerBudget)+"."),
		says("attemptsKept", page, "An attempt is remembered for "+documented.Time(attemptsKept)+", and longer until"),
		says("maxAttempts maxOpen", page, text("Of all of them there are at most %s, and %s of one provider that it has not been told of", count(maxAttempts), count(maxOpen))),
		says("settleBudget", page, "tells it again, each within "+documented.Time(settleBudget)+"."),
	}, map[string]string{
		"MaxNameBytes":  "the API allows shorter names, and its document says so",
		"MaxFrameBytes": "follows from the others",
		"maxForgotten":  "how the work of forgetting is spread",
		"storeWithin":   "one step, within the deadline of the command",
		"drainWithin":   "the program has ended by then",
		"killWithin":    "the program has been killed by then",
	})
	if maxProviderMs*time.Millisecond != providerBudget {
		t.Error("two bounds of a call")
	}
}
