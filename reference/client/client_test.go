// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// liar is a worker that answers as the test says. It verifies nothing.
type liar struct {
	t      *testing.T
	key    ed25519.PrivateKey
	signer *capability.Signer
	health api.Health

	receipt  func(*api.Receipt)        // alters an honest receipt
	response func(*api.CreateResponse) // alters an honest answer
	answer   http.HandlerFunc          // replaces any answer but health

	mu    sync.Mutex
	calls []string // method and target, without health
}

func hexOf(c string) string { return api.DigestPrefix + strings.Repeat(c, 64) }

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newLiar(t *testing.T) (*liar, *Client, Config) {
	t.Helper()
	l := &liar{t: t, key: newKey(t)}
	l.health = api.Health{
		ProtocolVersion: api.ProtocolVersion, WorkerID: "w", BootEpoch: "epoch", Mode: api.Production, CohortID: hexOf("c"),
		PinsDigest: hexOf("d"), EvidenceDigests: []string{}, Features: []string{},
	}
	var err error
	if l.signer, err = capability.NewSigner(l.key); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Socket: filepath.Join(t.TempDir(), "s"), WorkerID: "w", WorkerKey: l.key.Public().(ed25519.PublicKey),
		Issuer: "control", KeyID: "k", Key: newKey(t),
	}
	sock, err := net.Listen("unix", cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	hs := &http.Server{Handler: l}
	done := make(chan struct{})
	go func() { defer close(done); _ = hs.Serve(sock) }()
	t.Cleanup(func() { _ = hs.Close(); <-done })
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l, c, cfg
}

// challengeOf reads the challenge out of a token without verifying it.
func challengeOf(t *testing.T, r *http.Request) string {
	var claims struct{ Challenge string }
	_, payload, _ := strings.Cut(r.Header.Get("Authorization"), ".")
	payload, _, _ = strings.Cut(payload, ".")
	unverified(t, payload, &claims)
	return claims.Challenge
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	write := func(status int, v any) {
		b, err := strictjson.Marshal(v)
		if err != nil {
			l.t.Error(err)
		}
		w.Header().Set("Content-Type", api.TypeJSON)
		w.WriteHeader(status)
		_, _ = w.Write(b)
	}
	if r.RequestURI == "/v1/health" {
		h := l.health
		if h.Challenge == "" {
			h.Challenge = challengeOf(l.t, r)
		}
		s, err := l.signer.Health(h)
		if err != nil {
			l.t.Error(err)
		}
		write(http.StatusOK, api.HealthResponse{Statement: s})
		return
	}
	l.mu.Lock()
	l.calls = append(l.calls, r.Method+" "+r.RequestURI)
	l.mu.Unlock()
	switch {
	case l.answer != nil:
		l.answer(w, r)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case r.RequestURI == "/v1/sandboxes":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			l.t.Error(err)
		}
		req, err := api.DecodeCreate(body, request().Resources)
		if err != nil {
			l.t.Error(err)
		}
		digest, err := api.CanonicalDigest(req)
		if err != nil {
			l.t.Error(err)
		}
		expires := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		rec := api.Receipt{
			WorkspaceID: req.WorkspaceID, ClientLeaseID: req.ClientLeaseID, WorkerID: "w", SandboxID: "sb-1", Generation: 1, BootEpoch: "epoch",
			Mode: api.Production, RequestDigest: digest, ImageDigest: req.Image, WorkerDigest: hexOf("e"), SandboxBinary: hexOf("f"),
			CohortID: hexOf("c"), PinsDigest: hexOf("d"), ExpiresAtUnixMs: expires.UnixMilli(),
		}
		if l.receipt != nil {
			l.receipt(&rec)
		}
		signed, err := l.signer.Receipt(rec)
		if err != nil {
			l.t.Error(err)
		}
		res := api.CreateResponse{SandboxID: "sb-1", ExpiresAt: expires.UTC().Format(time.RFC3339Nano), Receipt: signed}
		if l.response != nil {
			l.response(&res)
		}
		write(http.StatusCreated, res)
	}
}

