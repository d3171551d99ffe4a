// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Fleet makes the fleet of a trust policy from cohort files, and from folders those of their files
// that expect a conformant reference worker: no release can wait for a cohort that is known to fail.
// A lab's name of a runtime means nothing elsewhere and is left out. The result is sorted by name.
func Fleet(paths []string) ([]evidence.FleetCohort, error) {
	var out []evidence.FleetCohort
	for _, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		n := len(out)
		var files []CohortFile
		if st.IsDir() {
			files, err = WorkerCohorts(path)
		} else {
			files = make([]CohortFile, 1)
			files[0], err = ReadCohortFile(path)
		}
		if err != nil {
			return nil, err
		}
		for _, c := range files {
			if !c.worker() || c.Verdict != string(evidence.Conformant) {
				if !st.IsDir() {
					return nil, fmt.Errorf("%s does not expect a conformant reference worker", path)
				}
				continue
			}
			out = append(out, c.Fleet())
		}
		if len(out) == n {
			return nil, fmt.Errorf("%s holds no cohort file that expects a conformant reference worker", path)
		}
	}
	slices.SortFunc(out, func(a, b evidence.FleetCohort) int { return strings.Compare(a.Name, b.Name) })
	for i := range out {
		if i > 0 && out[i-1].Name == out[i].Name {
			return nil, fmt.Errorf("two cohort files are named %s", out[i].Name)
		}
	}
	return out, nil
}

// WorkerCohorts reads the cohort files of a folder that are about the reference worker, sorted by name.
func WorkerCohorts(dir string) ([]CohortFile, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var out []CohortFile
	for _, path := range paths {
		c, err := ReadCohortFile(path)
		if err != nil {
			return nil, err
		}
		if c.worker() {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b CohortFile) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c CohortFile) worker() bool { return c.Driver == "" || c.Driver == driverAPI }

// Fleet is the entry of a policy's fleet for c.
func (c CohortFile) Fleet() evidence.FleetCohort {
	profiles := slices.Sorted(slices.Values(c.Profiles))
	if len(profiles) == 0 {
		profiles = slices.Sorted(slices.Values(conformance.ReferenceProfiles()))
	}
	return evidence.FleetCohort{
		Name: c.Name, Profiles: profiles, Arch: c.Requirements.Arch, CgroupMode: c.Requirements.CgroupMode,
		SandboxVersion: c.Requirements.Version, Platform: c.Requirements.Platform, QuotaBackend: c.Requirements.QuotaBackend,
		Filesystem: c.Requirements.Filesystem, Capabilities: c.Requirements.Capabilities,
	}
}
