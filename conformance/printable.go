// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// piece is a run of text as it may be shown to a person: plain, or the spelling of something
// that must not reach a terminal or a browser as it is.
type piece struct {
	Text string
	Mark bool
}

// maxMarks bounds how often plain text and marks alternate; a hostile text beyond it is shown
// all the same, but its marks are no longer told apart from the text.
const maxMarks = 256

// maxCombining is how many combining marks may follow each other: more of them climb out of
// their line and over others. Written languages need at most three.
const maxCombining = 3

// pieces spells out of s what could move a cursor, reorder its neighbours, hide, or break a
// decoder: control and format characters (those of bidirectional text among them), separators
// of lines and paragraphs, private and unassigned characters, piles of combining marks, and bytes
// that are not UTF-8. Newline and tab stay.
func pieces(s string) []piece {
	var out []piece
	var b strings.Builder
	mark, combining := false, 0
	flush := func() {
		if b.Len() > 0 {
			out = append(out, piece{b.String(), mark})
			b.Reset()
		}
	}
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.Is(unicode.M, r) {
			combining++
		} else {
			combining = 0
		}
		spelt := ""
		switch {
		case r == utf8.RuneError && size == 1:
			spelt = fmt.Sprintf(`\x%02x`, s[i])
		case r == '\n' || r == '\t':
		case r < 0x80 && unicode.IsControl(r):
			spelt = fmt.Sprintf(`\x%02x`, r)
		case !unicode.IsGraphic(r) || combining > maxCombining || r > 0xffff && unicode.Is(unicode.Variation_Selector, r):
			spelt = fmt.Sprintf(`\u{%04x}`, r)
		}
		if isMark := spelt != ""; isMark != mark && len(out) < maxMarks {
			flush()
			mark = isMark
		}
		if spelt == "" {
			spelt = s[i : i+size]
		}
		b.WriteString(spelt)
		i += size
	}
	flush()
	return out
}

// oneLine is s for a terminal or a log: one line, printable, and at most max bytes of s.
func oneLine(s string, max int) string {
	cut := truncate(s, max)
	var b strings.Builder
	for _, p := range pieces(cut) {
		b.WriteString(p.Text)
	}
	line := strings.Join(strings.Fields(b.String()), " ")
	if len(cut) < len(s) {
		line += "..."
	}
	return line
}

// Line is s for a terminal or a log: one line of at most 400 bytes with everything spelt out that
// a terminal would obey. Texts of a report go through it before they are printed.
func Line(s string) string { return oneLine(s, 400) }

// truncate returns the first max bytes of s or a little less, never half a character.
func truncate(s string, max int) string {
	if len(s) <= max {
		return s
	}
	cut := s[:max]
	for i := 1; i < utf8.UTFMax && i <= len(cut); i++ {
		if tail := cut[len(cut)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return cut[:len(cut)-i]
			}
			break
		}
	}
	return cut
}
