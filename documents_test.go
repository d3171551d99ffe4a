// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// The published table of reasons is the one that the gate answers from.
func TestEvidenceDocumentListsEveryReason(t *testing.T) {
	document := read(t, "EVIDENCE.md")
	for _, r := range evidence.Reasons() {
		if row := fmt.Sprintf("| %d | `%s` | %s |", r.Step, r.Code, r.Sentence); !strings.Contains(document, row+"\n") {
			t.Errorf("EVIDENCE.md lacks the row %s", row)
		}
	}
}

// The published results are of the catalogue that is compiled in.
func TestEvidenceDocumentListsEveryCase(t *testing.T) {
	document := read(t, "EVIDENCE.md")
	for _, c := range cases.All() {
		if !strings.Contains(document, "| "+c.ID+" | "+c.Title+" |") {
			t.Errorf("EVIDENCE.md has no results of %s %s", c.ID, c.Title)
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
