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
	"slices"

	"golang.org/x/sys/unix"
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
	// WithoutProbes leaves out the look at what the target has, which ends its runtime once and
	// starts it again. Such a run is incomplete by definition, and is never signed.
	WithoutProbes bool
	// WithoutArming tries no oracle. A case that fails has then shown itself that its oracle sees; one
	// that passes has shown nothing, and is inconclusive. Such a run is never signed.
	WithoutArming bool
	// Beside is a folder in which runs on one engine, at one time, tell each other what is theirs, so
	// that none is blamed for what another one has there; "" says that nobody else uses the engine.
	// Such a run is never signed.
	Beside string

	Out    string // reports, raw records and bundle; what an earlier run left here is replaced
	Work   string // an empty or absent folder for the driver's state; removed afterwards
	Tenant string // the static attack binary

	// TimeScale multiplies the suite's own bounds of patience, for a cohort that is slower than any on which they
	// were set: those of cases, of the looks at features, of arming and of what may take a while to end. It changes no
	// bound that a case holds the target to. 1 to [MaxTimeScale]; 0 means 1.
	TimeScale int

	Seed     int64  // 0 draws one; recorded either way
	CohortID string // measured by the caller; "" leaves the run without evidence
	Evidence *Evidence

	Progress io.Writer // nil for silence
	Live     bool      // Progress is a terminal: one line is kept up to date
	Color    bool      // with Live: statuses have colours
	About    About

	// Executable is the program to run as the child; "" is the running one. It must call
	// [ChildMain] with an equal suite. Arguments are what it gets beside those of Ginkgo.
	Executable string
	Arguments  []string
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
	if o.Procs < 0 || o.Procs > MaxProcs {
		add("%d processes: it is 1 to %d, or 0 for 1", o.Procs, MaxProcs)
	}
	if o.TimeScale < 0 || o.TimeScale > MaxTimeScale {
		add("a time scale of %d: it is 1 to %d, or 0 for 1", o.TimeScale, MaxTimeScale)
	}
	if len(o.Profiles) == 0 {
		add("no profile to be judged by")
	}
	cat, named := o.Suite.Catalogue(), map[string]bool{}
	for _, name := range o.Profiles {
		if _, ok := cat.Profile(name); !ok || named[name] {
			add("profile %q is not in the catalogue, or there twice", name)
		}
		named[name] = true
	}
	if o.Out == "" || o.Work == "" {
		add("output or work folder missing")
	}
	if st, err := os.Stat(o.Beside); o.Beside != "" && (err != nil || !st.IsDir() || !filepath.IsAbs(o.Beside)) {
		add("the folder %q for the runs beside this one is none, or not absolute", o.Beside)
	}
	if o.Evidence != nil {
		if o.WithoutProbes {
			add("evidence without a look at the target's features")
		}
		if o.WithoutArming {
			add("evidence without an armed oracle")
		}
		if o.Beside != "" {
			add("evidence beside other runs on the engine")
		}
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

// profiles are those of o, sorted.
func (o Options) profiles() []string { return slices.Sorted(slices.Values(o.Profiles)) }

// selected are the cases to run: those that CaseIDs name, else those that the profiles list when each of them is a
// list, else those of the tier.
func (o Options) selected() ([]Case, error) {
	ids := o.CaseIDs
	if len(ids) == 0 {
		ids = o.listed()
	}
	return o.Suite.Select(o.Tier, ids)
}

// listed are the cases that the profiles demand, when each of them is a list. To run no others is not to narrow the
// run: there are none that they could miss.
func (o Options) listed() []string {
	var ids []string
	cat := o.Suite.Catalogue()
	for _, name := range o.Profiles {
		p, ok := cat.Profile(name)
		if !ok || len(p.Cases) == 0 {
			return nil
		}
		ids = append(ids, p.Cases...)
	}
	return ids
}

// MaxTimeScale is the largest [Options.TimeScale].
const MaxTimeScale = 20

// MaxProcs is the most processes that one run may have.
const MaxProcs = 8

// ErrOutInUse says that another run works on the output folder.
var ErrOutInUse = errors.New("another run works on the output folder")

// lockOut keeps the output folder to one run until every process of the run has closed the file.
// The kernel drops the lock with the last of them: nothing of it is stale after a crash.
func lockOut(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make output folder: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open output folder: %w", err)
	}
	err = ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.EWOULDBLOCK {
		return nil, fmt.Errorf("%w %s", ErrOutInUse, dir)
	}
	return nil, fmt.Errorf("lock output folder: %w", err)
}
