// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// follower is a whole second request. In a body, or behind one, it must never be answered.
const follower = "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n"

// TestRequestShapes sends requests that two readers could take for different ones, each with a
// capability over its method and target. There is one answer, a refusal of the union; then
// the connection ends, whatever was behind the request, and nothing has had an effect.
func TestRequestShapes(t *testing.T) {
	r := newRig(t, tweak{})
	const get = "/v1/sandboxes/sb"
	const lines = "Host: w\r\nAuthorization: Bearer TOKEN\r\n"
	shapes := []struct{ name, method, target, text string }{
		{"no host", "GET", get, "GET " + get + " HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\n\r\n"},
		{"two hosts", "GET", get, "GET " + get + " HTTP/1.1\r\nHost: w\r\n" + lines + "\r\n"},
		{"two lengths", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"},
		{"lengths in one line", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: 2, 3\r\n\r\n{}"},
		{"negative length", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: -2\r\n\r\n{}"},
		{"signed length", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: +2\r\n\r\n{}"},
		{"length beyond 64 bits", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: 18446744073709551618\r\n\r\n{}"},
		{"length with a space before the colon", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length : 2\r\n\r\n{}"},
		{"two codings", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
		{"coding twice", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"unknown coding", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
		{"gzip as a coding", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"length beside chunks", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + follower},
		{"chunks", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + follower},
		{"chunk extension", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n2;a=\"\r\n\"\r\n{}\r\n0\r\n\r\n" + follower},
		{"endless chunk extension", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("a", 1<<20) + "\r\n{}\r\n0\r\n\r\n"},
		{"chunk of 2^64", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}\r\n0\r\n\r\n"},
		{"announced trailer", "POST", get + "/exec", "POST " + get + "/exec HTTP/1.1\r\n" + lines + "Trailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n" + follower},
		{"trailer", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n" + follower},
		{"endless trailer", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X-T: 1\r\n", 1<<17) + "\r\n"},
		{"absolute form", "GET", "http://w" + get, "GET http://w" + get + " HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"authority form", "CONNECT", "w:80", "CONNECT w:80 HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"asterisk form", "OPTIONS", "*", "OPTIONS * HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"empty target", "GET", "", "GET  HTTP/1.1\r\n" + lines + "\r\n"},
		{"two slashes", "GET", "//v1/sandboxes/sb", "GET //v1/sandboxes/sb HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"dot segments", "GET", "/v1/sandboxes/x/../sb", "GET /v1/sandboxes/x/../sb HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"encoded dot", "GET", "/v1/sandboxes/%2e/sb", "GET /v1/sandboxes/%2e/sb HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"encoded letter", "GET", "/v1/sandboxes/s%62", "GET /v1/sandboxes/s%62 HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"fragment", "GET", get + "#x", "GET " + get + "#x HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"query", "GET", get + "?", "GET " + get + "? HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"two question marks", "GET", get + "/files??path=a", "GET " + get + "/files??path=a HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"question mark in a value", "GET", get + "/files?path=a?path=b&path=c", "GET " + get + "/files?path=a?path=b&path=c HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"semicolon in the query", "GET", get + "/files?path=a;mode=x", "GET " + get + "/files?path=a;mode=x HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"fragment in the query", "GET", get + "/files?path=a#b&path=c", "GET " + get + "/files?path=a#b&path=c HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"method in lower case", "get", get, "get " + get + " HTTP/1.1\r\n" + lines + "Connection: close\r\n\r\n"},
		{"white space in the target", "GET", get + " x", "GET " + get + " x HTTP/1.1\r\n" + lines + "\r\n"},
		{"tab for a space", "GET", get, "GET\t" + get + "\tHTTP/1.1\r\n" + lines + "\r\n"},
		{"HTTP/0.9", "GET", get, "GET " + get + "\r\n\r\n"},
		{"HTTP/2.0 in text", "GET", get, "GET " + get + " HTTP/2.0\r\n" + lines + "\r\n"},
		{"HTTP/1.2", "GET", get, "GET " + get + " HTTP/9.9\r\n" + lines + "\r\n"},
		{"NUL in a value", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "X: a\x00b\r\n\r\n"},
		{"CR in a value", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "X: a\rb\r\n\r\n"},
		{"line without a colon", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "X\r\n\r\n"},
		{"name with a space", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "X Y: 1\r\n\r\n"},
		{"unknown expectation", "GET", get, "GET " + get + " HTTP/1.1\r\n" + lines + "Expect: tea\r\n\r\n"},
		{"upgrade to HTTP/2", "GET", get + "?", "GET " + get + "? HTTP/1.1\r\n" + lines + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"},
	}
	for _, tt := range shapes {
		t.Run(tt.name, func(t *testing.T) {
			op := api.OpGet
			switch {
			case strings.Contains(tt.target, "/exec"):
				op = api.OpExec
			case strings.Contains(tt.target, "/files"):
				op = api.OpRead
			}
			req := client.RawRequest{Op: op, Method: tt.method, Target: tt.target, WorkspaceID: "ws", SandboxID: "sb"}
			if op == api.OpExec {
				req.Body = []byte("{}")
				if strings.Contains(tt.text, "\r\n0\r\n") && !strings.Contains(tt.text, "{}") {
					req.Body = nil
				}
			}
			token, err := r.client.Mint(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			c := r.dial()
			// The worker may answer, and close, before it has taken all of it.
			go func() { _, _ = io.WriteString(c, strings.ReplaceAll(tt.text, "TOKEN", token)) }()
			refusal(t, c, api.RequestInvalid)
		})
	}
	if n := r.fake.count(); n != 0 {
		t.Errorf("%d calls reached the session: %v", n, r.fake.calls)
	}
	if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestPipelining: requests behind one another are answered one by one and in order, each with
// its own capability; a refusal of net/http's among them ends the connection.
func TestPipelining(t *testing.T) {
	r := newRig(t, tweak{})
	var text strings.Builder
	for i := range 3 {
		req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: fmt.Sprintf("/v1/sandboxes/sb%d", i), WorkspaceID: "ws", SandboxID: fmt.Sprintf("sb%d", i)}
		token, err := r.client.Mint(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "GET %s HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer %s\r\n\r\n", req.Target, token)
	}
	text.WriteString("GET / HTTP/1.1\r\n\r\n" + follower)
	c := r.dial()
	if _, err := io.WriteString(c, text.String()); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{`"sandboxId":"sb0"`, `"sandboxId":"sb1"`, `"sandboxId":"sb2"`, string(api.RequestInvalid)} {
		_, rest, ok := strings.Cut(got, want)
		if !ok {
			t.Fatalf("no %s in its place: %q", want, b)
		}
		got = rest
	}
	if strings.Contains(got, "HTTP/1.1") || strings.Contains(string(b), "text/plain") {
		t.Errorf("answered %q", b)
	}
}

// TestFileThatLooksLikeARefusal: what replaces net/http's own refusals leaves contents alone.
func TestFileThatLooksLikeARefusal(t *testing.T) {
	r := newRig(t, tweak{})
	text := []byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request", 10_000))
	r.fake.files["a"] = text
	for range 2 {
		if got, err := r.client.Read(t.Context(), "ws", "sb", "a"); err != nil || string(got) != string(text) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(text), err)
		}
	}
}
