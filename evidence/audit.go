// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// summary is the part of step 13 that every depth does. The producer judged by the profiles that
// it names and knew no waiver, so this is computed again in that way, and not by the policy.
func (x *examination) summary() error {
	p := x.statement.Predicate
	own := Verdict(x.catalogue, p.Cases, p.need(p.Profiles)).Summary()
	if !p.Summary.equal(own) {
		return deny(ReasonSummary, "%s %+v with %d findings, computed %s %+v with %d",
			p.Summary.Verdict, p.Summary.Counts, len(p.Summary.Findings), own.Verdict, own.Counts, len(own.Findings))
	}
	root, err := artifactsRoot(p.Artifacts.Items)
	if err != nil || root != p.Artifacts.Root {
		return deny(ReasonArtifact, "root %s, computed %s", p.Artifacts.Root, root)
	}
	for _, c := range p.Cases {
		for _, d := range c.Artifacts {
			if !slices.ContainsFunc(p.Artifacts.Items, func(a Artifact) bool { return a.Digest == d }) {
				return deny(ReasonArtifact, "%s names %s, which is not listed", c.ID, d)
			}
		}
	}
	return nil
}

func (x *examination) artifacts() error {
	if x.q.Depth == AdmitDepth {
		return nil
	}
	return checkArtifacts(x.statement.Predicate, x.b)
}

// audit derives the rows again from the raw records and the runner's report, and holds the
// derived statements against the signed one.
func (x *examination) audit() error {
	if x.q.Depth == AdmitDepth {
		return nil
	}
	p := x.statement.Predicate
	records, err := x.only(ArtifactRecords, ReasonRecords)
	if err != nil {
		return err
	}
	if err := checkRecords(p, records); err != nil {
		return err
	}
	report, err := x.only(ArtifactGinkgo, ReasonReport)
	if err != nil {
		return err
	}
	if err := checkReport(p, report); err != nil {
		return err
	}
	derived, err := x.only(ArtifactTestResult, ReasonTestResult)
	if err != nil {
		return err
	}
	again, err := TestResult(x.statement)
	if err != nil || !bytes.Equal(derived, again) {
		return deny(ReasonTestResult, "%d bytes, derived %d", len(derived), len(again))
	}
	if p.MutationEvidence == nil {
		return nil
	}
	return x.checkMutation(*p.MutationEvidence)
}

// only returns the one artifact of a role.
func (x *examination) only(role string, r Reason) ([]byte, error) {
	var found []byte
	n := 0
	for _, a := range x.statement.Predicate.Artifacts.Items {
		if a.Role == role {
			found, _ = x.b.File(blobName(a.Digest))
			n++
		}
	}
	if n != 1 {
		return nil, deny(r, "%d artifacts of role %s", n, role)
	}
	return found, nil
}

func checkRecords(p Predicate, text []byte) error {
	chain, err := NewChain(p.Run.Arming)
	if err != nil {
		return deny(ReasonRecords, "%v", err)
	}
	var rows []CaseRow
	rest := text
	for len(rest) > 0 {
		line, after, ok := bytes.Cut(rest, []byte("\n"))
		if !ok {
			return deny(ReasonRecords, "last line is cut")
		}
		rest = after
		var r CaseRow
		if err := strictjson.Unmarshal(line, &r, payloadLimits); err != nil {
			return deny(ReasonRecords, "line %d: %v", len(rows)+1, err)
		}
		if again, err := strictjson.Marshal(r); err != nil || !bytes.Equal(again, line) {
			return deny(ReasonRecords, "line %d is not canonical", len(rows)+1)
		}
		if rows = append(rows, r); len(rows) > MaxCases {
			return deny(ReasonRecords, "more than %d lines", MaxCases)
		}
		chain.take(line)
	}
	finished, _ := p.Run.Seal.FinishedAt.Time()
	if chain.Seal(finished) != p.Run.Seal {
		return deny(ReasonSeal, "the records do not give the seal")
	}
	slices.SortStableFunc(rows, func(a, b CaseRow) int { return strings.Compare(a.ID, b.ID) })
	signed, err := strictjson.Marshal(p.Cases)
	if err != nil {
		return deny(ReasonRecords, "%v", err)
	}
	raw, err := strictjson.Marshal(rows)
	if err != nil || !bytes.Equal(raw, signed) {
		return deny(ReasonRecords, "the rows differ")
	}
	return nil
}

// ginkgoReport is the part of Ginkgo's JSON report that decides. The rest of it is Ginkgo's
// business, so unknown members are passed over here; duplicates and invalid text are not.
type ginkgoReport struct {
	SuiteSucceeded             bool
	SuiteHasProgrammaticFocus  bool
	SpecialSuiteFailureReasons []string
	SuiteConfig                struct {
		RandomSeed                        int64
		FocusStrings, SkipStrings         []string
		FocusFiles, SkipFiles             []string
		LabelFilter, SemVerFilter         string
		FailFast, DryRun                  bool
		FlakeAttempts, MustPassRepeatedly int64
		ParallelTotal                     int64
	}
	SpecReports []struct {
		LeafNodeType string
		LeafNodeText string
		State        string
		NumAttempts  int64
	}
}

// ReportGinkgo reads Ginkgo's JSON report (one suite) into the form of the predicate.
func ReportGinkgo(text []byte, version string) (Ginkgo, error) {
	r, err := parseReport(text)
	if err != nil {
		return Ginkgo{}, err
	}
	return r.config(version), nil
}

