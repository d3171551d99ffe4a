// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/evidence"
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

// Placeholders of a draft must not be published.
func TestDocumentsAreFinished(t *testing.T) {
	for _, path := range []string{"README.md", "EVIDENCE.md"} {
		if strings.Contains(read(t, path), "@@") {
			t.Errorf("%s has a placeholder", path)
		}
	}
}
