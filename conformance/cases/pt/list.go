// SPDX-License-Identifier: Apache-2.0

// Package pt holds the cases about the wire protocol. Requests are sent byte by byte as they are
// written here, each with a capability signed over exactly these bytes.
package pt

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{PT01, PT02, PT03, PT04, PT05, PT06, PT07} }
