// SPDX-License-Identifier: Apache-2.0

// Package ke holds the cases about the kernel surface: what a tenant may be, and whose kernel it
// talks to. Effects are looked for on the host.
package ke

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{KE04, KE06} }