func (l *liar) seen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func last(s []string) string { return s[len(s)-1] }

func request() api.CreateRequest {
	return api.CreateRequest{
		ProtocolVersion: api.ProtocolVersion, WorkspaceID: "ws", SessionID: "s", ClientLeaseID: "l", IdleTimeoutMs: 1000, HardTimeoutMs: 1000,
		Image: hexOf("a"), Expected: api.Expected{CohortID: hexOf("c"), PinsDigest: hexOf("d")},
		Resources: api.Resources{CPUs: 1, MemoryBytes: 1, PIDs: 1, WorkspaceBytes: 1, WorkspaceInodes: 1},
	}
}

func codeIs(t *testing.T, err error, want api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReceiptFieldByField(t *testing.T) {
	rows := map[string]func(*liar){
		"workspaceId":   func(l *liar) { l.receipt = func(r *api.Receipt) { r.WorkspaceID = "other" } },
		"clientLeaseId": func(l *liar) { l.receipt = func(r *api.Receipt) { r.ClientLeaseID = "other" } },
		"workerId":      func(l *liar) { l.receipt = func(r *api.Receipt) { r.WorkerID = "other" } },
		"sandboxId":     func(l *liar) { l.receipt = func(r *api.Receipt) { r.SandboxID = "sb-2" } },
		"generation":    func(l *liar) { l.receipt = func(r *api.Receipt) { r.Generation = 0 } },
		"bootEpoch":     func(l *liar) { l.receipt = func(r *api.Receipt) { r.BootEpoch = "other" } },
		"mode":          func(l *liar) { l.receipt = func(r *api.Receipt) { r.Mode = api.Qualification } },
		"requestDigest": func(l *liar) { l.receipt = func(r *api.Receipt) { r.RequestDigest = hexOf("0") } },
		"imageDigest":   func(l *liar) { l.receipt = func(r *api.Receipt) { r.ImageDigest = hexOf("0") } },
		"workerDigest":  func(l *liar) { l.receipt = func(r *api.Receipt) { r.WorkerDigest = "" } },
		"sandboxBinary": func(l *liar) { l.receipt = func(r *api.Receipt) { r.SandboxBinary = "" } },
		"cohortId":      func(l *liar) { l.receipt = func(r *api.Receipt) { r.CohortID = hexOf("0") } },
		"pinsDigest":    func(l *liar) { l.receipt = func(r *api.Receipt) { r.PinsDigest = hexOf("0") } },
		"expiry":        func(l *liar) { l.receipt = func(r *api.Receipt) { r.ExpiresAtUnixMs++ } },
		"signature":     func(l *liar) { l.response = func(r *api.CreateResponse) { r.Receipt += "A" } },
		"no receipt":    func(l *liar) { l.response = func(r *api.CreateResponse) { r.Receipt = "" } },
		"answer's expiry": func(l *liar) {
			l.response = func(r *api.CreateResponse) { r.ExpiresAt = "2030-01-01T00:00:00Z" }
		},
	}
	for name, lie := range rows {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			if _, err := c.Create(t.Context(), request()); err != nil {
				t.Fatalf("an honest worker is refused: %v", err)
			}
			lie(l)
			_, err := c.Create(t.Context(), request())
			codeIs(t, err, api.BindingReceiptInvalid)
			if got := last(l.seen()); got != "DELETE /v1/sandboxes/sb-1" {
				t.Errorf("the sandbox was not disposed; last call %q", got)
			}
		})
	}
	t.Run("a receipt of every field", func(t *testing.T) {
		// A field that is added to the receipt needs a row above.
		l, c, _ := newLiar(t)
		lease, err := c.Create(t.Context(), request())
		if err != nil || len(l.seen()) != 1 {
			t.Fatalf("%v, %v", err, l.seen())
		}
		b, err := strictjson.Marshal(lease.Receipt)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), `":`); n != 14 {
			t.Errorf("the receipt has %d fields, 14 are compared", n)
		}
	})
}

