// SPDX-License-Identifier: Apache-2.0

// Package pr holds the cases about process lifetime: bombs are bounded by the host, and nothing
// outlives its invocation. Survivors are known by their heartbeat in the workspace.
package pr

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{PR01, PR02, PR03, PR04, PR05, PR07, PR08, PR10, PR11, PR12}
}
