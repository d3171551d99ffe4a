// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

// published reads testdata/catalogue.txt: id, tab, title.
func published(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("testdata/catalogue.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		id, title, ok := strings.Cut(s.Text(), "\t")
		if !ok || rows[id] != "" {
			t.Fatalf("row %q is malformed or there twice", s.Text())
		}
		rows[id] = title
	}
	if len(rows) < 50 {
		t.Fatalf("the published catalogue has %d rows", len(rows))
	}
	return rows
}

func TestCasesAreOfThePublishedCatalogue(t *testing.T) {
	rows := published(t)
	for _, c := range All() {
		if rows[c.ID] != c.Title {
			t.Errorf("%s has the title %q, the catalogue says %q", c.ID, c.Title, rows[c.ID])
		}
		delete(rows, c.ID)
	}
	var beyond []string
	for id, title := range rows {
		beyond = append(beyond, id+" "+title)
	}
	slices.Sort(beyond)
	t.Logf("the catalogue has %d rows beyond the %d that are implemented:\n  %s", len(beyond), len(All()), strings.Join(beyond, "\n  "))
}

// caseFile is how a case's file is named: family and number, then words.
var caseFile = regexp.MustCompile(`^([a-z]{2})([0-9]{2})_[a-z0-9_]+\.go$`)

func TestFilesAndListsAgree(t *testing.T) {
	listed := map[string]bool{}
	for _, c := range slices.Concat(All(), Unproven()) {
		if listed[c.ID] {
			t.Errorf("%s is listed twice", c.ID)
		}
		listed[c.ID] = true
	}
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	onDisk := map[string]string{}
	for _, f := range files {
		name := filepath.Base(f)
		if name == "list.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		form := caseFile.FindStringSubmatch(name)
		if form == nil || form[1] != filepath.Dir(f) {
			t.Errorf("%s is not named as a case of its family", f)
			continue
		}
		id := strings.ToUpper(form[1]) + "-" + form[2]
		if onDisk[id] != "" {
			t.Errorf("%s is in %s and %s", id, onDisk[id], f)
		}
		onDisk[id] = f
		if !listed[id] {
			t.Errorf("%s is on disk and in no list", f)
		}
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if ids := caseIDs(t, body); len(ids) != 1 || ids[0] != id {
			t.Errorf("%s holds the cases %q", f, ids)
		}
	}
	if len(onDisk) == 0 {
		t.Error("no case file found")
	}
	// Deeper down no list reaches, and no glob above.
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "internal" || path == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" && strings.Count(path, "/") > 1:
			t.Errorf("%s lies deeper than a family", path)
		case filepath.Ext(path) == ".go" && strings.Count(path, "/") == 0 && caseFile.MatchString(path):
			t.Errorf("%s lies in no family", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for id := range listed {
		if onDisk[id] == "" {
			t.Errorf("%s is listed and has no file", id)
		}
	}
}

// caseIDs are those of the conformance.Case values that a file declares.
func caseIDs(t *testing.T, body []byte) (ids []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", body, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		kind, ok := lit.Type.(*ast.SelectorExpr)
		if !ok || kind.Sel.Name != "Case" {
			return true
		}
		id := "without an id"
		for _, e := range lit.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "ID" {
				id = strings.Trim(kv.Value.(*ast.BasicLit).Value, `"`)
			}
		}
		ids = append(ids, id)
		return true
	})
	return ids
}

func TestASecondCaseInAFileIsSeen(t *testing.T) {
	body := "package fs\nvar A, B = conformance.Case{ID: \"FS-01\"}, conformance.Case{ID: \"FS-03\"}\nfunc f() { _ = conformance.Case{} }\n"
	if ids := caseIDs(t, []byte(body)); !slices.Equal(ids, []string{"FS-01", "FS-03", "without an id"}) {
		t.Errorf("seen: %q", ids)
	}
}

func TestEachCaseSaysWhatItIs(t *testing.T) {
	smoke := map[string]bool{}
	for _, c := range All() {
		family, _, _ := strings.Cut(c.ID, "-")
		smoke[family] = smoke[family] || c.Tier == conformance.Smoke
		for what, text := range map[string]string{"requirement": c.Requirement, "threat": c.Threat, "attack": c.Attack, "witness": c.Witness, "oracle": c.Oracle} {
			if !strings.HasSuffix(text, ".") || len(text) < 20 {
				t.Errorf("%s: the %s is no sentence: %q", c.ID, what, text)
			}
		}
		if len(c.Oracles) == 0 || len(c.Features) == 0 {
			t.Errorf("%s names no oracle or no feature", c.ID)
		}
		if !slices.ContainsFunc(c.Kills, func(k conformance.Kill) bool { return k.Mutant != "runc" }) {
			t.Errorf("%s is killed by no patch", c.ID)
		}
	}
	for family, has := range smoke {
		if !has {
			t.Errorf("family %s has no smoke case", family)
		}
	}
}

func TestTheSuiteAcceptsTheCatalogue(t *testing.T) {
	if err := (conformance.Suite{Cases: All(), Unproven: Unproven(), Arming: Arming()}).Check(); err != nil {
		t.Error(err)
	}
	needed := map[conformance.Oracle]bool{}
	for _, c := range slices.Concat(All(), Unproven()) {
		for _, o := range c.Oracles {
			needed[o] = true
		}
	}
	for _, a := range Arming() {
		if !needed[a.Oracle] {
			t.Errorf("oracle %s is armed and no case needs it", a.Oracle)
		}
	}
}
