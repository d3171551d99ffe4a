// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	target "github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// The published table of reasons is the one that the gate answers from: no row is missing, and none
// is there that no code has.
func TestEvidenceDocumentListsEveryReason(t *testing.T) {
	_, table, found := strings.Cut(read(t, "EVIDENCE.md"), "| Step | Code | Cause | Remedy |\n|---|---|---|---|\n")
	table, _, closed := strings.Cut(table, "\n\n")
	var want []string
	for _, r := range evidence.Reasons() {
		want = append(want, fmt.Sprintf("| %d | `%s` | %s | %s |", r.Step, r.Code, r.Sentence, r.Remedy))
	}
	got := strings.Split(table, "\n")
	if !found || !closed || len(got) != len(want) {
		t.Errorf("EVIDENCE.md has %d rows of reasons, the gate %d", len(got), len(want))
	}
	for i, row := range want {
		if i < len(got) && got[i] != row {
			t.Fatalf("row %d of EVIDENCE.md is\n%s\nwant\n%s", i+1, got[i], row)
		}
	}
}

// expectation is what a file of ci/cohorts expects of a runtime. The command line reads the same
// files strictly, and `hallmark alternatives` fails when a run gives anything else.
type expectation struct {
	Name         string
	Verdict      string
	AbsentClaims []string `yaml:"absentClaims"`
	Expected     []struct {
		Cases               []string
		Status, Reason, Why string
	}
}

// control is the cohort file that is no alternative: `make control` runs it.
const control = "ci/cohorts/runc-control.yaml"

func expectations(t *testing.T) map[string]expectation {
	t.Helper()
	files, err := filepath.Glob("ci/cohorts/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("cohort files: %q, %v", files, err)
	}
	out := map[string]expectation{}
	for _, f := range files {
		var e expectation
		if err := yaml.Unmarshal([]byte(read(t, f)), &e); err != nil {
			t.Fatal(err)
		}
		if f != control {
			out[e.Name] = e
		}
	}
	return out
}

var update = flag.Bool("update", false, "rewrite the tables of EVIDENCE.md that ci/cohorts decides")

// The published results have a row for every case of the catalogue and a cell for every
// alternative, and say what ci/cohorts expects, with the reasons.
func TestEvidenceDocumentHasEveryCaseOfEveryAlternative(t *testing.T) {
	document, want := read(t, "EVIDENCE.md"), expectations(t)
	const results, reasons = "| Case | Title | ", "| Alternative | Case | "
	_, rest, found := strings.Cut(document, "\n"+results)
	header, _, _ := strings.Cut(rest, "\n")
	columns := strings.Split(strings.TrimSuffix(header, " |"), " | ")
	if !found || len(columns) != len(want) {
		t.Fatalf("the table has the columns %q, ci/cohorts has %d files of alternatives", columns, len(want))
	}
	tables := map[string][]string{}
	row := func(id, title string, cell func(expectation) string) {
		t.Helper()
		line := "| " + id + " | " + title + " |"
		for _, name := range columns {
			e, ok := want[name]
			if !ok {
				t.Fatalf("no file of ci/cohorts is named %q", name)
			}
			line += " " + cell(e) + " |"
		}
		tables[results] = append(tables[results], line)
	}
	for _, c := range cases.All() {
		row(c.ID, c.Title, func(e expectation) string {
			for _, x := range e.Expected {
				if slices.Contains(x.Cases, c.ID) {
					return x.Status + " `" + x.Reason + "`"
				}
			}
			return "pass"
		})
	}
	row("", "claims that are not true", func(e expectation) string {
		if len(e.AbsentClaims) == 0 {
			return "none"
		}
		return strings.Join(e.AbsentClaims, ", ")
	})
	row("", "verdict", func(e expectation) string { return e.Verdict })
	for _, name := range columns {
		if !strings.Contains(document, "\n| "+name+" | ") {
			t.Errorf("EVIDENCE.md does not say what %s is", name)
		}
		for _, x := range want[name].Expected {
			line := fmt.Sprintf("| %s | %s | %s `%s` | %s |", name, strings.Join(x.Cases, ", "), x.Status, x.Reason, x.Why)
			tables[reasons] = append(tables[reasons], line)
		}
	}
	for head, lines := range tables {
		// A table is a line of names, one of dashes, and rows up to the first line that is none.
		before, rest, _ := strings.Cut(document, "\n"+head)
		names, rest, _ := strings.Cut(rest, "\n")
		dashes, rest, _ := strings.Cut(rest, "\n")
		var had []string
		for line := ""; strings.HasPrefix(rest, "|"); had = append(had, line) {
			line, rest, _ = strings.Cut(rest, "\n")
		}
		if *update {
			document = before + "\n" + head + names + "\n" + dashes + "\n" + strings.Join(lines, "\n") + "\n" + rest
			continue
		}
		for _, line := range lines {
			if !slices.Contains(had, line) {
				t.Errorf("EVIDENCE.md lacks the row\n%s", line)
			}
		}
		if len(had) != len(lines) {
			t.Errorf("EVIDENCE.md has %d rows below %q, ci/cohorts asks for %d", len(had), head, len(lines))
		}
	}
	if *update {
		if err := os.WriteFile("EVIDENCE.md", []byte(document), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The configuration that README shows is one that the worker reads.
func TestReadmeConfigurationIsRead(t *testing.T) {
	_, rest, ok := strings.Cut(read(t, "README.md"), "```json\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("README.md shows no configuration")
	}
	path := filepath.Join(t.TempDir(), "worker.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := worker.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Ceilings != target.Ceilings {
		t.Errorf("README's ceilings are %+v, the suite qualifies %+v", c.Ceilings, target.Ceilings)
	}
}

// Placeholders of a draft must not be published.
func TestDocumentsAreFinished(t *testing.T) {
	for _, path := range []string{"README.md", "EVIDENCE.md"} {
		if strings.Contains(read(t, path), "@@") {
			t.Errorf("%s has a placeholder", path)
		}
	}
}