// TestExpectedDigests: a receipt is held to the digests that the caller knows, each by itself.
func TestExpectedDigests(t *testing.T) {
	for name, tt := range map[string]struct {
		expect func(*Config)
		want   api.Code
	}{
		"none":                  {func(*Config) {}, ""},
		"both":                  {func(c *Config) { c.WorkerDigest, c.SandboxBinaryDigest = hexOf("e"), hexOf("f") }, ""},
		"worker alone":          {func(c *Config) { c.WorkerDigest = hexOf("e") }, ""},
		"another worker":        {func(c *Config) { c.WorkerDigest = hexOf("0") }, api.BindingReceiptInvalid},
		"another binary":        {func(c *Config) { c.SandboxBinaryDigest = hexOf("0") }, api.BindingReceiptInvalid},
		"each in other's place": {func(c *Config) { c.WorkerDigest, c.SandboxBinaryDigest = hexOf("f"), hexOf("e") }, api.BindingReceiptInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, cfg := newLiar(t)
			tt.expect(&cfg)
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Create(t.Context(), request())
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			codeIs(t, err, tt.want)
			if got := last(l.seen()); got != "DELETE /v1/sandboxes/sb-1" {
				t.Errorf("the sandbox was not disposed; last call %q", got)
			}
		})
	}
	for _, expect := range []func(*Config){func(c *Config) { c.WorkerDigest = "e" }, func(c *Config) { c.SandboxBinaryDigest = "f" }} {
		_, _, cfg := newLiar(t)
		expect(&cfg)
		if _, err := New(cfg); err == nil {
			t.Error("what is no digest is accepted")
		}
	}
}

// TestRenewedPins: a client that has seen the pins of before creates under those of now after one
// refusal, and a lease of before is still its own when it asks for it again.
func TestRenewedPins(t *testing.T) {
	l, c, _ := newLiar(t)
	if _, err := c.Create(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	renewed := hexOf("9")
	l.health.PinsDigest = renewed // no request is in progress
	l.receipt = func(r *api.Receipt) { r.PinsDigest = renewed }
	l.answer = func(w http.ResponseWriter, _ *http.Request) {
		b, _ := strictjson.Marshal(api.Unqualified.Body("r1"))
		w.Header().Set("Content-Type", api.TypeJSON)
		w.WriteHeader(api.Unqualified.Status())
		_, _ = w.Write(b)
	}
	req, err := c.FillExpected(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Create(t.Context(), req)
	codeIs(t, err, api.Unqualified)
	l.answer = nil
	if req, err = c.FillExpected(t.Context(), req); err != nil || req.Expected.PinsDigest != renewed {
		t.Fatalf("after the refusal %+v is expected, %v", req.Expected, err)
	}
	if _, err := c.Create(t.Context(), req); err != nil {
		t.Errorf("under the pins of now: %v", err)
	}
	l.receipt = nil
	if _, err := c.Create(t.Context(), request()); err != nil {
		t.Errorf("the lease of before: %v", err)
	}
	if calls := l.seen(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "DELETE") }) {
		t.Errorf("a sandbox was disposed: %q", calls)
	}
}

