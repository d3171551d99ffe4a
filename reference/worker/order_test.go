// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// TestOrderOfChecks sends requests that are wrong in two ways; the earlier check must answer,
// and nothing behind it may have happened.
func TestOrderOfChecks(t *testing.T) {
	r := newRig(t, tweak{})
	good, err := strictjson.Marshal(r.createRequest("ws"))
	if err != nil {
		t.Fatal(err)
	}
	mint := func(req client.RawRequest) string {
		tok, err := r.client.Mint(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	t.Run("headers before signature", func(t *testing.T) {
		req := r.createRaw("ws", "{")
		req.Token, req.Header = "junk", http.Header{"X-Pad": {strings.Repeat("a", api.MaxHeaderBytes)}}
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Errorf("got %s", res.Code)
		}
	})
	t.Run("signature before body", func(t *testing.T) {
		req := r.createRaw("ws", "{")
		req.Token = "junk"
		if res := r.raw(req); res.Code != api.Unauthenticated {
			t.Errorf("got %s", res.Code)
		}
	})
	t.Run("unsigned consumes no nonce", func(t *testing.T) {
		req := r.createRaw("ws", "{")
		token := mint(req)
		bad := req
		bad.Token = token[:len(token)-4] + "AAAA"
		if res := r.raw(bad); res.Code != api.Unauthenticated {
			t.Errorf("got %s", res.Code)
		}
		req.Token = token
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Errorf("the real token afterwards: %s", res.Code)
		}
	})
	t.Run("nonce before body", func(t *testing.T) {
		req := r.createRaw("ws", "{")
		req.Token = mint(req)
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Fatalf("first: %s", res.Code)
		}
		if res := r.raw(req); res.Code != api.CapabilityReplay {
			t.Errorf("second: %s", res.Code)
		}
	})
	t.Run("digest before decoding", func(t *testing.T) {
		req := r.createRaw("ws", string(good))
		req.Token = mint(req)
		req.Body = []byte("{")
		if res := r.raw(req); res.Code != api.Unauthenticated {
			t.Errorf("got %s", res.Code)
		}
		req.Body = good
		if res := r.raw(req); res.Code != api.CapabilityReplay {
			t.Errorf("the nonce was not consumed before the digest: %s", res.Code)
		}
	})
	t.Run("body bound before digest", func(t *testing.T) {
		req := r.createRaw("ws", string(good))
		req.Token = mint(req)
		req.Body = make([]byte, api.MaxRequestBytes+1)
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Errorf("got %s", res.Code)
		}
	})
	t.Run("decoding before binding", func(t *testing.T) {
		if res := r.raw(r.createRaw("other", string(good)+"{}")); res.Code != api.RequestInvalid {
			t.Errorf("got %s", res.Code)
		}
	})
	t.Run("workspace before session", func(t *testing.T) {
		if res := r.raw(r.createRaw("other", string(good))); res.Code != api.AuthorizedWorkspaceRequired {
			t.Errorf("got %s", res.Code)
		}
		purge := client.RawRequest{Op: api.OpPurge, Method: "DELETE", Target: "/v1/workspaces/ws", WorkspaceID: "other"}
		if res := r.raw(purge); res.Code != api.AuthorizedWorkspaceRequired {
			t.Errorf("purge: %s", res.Code)
		}
	})
	if n := r.fake.count(); n != 0 {
		t.Errorf("%d calls reached the session: %v", n, r.fake.calls)
	}
	t.Run("file write: binding before body", func(t *testing.T) {
		r.fake.fail = api.E(api.SandboxWorkspaceMismatch, nil)
		defer func() { r.fake.fail = nil }()
		target := "/v1/sandboxes/sb-1/files?mode=create&path=a"
		req := client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: target, WorkspaceID: "ws", SandboxID: "sb-1", Body: make([]byte, 8<<20)}
		if res := r.raw(req); res.Code != api.SandboxWorkspaceMismatch {
			t.Errorf("got %s", res.Code)
		}
	})
	t.Run("file write: digest at the end", func(t *testing.T) {
		target := "/v1/sandboxes/sb-1/files?mode=create&path=a"
		req := client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: target, WorkspaceID: "ws", SandboxID: "sb-1", Body: []byte("signed")}
		req.Token = mint(req)
		req.Body = []byte("other!")
		if res := r.raw(req); res.Code != api.Unauthenticated {
			t.Errorf("got %s", res.Code)
		}
		if len(r.fake.files) != 0 {
			t.Errorf("stored %q", r.fake.files)
		}
	})
}

