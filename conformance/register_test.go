// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Somebody else's suite, with a set-up and specs of its own, takes the cases in for two targets: alone
// and in two processes, with every order shuffled.
func TestForeignSuiteTakesTheCasesIn(t *testing.T) {
	dir := thirdParty(t, "embedded")
	binary, cli := filepath.Join(dir, "embedded.test"), filepath.Join(dir, "ginkgo")
	if out, code := offline(t, dir, nil, "go", "test", "-c", "-o", binary); code != 0 {
		t.Fatalf("build: %s", out)
	}
	if out, code := offline(t, dir, nil, "go", "build", "-o", cli, "github.com/onsi/ginkgo/v2/ginkgo"); code != 0 {
		t.Fatalf("build Ginkgo's command: %s", out)
	}
	alone := []string{binary, "-test.run=^TestEmbedded$", "-ginkgo.v", "-ginkgo.randomize-all"}
	two := []string{cli, "--procs=2", "--randomize-all", "-v", binary}
	passed := map[string]string{"ZZ-01": "pass ", "ZZ-02": "pass ", "ZZ-03": "not-applicable feature-not-claimed", "ZZ-04": "pass "}
	with := func(status string) map[string]string {
		return map[string]string{"ZZ-01": "pass ", "ZZ-02": status, "ZZ-03": passed["ZZ-03"], "ZZ-04": "pass "}
	}
	tests := []struct {
		name  string
		mode  string
		argv  []string
		green bool
		want  map[string]string // nil when there is no report
		has   []string
	}{
		{"alone", "", alone, true, passed, []string{"Ran 9 of 11 Specs", "2 Skipped", "not judged in a shared process", "FOREIGN-AFTER-SUITE"}},
		{"two processes", "", two, true, passed, []string{"Ran 9 of 11 Specs", "2 Skipped"}},
		{"a case fails", "fail", alone, false, with("fail planted"), []string{"fail planted: the planted failure", "Ran 9 of 11 Specs"}},
		{"a case fails in two processes", "fail", two, false, with("fail planted"), []string{"fail planted: the planted failure"}},
		{"a case is not run", "not-run", alone, false, with("not-run part-unavailable"), []string{"not-run part-unavailable"}},
		{"signing is refused", "signed", alone, false, nil, []string{"an embedded run is never signed"}},
		{"bad options", "no-tenant", alone, false, nil, []string{"is not a file"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := os.MkdirTemp("", "hallmark-embedded-") // tenants must be able to walk through
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(out) })
			if err := os.Chmod(out, 0o711); err != nil {
				t.Fatal(err)
			}
			text, code := offline(t, dir, []string{"EMBEDDED_OUT=" + out, "EMBEDDED=" + tt.mode}, tt.argv...)
			if (code == 0) != tt.green {
				t.Errorf("exit status %d, want green %v", code, tt.green)
			}
			for _, s := range tt.has {
				if !strings.Contains(text, s) {
					t.Errorf("the output lacks %q", s)
				}
			}
			for _, name := range []string{"a", "b"} {
				checkEmbedded(t, out, name, tt.want)
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
	t.Run("mixed with a test", func(t *testing.T) {
		out, code := offline(t, dir, []string{"MIXED=1", "EMBEDDED_OUT=" + t.TempDir()}, binary, "-test.run=^TestMixed$")
		if code == 0 {
			t.Errorf("cases and foreign specs ran in one tree:\n%s", out)
		}
	})
}

// checkEmbedded reads the report of one registration: it says what the cases came to, and that it is
// no evidence. Nothing but it stays.
func checkEmbedded(t *testing.T, out, name string, want map[string]string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(out, "work-"+name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target %s: the work folder is left: %v", name, err)
	}
	if _, err := os.Stat(filepath.Join(out, name, "bundle")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target %s has a bundle: %v", name, err)
	}
	b, err := os.ReadFile(filepath.Join(out, name, "report.json"))
	if want == nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("target %s has a report: %v", name, err)
		}
		return
	}
	if err != nil {
		t.Error(err)
		return
	}
	var r conformance.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Verdict != evidence.Incomplete || !strings.Contains(strings.Join(r.Reasons, "\n"), "embedded in another suite") {
		t.Errorf("target %s: verdict %s because %q", name, r.Verdict, r.Reasons)
	}
	for _, reason := range r.Reasons[1:] {
		if strings.Contains(reason, "left") {
			t.Errorf("target %s: %s", name, reason)
		}
	}
	for _, c := range r.Cases {
		if got := string(c.Status) + " " + c.Reason; got != want[c.ID] {
			t.Errorf("target %s: %s is %s (%s), want %s", name, c.ID, got, c.Text, want[c.ID])
		}
	}
	if len(r.Cases) != len(want) {
		t.Errorf("target %s: %d rows, want %d", name, len(r.Cases), len(want))
	}
	if _, err := os.Stat(filepath.Join(out, name, "junit.xml")); err != nil {
		t.Error(err)
	}
}

