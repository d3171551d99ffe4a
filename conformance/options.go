// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
)

// Options of one run.
type Options struct {
	Suite  Suite
	Driver string          // a key of Suite.Drivers
	Target json.RawMessage // the driver's configuration

	Workloads []string // config digests to qualify; at least one, the first is the main one
	Profiles  []string // that the run is judged by; at least one
	Procs     int      // processes that run cases side by side, 1 to 8; 0 means 1
	Tier      Tier
	CaseIDs   []string // narrows the run, which makes it incomplete by definition

	Out    string // reports, raw records and bundle; what an earlier run left here is replaced
	Work   string // an empty or absent folder for the driver's state; removed afterwards
	Tenant string // the static attack binary

	Seed     int64  // 0 draws one; recorded either way
	CohortID string // measured by the caller; "" leaves the run without evidence
	Evidence *Evidence

	Progress io.Writer // nil for silence
	Live     bool      // Progress is a terminal: one line is kept up to date
	Color    bool      // with Live: statuses have colours
	About    About

	// Executable is the program to run as the child; "" is the running one. It must call
	// [ChildMain] with an equal suite.
	Executable string
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// check returns every fault of o.
func (o Options) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := o.Suite.Check(); err != nil {
		errs = append(errs, err)
	}
	if _, ok := o.Suite.Drivers[o.Driver]; !ok {
		add("unknown driver %q", o.Driver)
	}
	if len(o.Workloads) == 0 {
		add("no workload image")
	}
	seen := map[string]bool{}
	for _, w := range o.Workloads {
		if !digestForm.MatchString(w) || seen[w] {
			add("workload %q is not a config digest, or there twice", w)
		}
		seen[w] = true
	}
	if o.Out == "" || o.Work == "" {
		add("output or work folder missing")
	}
	if o.Evidence != nil {
		if o.CohortID == "" || o.CohortID != o.Evidence.Cohort.ID {
			add("evidence without the measured cohort")
		}
		if err := o.Evidence.check(o.Workloads); err != nil {
			errs = append(errs, err)
		}
	}
	if st, err := os.Stat(o.Tenant); err != nil || !st.Mode().IsRegular() {
		add("the attack binary %q is not a file", o.Tenant)
	}
	return errors.Join(errs...)
}

// prepare replaces what an earlier run left in Out and makes the raw folder.
func (o Options) prepare() (raw string, err error) {
	for _, name := range []string{"raw", "bundle", reportFile, junitFile, htmlFile} {
		if err := os.RemoveAll(filepath.Join(o.Out, name)); err != nil {
			return "", fmt.Errorf("clear output folder: %w", err)
		}
	}
	raw, err = filepath.Abs(filepath.Join(o.Out, "raw"))
	if err != nil {
		return "", fmt.Errorf("output folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(raw, blobsDir), 0o755); err != nil {
		return "", fmt.Errorf("make output folder: %w", err)
	}
	if entries, err := os.ReadDir(o.Work); err == nil && len(entries) > 0 {
		return "", fmt.Errorf("the work folder %s is not empty", o.Work)
	}
	if err := os.MkdirAll(o.Work, 0o700); err != nil {
		return "", fmt.Errorf("make work folder: %w", err)
	}
	return raw, nil
}
