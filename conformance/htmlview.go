// SPDX-License-Identifier: Apache-2.0

package conformance

import "html/template"

// page is what the template shows, in its order.
type page struct {
	Style     template.CSS
	StyleHash string

	Tag                   mark
	Meaning               string
	Bar                   []barPart
	Counts                []countView
	Subject, CohortLine   string
	Tier, ProfileLine     string
	Profiles              []string
	StartedAt, FinishedAt string
	Moment                string // StartedAt for a machine, or ""
	Started, Took         string
	Bundle, Unsigned      string
	Contents              []contentView
	Limitations           []string
	WhyTitle              string
	Reasons               []reasonView
	MoreReasons           int
	Failed, Unproven      []caseView
	Families              []familyView
	Target                *targetView
	Cohort                string
	CohortFacts           []factView
	Capabilities          []pair
	Oracles               []oracleView
	CaseGroups            []groupView
	Slowest               []slowView
	CaseTime              string
	RunID, Seed           string
	Procs                 int
	Images                []pair
	Suite                 ReportSuite
	Command               string
	Files                 []fileView
	Schema                int
}

type (
	pair     struct{ Name, Value string }
	factView struct {
		Name, Value string
		Code        bool
	}
	contentView struct{ ID, Name string }
	barPart     struct {
		Class    string
		X, Width int // thousandths
	}
	countView struct {
		Tag mark
		N   string
	}
	reasonView struct {
		Code, Text string
		Cases      []linkView // that it is about; none when it is about the run
	}
	linkView   struct{ ID, Anchor string }
	familyView struct {
		Prefix, Name, Time string
		Counts             []mark
	}
	targetView struct {
		Driver, Version, Mode, WorkerID string
		Parts                           []string
		Digests                         []pair
		Features                        []featureView
	}
	featureView struct {
		Name, Text string
		Claimed    bool
		Tag        mark
	}
	plantedView struct{ Name, Seen string }
	oracleView  struct {
		Name, Text string
		Tag        mark
		Planted    []plantedView
	}
	groupView struct {
		Prefix, Name string
		Cases        []caseView
	}
	slowView struct {
		ID, Slug, Time string
		Tag            mark
		Width          int
	}
	caseView struct {
		ReportCase
		Slug, Anchor           string
		Tag                    mark
		Reason, Tier           string
		Time, Timeout, Command string
		Told                   bool // above, among the failures
		Judged                 []judgedView
		Witnesses              []witnessTable
		Executions             []executionView
	}
	judgedView struct {
		Reason, Images string
		Texts          []string
	}
	executionView struct {
		Image        string // "" when there is one only
		Observations []pair
		Files        []fileView
	}
	witnessTable struct {
		Images []string
		Rows   []witnessRow
	}
	witnessRow struct {
		Name, Need string
		Seen       []seenView
	}
	seenView struct {
		N     string
		Short bool
	}
	fileView struct {
		Name, Role, Path, Digest string
		Size, Cut, Why, Body     string
		Shown                    bool
	}
)
