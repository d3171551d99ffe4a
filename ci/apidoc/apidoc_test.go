// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	netHTML "golang.org/x/net/html"
	"gopkg.in/yaml.v3"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

func rendered(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a", "page.html")
	if err := run([]string{"-o", path}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPageHasEverything: every operation with its statuses, every schema with its members, every
// code with its sentence, every limit, and every sentence of the descriptions.
func TestPageHasEverything(t *testing.T) {
	page := rendered(t)
	text := words(t, page)
	var doc struct {
		XLimits    []struct{ Name string } `yaml:"x-limits"`
		Paths      map[string]map[string]yaml.Node
		Components struct {
			Schemas map[string]struct {
				Description string
				Properties  map[string]struct{ Description string }
			}
		}
	}
	if err := yaml.Unmarshal(api.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	has := func(where, what, part string) {
		t.Helper()
		if !strings.Contains(where, part) {
			t.Errorf("the page lacks %s: %q", what, part)
		}
	}
	operations := 0
	for path, item := range doc.Paths {
		for method, n := range item {
			if method == "parameters" {
				continue
			}
			operations++
			var op struct {
				OperationID string `yaml:"operationId"`
				Description string
				Responses   map[string]yaml.Node
			}
			if err := n.Decode(&op); err != nil {
				t.Fatal(err)
			}
			_, section, found := strings.Cut(page, `<article id="op-`+op.OperationID+`">`)
			if section, _, _ = strings.Cut(section, "</article>"); !found {
				t.Errorf("no section of %s", op.OperationID)
			}
			has(section, op.OperationID, strings.ToUpper(method))
			has(section, op.OperationID, path)
			for status := range op.Responses {
				has(section, op.OperationID, "<strong>"+status+"</strong>")
			}
			sentences(t, text, op.Description)
		}
	}
	if operations != len(api.Ops())+1 {
		t.Errorf("%d operations", operations)
	}
	for name, s := range doc.Components.Schemas {
		_, section, found := strings.Cut(page, `<article id="schema-`+name+`">`)
		if section, _, _ = strings.Cut(section, "</article>"); !found {
			t.Errorf("no section of %s", name)
		}
		sentences(t, text, s.Description)
		for member, m := range s.Properties {
			has(section, name, "<code>"+member+"</code>")
			sentences(t, text, m.Description)
		}
	}
	for _, c := range api.Codes() {
		name := strings.TrimPrefix(string(c), "REMOTE_WORKER_")
		has(page, "a code", `<tr id="code-`+name+`">`)
		has(html.UnescapeString(page), "a sentence", c.Message())
		if c.Status() != 500 && !strings.Contains(page, `href="#code-`+name+`"`) && name != "RESPONSE_INVALID" && name != "BINDING_RECEIPT_INVALID" {
			t.Errorf("no operation names %s", name)
		}
	}
	for _, l := range doc.XLimits {
		has(page, "a limit", "<code>"+l.Name+"</code>")
	}
}

// sentences looks for a description, whatever its line breaks and marks.
func sentences(t *testing.T, text, description string) {
	t.Helper()
	for p := range strings.SplitSeq(strings.TrimSpace(description), "\n\n") {
		want := strings.Join(strings.Fields(strings.NewReplacer("`", "", "**", "").Replace(p)), " ")
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// words returns the page's text as a reader sees it.
func words(t *testing.T, page string) string {
	t.Helper()
	root, err := netHTML.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	var walk func(*netHTML.Node)
	walk = func(n *netHTML.Node) {
		if n.Type == netHTML.TextNode {
			b.WriteString(n.Data)
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
	}
	walk(root)
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestPageStandsAlone: no scripts, nothing that is loaded, and every link leads somewhere.
func TestPageStandsAlone(t *testing.T) {
	page := rendered(t)
	for _, bad := range []string{"<script", "<link", "<img", "<iframe", " src=", "url(", "@import", "javascript:", "ZgotmplZ", " onclick"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	ids := map[string]int{}
	for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		ids[m[1]]++
	}
	for id, n := range ids {
		if n != 1 {
			t.Errorf("id %s is there %d times", id, n)
		}
	}
	links := regexp.MustCompile(` href="([^"]+)"`).FindAllStringSubmatch(page, -1)
	for _, m := range links {
		if target, ok := strings.CutPrefix(m[1], "#"); !ok || ids[target] == 0 {
			t.Errorf("link to %s", m[1])
		}
	}
	if len(links) < 100 {
		t.Errorf("%d links", len(links))
	}
	for _, want := range []string{`name="viewport"`, "prefers-color-scheme: dark", "@media print", `<html lang="en">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// What the document says is text, never markup.
func TestTextIsEscaped(t *testing.T) {
	bad := strings.Replace(string(api.OpenAPI()), "summary: End a command.", "summary: '<script>alert(1)</script>'", 1)
	b, err := render([]byte(bad))
	if err != nil || strings.Contains(string(b), "<script") || !strings.Contains(string(b), "&lt;script") {
		t.Errorf("%v", err)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"-o", ""}, {"-o", filepath.Join(t.TempDir(), "x"), "y"}} {
		if err := run(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	if _, err := render([]byte("a: [")); err == nil {
		t.Error("no document is rendered")
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[string]string{"5": "5", "1000": "1,000", "9007199254740991": "(2⁵³−1)", "-9007199254740991": "−(2⁵³−1)", "1048576": "1,048,576"} {
		if got := grouped(in); got != want {
			t.Errorf("%s is written %s", in, got)
		}
	}
	got := fmt.Sprint(prose("one `two` **three**\nfour\n\nfive"))
	if want := "[[{one   false false} {two  true false} {   false false} {three  false true} { four  false false}] [{five  false false}]]"; got != want {
		t.Errorf("got %s", got)
	}
}
