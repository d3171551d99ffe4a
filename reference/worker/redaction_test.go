// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// secret is in what the tests below send. No log may have it, at any level.
const secret = "CANARY4f1c9a"

func (r *rig) noSecret(t *testing.T, more ...string) {
	t.Helper()
	log := r.log.String()
	if log == "" {
		t.Error("nothing is logged")
	}
	for _, s := range append(more, secret, base64.StdEncoding.EncodeToString([]byte(secret))) {
		if i := strings.Index(log, s); i >= 0 {
			t.Errorf("the log has %q: %s", s, log[max(0, i-200):min(len(log), i+200)])
		}
	}
	if strings.Count(log, "\n") > 0 && len(log)/strings.Count(log, "\n") > 8<<10 {
		t.Errorf("%d bytes in %d lines", len(log), strings.Count(log, "\n"))
	}
	r.log.reset()
	r.everyLine()
}

// TestLogHoldsNoContents sends requests that are wrong in ways in which a decoder or a library quotes
// what it read, and good ones whose handlers fail.
func TestLogHoldsNoContents(t *testing.T) {
	r := newRig(t, tweak{})
	exec := func(members string) client.RawRequest {
		return client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(members)}
	}
	blob := base64.StdEncoding.EncodeToString([]byte(secret))
	for name, body := range map[string]string{
		"stdin that is not base64":  `{"invocationId":"i","argv":["x"],"cwd":"","stdin":"` + secret + `!","timeoutMs":1,"maxOutputBytes":1}`,
		"stdin that is an object":   `{"invocationId":"i","argv":["x"],"cwd":"","stdin":{"` + secret + `":1},"timeoutMs":1,"maxOutputBytes":1}`,
		"stdin that is an array":    `{"invocationId":"i","argv":["x"],"cwd":"","stdin":["` + secret + `"],"timeoutMs":1,"maxOutputBytes":1}`,
		"stdin twice":               `{"invocationId":"i","argv":["x"],"cwd":"","stdin":"` + blob + `","stdin":"` + blob + `","timeoutMs":1,"maxOutputBytes":1}`,
		"stdin under another name":  `{"invocationId":"i","argv":["x"],"cwd":"","Stdin":"` + blob + `","timeoutMs":1,"maxOutputBytes":1}`,
		"a name":                    `{"` + secret + `":1}`,
		"a name of 1 MiB":           `{"` + strings.Repeat("a", 1<<20) + `":1}`,
		"a name, nested":            `{"argv":{"` + secret + `":{"` + secret + `":1}}}`,
		"an environment":            `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":1,"maxOutputBytes":1,"env":{"` + secret + `":"` + secret + `"}}`,
		"a value for a number":      `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":"` + secret + `","maxOutputBytes":1}`,
		"a long number":             `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":1234567890123456789,"maxOutputBytes":1}`,
		"an unfinished value":       `{"invocationId":"` + secret,
		"garbage behind":            `{}` + secret,
		"an id that is none":        `{"invocationId":"-` + secret + `","argv":["x"],"cwd":"","timeoutMs":1,"maxOutputBytes":1}`,
		"a path that is unsafe":     `{"invocationId":"i","argv":["x"],"cwd":"../` + secret + `","timeoutMs":1,"maxOutputBytes":1}`,
		"an argument with NUL":      `{"invocationId":"i","argv":["` + secret + `\u0000"],"cwd":"","timeoutMs":1,"maxOutputBytes":1}`,
		"a body that is not signed": `{"invocationId":"i","argv":["x"],"cwd":"","stdin":"` + blob + `","timeoutMs":1,"maxOutputBytes":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			req := exec(body)
			want := api.RequestInvalid
			switch name {
			case "a body that is not signed":
				req.Token, want = r.mint(exec("{}")), api.Unauthenticated
			case "a path that is unsafe":
				want = api.PathUnsafe
			}
			if res := r.raw(req); res.Code != want {
				t.Errorf("got %d %s", res.Status, res.Code)
			}
			r.noSecret(t, blob, "1234567890123456789")
		})
	}
	good := `{"invocationId":"i","argv":["x"],"cwd":"","stdin":"` + blob + `","timeoutMs":1,"maxOutputBytes":1}`
	for name, fail := range map[string]func(req api.ExecRequest) error{
		"error of another layer": func(api.ExecRequest) error { return errors.New("disk") },
		"panic with a text":      func(req api.ExecRequest) error { panic(string(req.Stdin)) },
		"panic with an error":    func(req api.ExecRequest) error { panic(fmt.Errorf("spawn %q", req.Stdin)) },
		"panic with a value":     func(req api.ExecRequest) error { panic(req) },
		"panic with a code":      func(req api.ExecRequest) error { panic(api.E(api.Timeout, errors.New(string(req.Stdin)))) },
		"panic of the runtime":   func(req api.ExecRequest) error { return fmt.Errorf("%d", req.Stdin[len(req.Stdin)]) },
		"panic of a map":         func(req api.ExecRequest) error { var m map[string]int; m[string(req.Stdin)]++; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
				return api.ExecResult{}, fail(req)
			}
			defer func() { r.fake.onExec = nil }()
			if res := r.raw(exec(good)); res.Code != api.Unavailable {
				t.Errorf("got %s", res.Code)
			}
			if log := r.log.String(); strings.HasPrefix(name, "panic") && !(strings.Contains(log, "redaction_test.go") && strings.Contains(log, "handler panicked")) {
				t.Errorf("the log does not say where: %s", log)
			}
			r.noSecret(t, blob)
		})
	}
	t.Run("files", func(t *testing.T) {
		put := client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(secret)}
		if res := r.raw(put); res.Status != http.StatusOK {
			t.Errorf("got %d", res.Status)
		}
		bad := put
		bad.Token, bad.Body = r.mint(put), []byte(strings.Replace(secret, "9", "8", 1))
		if res := r.raw(bad); res.Code != api.Unauthenticated {
			t.Errorf("got %s", res.Code)
		}
		r.fake.onRead = func(context.Context, []byte) (io.ReadCloser, int64, error) {
			return io.NopCloser(io.MultiReader(strings.NewReader(secret), errorReader{})), 1 << 20, nil
		}
		if _, err := r.client.Read(t.Context(), "ws", "sb", "a"); err == nil {
			t.Error("a file that fails half-way was read")
		}
		r.noSecret(t, string(bad.Body))
	})
}

// TestLogHoldsNoToken: good, stale, damaged, or in the wrong place, a bearer token is not logged, nor
// is a part of it that could be one.
func TestLogHoldsNoToken(t *testing.T) {
	r := newRig(t, tweak{})
	get := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token := r.mint(get)
	parts := strings.Split(token, ".")
	encode := base64.RawURLEncoding.EncodeToString
	for name, send := range map[string]string{
		"good":                   token,
		"replayed":               token,
		"another request's":      r.mint(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/other", WorkspaceID: "ws", SandboxID: "other"}),
		"damaged signature":      token[:len(token)-4] + "AAAA",
		"header that is no JSON": encode([]byte(secret)) + "." + parts[1] + "." + parts[2],
		"claims that are none":   parts[0] + "." + encode([]byte(`{"`+secret+`":1`)) + "." + parts[2],
		"algorithm":              encode([]byte(`{"alg":"`+secret+`","kid":"k1","typ":"x"}`)) + "." + parts[1] + "." + parts[2],
		"key":                    encode([]byte(`{"alg":"EdDSA","kid":"`+secret+`","typ":"x"}`)) + "." + parts[1] + "." + parts[2],
		"not base64":             secret + "!." + parts[1] + "." + parts[2],
		"one part":               secret,
		"line feed in it":        secret + " x",
		"too long":               strings.Repeat(secret, 500),
	} {
		t.Run(name, func(t *testing.T) {
			req := get
			req.Token = send
			r.raw(req)
			// A failure behind the check that quotes the request, as a library might.
			r.fake.mu.Lock()
			r.fake.fail = fmt.Errorf("request with Authorization: Bearer %s", send)
			r.fake.mu.Unlock()
			req.Token = ""
			if name == "good" {
				req.Token = r.mint(get)
				r.fake.fail = fmt.Errorf("request with Authorization: Bearer %s", req.Token)
				r.raw(req)
			}
			r.fake.mu.Lock()
			r.fake.fail = nil
			r.fake.mu.Unlock()
			c := r.dial()
			say(t, c, "GET /v1/sandboxes/sb HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+send+"\r\nX Y: "+send+"\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			more := []string{send}
			if p := strings.Split(send, "."); len(p) == 3 {
				more = append(more, p...)
			}
			if req.Token != "" {
				more = append(more, strings.Split(req.Token, ".")...)
			}
			r.noSecret(t, more...)
		})
	}
}
