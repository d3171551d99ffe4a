// SPDX-License-Identifier: Apache-2.0

// Package cr holds the cases about credentials. In this catalogue they prove that values have no
// way in but the authorised one: not by a caller's environment, and not by a reference, a payload or a
// delivery that is not the one that was authorised.
package cr

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{CR01, CR02, CR03, CR04, CR05, CR06, CR08, CR09, CR10}
}
