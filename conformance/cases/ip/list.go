// SPDX-License-Identifier: Apache-2.0

// Package ip holds the cases about the supervisor's control socket: who may speak to it, and what
// a request is worth whose sender is gone. Executions are known by a file that the host sees.
package ip

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{IP01, IP02, IP03, IP06, IP07, IP08, IP09, IP10, IP11}
}
