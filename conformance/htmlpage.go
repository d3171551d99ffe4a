// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// pageMaker turns a report into a page.
type pageMaker struct {
	Report
	dir    fs.FS
	budget int // bytes of artifacts that may still be shown
	slugs  map[string]string
}

// maxReasons bounds the list under the verdict.
const maxReasons = 40

func (p *pageMaker) page() page {
	p.slugs = slugs(p.Report.Cases)
	v := page{
		Tag: verdictMark(p.Verdict), Meaning: p.meaning(), Tier: string(p.Tier), Profiles: p.Profiles, ProfileLine: strings.Join(p.Profiles, ", "),
		StartedAt: p.StartedAt, FinishedAt: p.FinishedAt, Started: p.StartedAt,
		Took: duration(p.wallMs()), Bundle: p.Bundle, Unsigned: p.Unsigned, Limitations: p.Limitations,
		Cohort: p.Report.Cohort, RunID: p.RunID, Seed: strconv.FormatInt(p.Seed, 10), Procs: p.Procs, Suite: p.Suite,
		Command: shellLines(p.Report.Command), Schema: p.Schema, Subject: "not opened and armed", WhyTitle: "Why",
	}
	if p.Verdict == evidence.Incomplete {
		v.WhyTitle = "Why it is incomplete"
	}
	if at, ok := evidence.Timestamp(p.StartedAt).Time(); ok {
		v.Moment, v.Started = p.StartedAt, at.Format("2006-01-02 15:04:05 UTC")
	}
	v.Bar, v.Counts = bar(p.Report.Counts)
	for _, c := range p.Report.Cases {
		switch {
		case c.Status == Fail:
			v.Failed = append(v.Failed, p.caseView(c, true))
		case c.Status == Inconclusive || c.Status == Errored:
			v.Unproven = append(v.Unproven, p.caseView(c, true))
		}
	}
	v.Reasons, v.MoreReasons = p.reasons()
	for _, f := range p.Report.Families {
		v.Families = append(v.Families, familyView{f.Prefix, f.Name, duration(f.DurationMs), tallies(f.Counts)})
	}
	if p.Report.Target != nil {
		v.Target = p.target()
		v.Subject = strings.TrimSpace(fmt.Sprintf("%s %s through the %s driver", p.Report.Target.Version, parenthesised(p.Report.Target.WorkerID), p.Report.Target.Driver))
	}
	v.CohortLine, v.CohortFacts, v.Capabilities = p.cohort()
	for _, o := range p.Report.Oracles {
		v.Oracles = append(v.Oracles, oracleOf(o))
	}
	for _, f := range p.Report.Families {
		g := groupView{Prefix: f.Prefix, Name: f.Name}
		for _, c := range p.Report.Cases {
			if family(c.ID) == f.Prefix {
				g.Cases = append(g.Cases, p.caseView(c, false))
			}
		}
		v.CaseGroups = append(v.CaseGroups, g)
	}
	v.Slowest, v.CaseTime = p.slowest()
	for _, m := range p.Report.Images {
		v.Images = append(v.Images, pair{m.Name, m.Digest})
	}
	for _, a := range p.Report.Artifacts {
		v.Files = append(v.Files, p.artifact(a))
	}
	v.Contents = v.contents()
	return v
}

func (v page) contents() []contentView {
	var out []contentView
	add := func(there bool, id, name string) {
		if there {
			out = append(out, contentView{id, name})
		}
	}
	add(true, "limits", "What this does not say")
	add(len(v.Reasons) > 0, "why", v.WhyTitle)
	add(len(v.Failed) > 0, "failed", "What failed")
	add(len(v.Unproven) > 0, "unproven", "What proves nothing")
	add(true, "families", "Families")
	add(true, "target", "Target")
	add(true, "cohort", "Cohort")
	add(true, "arming", "Arming")
	add(true, "cases", "Cases")
	add(len(v.Slowest) > 0, "timing", "Timing")
	add(true, "run", "This run")
	add(true, "artifacts", "Raw artifacts")
	return out
}

func verdictMark(v evidence.Outcome) mark {
	switch v {
	case evidence.Conformant:
		return mark{"pass", "✓", "Conformant"}
	case evidence.NonConformant:
		return mark{"fail", "✗", "Non-conformant"}
	}
	return mark{"warn", "?", "Incomplete"}
}

