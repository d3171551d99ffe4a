// SPDX-License-Identifier: Apache-2.0

// Package cases is the catalogue: every case that is implemented, in the order of its families,
// and the arming of the oracles that they need. It owns the list. Registration is explicit: a
// case that is not named in its family's list does not exist, and a test compares the lists with
// the files on disk, the published catalogue and the mutants.
//
// Read next: one case, for example pr/pr05_daemonise.go.
package cases

import (
	"slices"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/cr"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/fs"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/im"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/ip"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/ke"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/lc"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/nw"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/ou"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/pr"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/pt"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/qt"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/rs"
)

// All returns the catalogue. The slice is the caller's.
func All() []conformance.Case {
	return slices.Concat(fs.Cases(), qt.Cases(), pr.Cases(), ip.Cases(), ou.Cases(), rs.Cases(), nw.Cases(), cr.Cases(), lc.Cases(), pt.Cases(), im.Cases(), ke.Cases())
}

// Unproven returns the cases that are written and of which it is not yet shown, by measurement on a quiet
// machine, that the worker passes them, that each of their mutants is caught, and what the control and the
// alternatives come to. They are in no catalogue, tier or profile, so no evidence speaks of them; a run that
// names one with --case runs it. The slice is the caller's.
func Unproven() []conformance.Case {
	return lc.Unproven()
}

// Families names the families of the catalogue.
func Families() map[string]string {
	return map[string]string{
		"FS": "filesystem confinement", "QT": "disk quota", "PR": "process lifetime", "IP": "control socket and IPC",
		"OU": "output channel", "RS": "resources", "NW": "network", "CR": "credentials", "LC": "lifecycle",
		"PT": "wire protocol", "IM": "image, pin and evidence", "KE": "kernel and escape surface",
	}
}
