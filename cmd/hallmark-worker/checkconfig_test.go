// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// readmeConfig is the configuration that README shows.
func readmeConfig(t *testing.T) string {
	t.Helper()
	body, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(body), "```json\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("README shows no configuration")
	}
	return text
}

// explained runs check-config on text.
func explained(t *testing.T, text string) (stdout, stderr string, code int) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "worker.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = report(&errs, run(t.Context(), []string{"check-config", "--config", path}, &out))
	if rows, err := os.ReadDir(dir); err != nil || len(rows) != 1 {
		t.Errorf("it left %v, %v", rows, err)
	}
	return out.String(), errs.String(), code
}

// Every member of the type is explained, in its order, and nothing else is.
func TestEveryMemberIsExplained(t *testing.T) {
	var paths []string
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, optional := tag(f)
			at := join(path, name)
			paths = append(paths, at)
			n := slices.IndexFunc(members(), func(m member) bool { return m.path == at })
			if n < 0 {
				t.Errorf("%s is not explained", at)
				continue
			}
			m, inner := members()[n], f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if _, known := forms()[m.form]; !known || m.meaning == "" || (m.absent != "") != optional {
				t.Errorf("%s: form %q, meaning %q, absent %q, optional %t", at, m.form, m.meaning, m.absent, optional)
			}
			switch {
			case inner.Kind() == reflect.Struct:
				walk(at, inner)
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
				walk(at+"[]", inner.Elem())
			}
		}
	}
	walk("", reflect.TypeFor[worker.Config]())
	for _, m := range members() {
		if !slices.Contains(paths, m.path) {
			t.Errorf("%s is explained and not there", m.path)
		}
	}
}

