// SPDX-License-Identifier: Apache-2.0

// Package nw holds the cases about the network. Packets are looked for where they would arrive:
// by listeners and a capture in the engine's network namespace.
package nw

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{NW01} }
