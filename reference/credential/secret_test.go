// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// printed is every way in which text is made of v here.
func printed(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%c", "%U", "%T%v"} {
		if verb == "%T%v" {
			fmt.Fprintf(&b, verb, v, v)
		} else {
			fmt.Fprintf(&b, verb, v)
		}
	}
	fmt.Fprintln(&b, v)
	for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(h).Info("x", "v", v, "in", []any{v}, slog.Group("g", "v", v))
	}
	for _, encode := range []func(any) ([]byte, error){json.Marshal, strictjson.Marshal} {
		text, err := encode(v)
		if err != nil {
			t.Error(err)
		}
		b.Write(text)
	}
	return b.String()
}

func TestNothingPrintsASecret(t *testing.T) {
	const secret = "s3cr3t-canary"
	forms := []string{secret, "czNjcjN0LWNhbmFyeQ", fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), strings.Trim(fmt.Sprint([]byte(secret)), "[]"), "115,51", "0x73, 0x33"}
	l := &Lease{fields: []Field{{"A", Value(secret)}}}
	for name, v := range map[string]any{
		"value": Value(secret), "field": Field{"A", Value(secret)}, "pointer": &Field{"A", Value(secret)}, "list": []Field{{"A", Value(secret)}},
		"lease": l, "struct with a lease": struct{ L *Lease }{l},
	} {
		text := printed(t, v)
		for _, f := range forms {
			if strings.Contains(text, f) {
				t.Errorf("%s: %q is in %s", name, f, text)
			}
		}
		if !strings.Contains(text, redacted) {
			t.Errorf("%s: nothing was redacted in %s", name, text)
		}
	}
	if text := printed(t, []byte(secret)); !strings.Contains(text, secret) {
		t.Errorf("the search finds nothing: %s", text)
	}
}