// meaning is the verdict in one sentence.
func (p *pageMaker) meaning() string {
	c := p.Report.Counts
	switch p.Verdict {
	case evidence.Conformant:
		return fmt.Sprintf("Every case that %s passed, with its witnesses seen and its oracles armed: %d of %d on %s.",
			required(p.Profiles), c.Pass, c.Total, plural(len(p.Workloads), "image"))
	case evidence.NonConformant:
		if failed := p.Failures(); len(failed) > 0 {
			return fmt.Sprintf("%s failed: something that must hold was seen not to hold.", named(failed))
		}
		return "Something that must hold was seen not to hold: " + p.first() + "."
	}
	if p.Interrupted {
		return "The run was interrupted. It shows nothing about the whole, and nothing was signed." + p.allTheSame()
	}
	more := ""
	if n := len(p.Reasons) - 1; n > 0 {
		more = fmt.Sprintf(", and %s", plural(n, "more reason"))
	}
	return fmt.Sprintf("This run shows nothing about the whole: %s%s.%s", p.first(), more, p.allTheSame())
}

// allTheSame is what an incomplete run showed of single cases, or "".
func (p *pageMaker) allTheSame() string {
	if ids := p.Failures(); len(ids) > 0 {
		return fmt.Sprintf(" What was seen all the same: %s failed.", named(ids))
	}
	return ""
}

func (p *pageMaker) first() string {
	if why := p.Why(); why != "" {
		return truncate(why, 300)
	}
	return "no reason is recorded"
}

func required(profiles []string) string {
	switch len(profiles) {
	case 0:
		return "the catalogue requires"
	case 1:
		return "the profile " + profiles[0] + " requires"
	}
	return "the profiles " + named(profiles) + " require"
}

// named lists up to seven ids.
func named(ids []string) string {
	const most = 7
	if len(ids) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	if len(ids) > 1 {
		return strings.Join(ids[:len(ids)-1], ", ") + " and " + ids[len(ids)-1]
	}
	return strings.Join(ids, "")
}

// reasons are the run's own faults, then the findings about what no other section tells.
func (p *pageMaker) reasons() (out []reasonView, more int) {
	for _, text := range p.Reasons[:max(len(p.Reasons)-len(p.Findings), 0)] {
		out = append(out, reasonView{Text: text})
	}
	for _, f := range p.Findings {
		var about []linkView
		if c, ok := p.Case(f.Case); ok {
			if p.told(c) {
				continue // its own section says more
			}
			about = []linkView{{c.ID, p.anchor(c)}}
		} else if f.Case != "" {
			about = []linkView{{f.Case, ""}}
		}
		i := slices.IndexFunc(out, func(r reasonView) bool { return r.Code == string(f.Code) && r.Text == f.Text })
		if i < 0 || len(about) == 0 {
			out = append(out, reasonView{string(f.Code), f.Text, about})
			continue
		}
		out[i].Cases = append(out[i].Cases, about...)
	}
	if len(out) > maxReasons {
		out, more = out[:maxReasons], len(out)-maxReasons
	}
	return out, more
}

// anchor is the id of the element that tells most about c.
func (p *pageMaker) anchor(c ReportCase) string {
	if p.told(c) {
		return "told-" + p.slugs[c.ID]
	}
	return "case-" + p.slugs[c.ID]
}

// told reports whether c has its place among what failed or what proves nothing.
func (p *pageMaker) told(c ReportCase) bool {
	return c.Status == Fail || c.Status == Inconclusive || c.Status == Errored
}

func (p *pageMaker) target() *targetView {
	t := p.Report.Target
	v := &targetView{Driver: t.Driver, Version: t.Version, Mode: t.Mode, WorkerID: t.WorkerID, Parts: t.Parts}
	for _, name := range slices.Sorted(maps.Keys(t.Digests)) {
		v.Digests = append(v.Digests, pair{name, t.Digests[name]})
	}
	seen := map[string]bool{}
	for _, f := range p.Features {
		seen[string(f.Feature)] = true
		v.Features = append(v.Features, featureView{string(f.Feature), f.Text, f.Claimed, presenceMark(f)})
	}
	for _, name := range t.Claims {
		if !seen[name] {
			v.Features = append(v.Features, featureView{Name: name, Claimed: true, Tag: presenceMark(FeatureRecord{Observed: Unknown})})
		}
	}
	return v
}

