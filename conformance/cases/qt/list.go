// SPDX-License-Identifier: Apache-2.0

// Package qt holds the cases about disk quota. Usage is what the host's kernel says of the
// workspace's filesystem, never what the runtime reports. Every attack is bounded by itself, so
// that a workspace without a bound fails the case and does not fill the host.
package qt

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{QT01, QT02, QT13} }
