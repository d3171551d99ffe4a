// SPDX-License-Identifier: Apache-2.0

// Package fs holds the cases about filesystem confinement: the workspace API and the tenant's
// mount may not reach, name or change anything outside the workspace. It only reads the host,
// but for canary folders of its own.
package fs

import "github.com/hallmark-sandbox/hallmark/conformance"

// Cases lists the family in the order of the catalogue.
func Cases() []conformance.Case { return []conformance.Case{FS01, FS02, FS03, FS13, FS17} }
