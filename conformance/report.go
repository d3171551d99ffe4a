// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ReportSchema is the version of report.json. Members are added, never renamed or taken away,
// within one; report.schema.json describes it.
const ReportSchema = 1

// Report is report.json: what a run came to, for people and for scripts. The signed bundle is
// what counts; this file is not evidence.
type Report struct {
	Schema      int                `json:"schema"`
	Verdict     evidence.Outcome   `json:"verdict"`
	Reasons     []string           `json:"reasons"`  // why the verdict is not conformant, run first
	Findings    []evidence.Finding `json:"findings"` // those of the reasons that the verdict function found
	Interrupted bool               `json:"interrupted"`
	Cohort      string             `json:"cohort"`
	CohortFacts *CohortFacts       `json:"cohortFacts"` // null when the caller measured none
	RunID       string             `json:"runId"`
	Seed        int64              `json:"seed"`
	Tier        Tier               `json:"tier"`
	Profiles    []string           `json:"profiles"`
	Procs       int                `json:"procs"`
	Command     []string           `json:"command"` // what repeats the run, seed included; empty when unknown
	StartedAt   string             `json:"startedAt"`
	FinishedAt  string             `json:"finishedAt"`
	Suite       ReportSuite        `json:"suite"`
	Target      *TargetRecord      `json:"target"`   // null when it was never opened
	Features    []FeatureRecord    `json:"features"` // as claimed and as seen
	Workloads   []string           `json:"workloads"`
	Images      []ReportImage      `json:"images"` // the workloads, named
	Counts      evidence.Counts    `json:"counts"`
	Waived      []string           `json:"waived"` // ids of the cases with that status
	Cases       []ReportCase       `json:"cases"`  // in catalogue order
	Families    []ReportFamily     `json:"families"`
	Oracles     []OracleRecord     `json:"oracles"`
	Artifacts   []ReportArtifact   `json:"artifacts"` // of the run as a whole
	Limitations []string           `json:"limitations"`
	Bundle      string             `json:"bundle"`   // folder beside this file, or ""
	Unsigned    string             `json:"unsigned"` // why there is no bundle, or ""
}

// ReportSuite identifies the program that judged.
type ReportSuite struct {
	Version     string `json:"version"`
	Commit      string `json:"commit"`
	TreeState   string `json:"treeState"`
	CatalogueID string `json:"catalogueId"`
	Catalogue   string `json:"catalogueDigest"`
}

// CohortFacts are the measured facts of a cohort that tell a person what it is. Its id is the
// digest of many more.
type CohortFacts struct {
	Arch          string            `json:"arch"`
	Kernel        string            `json:"kernel"`
	KernelBuild   string            `json:"kernelBuild"`
	CgroupMode    string            `json:"cgroupMode"`
	Engine        string            `json:"engine"`
	StorageDriver string            `json:"storageDriver"`
	ImageStore    string            `json:"imageStore"`
	Sandbox       string            `json:"sandbox"` // what the sandbox binary says that it is
	SandboxDigest string            `json:"sandboxDigest"`
	SandboxArgs   []string          `json:"sandboxArgs"`
	Platform      string            `json:"platform"`
	Quota         string            `json:"quota"`
	Filesystem    string            `json:"filesystem"`
	Capabilities  map[string]string `json:"capabilities"`
}

// ReportImage is a workload with the name that the caller knows it by.
type ReportImage struct {
	Name   string `json:"name"` // "" when the caller gave none
	Digest string `json:"digest"`
}

// ReportFamily sums up the cases whose ids share a prefix.
type ReportFamily struct {
	Prefix     string          `json:"prefix"`
	Name       string          `json:"name"` // "" when the suite names none
	Counts     evidence.Counts `json:"counts"`
	DurationMs int64           `json:"durationMs"`
}

