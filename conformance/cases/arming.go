// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/arming"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/probe"
)

// Probes returns one look at each feature that can be looked at.
func Probes() []conformance.Probe { return probe.All() }

// Arming returns one arming for each oracle of the catalogue.
func Arming() []conformance.Arming { return arming.All() }
