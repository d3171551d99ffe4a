// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// hostile are strings that a tenant may hope to see obeyed.
var hostile = map[string]string{
	"script":        `<script>alert(1)</script><img src=x onerror=alert(1)>`,
	"end of style":  `</style></title></textarea></details></div></body>--><!--`,
	"attribute":     `" onmouseover="alert(1)" x='`,
	"address":       `javascript:alert(1)`,
	"template":      `{{.Seed}}${7*7}`,
	"cdata":         `]]><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>&e;`,
	"bidi override": "user\u202egnp.exe\u2066\u2069\u200f\u061c",
	"terminal":      "\x1b[2J\x1b]0;title\x07\x1b[31mred\r\x08\x7f",
	"C1":            "\u009b31m\u0085\u0090",
	"NUL":           "a\x00b",
	"not UTF-8":     "\xff\xfe\xc3(\xed\xa0\x80\xf0\x9f",
	"lines":         "one\ntwo\r\nthree\u2028four\u2029\v\f",
	"invisible":     "zero\u200bwidth\u00ad\ufeff\U000e0041",
	"pile":          "z" + strings.Repeat("\u0334\u035f", 300),
	"noncharacter":  "\ufffe\uffff\U0010ffff\ue000",
	"wide":          "漢字かな🙂👩‍👩‍👧",
	"megabyte":      strings.Repeat("A\x1b", 1<<19),
	"long word":     strings.Repeat("W", 5000),
}

// obeyed returns the first rune of s that a browser or terminal would do more with than show.
func obeyed(s string) (rune, bool) {
	for _, r := range s {
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			return r, true
		}
	}
	return 0, !utf8.ValidString(s)
}

func TestNothingThatIsObeyedIsLeft(t *testing.T) {
	for name, s := range hostile {
		var whole strings.Builder
		for _, p := range pieces(s) {
			whole.WriteString(p.Text)
		}
		if r, bad := obeyed(whole.String()); bad {
			t.Errorf("%s: %q is left", name, r)
		}
		if line := Line(s); strings.ContainsAny(line, "\n\t") || len(line) > 400*len(`\u{10ffff}`) {
			t.Errorf("%s: not one bounded line: %.80q", name, line)
		}
	}
}

func TestWhatIsSpeltOutStaysReadable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                  "plain",
		"tab\tand\nline":         "tab\tand\nline",
		"\x1b[31m":               `\x1b[31m`,
		"a\u202eb":               `a\u{202e}b`,
		"\xff":                   `\xff`,
		"\u00e9 e\u0301 שלום 漢字": "\u00e9 e\u0301 שלום 漢字",
		"\ufffd":                 "\ufffd", // the replacement character itself is fine
	} {
		var got strings.Builder
		for _, p := range pieces(in) {
			got.WriteString(p.Text)
		}
		if got.String() != want {
			t.Errorf("%q is shown as %q, want %q", in, got.String(), want)
		}
	}
	if got := pieces("a\x1bb"); len(got) != 3 || !got[1].Mark || got[0].Mark || got[2].Mark {
		t.Errorf("the mark is not told apart from the text: %+v", got)
	}
}

func TestTruncateKeepsWholeCharacters(t *testing.T) {
	for _, s := range []string{"abc", "añb", "漢字", "🙂🙂", "\xf0\x9f\x9f\x9f\x9f", strings.Repeat("\x80", 9)} {
		for n := range len(s) + 1 {
			got := truncate(s, n)
			if len(got) > n || !strings.HasPrefix(s, got) || n-len(got) >= utf8.UTFMax {
				t.Errorf("truncate(%q, %d) is %q", s, n, got)
			}
			if utf8.ValidString(s) && !utf8.ValidString(got) {
				t.Errorf("truncate(%q, %d) splits a character: %q", s, n, got)
			}
		}
	}
}

func FuzzPieces(f *testing.F) {
	for _, s := range hostile {
		f.Add(truncate(s, 2000))
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		for _, p := range pieces(s) {
			b.WriteString(p.Text)
		}
		if r, bad := obeyed(b.String()); bad {
			t.Errorf("%q leaves %q", s, r)
		}
		if clean := strings.ToValidUTF8(s, ""); clean == s {
			if _, bad := obeyed(s); !bad && b.String() != s && !strings.ContainsFunc(s, func(r rune) bool { return unicode.Is(unicode.M, r) }) {
				t.Errorf("harmless %q became %q", s, b.String())
			}
		}
	})
}