// ReportCase is one row with its details.
type ReportCase struct {
	ID         string            `json:"id"`
	Title      string            `json:"title"`
	Tier       Tier              `json:"tier"`
	Revision   int               `json:"revision"`
	Status     Status            `json:"status"`
	Reason     string            `json:"reason"`
	Text       string            `json:"text"`
	Attempts   int               `json:"attempts"`
	StartedAt  string            `json:"startedAt"` // "" when it did not start
	DurationMs int64             `json:"durationMs"`
	Mutants    []string          `json:"mutants"` // those that the case is there to catch
	Kills      []ReportKill      `json:"kills"`   // the same, with the reason expected first
	Workloads  []ReportExecution `json:"workloads"`

	// What the catalogue says of the case, so that a failure can be read by itself.
	Requirement string    `json:"requirement"`
	Threat      string    `json:"threat"`
	Attack      string    `json:"attack"`
	Witness     string    `json:"witness"`
	Oracle      string    `json:"oracle"`
	Precedent   string    `json:"precedent"`
	Features    []Feature `json:"features"`
	Needs       []Part    `json:"needs"`
	Oracles     []Oracle  `json:"oracles"`
	PerImage    bool      `json:"perImage"`
	Control     bool      `json:"control"`
	Exclusive   bool      `json:"exclusive"`
	TimeoutMs   int64     `json:"timeoutMs"`
}

// ReportKill is a mutant and the reason by which the case must notice it.
type ReportKill struct {
	Mutant string `json:"mutant"`
	Reason string `json:"reason"`
}

// ReportExecution is an [Execution] whose failures are pairs and whose artifacts have paths.
type ReportExecution struct {
	Execution
	Failed    []ReportFailure  `json:"failed"` // Failures once more, each taken apart
	Artifacts []ReportArtifact `json:"artifacts"`
}

// ReportFailure is one judged failure: what was seen where the requirement did not hold.
type ReportFailure struct {
	Reason string `json:"reason"`
	Text   string `json:"text"`
}

// ReportArtifact is a raw file of the run.
type ReportArtifact struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	Path      string `json:"path"` // relative to the folder of this report, with slashes
}

// About is what the caller of a run knows beyond what it is judged by. It is for the reports:
// nothing follows from it.
type About struct {
	Cohort  *evidence.Cohort  // as measured; that of the evidence comes first
	Names   map[string]string // of workloads, by config digest
	Command []string          // what repeats the run, without its seed
}

// Failures returns the ids of the cases with status fail.
func (r Report) Failures() []string {
	var out []string
	for _, c := range r.Cases {
		if c.Status == Fail {
			out = append(out, c.ID)
		}
	}
	return out
}

// Why is the reason that decides: what makes a run non-conformant in which no case failed is a
// claim that is not true, whatever else is missing. Otherwise it is the first; "" for none.
func (r Report) Why() string {
	if r.Verdict == evidence.NonConformant {
		for _, reason := range r.Reasons {
			if strings.HasPrefix(strings.TrimSpace(reason), string(evidence.ReasonClaimAbsent)) {
				return strings.TrimSpace(reason)
			}
		}
	}
	if len(r.Reasons) == 0 {
		return ""
	}
	return r.Reasons[0]
}

// Case returns the row of id.
func (r Report) Case(id string) (ReportCase, bool) {
	i := slices.IndexFunc(r.Cases, func(c ReportCase) bool { return c.ID == id })
	if i < 0 {
		return ReportCase{}, false
	}
	return r.Cases[i], true
}

// write puts r into dir as report.json, junit.xml and report.html.
func (r Report) write(dir string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, reportFile), b.Bytes(), 0o644); err != nil {
		return err
	}
	junit, err := r.junit()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, junitFile), junit, 0o644); err != nil {
		return err
	}
	page, err := r.html(os.DirFS(dir))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, htmlFile), page, 0o644)
}

// The reports of a run, in its output folder.
const (
	reportFile = "report.json"
	junitFile  = "junit.xml"
	htmlFile   = "report.html"
)
