// SPDX-License-Identifier: Apache-2.0

// Package ou holds the cases about the output channel: floods cost the worker constant memory and
// are never cut in silence, and a reply does not wait for whoever holds the pipe.
package ou

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{OU01, OU02, OU03, OU04, OU05, OU06, OU08}
}
