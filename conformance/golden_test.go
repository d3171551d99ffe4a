// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// checkGolden compares report.json with the golden one, with what differs from run to run
// replaced: times, durations, the run's id, the stacks of panics, and the raw files of the run.
func checkGolden(t *testing.T, out string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	conformance.FollowsSchema(t, b)
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	enc.SetIndent("", "  ")
	if err := enc.Encode(normal("", doc)); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "report.golden.json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("report.json differs from %s (rewrite with -update and review):\n%s", golden, firstDifference(got.String(), string(want)))
	}
}

var stack = regexp.MustCompile(`(?s)\ngoroutine .*`)

func normal(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if path, ok := v["path"].(string); ok && !strings.HasPrefix(path, "raw/blobs/") {
			v["digest"], v["size"] = "CHANGES", "CHANGES"
		}
		for k, x := range v {
			v[k] = normal(k, x)
		}
	case []any:
		for i, x := range v {
			v[i] = normal(key, x)
		}
	case string:
		switch key {
		case "startedAt", "finishedAt", "runId", "catalogueDigest":
			if v == "" {
				return "EMPTY"
			}
			return "CHANGES"
		}
		return stack.ReplaceAllString(v, "\nSTACK")
	case float64:
		if key == "durationMs" {
			return "CHANGES"
		}
	}
	return v
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return "got  " + g[i] + "\nwant " + w[i]
		}
	}
	return "one is longer than the other"
}
