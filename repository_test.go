// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tracked returns the files that git knows.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Fields(string(out))
	if len(files) == 0 {
		t.Fatal("git knows no file")
	}
	return files
}

func TestEveryGoFileNamesItsLicence(t *testing.T) {
	for _, f := range tracked(t) {
		if filepath.Ext(f) != ".go" {
			continue
		}
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(body), "// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s does not begin with the SPDX line", f)
		}
	}
}

// TestNothingBuiltIsTracked: what a compiler made is made again from the sources. Test data of that form would have
// a recipe, and a row here.
func TestNothingBuiltIsTracked(t *testing.T) {
	for _, f := range tracked(t) {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(body), "\x7fELF") || strings.HasPrefix(string(body), "!<arch>\n") {
			t.Errorf("%s is a program or a library", f)
		}
	}
}

func TestEveryPackageHasADoc(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range tracked(t) {
		if filepath.Ext(f) != ".go" || strings.HasSuffix(f, "_test.go") || strings.Contains(f, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(f)
		documented[dir] = documented[dir] || strings.Contains(file.Doc.Text(), " ")
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package in %s has no package doc", dir)
		}
	}
}

// dropped says why the go command would leave the file out on some system, or "": for the end of its
// name, an underscore or a dot before it, or a constraint in it. The words are those that the go
// command itself knows: on a system that is none of them, every one of them keeps a file out.
func dropped(t *testing.T, path string) string {
	t.Helper()
	name := filepath.Base(path)
	if strings.HasSuffix(name, "_test.go") {
		return "it is read by go test alone"
	}
	nowhere := build.Default
	nowhere.GOOS, nowhere.GOARCH = "nowhere", "nothing"
	nowhere.ToolTags, nowhere.ReleaseTags = nil, nil
	ok, err := nowhere.MatchFile(filepath.Dir(path), name)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return "its name, or a constraint in it, keeps it out on some systems"
	}
	return ""
}

func TestNoCaseFileDropsOutInSilence(t *testing.T) {
	seen := 0
	for _, f := range tracked(t) {
		if !strings.HasPrefix(f, "conformance/cases/") || filepath.Ext(f) != ".go" || strings.HasSuffix(f, "_test.go") {
			continue
		}
		seen++
		if why := dropped(t, f); why != "" {
			t.Errorf("%s: %s", f, why)
		}
	}
	if seen == 0 {
		t.Error("no case file found")
	}
	// The check finds every word that the go command knows, and what else takes a file away.
	plain, constrained := "package fs\n", "//go:build linux\n\npackage fs\n"
	planted := map[string]string{"_fs09.go": plain, ".fs09.go": plain, "fs09_test.go": plain, "fs09_constraint.go": constrained}
	for _, word := range systemWords(t) {
		planted["fs09_"+word+".go"] = plain
	}
	if len(planted) < 40 {
		t.Errorf("%d names are planted only", len(planted))
	}
	dir := t.TempDir()
	for name, text := range planted {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if dropped(t, path) == "" {
			t.Errorf("%s is not found", name)
		}
	}
	good := filepath.Join(dir, "fs09_openat2_missing.go")
	if err := os.WriteFile(good, []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	if why := dropped(t, good); why != "" {
		t.Errorf("a good name: %s", why)
	}
}

// systemWords are the operating systems and architectures of the go command's own list, past ones
// included.
func systemWords(t *testing.T) []string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(root)), "src/internal/syslist/syslist.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if name := v.Names[0].Name; name != "KnownOS" && name != "KnownArch" {
				continue
			}
			for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
				word, err := strconv.Unquote(e.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				words = append(words, word)
			}
		}
	}
	return words
}

func TestFoldersAreNamedByWhatTheyOwn(t *testing.T) {
	for _, f := range tracked(t) {
		for part := range strings.SplitSeq(filepath.Dir(f), "/") {
			switch part {
			case "util", "utils", "common", "helpers", "misc", "types":
				t.Errorf("%s: folder %q says nothing", f, part)
			}
		}
	}
}