func parseReport(text []byte) (ginkgoReport, error) {
	var rs []ginkgoReport
	if err := json.Unmarshal(text, &rs); err != nil {
		return ginkgoReport{}, deny(ReasonReport, "%v", err)
	}
	if len(rs) != 1 {
		return ginkgoReport{}, deny(ReasonReport, "%d suites", len(rs))
	}
	return rs[0], nil
}

func (r ginkgoReport) config(version string) Ginkgo {
	c := r.SuiteConfig
	list := func(s []string) []string { return append([]string{}, s...) }
	// A node that is no case has no row that could say so, and no waiver may cover it.
	failures := list(r.SpecialSuiteFailureReasons)
	for _, s := range r.SpecReports {
		if s.LeafNodeType != "It" && s.State != "passed" {
			failures = append(failures, s.LeafNodeType+" "+s.State)
		}
	}
	return Ginkgo{
		Version: version, Seed: c.RandomSeed,
		FocusStrings: list(c.FocusStrings), SkipStrings: list(c.SkipStrings),
		FocusFiles: list(c.FocusFiles), SkipFiles: list(c.SkipFiles),
		LabelFilter: c.LabelFilter, SemVerFilter: c.SemVerFilter,
		DryRun: c.DryRun, FailFast: c.FailFast,
		FlakeAttempts: c.FlakeAttempts, MustPassRepeatedly: c.MustPassRepeatedly,
		Parallel: max(1, c.ParallelTotal), ProgrammaticFocus: r.SuiteHasProgrammaticFocus,
		Succeeded: r.SuiteSucceeded, SpecialFailures: failures,
	}
}

// checkReport: the runner's configuration is the signed one, every spec is of a row, one that did
// not pass is of a row that says so, and every row that passed has specs, all of which passed at
// the first attempt. A spec's text begins with the case's ID, followed by a space or nothing.
func checkReport(p Predicate, text []byte) error {
	r, err := parseReport(text)
	if err != nil {
		return err
	}
	if got := r.config(p.Suite.Ginkgo.Version); !reflect.DeepEqual(got, normal(p.Suite.Ginkgo)) {
		return deny(ReasonReport, "configuration %+v", got)
	}
	rows := map[string]CaseRow{}
	for _, c := range p.Cases {
		rows[c.ID] = c
	}
	specs := map[string]int{}
	for _, s := range r.SpecReports {
		if s.LeafNodeType != "It" {
			if s.State != "passed" {
				return deny(ReasonReport, "%s %s", s.LeafNodeType, s.State)
			}
			continue
		}
		id, _, _ := strings.Cut(s.LeafNodeText, " ")
		row, ok := rows[id]
		if !ok {
			return deny(ReasonReport, "spec %q is of no row", s.LeafNodeText)
		}
		specs[id]++
		judged := slices.Contains([]string{StatusFail, StatusInconclusive, StatusError}, row.Status)
		if s.State != "passed" && s.State != "skipped" && !judged {
			return deny(ReasonReport, "%s %s, and its row is %s", id, s.State, row.Status)
		}
		if row.Status == StatusPass && (s.State != "passed" || s.NumAttempts != 1) {
			return deny(ReasonReport, "%s %s after %d attempts", id, s.State, s.NumAttempts)
		}
	}
	for id, row := range rows {
		if row.Status == StatusPass && specs[id] == 0 {
			return deny(ReasonReport, "%s has no spec", id)
		}
	}
	return nil
}

// normal replaces nil lists by empty ones, for comparing.
func normal(g Ginkgo) Ginkgo {
	for _, l := range []*[]string{&g.FocusStrings, &g.SkipStrings, &g.FocusFiles, &g.SkipFiles, &g.SpecialFailures} {
		*l = append([]string{}, *l...)
	}
	return g
}

// checkMutation opens the separately signed statement and holds it against the copy.
func (x *examination) checkMutation(m MutationEvidence) error {
	file, err := x.only(ArtifactMutation, ReasonMutation)
	if err != nil {
		return err
	}
	if Digest(file) != m.Digest {
		return deny(ReasonMutation, "artifact %s, named %s", Digest(file), m.Digest)
	}
	var key policyKey
	payload, _, err := openEnvelope(file, InTotoType, func(hint string) (PublicKey, bool) {
		k, ok := x.q.Policy.keys[hint]
		key = k
		_, counts := x.q.Policy.doc.Thresholds[k.Role] // a role that no evidence is taken of says nothing here either
		return k.key, ok && (k.Role == RoleMutation || counts)
	})
	if err != nil {
		return recode(err, ReasonMutation)
	}
	started, _ := x.statement.Predicate.Run.StartedAt.Time()
	if err := key.usable(m.CohortID, started, x.q.Now); err != nil {
		return recode(err, ReasonMutation)
	}
	var st mutationStatement
	if err := strictjson.Unmarshal(payload, &st, payloadLimits); err != nil {
		return deny(ReasonMutation, "%v", err)
	}
	if st.Type != StatementType || st.PredicateType != MutationPredicateType {
		return deny(ReasonMutation, "%q %q", st.Type, st.PredicateType)
	}
	a, err := strictjson.Marshal(st.Predicate)
	if err != nil {
		return deny(ReasonMutation, "%v", err)
	}
	b, err := strictjson.Marshal(m.MutationResults)
	if err != nil || !bytes.Equal(a, b) {
		return deny(ReasonMutation, "the copy differs from the signed rows")
	}
	return nil
}
