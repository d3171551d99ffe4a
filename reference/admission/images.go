// SPDX-License-Identifier: Apache-2.0

package admission

import "github.com/hallmark-sandbox/hallmark/evidence"

// Roles of the programs that a start runs.
const (
	roleSupervisor = evidence.BinarySupervisor
	roleQuota      = evidence.BinaryQuota
	roleSandbox    = evidence.BinarySandbox
)

// Images are the config digests of the pinned workload images. A worker prechecks one of them
// with its helpers' digests before it listens.
func (p *Pinned) Images() []string {
	var out []string
	for _, img := range p.admission.Pins().Images {
		if img.Role == evidence.ImageWorkload {
			out = append(out, img.ConfigDigest)
		}
	}
	return out
}
