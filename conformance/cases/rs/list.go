// SPDX-License-Identifier: Apache-2.0

// Package rs holds the cases about shared resources. Peaks decide, read from the host's cgroup
// files; a quiet neighbour and the host itself are watched meanwhile.
package rs

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case {
	return []conformance.Case{RS01, RS02, RS03, RS04, RS06, RS07, RS09}
}
