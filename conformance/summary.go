// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-runewidth"
)

// Bounds of the summary: it must be read at a glance, and the reports have the rest.
const (
	maxRepeated  = 20  // cases whose failure is told again
	maxRetold    = 600 // bytes of one text
	defaultWidth = 100 // cells, where no terminal says
)

// toldFirst is the order in which the summary tells the cases again.
var toldFirst = []Status{Fail, Errored, Inconclusive, Waived, NotRun}

// summary tells the families, and once more what failed or proves nothing.
func (p *progress) summary(r Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	width := p.width()
	if width == 0 {
		width = defaultWidth
	}
	var b strings.Builder
	b.WriteString("\n")
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	ran := func(c ReportCase) bool { return c.Reason != "not-selected" }
	// Cases of other tiers, or that the run was narrowed away from, are no news here.
	for _, f := range families(slices.DeleteFunc(slices.Clone(r.Cases), func(c ReportCase) bool { return !ran(c) }), nil) {
		var words []string
		for _, s := range inOrder(f.Counts) {
			if s.n > 0 {
				words = append(words, fmt.Sprintf("%d %s", s.n, s.status))
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", oneLine(f.Prefix, 20), duration(f.DurationMs), strings.Join(words, ", "))
	}
	table.Flush()
	told := 0
	var never []string
	// What failed first: it must not be cut off behind what a target lacks.
	cases := slices.Clone(r.Cases)
	slices.SortStableFunc(cases, func(a, b ReportCase) int {
		return cmp.Compare(slices.Index(toldFirst, a.Status), slices.Index(toldFirst, b.Status))
	})
	for _, c := range cases {
		if c.Reason == "run-ended" {
			never = append(never, c.ID)
		}
		if c.Status == Pass || c.Status == NotApplicable || !ran(c) || c.Reason == "run-ended" {
			continue
		}
		if told++; told > maxRepeated {
			continue
		}
		word := strings.ToUpper(string(c.Status))
		if p.color {
			word = paint(c.Status, word)
		}
		fmt.Fprintf(&b, "\n%s %s %s: %s\n", word, oneLine(c.ID, 60), oneLine(c.Title, 100), oneLine(c.Reason, 60))
		for _, line := range c.retold() {
			b.WriteString(wrap(line, width-4, "    "))
		}
	}
	if told > maxRepeated {
		fmt.Fprintf(&b, "\nand %d more, see %s\n", told-maxRepeated, htmlFile)
	}
	if len(never) > 0 {
		fmt.Fprintf(&b, "\nthe run ended before %s\n", strings.TrimSpace(wrap(strings.Join(never, ", "), width-21, "    ")))
	}
	b.WriteString("\n")
	io.WriteString(p.w, b.String())
}

// retold are the failures that differ, or the case's own text.
func (c ReportCase) retold() []string {
	var out []string
	for _, e := range c.Workloads {
		for _, f := range e.Failed {
			if line := f.Reason + ": " + f.Text; !slices.Contains(out, line) {
				out = append(out, line)
			}
		}
	}
	if len(out) == 0 && c.Text != "" {
		out = []string{c.Text}
	}
	return out[:min(len(out), 5)]
}

// wrap breaks one line of text at width cells, each with the indent.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	line := ""
	flush := func() {
		if line != "" {
			b.WriteString(indent + line + "\n")
		}
		line = ""
	}
	for _, word := range strings.Fields(oneLine(text, maxRetold)) {
		for runewidth.StringWidth(word) > width && width > 8 { // a word that no line can hold
			flush()
			head := runewidth.Truncate(word, width, "")
			if head == "" {
				break
			}
			b.WriteString(indent + head + "\n")
			word = word[len(head):]
		}
		if line != "" && runewidth.StringWidth(line)+1+runewidth.StringWidth(word) > width {
			flush()
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	flush()
	return b.String()
}
