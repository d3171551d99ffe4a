// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

// routeWords are the words of the targets that route.go compares with, so that a new route is found.
func routeWords(t *testing.T) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "route.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" /?", r) }) {
				if !slices.Contains(methods, w) {
					words[w] = true
				}
			}
			return true
		})
	}
	return words
}

// TestRoutesEqualDocument tries every method on every target that can be made of the words that
// route.go knows, an identifier, and what is none, up to four of them behind the version: the worker
// routes what the document has, as the operation that it says, and nothing else.
func TestRoutesEqualDocument(t *testing.T) {
	doc, words := contract(t), routeWords(t)
	for _, w := range []string{"id", "..", ""} {
		words[w] = true
	}
	routed := map[api.Op]bool{}
	check := func(method, target string, hasQuery bool) {
		c, err := route(&http.Request{Method: method, RequestURI: target})
		got := c.op
		if err != nil {
			got = ""
		}
		o, params := doc.Operation(method, target)
		var want api.Op
		if o != nil && o.OperationID != "healthz" { // which takes no capability, and is not routed
			takes := slices.ContainsFunc(o.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.In == "query" })
			good := !slices.ContainsFunc(slices.Collect(maps.Values(params)), func(id string) bool { return !api.ValidID(id) })
			if good && takes == hasQuery {
				want = api.Op(fmt.Sprint(o.Extensions["x-op"]))
			}
		}
		if got != want {
			t.Errorf("%s %s is routed to %q, the document says %q", method, target, got, want)
		}
		routed[got] = true
	}
	var try func(prefix string, deeper int)
	try = func(prefix string, deeper int) {
		for _, m := range methods {
			check(m, prefix, false)
			check(m, prefix+"?path=a", true)
		}
		for w := range words {
			if deeper > 0 {
				try(prefix+"/"+w, deeper-1)
			}
		}
	}
	try("/v1", 4)
	for _, other := range []string{"", "/", "/healthz", "/v2/health", "//v1/health", "/v1//health", "v1/health"} {
		try(other, 0)
	}
	for _, op := range api.Ops() {
		if !routed[op] {
			t.Errorf("%s was never routed", op)
		}
	}
}
