// SPDX-License-Identifier: Apache-2.0

// Package documented holds the bounds of a package against the documents that tell its users of them. It is for tests: a
// test gives the sentences, made of the constants themselves, and every constant of the package that looks
// like a bound must be in one of them, or be named as one that no user meets.
package documented

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Bound is one sentence of a document, and the constants that it tells.
type Bound struct{ constants, file, text string }

// Says is that file, from the module's root, has text once, of which line ends count as spaces. constants are
// the names of the package's own that it tells, separated by spaces.
func Says(constants, file, text string) Bound { return Bound{constants, file, text} }

// looksLikeABound matches the names of constants that a bound may have.
var looksLikeABound = regexp.MustCompile(`^(max|Max|min[A-Z])|(Timeout|Every|Within|Grace|grace|Interval|Deadline|Kept|For|Lines|Bytes|Budget|Buffer|Ceiling|Words|First|Last|Verdict|Connections)$`)

// Check compares the package in the test's folder with its documents. inner are the constants that no user meets, by
// name, with the reason.
func Check(t *testing.T, root string, bounds []Bound, inner map[string]string) {
	t.Helper()
	told := map[string]bool{}
	for _, b := range bounds {
		text, err := os.ReadFile(filepath.Join(root, b.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(flat(string(text)), flat(b.text)); n != 1 {
			t.Errorf("%s says %d times: %s", b.file, n, b.text)
		}
		for name := range strings.FieldsSeq(b.constants) {
			told[name] = true
		}
	}
	here := constants(t)
	for _, name := range here {
		switch _, known := inner[name]; {
		case known && told[name]:
			t.Errorf("%s is told, and called one that no user meets", name)
		case !known && !told[name]:
			t.Errorf("%s is told nowhere: give it a sentence in a document, or the reason why no user meets it", name)
		}
		delete(told, name)
	}
	for name := range told {
		t.Errorf("no constant %s looks like a bound", name)
	}
	for name, why := range inner {
		if !slices.Contains(here, name) || why == "" {
			t.Errorf("no constant %s, or no reason", name)
		}
	}
}

func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// constants are those of the folder's own files that look like bounds.
func constants(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				for _, n := range s.(*ast.ValueSpec).Names {
					if looksLikeABound.MatchString(n.Name) {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	if len(names) == 0 {
		t.Fatal("no constant looks like a bound")
	}
	return names
}

// Size writes bytes as documents do: in the largest unit that divides them.
func Size(n int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return fmt.Sprintf("%d %s", n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Time writes a duration as documents do: in hours, minutes from ten on, seconds, or milliseconds.
func Time(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 10*time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}

// Count writes a number with commas.
func Count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
