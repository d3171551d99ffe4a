// SPDX-License-Identifier: Apache-2.0

// Package lc holds the cases about lifecycle and ownership: what is ours ends, what is not ours
// is not touched. Bystanders are made on the engine by the suite and removed by recorded id.
package lc

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{LC01, LC02, LC03, LC04, LC05, LC06, LC07, LC09, LC11, LC13, LC14}
}

// Unproven lists the cases that take part in no run unless they are named.
func Unproven() []conformance.Case {
	return []conformance.Case{LC12}
}
