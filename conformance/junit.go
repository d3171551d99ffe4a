// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// junit.xml is one testsuite that satisfies the schema of Jenkins' xUnit plugin (junit-10.xsd)
// and, but for timestamp and hostname, which only the former knows, that of Maven's Surefire:
//
//	testsuite  name tests failures errors skipped time timestamp hostname; properties, then testcases
//	property   name value: runId cohort seed tier profiles procs catalogue verdict suite
//	testcase   name classname time; at most one of failure, error, skipped, then system-out
//	failure    message type (the reason code); likewise error
//	skipped    message
//
// Times are seconds with three digits. The timestamp is UTC without a zone, as that schema has
// it. The hostname is always localhost: a machine is told by its cohort, not by its name.
type junitSuite struct {
	XMLName    xml.Name        `xml:"testsuite"`
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Errors     int             `xml:"errors,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       string          `xml:"time,attr"`
	Timestamp  string          `xml:"timestamp,attr"`
	Hostname   string          `xml:"hostname,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Name    string     `xml:"name,attr"`
	Class   string     `xml:"classname,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitNote `xml:"failure"`
	Error   *junitNote `xml:"error"`
	Skipped *junitNote `xml:"skipped"`
	Out     string     `xml:"system-out,omitempty"`
}

type junitNote struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// Bounds of what one case puts into junit.xml, in bytes: CI systems show these texts in full.
const (
	maxJUnitMessage = 256
	maxJUnitText    = 8 << 10
)

// junit maps the seven statuses onto JUnit's four: an inconclusive case is an error there,
// since a reader of JUnit takes skipped for harmless.
func (r Report) junit() ([]byte, error) {
	suite := junitSuite{
		Name: xmlText("hallmark "+string(r.Tier), maxJUnitMessage), Tests: len(r.Cases), Hostname: "localhost", Time: seconds(r.wallMs()),
		Properties: []junitProperty{
			{"runId", xmlText(r.RunID, maxJUnitMessage)}, {"cohort", xmlText(r.Cohort, maxJUnitMessage)}, {"seed", strconv.FormatInt(r.Seed, 10)},
			{"tier", xmlText(string(r.Tier), maxJUnitMessage)}, {"profiles", xmlText(strings.Join(r.Profiles, ","), maxJUnitMessage)},
			{"procs", strconv.Itoa(r.Procs)}, {"catalogue", xmlText(r.Suite.Catalogue, maxJUnitMessage)},
			{"verdict", xmlText(string(r.Verdict), maxJUnitMessage)}, {"suite", xmlText(r.Suite.Version+" "+r.Suite.Commit, maxJUnitMessage)},
		},
	}
	if at, ok := evidence.Timestamp(r.StartedAt).Time(); ok {
		suite.Timestamp = at.UTC().Format("2006-01-02T15:04:05")
	}
	for _, c := range r.Cases {
		jc := junitCase{
			Name: xmlText(c.ID+" "+c.Title, maxJUnitMessage), Class: xmlText("hallmark."+family(c.ID), maxJUnitMessage), Time: seconds(c.DurationMs),
			Out: xmlText(c.facts(), maxJUnitText),
		}
		note := &junitNote{Message: xmlText(string(c.Status)+" "+c.Reason, maxJUnitMessage), Type: xmlText(c.Reason, maxJUnitMessage), Text: xmlText(c.observed(), maxJUnitText)}
		switch c.Status {
		case Pass:
		case Fail:
			jc.Failure = note
			suite.Failures++
		case NotApplicable, NotRun, Waived:
			note.Type = ""
			jc.Skipped = note
			suite.Skipped++
		default:
			jc.Error = note
			suite.Errors++
		}
		suite.Cases = append(suite.Cases, jc)
	}
	b, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode junit: %w", err)
	}
	return append([]byte(xml.Header), append(b, '\n')...), nil
}

// observed is every failure over every workload, or the case's own text.
func (c ReportCase) observed() string {
	var b strings.Builder
	for _, e := range c.Workloads {
		for _, f := range e.Failed {
			fmt.Fprintf(&b, "%s: %s: %s\n", shortDigest(e.Workload), f.Reason, f.Text)
		}
	}
	if b.Len() == 0 {
		return c.Text
	}
	if c.Requirement != "" {
		return "required: " + c.Requirement + "\n" + b.String()
	}
	return b.String()
}

// facts are the witnesses with what they needed, and the names of the artifacts.
func (c ReportCase) facts() string {
	var b strings.Builder
	for _, e := range c.Workloads {
		fmt.Fprintf(&b, "%s %s %ss\n", shortDigest(e.Workload), e.Status, seconds(e.DurationMs))
		for _, name := range slices.Sorted(maps.Keys(e.Witness)) {
			fmt.Fprintf(&b, "  witness %s: %d", name, e.Witness[name])
			if need, ok := e.Need[name]; ok {
				fmt.Fprintf(&b, " (at least %d)", need)
			}
			b.WriteString("\n")
		}
		for _, a := range e.Artifacts {
			fmt.Fprintf(&b, "  artifact %s: %d bytes, %s\n", a.Name, a.Size, a.Path)
		}
		if b.Len() > maxJUnitText {
			break
		}
	}
	return b.String()
}

// xmlText is at most max bytes of s without what XML 1.0 forbids or a reader could be fooled
// by, which is spelt out.
func xmlText(s string, max int) string {
	cut := truncate(s, max)
	var b strings.Builder
	for _, p := range pieces(cut) {
		b.WriteString(p.Text)
	}
	if len(cut) < len(s) {
		fmt.Fprintf(&b, "\n[cut: %d of %d bytes; report.json has all]", len(cut), len(s))
	}
	return b.String()
}

// seconds has three digits after the point.
func seconds(ms int64) string { return fmt.Sprintf("%d.%03d", ms/1000, ms%1000) }

// wallMs is how long the run took, to the second; 0 when its times cannot be read.
func (r Report) wallMs() int64 {
	from, ok := evidence.Timestamp(r.StartedAt).Time()
	to, also := evidence.Timestamp(r.FinishedAt).Time()
	if !ok || !also || to.Before(from) {
		return 0
	}
	return to.Sub(from).Milliseconds()
}

// shortDigest is what a person can compare at a glance.
func shortDigest(d string) string {
	if rest, ok := strings.CutPrefix(d, "sha256:"); ok && len(rest) > 12 {
		return rest[:12]
	}
	return d
}
