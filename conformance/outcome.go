// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// result is everything that a run left, before it is judged.
type result struct {
	run         rawRun
	records     []Record // of every case of the catalogue: the child's, then those that it owes
	raw         string
	started     time.Time
	finished    time.Time
	interrupted bool
	incomplete  []string // faults of the run as a whole
	broken      string   // a fault after the seal: such a run is not signed
}

// collect reads the child's records and adds one for every case of the catalogue that has
// none, so that nothing is absent in silence.
func collect(o Options, p plan, running []string, childErr error) (*result, error) {
	run, err := readRaw(p.Raw)
	if err != nil {
		return nil, err
	}
	r := &result{run: run, records: slices.Clone(run.records), raw: p.Raw}
	_, r.interrupted = marked(p.Shared, markInterrupted)
	if text, lost := marked(p.Shared, markLost); lost {
		r.incomplete = append(r.incomplete, markLost+": "+text)
	}
	if run.setup == nil {
		r.incomplete = append(r.incomplete, "the target was not opened and armed; see raw/"+childLog)
	}
	if run.seal == nil {
		r.incomplete = append(r.incomplete, "the run has no seal")
	} else if run.seal.Teardown != "" {
		r.incomplete = append(r.incomplete, "closing the target: "+run.seal.Teardown)
	}
	if childErr != nil {
		r.broken = "the suite's processes did not end well"
		r.incomplete = append(r.incomplete, fmt.Sprintf("the suite's processes ended with: %v; see raw/%s", childErr, childLog))
	}
	if text := unexplained(p.Raw, run.rows); text != "" {
		r.incomplete = append(r.incomplete, text)
	}
	for _, c := range o.Suite.Cases {
		if slices.ContainsFunc(run.records, func(r Record) bool { return r.ID == c.ID }) {
			continue
		}
		rec := Record{ID: c.ID, Revision: c.Revision, Workloads: []Execution{}}
		switch {
		case !slices.Contains(p.Cases, c.ID):
			rec.Status, rec.Reason, rec.Text = NotRun, "not-selected", "the run was narrowed to other cases"
			if len(o.CaseIDs) == 0 && o.listed() != nil {
				rec.Text = "the profiles list other cases"
			}
		case slices.Contains(running, c.ID):
			rec.Status, rec.Reason, rec.Text = Errored, "suite-died", "a process of the suite ended while it ran the case"
		default:
			rec.Status, rec.Reason, rec.Text = NotRun, "run-ended", "the run ended before the case"
		}
		r.records = append(r.records, rec)
	}
	return r, nil
}

// unexplained says that the runner did not succeed although every row would let it: something
// beside the cases failed, and no row shows it. An embedded run has no report of its own.
func unexplained(raw string, rows []evidence.CaseRow) string {
	text, err := os.ReadFile(filepath.Join(raw, ginkgoFile))
	if err != nil {
		return "" // signing, which needs it, says so
	}
	g, err := evidence.ReportGinkgo(text, types.VERSION)
	if err != nil || g.Succeeded && len(g.SpecialFailures) == 0 {
		return ""
	}
	if slices.ContainsFunc(rows, func(r evidence.CaseRow) bool {
		return !slices.Contains([]string{evidence.StatusPass, evidence.StatusNotApplicable, evidence.StatusNotRun}, r.Status)
	}) {
		return ""
	}
	return fmt.Sprintf("the runner did not succeed, and no case says why: %q", g.SpecialFailures)
}

