// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// A run leaves these files in its raw folder. rows.jsonl is what evidence calls the case records
// and seal.json its seal: see [evidence.Chain]. setup.json and details.jsonl hold the same with
// everything that a person wants to know.
const (
	planFile    = "plan.json"
	armingFile  = "arming.json"
	setupFile   = "setup.json"
	rowsFile    = "rows.jsonl"
	detailsFile = "details.jsonl"
	sealFile    = "seal.json"
	ginkgoFile  = "ginkgo.json"
	childLog    = "child.log"
	blobsDir    = "blobs"

	documentsDir = "target" // what the target keeps, see [target.Target.Documents]
	sharedDir    = "procs"  // where the processes of the run meet; gone after it
)

// Setup is what the child found before the first case. It is on disk by then, and so is the
// arming record that it makes.
type Setup struct {
	RunID     string         `json:"runId"`
	Catalogue string         `json:"catalogueDigest"`
	Planned   []string       `json:"planned"`
	CohortID  string         `json:"cohortId"`
	Target    TargetRecord   `json:"target"`
	Seed      int64          `json:"seed"`
	StartedAt string         `json:"startedAt"`
	Oracles   []OracleRecord `json:"oracles"`
	// Features are those that the catalogue knows, as claimed and as seen; sorted.
	Features []FeatureRecord `json:"features"`
}

// arming is s as evidence spells it.
func (s Setup) arming() evidence.Arming {
	a := evidence.Arming{
		RunID: s.RunID, CatalogueDigest: s.Catalogue, PlannedCases: slices.Sorted(slices.Values(s.Planned)), CohortID: s.CohortID,
		Target:    evidence.Target{Driver: s.Target.Driver, Mode: s.Target.Mode, Version: s.Target.Version, Claims: slices.Sorted(slices.Values(s.Target.Claims))},
		StartedAt: evidence.Timestamp(s.StartedAt), Oracles: []evidence.ArmedOracle{}, Features: []evidence.SeenFeature{},
	}
	a.Target.Claims = orEmpty(slices.Compact(a.Target.Claims))
	for _, o := range s.Oracles {
		control := o.Text
		if o.Armed {
			var seen []string
			for _, name := range slices.Sorted(maps.Keys(o.Witness)) {
				seen = append(seen, fmt.Sprintf("%s %d", name, o.Witness[name]))
			}
			control = "planted and detected: " + strings.Join(seen, ", ")
		}
		a.Oracles = append(a.Oracles, evidence.ArmedOracle{Oracle: string(o.Oracle), Detected: o.Armed, Control: control})
	}
	for _, f := range s.Features {
		a.Features = append(a.Features, evidence.SeenFeature{Feature: string(f.Feature), Observed: string(f.Observed)})
	}
	slices.SortFunc(a.Features, func(x, y evidence.SeenFeature) int { return cmp.Compare(x.Feature, y.Feature) })
	slices.SortFunc(a.Oracles, func(x, y evidence.ArmedOracle) int { return cmp.Compare(x.Oracle, y.Oracle) })
	return a
}

// TargetRecord is the target's own description, with the parts that its driver offers.
type TargetRecord struct {
	Driver   string            `json:"driver"`
	Mode     string            `json:"mode"`
	Version  string            `json:"version"`
	WorkerID string            `json:"workerId"`
	Claims   []string          `json:"claims"`
	Parts    []string          `json:"parts"`
	CohortID string            `json:"cohortId"`
	Digests  map[string]string `json:"digests"`
}

// OracleRecord says whether one oracle detected its planted positive in this run.
type OracleRecord struct {
	Oracle  Oracle           `json:"oracle"`
	Armed   bool             `json:"armed"`
	Text    string           `json:"text"`
	Witness map[string]int64 `json:"witness"`
}

// Record is what one case came to.
type Record struct {
	ID         string      `json:"id"`
	Revision   int         `json:"revision"`
	Status     Status      `json:"status"`
	Reason     string      `json:"reason"`
	Text       string      `json:"text"`
	Attempts   int         `json:"attempts"`
	StartedAt  string      `json:"startedAt"`
	DurationMs int64       `json:"durationMs"`
	Workloads  []Execution `json:"workloads"`
}

// Execution is one pass of a case over one workload image.
type Execution struct {
	Workload     string                     `json:"workload"`
	Status       Status                     `json:"status"`
	Reason       string                     `json:"reason"`
	Text         string                     `json:"text"`
	Failures     []string                   `json:"failures"` // "reason: text", in order
	Ended        string                     `json:"ended"`    // how the case ended beside a failure, as "status:reason", or ""
	DurationMs   int64                      `json:"durationMs"`
	Seed         int64                      `json:"seed"`
	Witness      map[string]int64           `json:"witness"`
	Need         map[string]int64           `json:"need"`
	Observations map[string]json.RawMessage `json:"observations"`
	Artifacts    []Blob                     `json:"artifacts"`
}

// Blob is a raw artifact in the blobs folder, under the hexadecimal part of its digest.
type Blob struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// sealRecord ends a run. A run without one is never signed.
type sealRecord struct {
	Seal     evidence.Seal `json:"seal"`
	Teardown string        `json:"teardown"` // "" when closing the target left nothing behind
}

// rank orders statuses from best to worst: a judged failure is a fact about the target and
// outweighs an error of the suite under another image.
func (s Status) rank() int {
	for i, v := range []Status{Pass, NotApplicable, Waived, NotRun, Inconclusive, Errored, Fail} {
		if s == v {
			return i
		}
	}
	return len("unknown") // worse than all
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("create %s: %w", filepath.Base(path), err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("open folder of %s: %w", filepath.Base(path), err)
	}
	defer d.Close()
	return d.Sync()
}