func TestCheckConfigExplains(t *testing.T) {
	text := readmeConfig(t)
	out, stderr, code := explained(t, text)
	if code != 0 || stderr != "" || !strings.Contains(out, "No problems.") {
		t.Errorf("exit status %d, %s\n%s", code, stderr, out)
	}
	joined := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"workerId = worker-1", "tls is not set: no such listener", "engine.runtime = runsc", "limits is not set: every default",
		"limits.nonces is not set: default 100000", "limits.execsPerSandbox is not set: default 4",
		"ceilings.memoryBytes = 1073741824 (1 GiB)", "authority.keys[0].publicKey = key with fingerprint", "admission.bundles = /var/lib/hallmark/bundle",
	} {
		if !strings.Contains(joined, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, m := range members() {
		unset := false // a group that it is in
		for i, c := range m.path {
			group := m.path[:i]
			unset = unset || c == '.' && group != "limits" && strings.Contains(joined, " "+group+" is not set")
		}
		if !unset && !strings.Contains(joined, m.meaning) {
			t.Errorf("%s is not explained in the output", m.path)
		}
	}
	project, _, code := explained(t, strings.Replace(text, `"reserveInodes": 10000`, `"reserveInodes": 10000, "projectQuota": {"filesystem": "xfs", "firstId": 1048576, "lastId": 2097152}`, 1))
	for _, want := range []string{"workspaces.projectQuota.filesystem = xfs\n", "workspaces.projectQuota.lastId = 2097152\n"} {
		if code != 0 || !strings.Contains(project, want) {
			t.Errorf("exit status %d, it does not say %q", code, want)
		}
	}
	wrong, _, code := explained(t, strings.Replace(text, `"reserveInodes": 10000`, `"reserveInodes": 10000, "projectQuota": {"filesystem": "btrfs", "firstId": 1, "lastId": 2}`, 1))
	for _, want := range []string{`give "ext4" or "xfs"`, "are not a range within 1048576 to 4294967294"} {
		if code == 0 || !strings.Contains(strings.Join(strings.Fields(wrong), " "), want) {
			t.Errorf("exit status %d, it does not say %q", code, want)
		}
	}
	moved, _, code := explained(t, strings.Replace(text, `"log"`, `"limits": {"nonces": 50000, "creates": 4}, "log"`, 1))
	for _, want := range []string{"limits.nonces = 50000\n", "limits.creates = 4 (the default)\n", "limits.execs is not set: default 64\n"} {
		if code != 0 || !strings.Contains(moved, want) {
			t.Errorf("exit status %d, it does not say %q", code, want)
		}
	}
}

func TestCheckConfigFitsTheScreen(t *testing.T) {
	text := readmeConfig(t)
	for _, in := range []string{text, strings.ReplaceAll(text, `"`, `"x`), `{}`, `[`, strings.Replace(text, "{", `{"`+strings.Repeat("a", 100)+`": 1,`, 1)} {
		out, _, _ := explained(t, in)
		_, body, _ := strings.Cut(out, "\n") // after the path of the file
		for line := range strings.Lines(body) {
			line = strings.TrimSuffix(line, "\n")
			if len(line) > columns && len(strings.Fields(line)) > 1 || strings.TrimRight(line, " ") != line {
				t.Errorf("%d columns: %q", len(line), line)
			}
		}
	}
}

func TestCheckConfigTellsEveryProblemAtOnce(t *testing.T) {
	text := readmeConfig(t)
	for _, pair := range [][2]string{
		{`"workerId": "worker-1"`, `"workerID": "worker-1"`}, {`"production"`, `"prod"`}, {`"/run/docker.sock"`, `"run/docker.sock"`},
		{`"memoryBytes": 1073741824`, `"memoryBytes": 1.5`}, {`"pids": 1024`, `"pids": "many"`}, {`"reserveInodes": 10000`, `"reserveInodes": -1`},
		{`"kid": "key-1"`, `"kid": null`}, {`"bundles": ["/var/lib/hallmark/bundle"]`, `"bundles": "/var/lib/hallmark/bundle"`},
		{`"log"`, `"limits": {"nonces": 5, "execsPerSandbox": 99}, "metrics": {"listen": "0.0.0.0:9"}, "debug": true, "log"`},
	} {
		next := strings.Replace(text, pair[0], pair[1], 1)
		if next == text {
			t.Fatalf("%s is not there", pair[0])
		}
		text = next
	}
	out, stderr, code := explained(t, text)
	_, problems, ok := strings.Cut(out, "\nProblems (")
	if code != exitFailed || !ok || strings.Count(stderr, "\n") < 2 {
		t.Fatalf("exit status %d, %s\n%s", code, stderr, out)
	}
	for _, want := range []string{
		"workerId is missing", "workerID is not a member", "write workerId", "mode is neither", "engine.socket is not an absolute path",
		"ceilings.memoryBytes is no whole number", "ceilings.pids is a value of another kind", "workspaces.reserveBytes or workspaces.reserveInodes is negative",
		"authority.keys[0].kid is a value of another kind", "admission.bundles is a value of another kind", "limits.nonces is 5", "limits.execsPerSandbox is 99",
		"metrics.listen is neither", "debug is not a member",
	} {
		if !strings.Contains(strings.Join(strings.Fields(problems), " "), want) {
			t.Errorf("it does not say %q:\n%s", want, problems)
		}
	}
	if numbered := regexp.MustCompile(`(?m)^ {1,2}\d+\. `).FindAllString(problems, -1); len(numbered) != strings.Count(problems, "Remedy: ") || !strings.HasPrefix(problems, fmt.Sprint(len(numbered))) {
		t.Errorf("%d problems, %d remedies:\n%s", len(numbered), strings.Count(problems, "Remedy: "), problems)
	}
}

// Whatever is put wherever by mistake, a value that has not its member's form is not shown.
func TestCheckConfigShowsNoSecret(t *testing.T) {
	const secret = "s3cr3t v4lue"
	text := readmeConfig(t)
	inputs := []string{
		strings.Replace(text, "{", `{"`+secret+`": 1,`, 1),
		strings.Replace(text, "{", `{"extra": "`+secret+`",`, 1),
		strings.Replace(text, "{", `{"credentials": {"providers": [{"providerId": "p", "kind": "exec", "argv": ["/bin/get", "--token", "`+secret+`"], "timeoutMs": 1}], "bindings": []},`, 1),
		strings.Replace(text, "{", `{"workerId": "`+secret+`", "workerId": "`+secret+`",`, 1),
		text + secret,
	}
	for _, old := range regexp.MustCompile(`: ("[^"]*"|\d+)`).FindAllString(text, -1) {
		inputs = append(inputs, strings.Replace(text, old, `: "-----BEGIN `+secret+`"`, 1), strings.Replace(text, old, `: "`+secret+`\n"`, 1))
	}
	for _, in := range inputs {
		out, stderr, code := explained(t, in)
		if in == text {
			t.Fatal("the row alters nothing")
		}
		// A text member shows any text; that is what it is for.
		shown := strings.ReplaceAll(strings.ReplaceAll(out, "authority.issuer = -----BEGIN "+secret, ""), "engine.cgroupParent = -----BEGIN "+secret, "")
		if strings.Contains(shown+stderr, secret) {
			t.Errorf("exit status %d, from %.300s:\n%s\n%s", code, in, out, stderr)
		}
	}
}

// check-config finds a problem exactly where serve refuses.
func TestCheckConfigAgreesWithServe(t *testing.T) {
	text := readmeConfig(t)
	rows := []string{text, "", "null", "[]", "{}", "{", text + "{}", strings.Replace(text, "{", `{"workerId":"a",`, 1), "\ufeff" + text}
	for _, old := range regexp.MustCompile(`"\w+": ("[^"]*"|\d+|\{|\[)`).FindAllString(text, -1) {
		name, value, _ := strings.Cut(old, ": ")
		if value == "{" || value == "[" {
			rows = append(rows, strings.Replace(text, name, `"other"`, 1))
			continue
		}
		for _, v := range []string{"null", `""`, `"a"`, `"/a"`, "0", "1", "-1", "1.0", "1e3", "true", "[]", "{}", `"\u0000"`, "9007199254740993"} {
			rows = append(rows, strings.Replace(text, old, name+": "+v, 1))
		}
		rows = append(rows, strings.Replace(text, old, old+", "+old, 1), strings.Replace(text, name, strings.ToUpper(name), 1))
	}
	for _, add := range []string{
		`"limits": {}`, `"limits": null`, `"limits": {"nonces": 0}`, `"limits": {"nonces": 1000}`, `"limits": {"nonces": 20000}`, `"metrics": {}`,
		`"metrics": {"listen": "/m.sock"}`, `"metrics": null`, `"tls": {}`, `"tls": {"address": "h:1", "certificate": "/c", "key": "/k"}`,
		`"tls": {"address": "h:1", "certificate": "/c", "key": "/k", "clientNames": ["n"]}`, `"unsafeCleartextLoopback": "127.0.0.1:1"`,
		`"unsafeCleartextLoopback": "h:1"`, `"candidates": {"images": [], "cohortId": ""}`, `"credentials": {"providers": [], "bindings": []}`,
	} {
		rows = append(rows, strings.Replace(text, "{", "{"+add+",", 1))
	}
	good := 0
	for _, in := range rows {
		path := filepath.Join(t.TempDir(), "worker.json")
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := worker.LoadConfig(path)
		out, _, code := explained(t, in)
		if (err == nil) != (code == 0) || code != 0 && code != exitFailed {
			t.Errorf("serve: %v; check-config: %d for %s\n%s", err, code, in, out[max(0, len(out)-600):])
		}
		if err == nil {
			good++
		}
	}
	t.Logf("%d files, %d of them good", len(rows), good)
	if good < 10 || len(rows)-good < 100 {
		t.Errorf("%d good, %d bad", good, len(rows)-good)
	}
	if err := checkConfig(filepath.Join(t.TempDir(), "absent"), &bytes.Buffer{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
}