// conclude judges, writes the reports, and signs the bundle when the run may have one.
func (r *result) conclude(o Options, p plan) (Outcome, error) {
	// Only what ran is judged: the verdict itself finds what is missing.
	rows := slices.SortedFunc(slices.Values(r.run.rows), func(a, b evidence.CaseRow) int { return cmp.Compare(a.ID, b.ID) })
	need := evidence.Need{Profiles: o.profiles(), Images: slices.Sorted(slices.Values(p.Workloads)), Now: r.finished}
	if r.run.setup != nil {
		need.Claims, need.Features, need.Oracles = r.run.arming.Target.Claims, r.run.arming.Features, r.run.arming.Oracles
	}
	cat := o.Suite.Catalogue()
	judged := evidence.Verdict(cat, rows, need)
	faults := slices.Clone(r.incomplete)
	if r.interrupted {
		faults = append(faults, "the run was interrupted")
	}
	if r.broken != "" && !slices.Contains(faults, r.broken) {
		faults = append(faults, r.broken)
	}
	if len(o.CaseIDs) > 0 {
		r.incomplete = append(r.incomplete, "the run was narrowed to single cases")
	}
	if o.WithoutProbes {
		r.incomplete = append(r.incomplete, "what the target has was not looked at")
	}
	if o.WithoutArming {
		r.incomplete = append(r.incomplete, "no oracle was tried")
	}
	if r.interrupted {
		r.incomplete = append(r.incomplete, "the run was interrupted")
	}
	told := judged
	told.Findings = plainly(o, p, cat, judged.Findings)
	report, err := r.report(o, p, told)
	if err != nil {
		return Outcome{}, fmt.Errorf("make report: %w", err)
	}
	out := Outcome{RunID: p.RunID, Interrupted: r.interrupted, Report: report, Faults: faults}
	switch {
	case o.Evidence == nil:
		out.Unsigned = "no evidence was asked for"
	case r.interrupted:
		out.Unsigned = "the run was interrupted"
	case r.run.seal == nil:
		out.Unsigned = "the run has no seal"
	case r.broken != "":
		out.Unsigned = r.broken
	case len(o.CaseIDs) > 0:
		out.Unsigned = "the run was narrowed to single cases" // whoever picks the cases picks the result
	default:
		if err := r.sign(o, p, rows, judged, report); err != nil {
			out.Unsigned = "the bundle cannot be made: " + err.Error()
			out.Report.Verdict = evidence.Incomplete
			out.Report.Reasons = append([]string{out.Unsigned}, out.Report.Reasons...)
			break
		}
		out.Bundle, out.Report.Bundle = filepath.Join(o.Out, "bundle"), "bundle"
	}
	out.Report.Unsigned = out.Unsigned
	if err := out.Report.write(o.Out); err != nil {
		return Outcome{}, fmt.Errorf("write reports: %w", err)
	}
	return out, nil
}

func demanded(cat evidence.Catalogue, profiles []string, id string) bool {
	return slices.ContainsFunc(profiles, func(name string) bool {
		p, _ := cat.Profile(name) // options were checked
		return slices.ContainsFunc(cat.Cases, func(c evidence.CaseRef) bool { return c.ID == id && p.Requires(c) })
	})
}

// plainly is findings for people: the demanded cases that were never planned are one sentence
// instead of a finding each. The signed summary keeps them all.
func plainly(o Options, p plan, cat evidence.Catalogue, findings []evidence.Finding) []evidence.Finding {
	unplanned := func(f evidence.Finding) bool {
		return f.Code == evidence.ReasonCaseMissing && !slices.Contains(p.Cases, f.Case)
	}
	out := slices.DeleteFunc(slices.Clone(findings), unplanned)
	left := len(findings) - len(out)
	if left == 0 || len(o.CaseIDs) > 0 { // a narrowed run says so already
		return out
	}
	var lacking []string
	for _, name := range o.profiles() {
		profile, _ := cat.Profile(name) // options were checked
		if slices.ContainsFunc(cat.Cases, func(c evidence.CaseRef) bool { return profile.Requires(c) && !slices.Contains(p.Cases, c.ID) }) {
			lacking = append(lacking, name)
		}
	}
	var require string
	switch len(lacking) {
	case 0: // only such as the target claims to have the features for
		require = "the target claims to have the features for"
	case 1:
		require = "profile " + lacking[0] + " requires"
	default:
		require = "the profiles " + strings.Join(lacking, ", ") + " require"
	}
	claimed := func(f evidence.Finding) bool { return unplanned(f) && !demanded(cat, o.profiles(), f.Case) }
	if len(lacking) > 0 && slices.ContainsFunc(findings, claimed) {
		require += ", or that the target claims to have the features for"
	}
	return slices.Insert(out, 0, evidence.Finding{
		Code: evidence.ReasonCaseMissing, Text: fmt.Sprintf("tier %s leaves out %d cases that %s", o.Tier, left, require),
	})
}