// banned are what would take over the process or the suite that a registration is embedded in.
var banned = []string{
	"ginkgo.RunSpecs", "ginkgo.BeforeSuite", "ginkgo.AfterSuite", "ginkgo.SynchronizedBeforeSuite", "ginkgo.SynchronizedAfterSuite",
	"ginkgo.ReportBeforeSuite", "ginkgo.ReportAfterSuite", "ginkgo.GinkgoConfiguration", "ginkgo.PreviewSpecs", "ginkgo.PauseOutputInterception",
	"os.Exit", "os.Setenv", "os.Unsetenv", "os.Chdir", "signal.Notify", "signal.NotifyContext", "signal.Ignore", "syscall.Dup3", "unix.Dup3",
	"testing.Init", "flag.CommandLine", "flag.Parse", "flag.Bool", "flag.String", "log.Fatal", "log.Fatalf", "exec.Command",
}

// The way of a registration through this package uses nothing of the kind. It is followed by name,
// which finds more than is called, and never less within the package.
func TestRegistrationStaysEmbeddable(t *testing.T) {
	calls := mentions(t)
	if found := reach(calls, "Register"); len(found) > 0 {
		t.Errorf("a registration reaches, in the function named: %q", found)
	}
	// The check can fail: the suite's own process does all that.
	for _, needed := range []string{"ginkgo.RunSpecs", "ginkgo.SynchronizedBeforeSuite", "os.Exit", "flag.CommandLine"} {
		if reach(calls, "ChildMain")[needed] == "" {
			t.Errorf("ChildMain is not seen to reach %s", needed)
		}
	}
	// And neither loading the package nor a variable of it does anything.
	for name := range calls {
		if name == "init" {
			t.Error("the package has an init function")
		}
	}
}

// mentions maps each function of the package, and each method as ".Name" whatever its receiver, to
// what its body mentions: "pkg.Name" of an import, names of functions, and ".Name" after a dot.
func mentions(t *testing.T) map[string]map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				name = "." + name
			}
			if out[name] == nil {
				out[name] = map[string]bool{}
			}
			var visit func(ast.Node) bool
			visit = func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					// The name after the dot is no function of the package: only what is before it goes on.
					if x, ok := n.X.(*ast.Ident); ok {
						out[name][x.Name+"."+n.Sel.Name] = true
					}
					out[name]["."+n.Sel.Name] = true
					ast.Inspect(n.X, visit)
					return false
				case *ast.KeyValueExpr:
					if _, ok := n.Key.(*ast.Ident); !ok { // else a member's name
						ast.Inspect(n.Key, visit)
					}
					ast.Inspect(n.Value, visit)
					return false
				case *ast.Ident:
					out[name][n.Name] = true
				}
				return true
			}
			ast.Inspect(f.Body, visit)
		}
	}
	return out
}

// reach lists what is banned and mentioned by from, or by what that mentions, and so on, with who
// mentions it.
func reach(calls map[string]map[string]bool, from string) map[string]string {
	seen := map[string]bool{from: true}
	found := map[string]string{}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for name := range calls[queue[0]] {
			if slices.Contains(banned, name) {
				found[name] = queue[0]
			}
			if calls[name] != nil && !seen[name] {
				seen[name] = true
				queue = append(queue, name)
			}
		}
	}
	return found
}
