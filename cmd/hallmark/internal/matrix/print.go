// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

// Formats of [Matrix.Print].
const (
	Table    = "table"
	JSON     = "json"
	Markdown = "md"
)

// minTitle is what a row's sentence gets at least, in columns of the terminal, before the table
// gives way to the list.
const minTitle = 16

// Print writes m in one of the formats. width is that of the terminal in columns, 0 for no bound:
// where the table does not fit, the list is printed.
func (m Matrix) Print(w io.Writer, format string, width int) error {
	var b bytes.Buffer
	switch format {
	case JSON:
		text, err := m.Encode()
		if err != nil {
			return err
		}
		b.Write(text)
	case Markdown:
		m.markdown(&b)
	case Table:
		if left := width - m.gridWidth(); width == 0 {
			m.table(&b, 0)
		} else if left >= minTitle {
			m.table(&b, left)
		} else {
			m.list(&b)
		}
		m.details(&b)
	default:
		return fmt.Errorf("unknown format %q", format)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Encode is the text of matrix.json.
func (m Matrix) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(m)
	return b.Bytes(), err
}

// Columns of the grid are as wide as the two halves of a case's id, and a space between.
const (
	idWidth   = 6
	cellWidth = 3
)

func (m Matrix) gridWidth() int { return idWidth + cellWidth*len(m.Columns) + 2 }

// table draws the grid: the id of a case stands above its column in two halves.
func (m Matrix) table(b *bytes.Buffer, title int) {
	for half := range 2 {
		line := fmt.Sprintf("%-*s", idWidth, "")
		for _, c := range m.Columns {
			parts := strings.SplitN(c.Case, "-", 2)
			line += fmt.Sprintf("%-*s", cellWidth, parts[half])
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	letters := m.letters()
	for _, r := range m.Rows {
		line := fmt.Sprintf("%-*s", idWidth, r.Mutant)
		for _, c := range r.Cells {
			line += fmt.Sprintf("%-*s", cellWidth, c.sign(letters[r.Mutant+" "+c.Case]))
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-*s  %s", m.gridWidth()-2, line, shorten(r.Title, title)), " ") + "\n")
	}
	b.WriteString("\nX caught with the expected reason   . green, as it must be")
	if m.Totals.Excused > 0 {
		b.WriteString("   a-z excused, see below")
	}
	if m.Totals.Blank > 0 {
		b.WriteString("   blank: not run")
	}
	if len(m.Problems) > 0 {
		b.WriteString("\nS! SURVIVED   U! UNEXPECTED   T! STALE excuse")
	}
	b.WriteString("\n")
}

func (c Cell) sign(letter string) string {
	return map[Outcome]string{Caught: "X", Green: ".", Excused: letter, Survived: "S!", Unexpected: "U!", Stale: "T!", Blank: ""}[c.Outcome]
}

// letters names the excused cells in reading order: a to z, then aa.
func (m Matrix) letters() map[string]string {
	out := map[string]string{}
	for _, r := range m.Rows {
		for _, c := range r.Cells {
			if c.Outcome != Excused {
				continue
			}
			n, word := len(out), ""
			for ; n >= 0; n = n/26 - 1 {
				word = string(rune('a'+n%26)) + word
			}
			out[r.Mutant+" "+c.Case] = word
		}
	}
	return out
}

// list says the same row by row, for terminals that are narrower than the grid.
func (m Matrix) list(b *bytes.Buffer) {
	letters := m.letters()
	for _, r := range m.Rows {
		fmt.Fprintf(b, "%s  %s\n", r.Mutant, r.Title)
		ids := map[Outcome][]string{}
		for _, c := range r.Cells {
			id := c.Case
			if c.Outcome == Excused {
				id += " (" + letters[r.Mutant+" "+id] + ")"
			}
			ids[c.Outcome] = append(ids[c.Outcome], id)
		}
		for _, o := range []Outcome{Caught, Green, Excused, Survived, Unexpected, Stale, Blank} {
			n := len(ids[o])
			if n == 0 {
				continue
			}
			word := string(o)
			switch o {
			case Survived, Unexpected, Stale:
				word = strings.ToUpper(word)
			case Green: // the rest, which needs no names
				fmt.Fprintf(b, "  %-10s %d of %d\n", word, n, len(m.Columns))
				continue
			case Blank:
				fmt.Fprintf(b, "  %-10s %d of %d\n", "not run", n, len(m.Columns))
				continue
			}
			fmt.Fprintf(b, "  %-10s %s\n", word, strings.Join(ids[o], " "))
		}
	}
}

// details lists the pairs with both reasons, the excuses, the problems and the totals.
func (m Matrix) details(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n%-7s%-7s%-28s%s\n", "MUTANT", "CASE", "EXPECTED", "OBSERVED")
	for _, r := range m.Rows {
		for _, c := range r.Cells {
			switch c.Outcome {
			case Caught:
				fmt.Fprintf(b, "%-7s%-7s%-28s%s\n", r.Mutant, c.Case, c.Expected, c.observed())
			case Survived:
				fmt.Fprintf(b, "%-7s%-7s%-28s%s  SURVIVED\n", r.Mutant, c.Case, c.Expected, c.observed())
			}
		}
	}
	letters := m.letters()
	for i, n := range m.excuses() {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%-3s%s under %s: %s. %s\n", letters[n.mutant+" "+n.Case], n.Case, n.mutant, n.Observation, sentence(n.Why))
	}
	for _, r := range m.Rows {
		for _, e := range r.Earlier {
			fmt.Fprintf(b, "note: an earlier run of %s found: %s\n", r.Mutant, e)
		}
	}
	if len(m.Problems) > 0 {
		b.WriteString("\n" + strings.Join(m.Problems, "\n") + "\n")
	}
	fmt.Fprintf(b, "\n%s\n", m.summary())
}

// observed is the reason of a judged failure; anything else, which catches nothing, is named in full.
func (c Cell) observed() string {
	if c.Status == conformance.Fail {
		return c.Reason
	}
	return c.Observation.String()
}

type excuse struct {
	mutant string
	Cell
}

func (m Matrix) excuses() []excuse {
	var out []excuse
	for _, r := range m.Rows {
		for _, c := range r.Cells {
			if c.Outcome == Excused {
				out = append(out, excuse{r.Mutant, c})
			}
		}
	}
	return out
}

// summary is one line: what the matrix is of and what it came to.
func (m Matrix) summary() string {
	t := m.Totals
	line := fmt.Sprintf("%s matrix: %d rows, %d cases, %d cells: %d caught, %d green, %d excused", m.Scope, len(m.Rows), len(m.Columns),
		t.Caught+t.Green+t.Excused+t.Survived+t.Unexpected+t.Stale, t.Caught, t.Green, t.Excused)
	for _, bad := range []struct {
		n    int
		word string
	}{{t.Survived, "SURVIVED"}, {t.Unexpected, "UNEXPECTED"}, {t.Stale, "STALE"}} {
		if bad.n > 0 {
			line += fmt.Sprintf(", %d %s", bad.n, bad.word)
		}
	}
	if t.Blank > 0 {
		line += fmt.Sprintf(", %d not run", t.Blank)
	}
	return line
}

// markdown writes two tables for documents: the grid, and the pairs with their reasons.
func (m Matrix) markdown(b *bytes.Buffer) {
	b.WriteString("| Mutant | What is broken |")
	for _, c := range m.Columns {
		fmt.Fprintf(b, " %s |", strings.Replace(c.Case, "-", "&#8209;", 1)) // a hyphen that does not break
	}
	b.WriteString("\n|---|---|" + strings.Repeat(":-:|", len(m.Columns)) + "\n")
	letters := m.letters()
	for _, r := range m.Rows {
		fmt.Fprintf(b, "| %s | %s |", r.Mutant, cell(r.Title))
		for _, c := range r.Cells {
			sign := c.sign(letters[r.Mutant+" "+c.Case])
			if c.Outcome == Caught {
				sign = "**X**"
			}
			fmt.Fprintf(b, " %s |", sign)
		}
		b.WriteString("\n")
	}
	b.WriteString("\nX: caught with the expected reason. A point: green, as it must be. A letter: excused, see below.\n")
	for i, n := range m.excuses() {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "- %s: %s under %s comes to `%s`. %s\n", letters[n.mutant+" "+n.Case], n.Case, n.mutant, n.Observation, sentence(n.Why))
	}
	b.WriteString("\n| Mutant | Case | Expected | Observed |\n|---|---|---|---|\n")
	for _, r := range m.Rows {
		for _, c := range r.Cells {
			switch c.Outcome {
			case Caught, Survived:
				fmt.Fprintf(b, "| %s | %s | `%s` | `%s` |\n", r.Mutant, c.Case, c.Expected, c.observed())
			}
		}
	}
	for i, p := range m.Problems {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "- %s\n", cell(p))
	}
	fmt.Fprintf(b, "\n%s.\n", sentence(m.summary()))
}

// cell keeps text of a run from ending its cell.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(s)
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// shorten cuts s to n columns; 0 is no bound.
func shorten(s string, n int) string {
	if n == 0 || utf8.RuneCountInString(s) <= n {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:n-1]), " ") + "…"
}
