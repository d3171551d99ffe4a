// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/arming"
)

// Arming returns one arming for each oracle of the catalogue.
func Arming() []conformance.Arming { return arming.All() }
