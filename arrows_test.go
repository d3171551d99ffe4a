// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"bufio"
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hallmark-sandbox/hallmark"

// ban says that nothing below from, but for the exceptions, may import anything below to.
type ban struct {
	from, to string
	except   []string
	reason   string
}

// ours are the arrows between our own folders, as direct imports.
var ours = []ban{
	{"evidence", "reference", nil, "a verifier must not depend on the runtime that it judges"},
	{"evidence", "conformance", nil, "a verifier holds its own catalogue as data"},
	{"evidence", "ci", nil, "evidence is verified where no lab exists"},
	{"evidence", "fixtures", nil, "a verifier carries no attack programs"},
	{"evidence", "cmd", nil, "cmd wires, nobody imports it"},
	{"reference", "conformance", nil, "production code must not know its tests"},
	{"reference", "ci", nil, "production code must not know the lab"},
	{"reference", "fixtures", nil, "production code carries no attack programs"},
	{"reference", "evidence", []string{"reference/admission", "reference/cohort"}, "only admission reads evidence"},
	{"conformance", "reference", []string{"conformance/target"}, "the suite sees a runtime only through conformance/target"},
	{"conformance", "ci", nil, "the suite does not start engines; cmd does"},
	{"strictjson", "reference", nil, "a leaf that both sides of the wire use"},
	{"strictjson", "evidence", nil, "a leaf that both sides of the wire use"},
	{"ci", "conformance", []string{"ci/limits"}, "the lab serves any suite"}, // ci/limits measures sandboxes of the target
}

// small are programs and packages whose whole dependency tree is bounded.
var small = []struct {
	pkg    string
	allow  []string // module path prefixes besides the standard library
	reason string
}{
	{"cmd/hallmark-supervisor", []string{module + "/", "golang.org/x/sys/"}, "it is PID 1 in the sandbox"},
	{"cmd/hallmark-quota", []string{module + "/", "golang.org/x/sys/"}, "it runs as root beside tenants' files"},
	{"reference/admission", []string{module + "/", "golang.org/x/sys/", "github.com/go-json-experiment/json",
		"github.com/gowebpki/jcs", "github.com/secure-systems-lab/go-securesystemslib/dsse"}, "it decides what starts"},
}

type node struct {
	path     string
	imports  []string
	standard bool
}

// list runs go list and parses "path<TAB>standard<TAB>imports".
func list(t *testing.T, args ...string) []node {
	t.Helper()
	args = append([]string{"list", "-f", "{{.ImportPath}}\t{{.Standard}}\t{{join .Imports \" \"}}"}, args...)
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	var nodes []node
	for scanner := bufio.NewScanner(bytes.NewReader(out)); scanner.Scan(); {
		parts := strings.Split(scanner.Text(), "\t")
		if len(parts) != 3 {
			t.Fatalf("go list printed %q", scanner.Text())
		}
		nodes = append(nodes, node{path: parts[0], standard: parts[1] == "true", imports: strings.Fields(parts[2])})
	}
	if len(nodes) == 0 {
		t.Fatal("go list found no package")
	}
	return nodes
}

func below(path, folder string) bool {
	rel, ok := strings.CutPrefix(path, module+"/")
	return ok && (rel == folder || strings.HasPrefix(rel, folder+"/"))
}

func TestArrowsBetweenFolders(t *testing.T) {
	nodes := list(t, "./...")
	for _, v := range violations(nodes, ours) {
		t.Error(v)
	}
	// The check must be able to fail: a planted edge is found.
	planted := []node{{path: module + "/evidence/x", imports: []string{module + "/reference/api"}}}
	if len(violations(planted, ours)) != 1 {
		t.Error("a planted import of reference by evidence was not found")
	}
}

func violations(nodes []node, bans []ban) []string {
	var found []string
	for _, n := range nodes {
		for _, b := range bans {
			if !below(n.path, b.from) || slices.ContainsFunc(b.except, func(e string) bool { return below(n.path, e) }) {
				continue
			}
			for _, imp := range n.imports {
				if below(imp, b.to) {
					found = append(found, n.path+" imports "+imp+": "+b.reason)
				}
			}
		}
	}
	return found
}

func TestSmallDependencyTrees(t *testing.T) {
	for _, s := range small {
		t.Run(s.pkg, func(t *testing.T) {
			for _, n := range list(t, "-deps", "./"+s.pkg) {
				if n.standard || n.path == module+"/"+s.pkg {
					continue
				}
				if !slices.ContainsFunc(s.allow, func(a string) bool { return strings.HasPrefix(n.path, a) }) {
					t.Errorf("%s is linked into %s: %s", n.path, s.pkg, s.reason)
				}
			}
		})
	}
}

// What moves, logs and signs evidence is linked into the command line, and not into what runs beside
// tenants.
func TestWorkerCarriesNoTransport(t *testing.T) {
	heavy := []string{"evidence/archive", "evidence/registry", "evidence/signing", "evidence/translog", "evidence/gate"}
	linked := func(program string) []string {
		var found []string
		for _, n := range list(t, "-deps", "./cmd/"+program) {
			for _, h := range heavy {
				if below(n.path, h) {
					found = append(found, h)
				}
			}
		}
		slices.Sort(found)
		return found
	}
	for _, program := range []string{"hallmark-worker", "hallmark-supervisor", "hallmark-quota"} {
		if found := linked(program); len(found) > 0 {
			t.Errorf("%s links %q", program, found)
		}
	}
	slices.Sort(heavy)
	if found := linked("hallmark"); !slices.Equal(found, heavy) {
		t.Errorf("hallmark links %q, so the check finds less than it should", found)
	}
}

func TestOnlyMetricsKnowPrometheus(t *testing.T) {
	const library = "github.com/prometheus/"
	found := false
	for _, n := range list(t, "./...") {
		for _, imp := range n.imports {
			if strings.HasPrefix(imp, library) && !below(n.path, "reference/worker/metrics") {
				t.Errorf("%s imports %s: the worker is observed through an interface", n.path, imp)
			}
			found = found || strings.HasPrefix(imp, library)
		}
	}
	if !found {
		t.Error("nothing imports it, so nothing is checked")
	}
}

func TestOnlyOneEngineClient(t *testing.T) {
	const client = "github.com/docker/docker/client"
	for _, n := range list(t, "./reference/...") {
		if slices.Contains(n.imports, client) && !below(n.path, "reference/engine") {
			t.Errorf("%s imports %s: reference/engine is its only importer", n.path, client)
		}
	}
}

// The contract is checked by tests. What runs only carries its text.
func TestContractCheckerIsForTests(t *testing.T) {
	const checker, library = module + "/reference/api/wiretest", "github.com/getkin/kin-openapi"
	for _, n := range list(t, "./...") {
		for _, imp := range n.imports {
			if imp == checker || strings.HasPrefix(imp, library) && n.path != checker {
				t.Errorf("%s imports %s outside of its tests", n.path, imp)
			}
		}
	}
}