// TestStrictDecoding sends ambiguous texts, each signed over its raw bytes.
func TestStrictDecoding(t *testing.T) {
	r := newRig(t, tweak{})
	b, err := strictjson.Marshal(r.createRequest("ws"))
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	for name, body := range map[string]string{
		"duplicate name":     strings.Replace(good, "{", `{"workspaceId":"other",`, 1),
		"duplicate, nested":  strings.Replace(good, `"expected":{`, `"expected":{"cohortId":"x",`, 1),
		"escaped duplicate":  strings.Replace(good, "{", `{"workspace\u0049d":"other",`, 1),
		"case variant":       strings.Replace(good, "{", `{"WorkspaceID":"other",`, 1),
		"case variant alone": strings.Replace(good, "workspaceId", "WORKSPACEID", 1),
		"unknown member":     strings.Replace(good, "{", `{"privileged":true,`, 1),
		"BOM":                "\ufeff" + good,
		"trailing object":    good + "{}",
		"trailing word":      good + " x",
		"line comment":       good + "//",
		"block comment":      strings.Replace(good, "{", "{/**/", 1),
		"trailing comma":     strings.TrimSuffix(good, "}") + ",}",
		"invalid utf-8":      strings.Replace(good, `"s"`, "\"\xff\"", 1),
		"lone surrogate":     strings.Replace(good, `"s"`, `"\ud800"`, 1),
		"minus zero":         strings.Replace(good, ":60000,", ":-0,", 1),
		"1e400":              strings.Replace(good, ":60000,", ":1e400,", 1),
		"2^63":               strings.Replace(good, ":60000,", ":9223372036854775808,", 1),
		"a million digits":   strings.Replace(good, ":60000,", ":"+strings.Repeat("1", 1_000_000)+",", 1),
		"digits behind 1.":   strings.Replace(good, ":60000,", ":60000."+strings.Repeat("0", 1_000_000)+",", 1),
		"leading zeros":      strings.Replace(good, ":60000,", ":0060000,", 1),
		"wide array":         strings.Replace(good, `"s"`, "["+strings.Repeat("1,", 900_000)+"1]", 1),
		"wide object":        strings.Replace(good, "{", "{"+strings.Repeat(`"a":1,`, 300_000), 1),
		"long name":          strings.Replace(good, "{", `{"`+strings.Repeat("a", 1_900_000)+`":1,`, 1),
		"long string":        strings.Replace(good, `"s"`, `"`+strings.Repeat("s", 1_900_000)+`"`, 1),
		"depth of objects":   strings.Replace(good, `"s"`, strings.Repeat(`{"a":`, 300_000), 1),
		"depth":              strings.Replace(good, `"s"`, strings.Repeat("[", 100_000), 1),
		"single quotes":      strings.ReplaceAll(good, `"`, `'`),
		"utf-16":             "\xff\xfe{\x00}\x00",
	} {
		t.Run(name, func(t *testing.T) {
			if res := r.raw(r.createRaw("ws", body)); res.Code != api.RequestInvalid {
				t.Errorf("got %d %s", res.Status, res.Code)
			}
		})
	}
	t.Run("content coding", func(t *testing.T) {
		req := r.createRaw("ws", good)
		req.Header = http.Header{"Content-Encoding": {"gzip"}}
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Errorf("got %s", res.Code)
		}
	})
	if n := r.fake.count(); n != 0 {
		t.Fatalf("%d refused requests reached the session", n)
	}
	if res := r.raw(r.createRaw("ws", good)); res.Status != http.StatusCreated {
		t.Errorf("the good request: %d %s", res.Status, res.Code)
	}
}

func TestRoutesThatDoNotExist(t *testing.T) {
	r := newRig(t, tweak{})
	for _, tt := range []struct{ method, target string }{
		{"GET", "/"}, {"GET", "/v1"}, {"GET", "/v1/"}, {"POST", "/v1/health"}, {"GET", "/v1/health/"}, {"GET", "/v1/health?x=1"}, {"GET", "/v1//health"},
		{"GET", "/v1/sandboxes"}, {"POST", "/v1/sandboxes/"}, {"POST", "/v1/sandboxes?x"}, {"GET", "/v1/sandboxes/../health"},
		{"GET", "/v1/sandboxes/%61"}, {"GET", "/v1/sandboxes/sb/files"}, {"POST", "/v1/sandboxes/sb/events"}, {"GET", "/v1/sandboxes/sb/renew"},
		{"DELETE", "/v1/sandboxes/sb/exec/"}, {"DELETE", "/v1/sandboxes/sb/exec/-i"}, {"POST", "/v1/sandboxes/sb/exec/i"}, {"PATCH", "/v1/sandboxes/sb"}, {"DELETE", "/v1/sandboxes/sb/"}, {"DELETE", "/v1/workspaces/-x"},
		{"GET", "/v1/workspaces/ws"}, {"DELETE", "/v1/workspaces"}, {"GET", "http://worker/v1/health"}, {"HEAD", "/healthz2"}, {"GET", "/metrics"},
	} {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			// Signed as well as anything can be: no capability opens a route.
			req := client.RawRequest{Op: api.OpGet, Method: tt.method, Target: tt.target, WorkspaceID: "ws", SandboxID: "sb"}
			res, err := r.client.Raw(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if res.Status != 400 || (tt.method != "HEAD" && res.Code != api.RequestInvalid) {
				t.Errorf("got %d %s", res.Status, res.Code)
			}
		})
	}
	if n := r.fake.count(); n != 0 {
		t.Errorf("%d calls reached the session", n)
	}
}
