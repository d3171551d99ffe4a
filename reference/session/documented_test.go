// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/internal/documented"
)

// TestBoundsAreDocumented: what a caller or an operator meets of the lifecycle's bounds is in a document, as it is.
func TestBoundsAreDocumented(t *testing.T) {
	const api, lifecycle, contract = "docs/worker-api.md", "docs/lifecycle.md", "reference/api/openapi.yaml"
	says, time, count, text := documented.Says, documented.Time, documented.Count, fmt.Sprintf
	kept := int64(Limits{}.withDefaults().Disposed) // and the share of a workspace
	documented.Check(t, "../..", []documented.Bound{
		says("rememberFor memoryCeiling", lifecycle, text("for %s at least and as long as it is one of the last %s; with %s of less than %s a workspace has no creates, and with %s nobody has",
			time(rememberFor), count(kept), count(kept), time(rememberFor), count(memoryCeiling*kept))),
		says("rememberFor memoryCeiling", api, text("| sandboxes of one workspace that have ended within %s | %s of %s;", time(rememberFor), count(kept), count(memoryCeiling*kept))),
		says("memoryCeiling", contract, text("a worker that has %s of less than 24 hours to remember, or %s of this workspace, refuses new ids with `UNAVAILABLE`", count(memoryCeiling*kept), count(kept))),
		says("maxWatches", api, text("| event streams of a sandbox | %d |", maxWatches)),
		says("maxChunk", contract, text("One `stdout` or `stderr` holds at most %s of output.", documented.Size(maxChunk))),
		says("backoffFirst backoffLast", lifecycle, text("again and again, %s to %s apart", time(backoffFirst), time(backoffLast))),
		says("maxUnknown", lifecycle, text("Of one sandbox at most %d invocations that ran when the worker ended are remembered.", maxUnknown)),
		says("quietWithin", lifecycle, text("waits %s for operations in progress, and is tried again when they have not ended", time(quietWithin))),
	}, map[string]string{
		"answerWithin":     "a bound of one step of a create, within the deadline of the create",
		"bridgeVerdict":    "how long a code is looked for that says more",
		"deathVerdict":     "how long a code is looked for that says more",
		"haltWithin":       "a bound of the end of the process, which docs/operations.md tells as a whole",
		"lookWithin":       "what does not come in it is logged and changes nothing",
		"reconcileWithin":  "the start gives a bound of its own",
		"storeDeadline":    "one step, within the deadline of the operation",
		"surveyEvery":      "told in words: every minute",
		"tombstonesWithin": "a bound of the end of the process, which docs/operations.md tells as a whole",
	})
}
