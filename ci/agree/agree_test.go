// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake writes a program that stands for hallmark: its Nth run, counted in a file, writes the Nth
// report.
func fake(t *testing.T, reports ...string) (program, out string) {
	t.Helper()
	dir := t.TempDir()
	for i, r := range reports {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i+1)), []byte(r), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := `#!/bin/sh
for out; do :; done
echo run >>` + dir + `/count
mkdir -p "$out"
cp ` + dir + `/$(wc -l <` + dir + `/count) "$out/report.json" || exit 3
exit 2
`
	program = filepath.Join(dir, "hallmark")
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, filepath.Join(dir, "out")
}

// It uses the running lab, as every test that needs one.
func TestRunsAgreeOrDoNot(t *testing.T) {
	row := func(id, status, reason string) string {
		return fmt.Sprintf(`{"id":%q,"status":%q,"reason":%q,"text":"seen"}`, id, status, reason)
	}
	of := func(verdict string, rows ...string) string {
		return fmt.Sprintf(`{"verdict":%q,"seed":7,"cases":[%s]}`, verdict, strings.Join(rows, ","))
	}
	good := of("incomplete", row("AA-01", "pass", ""), row("AA-02", "fail", "escaped"))
	for _, tt := range []struct {
		name    string
		reports []string
		agreed  bool
		want    string // in what is printed, or in the error
		fails   bool
	}{
		{"the same", []string{good, good, good}, true, "3 runs agree", false},
		{"another status", []string{good, good, of("incomplete", row("AA-01", "inconclusive", "no-witness"), row("AA-02", "fail", "escaped"))}, false, `AA-01: "pass " in run 1, "inconclusive no-witness" here`, false},
		{"another reason", []string{good, of("incomplete", row("AA-01", "pass", ""), row("AA-02", "fail", "other"))}, false, "AA-02", false},
		{"a missing case", []string{good, of("incomplete", row("AA-01", "pass", ""))}, false, "AA-02: in run 1, missing here", false},
		{"another verdict", []string{good, of("conformant", row("AA-01", "pass", ""), row("AA-02", "fail", "escaped"))}, false, "verdict: incomplete in run 1, conformant here", false},
		{"the same error of the suite", []string{of("incomplete", row("AA-01", "error", "panic")), of("incomplete", row("AA-01", "error", "panic"))}, false, "error of the suite", false},
		{"no report", []string{good}, false, "run 2: no report", true},
		{"no case", []string{of("conformant"), good}, false, "has no case", true},
		{"one run", []string{good}, false, "1 runs cannot agree", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program, out := fake(t, tt.reports...)
			n := max(len(tt.reports), 2)
			if tt.name == "one run" {
				n = 1
			}
			var said strings.Builder
			agreed, err := several(t.Context(), &said, n, program, []string{"run"}, out)
			text := said.String()
			if err != nil {
				text += err.Error()
			}
			if agreed != tt.agreed || (err != nil) != tt.fails || !strings.Contains(text, tt.want) {
				t.Errorf("agreed %v, %v; said %s", agreed, err, text)
			}
		})
	}
}