func presenceMark(f FeatureRecord) mark {
	switch {
	case f.Observed == Present && f.Claimed:
		return mark{"pass", "✓", "present"}
	case f.Observed == Present:
		return mark{"warn", "!", "present, unclaimed"}
	case f.Observed == Absent && f.Claimed:
		return mark{"fail", "✗", "absent"}
	case f.Observed == Absent:
		return mark{"idle", "○", "absent"}
	}
	return mark{"idle", "–", "not looked at"}
}

func (p *pageMaker) cohort() (line string, rows []factView, capabilities []pair) {
	f := p.Report.CohortFacts
	if f == nil {
		if t := p.Report.Target; t != nil && t.CohortID != "" {
			rows = append(rows, factView{"As the target says", t.CohortID, true})
		}
		return "", rows, nil
	}
	line = fmt.Sprintf("sandbox %s, kernel %s, engine %s", strings.TrimSpace(f.Sandbox+" "+parenthesised(f.Platform)), f.Kernel, f.Engine)
	add := func(name, value string) {
		if value = strings.TrimSpace(value); value != "" {
			rows = append(rows, factView{name, value, strings.HasPrefix(value, "sha256:") || strings.HasPrefix(value, "-")})
		}
	}
	add("Sandbox", f.Sandbox+" "+parenthesised(f.Platform))
	add("Sandbox binary", f.SandboxDigest)
	add("Sandbox flags", strings.Join(f.SandboxArgs, " "))
	add("Kernel", f.Kernel+" "+f.KernelBuild)
	add("Architecture", f.Arch)
	add("Cgroups", f.CgroupMode)
	add("Engine", f.Engine)
	add("Storage", strings.TrimPrefix(f.StorageDriver+", "+f.ImageStore+" image store", ", "))
	add("Quota", f.Quota+" "+parenthesised(f.Filesystem))
	for _, name := range slices.Sorted(maps.Keys(f.Capabilities)) {
		capabilities = append(capabilities, pair{name, f.Capabilities[name]})
	}
	return line, rows, capabilities
}

func parenthesised(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func oracleOf(o OracleRecord) oracleView {
	v := oracleView{Name: string(o.Oracle), Text: o.Text, Tag: mark{"pass", "✓", "armed"}}
	if !o.Armed {
		v.Tag = mark{"fail", "✗", "not armed"}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Witness)) {
		v.Planted = append(v.Planted, plantedView{name, grouped(o.Witness[name])})
	}
	return v
}

// slowest are the ten cases that took longest, and the time of all.
func (p *pageMaker) slowest() ([]slowView, string) {
	rows := slices.SortedStableFunc(slices.Values(p.Report.Cases), func(a, b ReportCase) int { return cmp.Compare(b.DurationMs, a.DurationMs) })
	var out []slowView
	var all int64
	for i, c := range rows {
		all += c.DurationMs
		if i < 10 && c.DurationMs > 0 {
			out = append(out, slowView{c.ID, p.slugs[c.ID], duration(c.DurationMs), statusMark(c.Status), int(c.DurationMs * 1000 / rows[0].DurationMs)})
		}
	}
	return out, duration(all)
}

// inOrder are the statuses as the page counts them.
func inOrder(c evidence.Counts) []struct {
	status Status
	n      int64
} {
	return []struct {
		status Status
		n      int64
	}{{Pass, c.Pass}, {Fail, c.Fail}, {Inconclusive, c.Inconclusive}, {Errored, c.Error}, {Waived, c.Waived}, {NotApplicable, c.NotApplicable}, {NotRun, c.NotRun}}
}

func bar(c evidence.Counts) (parts []barPart, counts []countView) {
	x, sum := 0, int64(0)
	for _, s := range inOrder(c) {
		if s.n == 0 {
			continue
		}
		tag := statusMark(s.status)
		counts = append(counts, countView{tag, grouped(s.n)})
		sum += s.n
		end := int(sum * 1000 / max(c.Total, sum))
		parts = append(parts, barPart{tag.Class, x, end - x})
		x = end
	}
	return parts, counts
}

// tallies are the statuses that occur, with how often.
func tallies(c evidence.Counts) []mark {
	var out []mark
	for _, s := range inOrder(c) {
		if s.n > 0 {
			m := statusMark(s.status)
			m.Word = grouped(s.n) + " " + m.Word
			out = append(out, m)
		}
	}
	return out
}
