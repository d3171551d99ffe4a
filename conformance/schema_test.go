// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const schemaFile = "report.schema.json"

// schema compiles the published schema; strict refuses members that it does not describe, which
// a reader must not do and this test must.
func schema(t *testing.T, strict bool) *jsonschema.Schema {
	t.Helper()
	b, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if strict {
		closeObjects(doc)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("report", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("report")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, described := v["properties"]; described && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		for _, x := range v {
			closeObjects(x)
		}
	case []any:
		for _, x := range v {
			closeObjects(x)
		}
	}
}

// FollowsSchema checks a report that a run wrote.
func FollowsSchema(t *testing.T, report []byte) {
	t.Helper()
	if err := validate(t, schema(t, true), report); err != nil {
		t.Error(err)
	}
}

func validate(t *testing.T, s *jsonschema.Schema, report []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

func TestReportsFollowTheirSchema(t *testing.T) {
	fixed, _ := fixedReport()
	empty := Report{Schema: ReportSchema, Verdict: "incomplete"}
	for name, r := range map[string]Report{"fixed": fixed, "no member is set": empty} {
		dir := t.TempDir()
		if err := r.write(dir); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, reportFile))
		if err != nil {
			t.Fatal(err)
		}
		err = validate(t, schema(t, true), b)
		if (err == nil) != (name == "fixed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	fixed.Cases[1].Status = "passed"
	b, err := json.Marshal(fixed)
	if err != nil {
		t.Fatal(err)
	}
	if validate(t, schema(t, false), b) == nil {
		t.Error("an unknown status follows the schema")
	}
}

// The golden report came out of a whole run; what differs from run to run is spelt out there.
func TestGoldenReportFollowsTheSchema(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "report.golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for member, value := range map[string]string{
		"durationMs": "1", "startedAt": `"2026-11-29T22:00:00Z"`, "finishedAt": `"2026-11-29T22:00:00Z"`, "runId": `"0"`,
		"catalogueDigest": `"sha256:` + strings.Repeat("0", 64) + `"`, "digest": `"sha256:` + strings.Repeat("0", 64) + `"`, "size": "1",
	} {
		text = strings.ReplaceAll(text, fmt.Sprintf(`"%s": "CHANGES"`, member), fmt.Sprintf(`"%s": %s`, member, value))
	}
	text = strings.ReplaceAll(text, `"startedAt": "EMPTY"`, `"startedAt": ""`)
	if err := validate(t, schema(t, true), []byte(text)); err != nil {
		t.Error(err)
	}
	// A reader of version 1 accepts what a later release adds.
	more := strings.Replace(text, "{", `{"added": 1,`, 1)
	if err := validate(t, schema(t, false), []byte(more)); err != nil {
		t.Errorf("a new member: %v", err)
	}
	if validate(t, schema(t, true), []byte(more)) == nil {
		t.Error("the strict schema does not see a member that nobody described")
	}
}

// What version 1 once had it keeps. -update adds to the list, and never takes away.
func TestMembersAreAddedNeverRenamed(t *testing.T) {
	b, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	now := map[string]bool{}
	members("", doc, now)
	file := filepath.Join("testdata", "report.members.1.txt")
	before, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	listed := strings.Fields(string(before))
	for _, m := range listed {
		if !now[m] {
			t.Errorf("version %d had the member %s", ReportSchema, m)
		}
	}
	var added []string
	for m := range now {
		if !slices.Contains(listed, m) {
			added = append(added, m)
		}
	}
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		listed = slices.Sorted(slices.Values(append(listed, added...)))
		if err := os.WriteFile(file, []byte(strings.Join(listed, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if len(added) > 0 {
		t.Errorf("%s lacks %q: run with -update", file, added)
	}
}

// members gathers the paths of all described members.
func members(path string, v any, out map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		properties, _ := v["properties"].(map[string]any)
		for name, x := range properties {
			out[path+"/"+name] = true
			members(path+"/"+name, x, out)
		}
		for name, x := range v {
			switch name {
			case "properties":
			case "$defs":
				for d, x := range x.(map[string]any) {
					members("$"+d, x, out)
				}
			default:
				members(path, x, out)
			}
		}
	case []any:
		for _, x := range v {
			members(path, x, out)
		}
	}
}
