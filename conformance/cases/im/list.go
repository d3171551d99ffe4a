// SPDX-License-Identifier: Apache-2.0

// Package im holds the cases about images, pins and the runtime below: what starts is what was
// named by digest. They plant images on the engine under names of their own and take them away.
package im

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{IM01, IM05} }
