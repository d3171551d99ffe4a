// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// CohortFile is a file of ci/cohorts, in YAML or JSON: what a run requires of its cohort, which
// profiles judge it, and what is expected to come to something else than a pass. It holds no
// facts; those are measured.
type CohortFile struct {
	Name         string       `yaml:"name"`
	Driver       string       `yaml:"driver"` // api (the reference worker, the default), docker or exec
	Profiles     []string     `yaml:"profiles"`
	Requirements Requirements `yaml:"requirements"`
	// TimeScale is [conformance.Options.TimeScale] of a cohort that is slow; evidence says it.
	TimeScale int    `yaml:"timeScale"`
	Verdict   string `yaml:"verdict"` // conformant, non-conformant or incomplete; "" expects none
	// AbsentClaims are features that the target claims and that are expected not to be there, sorted.
	AbsentClaims []string   `yaml:"absentClaims"`
	Expected     []Expected `yaml:"expected"`
	// Limitations are what evidence of this cohort does not show, beside what none of this command shows.
	Limitations []string `yaml:"limitations"`
	// Unproven is what is to be expected of cases that are in no catalogue yet; nothing compares it with a run.
	Unproven []Expected `yaml:"unproven"`
}

// Requirements must agree with what is measured; "" and nil require nothing.
type Requirements struct {
	Arch         string            `yaml:"arch"`    // as GOARCH spells it
	Runtime      string            `yaml:"runtime"` // name in the lab: runsc, runsc-deb, runsc-deb13, runc
	Version      string            `yaml:"version"` // as the runtime calls itself
	Platform     string            `yaml:"platform"`
	CgroupMode   string            `yaml:"cgroupMode"`
	QuotaBackend string            `yaml:"quotaBackend"`
	Filesystem   string            `yaml:"filesystem"` // of the workspaces
	Capabilities map[string]string `yaml:"capabilities"`
}

// Expected says that these cases come to the same status, with the same reason code, and why.
type Expected struct {
	Cases  []string `yaml:"cases"`
	Status string   `yaml:"status"` // any but pass
	Reason string   `yaml:"reason"`
	Why    string   `yaml:"why"` // one sentence: what it means for a user
}

// maxCohortFile bounds the file in bytes.
const maxCohortFile = 64 << 10

// ReadCohortFile reads one document without unknown or repeated members.
func ReadCohortFile(path string) (CohortFile, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return CohortFile{}, err
	}
	if len(b) > maxCohortFile {
		return CohortFile{}, fmt.Errorf("%s is longer than %d bytes", path, maxCohortFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	var c CohortFile
	if err := dec.Decode(&c); err != nil {
		return CohortFile{}, fmt.Errorf("decode %s: %w", path, err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return CohortFile{}, fmt.Errorf("decode %s: a second document", path)
	}
	return c, c.check(path)
}

func (c CohortFile) check(path string) error {
	if c.Name == "" {
		return fmt.Errorf("%s has no name", path)
	}
	if !slices.Contains([]string{"", driverAPI, driverDocker, driverExec}, c.Driver) {
		return fmt.Errorf("%s: unknown driver %q: it is api, docker or exec", path, c.Driver)
	}
	if c.Requirements.Runtime == "" && c.Driver != driverExec {
		return fmt.Errorf("%s needs requirements.runtime", path)
	}
	if !slices.Contains([]string{"", string(evidence.Conformant), string(evidence.NonConformant), string(evidence.Incomplete)}, c.Verdict) {
		return fmt.Errorf("%s: unknown verdict %q", path, c.Verdict)
	}
	if c.TimeScale < 0 || c.TimeScale > conformance.MaxTimeScale {
		return fmt.Errorf("%s: timeScale is %d: it is 1 to %d", path, c.TimeScale, conformance.MaxTimeScale)
	}
	seen := map[string]bool{}
	for _, e := range slices.Concat(c.Expected, c.Unproven) {
		if len(e.Cases) == 0 || e.Reason == "" || e.Why == "" {
			return fmt.Errorf("%s: an expected result of %q lacks cases, reason or why", path, e.Cases)
		}
		if !slices.Contains(nonPasses, conformance.Status(e.Status)) {
			return fmt.Errorf("%s: %v are expected to come to %q, which is no status but pass", path, e.Cases, e.Status)
		}
		for _, id := range e.Cases {
			if id == "" || seen[id] {
				return fmt.Errorf("%s: case %q is empty or there twice", path, id)
			}
			seen[id] = true
		}
	}
	return nil
}

// limitations are what the file says, and how it stretches the suite's patience.
func (c CohortFile) limitations() []string {
	out := slices.Clone(c.Limitations)
	if c.TimeScale > 1 {
		out = append(out, fmt.Sprintf("The suite's bounds of patience were %d times those of other cohorts (timeScale of the cohort file %s); the bounds that cases hold the target to were the same.", c.TimeScale, c.Name))
	}
	return out
}

// nonPasses are what a case can be expected to come to.
var nonPasses = []conformance.Status{conformance.Fail, conformance.Inconclusive, conformance.Errored, conformance.NotApplicable, conformance.NotRun, conformance.Waived}

// Agree returns every requirement that the measured cohort does not meet, as [ErrOtherCohort].
func (r Requirements) Agree(c evidence.Cohort) error {
	var errs []error
	want := func(name, want, got string) {
		if want != "" && want != got {
			errs = append(errs, fmt.Errorf("%s is %q, the cohort file requires %q", name, got, want))
		}
	}
	want("arch", r.Arch, c.Descriptor.Arch)
	want("arch of this program", r.Arch, runtime.GOARCH)
	want("version of "+r.Runtime, r.Version, c.Descriptor.Sandbox.Version)
	want("platform", r.Platform, c.Descriptor.Sandbox.Platform)
	want("cgroup mode", r.CgroupMode, c.Descriptor.CgroupMode)
	want("quota backend", r.QuotaBackend, c.Descriptor.Quota.Backend)
	want("filesystem", r.Filesystem, c.Descriptor.Quota.Filesystem)
	for name, v := range r.Capabilities {
		want("capability "+name, v, c.Capabilities[name])
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrOtherCohort, errors.Join(errs...))
	}
	return nil
}

// ErrOtherCohort says that the measured cohort does not meet a cohort file's requirements.
var ErrOtherCohort = errors.New("the measured cohort is not the required one")
