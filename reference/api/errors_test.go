// SPDX-License-Identifier: Apache-2.0

package api

import (
	_ "embed"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// protocolErrors is the error paragraph of PROTOCOL.md, copied.
//
//go:embed testdata/protocol-errors.txt
var protocolErrors string

func TestCodesEqualProtocolTable(t *testing.T) {
	want := map[Code]int{}
	var order []Code
	for _, m := range regexp.MustCompile(`([A-Z][A-Z_]+) (\d{3})`).FindAllStringSubmatch(protocolErrors, -1) {
		status, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		c := Code("REMOTE_WORKER_" + m[1])
		want[c], order = status, append(order, c)
	}
	if len(want) < 30 {
		t.Fatalf("only %d codes found in the copied table", len(want))
	}
	if got := Codes(); !slices.Equal(got, order) {
		t.Errorf("union differs from PROTOCOL.md or its order:\n got %v\nwant %v", got, order)
	}
	for c, status := range want {
		if c.Status() != status {
			t.Errorf("%s has status %d, PROTOCOL.md says %d", c, c.Status(), status)
		}
	}
}

// TestConstantsEqualTable reads errors.go, so that a constant without a row is found.
func TestConstantsEqualTable(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var constants []Code
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"REMOTE_WORKER_`) {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			constants = append(constants, Code(s))
		}
		return true
	})
	if !slices.Equal(constants, Codes()) {
		t.Errorf("constants %v\nrows %v", constants, Codes())
	}
}

func TestSentencesAreFixedAndDistinct(t *testing.T) {
	seen := map[string]Code{}
	for _, c := range Codes() {
		m := c.Message()
		if len(m) < 10 || !strings.HasSuffix(m, ".") {
			t.Errorf("%s: %q is not a sentence", c, m)
		}
		if other, taken := seen[m]; taken {
			t.Errorf("%s and %s share a sentence", c, other)
		}
		seen[m] = c
	}
}

func TestDecodeErrorAcceptsOnlyTheUnion(t *testing.T) {
	for _, c := range Codes() {
		b, err := strictjson.Marshal(c.Body("abc123"))
		if err != nil {
			t.Fatal(err)
		}
		if got := DecodeError(c.Status(), b); got.Code != c {
			t.Errorf("%s read back as %v", c, got)
		}
	}
	body := func(code, message, retryable, id string) string {
		return `{"error":{"code":"` + code + `","message":"` + message + `","retryable":` + retryable + `,"requestId":"` + id + `"}}`
	}
	msg := PathNotFound.Message()
	good := body(string(PathNotFound), msg, "false", "r1")
	if e := DecodeError(404, []byte(good)); e.Code != PathNotFound {
		t.Fatalf("the unmodified body is refused: %v", e)
	}
	for name, tt := range map[string]struct {
		status int
		body   string
	}{
		"foreign code":         {500, body("REMOTE_WORKER_OTHER", msg, "false", "r1")},
		"foreign, no sentence": {500, body("REMOTE_WORKER_OTHER", "", "false", "r1")},
		"status differs":       {400, good},
		"own sentence":         {404, body(string(PathNotFound), "open /etc: no", "false", "r1")},
		"retryable":            {404, body(string(PathNotFound), msg, "true", "r1")},
		"no request id":        {404, body(string(PathNotFound), msg, "false", "")},
		"extra member":         {404, strings.Replace(good, `"retryable"`, `"cause":"x","retryable"`, 1)},
		"plain text":           {404, "404 page not found"},
		"empty":                {404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if e := DecodeError(tt.status, []byte(tt.body)); e.Code != ResponseInvalid {
				t.Errorf("got %v", e)
			}
		})
	}
}

func TestErrorKeepsItsCause(t *testing.T) {
	cause := errors.New("disk on fire")
	e := E(EngineFailed, cause)
	if !errors.Is(e, cause) || !strings.Contains(e.Error(), "disk on fire") {
		t.Errorf("cause lost: %v", e)
	}
	b, err := strictjson.Marshal(e.Code.Body("r1"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "fire") {
		t.Errorf("cause on the wire: %s", b)
	}
}
