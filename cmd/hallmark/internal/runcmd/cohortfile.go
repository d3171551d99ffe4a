// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"gopkg.in/yaml.v3"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// CohortFile is a file of ci/cohorts, in YAML or JSON: what a run requires of its cohort and
// which failures are expected there. It holds no facts; those are measured.
type CohortFile struct {
	Name             string            `yaml:"name"`
	Requirements     Requirements      `yaml:"requirements"`
	ExpectedFailures []ExpectedFailure `yaml:"expectedFailures"`
}

// Requirements must agree with what is measured; "" and nil require nothing.
type Requirements struct {
	Arch         string            `yaml:"arch"`    // as GOARCH spells it
	Runtime      string            `yaml:"runtime"` // name in the lab: runsc, runsc-deb, runc
	Platform     string            `yaml:"platform"`
	CgroupMode   string            `yaml:"cgroupMode"`
	QuotaBackend string            `yaml:"quotaBackend"`
	Capabilities map[string]string `yaml:"capabilities"`
}

// ExpectedFailure is one case that must fail on this cohort, with the reason code.
type ExpectedFailure struct {
	Case   string `yaml:"case"`
	Reason string `yaml:"reason"`
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
	if c.Name == "" || c.Requirements.Runtime == "" {
		return fmt.Errorf("%s needs name and requirements.runtime", path)
	}
	seen := map[string]bool{}
	for _, e := range c.ExpectedFailures {
		if e.Case == "" || e.Reason == "" || seen[e.Case] {
			return fmt.Errorf("%s: an expected failure lacks case or reason, or is there twice: %q", path, e.Case)
		}
		seen[e.Case] = true
	}
	return nil
}

// agree returns every requirement that the measured cohort does not meet.
func (r Requirements) agree(c evidence.Cohort) error {
	var errs []error
	want := func(name, want, got string) {
		if want != "" && want != got {
			errs = append(errs, fmt.Errorf("%s is %q, the cohort file requires %q", name, got, want))
		}
	}
	want("arch", r.Arch, c.Descriptor.Arch)
	want("arch of this program", r.Arch, runtime.GOARCH)
	want("platform", r.Platform, c.Descriptor.Sandbox.Platform)
	want("cgroup mode", r.CgroupMode, c.Descriptor.CgroupMode)
	want("quota backend", r.QuotaBackend, c.Descriptor.Quota.Backend)
	for name, v := range r.Capabilities {
		want("capability "+name, v, c.Capabilities[name])
	}
	return errors.Join(errs...)
}