func TestHealthLies(t *testing.T) {
	for name, tt := range map[string]struct {
		lie  func(*liar)
		code api.Code
	}{
		"another key": {func(l *liar) {
			s, err := capability.NewSigner(newKey(l.t))
			if err != nil {
				l.t.Fatal(err)
			}
			l.signer = s
		}, api.ResponseInvalid},
		"recorded challenge":    {func(l *liar) { l.health.Challenge = strings.Repeat("a", 32) }, api.ResponseInvalid},
		"another worker":        {func(l *liar) { l.health.WorkerID = "w2" }, api.ResponseInvalid},
		"no epoch":              {func(l *liar) { l.health.BootEpoch = "" }, api.ResponseInvalid},
		"another version":       {func(l *liar) { l.health.ProtocolVersion = "v2" }, api.ProtocolMismatch},
		"qualification unasked": {func(l *liar) { l.health.Mode = api.Qualification }, api.Unqualified},
		"unknown mode":          {func(l *liar) { l.health.Mode = "test" }, api.ResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			tt.lie(l)
			_, err := c.Health(t.Context())
			codeIs(t, err, tt.code)
			_, err = c.Create(t.Context(), request())
			codeIs(t, err, tt.code)
			if len(l.seen()) != 0 {
				t.Errorf("a worker that could not be verified got %v", l.seen())
			}
		})
	}
	t.Run("qualification when asked", func(t *testing.T) {
		l, _, cfg := newLiar(t)
		l.health.Mode = api.Qualification
		cfg.AllowQualification = true
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := c.Health(t.Context()); err != nil || h.Mode != api.Qualification {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// TestExecIsSentOnce: whatever the answer, there is no second request.
func TestExecIsSentOnce(t *testing.T) {
	fail := func(c api.Code) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			b, _ := strictjson.Marshal(c.Body("r1"))
			w.Header().Set("Content-Type", api.TypeJSON)
			w.WriteHeader(c.Status())
			_, _ = w.Write(b)
		}
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   api.Code
	}{
		"reset":           {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, api.OutcomeUnknown},
		"unavailable":     {fail(api.Unavailable), api.Unavailable},
		"unauthenticated": {fail(api.Unauthenticated), api.Unauthenticated},
		"in progress":     {fail(api.ExecInProgress), api.ExecInProgress},
		"plain text":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", 502) }, api.ResponseInvalid},
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/v1/sandboxes/sb-2/exec", 307) },
			api.ResponseInvalid},
		"empty":           {func(http.ResponseWriter, *http.Request) {}, api.ResponseInvalid},
		"other outcome":   {outcome(`"exitCode":0`, "i2"), api.ResponseInvalid},
		"code and signal": {outcome(`"exitCode":0,"signal":"KILL"`, "i"), api.ResponseInvalid},
		"neither":         {outcome(`"timedOut":true`, "i"), api.ResponseInvalid},
		"unknown member":  {outcome(`"exitCode":0,"pid":1`, "i"), api.ResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			l.answer = tt.answer
			_, err := c.Exec(t.Context(), "ws", "sb-1", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1, MaxOutputBytes: 1})
			codeIs(t, err, tt.code)
			if len(l.seen()) != 1 {
				t.Errorf("calls %v", l.seen())
			}
		})
	}
	t.Run("the shape that passes", func(t *testing.T) {
		l, c, _ := newLiar(t)
		l.answer = outcome(`"exitCode":3`, "i")
		res, err := c.Exec(t.Context(), "ws", "sb-1", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1, MaxOutputBytes: 1})
		if err != nil || *res.ExitCode != 3 || len(l.seen()) != 1 {
			t.Errorf("%+v, %v, %v", res, err, l.seen())
		}
	})
}

func outcome(end, id string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", api.TypeJSON)
		rest := `,"timedOut":false`
		if strings.Contains(end, "timedOut") {
			rest = ""
		}
		_, _ = io.WriteString(w, `{"invocationId":"`+id+`","stdout":"","stderr":"","durationMs":1,"truncated":{"stdout":false,"stderr":false,"droppedBytes":0},`+
			`"descendantsKilled":0,"cleanupProven":true`+rest+`,`+end+`}`)
	}
}

func TestWorkerNotThere(t *testing.T) {
	_, _, cfg := newLiar(t)
	cfg.Socket += "-absent"
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Health(context.Background())
	codeIs(t, err, api.Unavailable)
}

func TestWriteComparesTheAnswer(t *testing.T) {
	l, c, _ := newLiar(t)
	l.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", api.TypeJSON)
		_, _ = io.WriteString(w, `{"size":1,"digest":"`+hexOf("0")+`"}`)
	}
	_, err := c.Write(t.Context(), "ws", "sb-1", "f", []byte("x"), WriteOptions{})
	codeIs(t, err, api.ResponseInvalid)
}
