// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// slugs gives every case a name that is safe in an id and in an address, and unique.
func slugs(rows []ReportCase) map[string]string {
	out, taken := map[string]string{}, map[string]bool{}
	for i, c := range rows {
		slug := strings.Map(func(r rune) rune {
			if r == '-' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' {
				return r
			}
			return -1
		}, truncate(c.ID, 40))
		if slug != c.ID || taken[slug] {
			slug = strings.Trim(fmt.Sprintf("%s-n%d", slug, i+1), "-")
		}
		taken[slug] = true
		out[c.ID] = slug
	}
	return out
}

// caseView shows c in full where it is told, and else what a pass consists of.
func (p *pageMaker) caseView(c ReportCase, full bool) caseView {
	v := caseView{
		ReportCase: c, Slug: p.slugs[c.ID], Anchor: p.anchor(c), Tag: statusMark(c.Status), Reason: c.Reason, Tier: string(c.Tier),
		Time: duration(c.DurationMs), Timeout: duration(c.TimeoutMs),
	}
	if v.Told = p.told(c) && !full; v.Told {
		return v
	}
	if c.StartedAt == "" && len(c.Workloads) == 0 {
		v.Time = "-"
	}
	if len(p.Report.Command) > 0 && full {
		v.Command = shellLines(append(slices.Clone(p.Report.Command), "--case="+c.ID))
	}
	for part := range slices.Chunk(c.Workloads, maxColumns) {
		v.Witnesses = append(v.Witnesses, p.witnesses(part))
	}
	for _, e := range c.Workloads {
		x := executionView{}
		if len(c.Workloads) > 1 {
			x.Image = p.imageName(e.Workload)
		}
		for _, o := range slices.Sorted(maps.Keys(e.Observations)) {
			x.Observations = append(x.Observations, pair{o, jsonText(e.Observations[o])})
		}
		for _, a := range e.Artifacts {
			x.Files = append(x.Files, p.artifact(a))
		}
		v.Executions = append(v.Executions, x)
	}
	v.Judged = p.judged(c)
	return v
}

// maxColumns is how many images stand side by side in a table: more do not fit a phone.
const maxColumns = 3

func (p *pageMaker) witnesses(part []ReportExecution) witnessTable {
	t := witnessTable{}
	names := map[string]bool{}
	for _, e := range part {
		t.Images = append(t.Images, p.imageName(e.Workload))
		for name := range e.Witness {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := witnessRow{Name: name, Need: "-"}
		for _, e := range part {
			need, needed := e.Need[name]
			if needed {
				row.Need = grouped(need)
			}
			row.Seen = append(row.Seen, seenView{grouped(e.Witness[name]), needed && e.Witness[name] < need})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// judged gathers the failures of all images: what is the same in several is told once.
func (p *pageMaker) judged(c ReportCase) []judgedView {
	type seen struct {
		ReportFailure
		images []string
	}
	var all []seen
	for _, e := range c.Workloads {
		for _, f := range e.Failed {
			i := slices.IndexFunc(all, func(s seen) bool { return s.ReportFailure == f })
			if i < 0 {
				i = len(all)
				all = append(all, seen{ReportFailure: f})
			}
			if name := p.imageName(e.Workload); !slices.Contains(all[i].images, name) {
				all[i].images = append(all[i].images, name)
			}
		}
	}
	var out []judgedView
	for _, s := range all {
		where := "in " + strings.Join(s.images, ", ")
		switch {
		case len(c.Workloads) == 1:
			where = ""
		case len(s.images) == len(c.Workloads):
			where = "in every image"
		}
		if n := len(out); n > 0 && out[n-1].Reason == s.Reason && out[n-1].Images == where {
			out[n-1].Texts = append(out[n-1].Texts, s.Text)
			continue
		}
		out = append(out, judgedView{s.Reason, where, []string{s.Text}})
	}
	return out
}

// maxImageName bounds a name that heads a column, in bytes.
const maxImageName = 32

// imageName is short for people: the last part of the name without its tag when no other image
// has the same, else the name, else the digest.
func (p *pageMaker) imageName(digest string) string {
	short := func(name string) string {
		name = name[strings.LastIndex(name, "/")+1:]
		name, _, _ = strings.Cut(name, ":")
		return name
	}
	name, same := "", 0
	for _, m := range p.Report.Images {
		if m.Digest == digest {
			name = m.Name
		}
	}
	for _, m := range p.Report.Images {
		if short(m.Name) == short(name) {
			same++
		}
	}
	switch {
	case name == "":
		return shortDigest(digest)
	case same == 1 && short(name) != "":
		name = short(name)
	}
	if cut := truncate(name, maxImageName); cut != name {
		return cut + "..."
	}
	return name
}
