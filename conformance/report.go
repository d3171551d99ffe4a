// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"slices"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// ReportSchema is the version of report.json. Members are added, never renamed, within one.
const ReportSchema = 1

// Report is report.json: what a run came to, for people and for scripts. The signed bundle is
// what counts; this file is not evidence.
type Report struct {
	Schema     int              `json:"schema"`
	Verdict    evidence.Outcome `json:"verdict"`
	Reasons    []string         `json:"reasons"` // why the verdict is not conformant, run first
	Cohort     string           `json:"cohort"`
	RunID      string           `json:"runId"`
	Seed       int64            `json:"seed"`
	Tier       Tier             `json:"tier"`
	StartedAt  string           `json:"startedAt"`
	FinishedAt string           `json:"finishedAt"`
	Suite      ReportSuite      `json:"suite"`
	Target     *TargetRecord    `json:"target"` // null when it was never opened
	Workloads  []string         `json:"workloads"`
	Counts     evidence.Counts  `json:"counts"`
	Cases      []ReportCase     `json:"cases"` // in catalogue order
	Oracles    []OracleRecord   `json:"oracles"`
	Bundle     string           `json:"bundle"` // folder beside this file, or ""
}

// ReportSuite identifies the program that judged.
type ReportSuite struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	TreeState string `json:"treeState"`
	Catalogue string `json:"catalogueDigest"`
}

// ReportCase is one row with its details.
type ReportCase struct {
	ID         string      `json:"id"`
	Title      string      `json:"title"`
	Tier       Tier        `json:"tier"`
	Revision   int         `json:"revision"`
	Status     Status      `json:"status"`
	Reason     string      `json:"reason"`
	Text       string      `json:"text"`
	DurationMs int64       `json:"durationMs"`
	Mutants    []string    `json:"mutants"` // those that the case is there to catch
	Workloads  []Execution `json:"workloads"`
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

// Case returns the row of id.
func (r Report) Case(id string) (ReportCase, bool) {
	i := slices.IndexFunc(r.Cases, func(c ReportCase) bool { return c.ID == id })
	if i < 0 {
		return ReportCase{}, false
	}
	return r.Cases[i], true
}

func (r *result) report(o Options, p plan, j evidence.Judgement) Report {
	rep := Report{
		Schema: ReportSchema, Verdict: j.Verdict, Reasons: slices.Clone(r.incomplete), Cohort: p.CohortID, RunID: p.RunID, Seed: p.Seed, Tier: o.Tier,
		StartedAt: string(evidence.At(r.started)), FinishedAt: string(evidence.At(r.finished)), Workloads: p.Workloads,
		Suite:   ReportSuite{Version: buildinfo.Version, Commit: buildinfo.Commit(), TreeState: buildinfo.TreeState(), Catalogue: p.Catalogue},
		Oracles: []OracleRecord{},
	}
	if r.run.setup != nil {
		rep.Target, rep.Oracles = &r.run.setup.Target, r.run.setup.Oracles
	}
	// A run that was narrowed, interrupted or not sealed shows nothing about the whole; what its
	// cases found stands in their rows.
	if len(r.incomplete) > 0 {
		rep.Verdict = evidence.Incomplete
	}
	if rep.Reasons == nil {
		rep.Reasons = []string{}
	}
	for _, f := range j.Findings {
		text := fmt.Sprintf("%s: %s", f.Code, f.Text)
		if f.Case != "" {
			text = f.Case + " " + text
		}
		rep.Reasons = append(rep.Reasons, text)
	}
	for _, c := range o.Suite.Cases {
		i := slices.IndexFunc(r.records, func(rec Record) bool { return rec.ID == c.ID })
		rec := r.records[i] // collect gave every case one
		row := ReportCase{ID: c.ID, Title: c.Title, Tier: c.Tier, Revision: rec.Revision, Status: rec.Status, Reason: rec.Reason, Text: rec.Text,
			DurationMs: rec.DurationMs, Mutants: []string{}, Workloads: rec.Workloads}
		for _, k := range c.Kills {
			row.Mutants = append(row.Mutants, k.Mutant)
		}
		rep.Cases = append(rep.Cases, row)
		count(&rep.Counts, rec.Status)
	}
	return rep
}

func count(c *evidence.Counts, s Status) {
	c.Total++
	if n := map[Status]*int64{Pass: &c.Pass, Fail: &c.Fail, Inconclusive: &c.Inconclusive, Errored: &c.Error,
		NotApplicable: &c.NotApplicable, NotRun: &c.NotRun, Waived: &c.Waived}[s]; n != nil {
		*n++
	}
}

func (r Report) write(path string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string     `xml:"name,attr"`
	Class   string     `xml:"classname,attr"`
	Time    string     `xml:"time,attr"` // seconds
	Failure *junitNote `xml:"failure"`
	Error   *junitNote `xml:"error"`
	Skipped *junitNote `xml:"skipped"`
}

type junitNote struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// writeJUnit maps the seven statuses onto JUnit's four: an inconclusive case is an error there,
// since a reader of JUnit takes skipped for harmless.
func writeJUnit(path string, r Report) error {
	s := junitSuite{Name: "hallmark " + string(r.Tier), Tests: len(r.Cases)}
	for _, c := range r.Cases {
		jc := junitCase{Name: c.ID + " " + c.Title, Class: "hallmark." + c.ID[:2], Time: fmt.Sprintf("%d.%03d", c.DurationMs/1000, c.DurationMs%1000)}
		note := &junitNote{Message: string(c.Status) + " " + c.Reason, Text: c.Text}
		switch c.Status {
		case Pass:
		case Fail:
			jc.Failure = note
			s.Failures++
		case NotApplicable, NotRun, Waived:
			jc.Skipped = note
			s.Skipped++
		default:
			jc.Error = note
			s.Errors++
		}
		s.Cases = append(s.Cases, jc)
	}
	b, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode junit: %w", err)
	}
	return os.WriteFile(path, append([]byte(xml.Header), append(b, '\n')...), 0o644)
}
