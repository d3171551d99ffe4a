// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// buildWords are what the go command reads as a constraint at the end of a file's name.
var buildWords = regexp.MustCompile(`_(test|linux|windows|darwin|freebsd|netbsd|openbsd|solaris|plan9|js|android|ios|aix|illumos|wasip1|unix|arm|arm64|amd64|386|ppc64|ppc64le|mips|mipsle|mips64|mips64le|riscv64|s390x|loong64|wasm)\.go$`)

func TestNoCaseFileDropsOutInSilence(t *testing.T) {
	seen := 0
	for _, f := range tracked(t) {
		if !strings.HasPrefix(f, "conformance/cases/") || filepath.Ext(f) != ".go" {
			continue
		}
		seen++
		if buildWords.MatchString(f) && !strings.HasSuffix(f, "_test.go") {
			t.Errorf("%s: the go command would drop this file on some systems", f)
		}
	}
	if seen == 0 {
		t.Error("no case file found")
	}
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
