// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

// The page shows this program as it is; cmd/hallmark-worker holds its output against the page, on a
// real sandbox.
func TestPageShowsThisProgram(t *testing.T) {
	page, err := os.ReadFile("../../docs/worker-api.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```go\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !closed || strings.Count(block, "\n") < 20 || !strings.Contains(string(source), block) {
		t.Errorf("the Go block of the page is not in main.go:\n%s", block)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"x"}, {"-worker-key", "!"}, {"-worker-key", "AAAA", "-key", "absent"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
