// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// nothingLeft fails the test if a goroutine outlives it. It is to be called first.
func nothingLeft(t *testing.T) {
	t.Helper()
	before := gleak.Goroutines()
	t.Cleanup(func() {
		NewWithT(t).Eventually(gleak.Goroutines).WithTimeout(10 * time.Second).ShouldNot(gleak.HaveLeaked(before))
	})
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	b, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var streamed = api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1000, MaxOutputBytes: 8}

// left waits until the caller has gone. net/http sees that only behind the body.
func left(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// lines answers with a stream of lines, each flushed.
func lines(text ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", api.TypeNDJSON)
		for _, l := range text {
			_, _ = io.WriteString(w, l)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

const (
	lineStarted = `{"type":"started","invocationId":"i"}` + "\n"
	lineResult  = `{"type":"result","result":{"invocationId":"i","stdout":"","stderr":"","exitCode":3,"durationMs":1,"truncated":{"stdout":false,"stderr":false,"droppedBytes":0},"descendantsKilled":0,"cleanupProven":true,"timedOut":false}}` + "\n"
	lineBeat    = `{"type":"heartbeat"}` + "\n"
	lineOut     = `{"type":"stdout","data":"b3V0"}` + "\n"
	lineErr     = `{"type":"stderr","data":"ZXJy"}` + "\n"
)

func lineFailed(t *testing.T, c api.Code) string {
	d := c.Body("r1").Error
	return jsonText(t, api.ExecEvent{Type: api.ExecFailed, Error: &d}) + "\n"
}

func TestExecStream(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	accept := make(chan string, 1)
	answer := lines(lineStarted, lineOut, lineBeat, lineErr, lineResult)
	l.answer = func(w http.ResponseWriter, r *http.Request) { accept <- r.Header.Get("Accept"); answer(w, r) }
	var got []string
	res, err := c.ExecStream(t.Context(), "ws", "sb-1", streamed, func(e api.ExecEvent) error {
		got = append(got, e.Type+" "+string(e.Data))
		return nil
	})
	if err != nil || *res.ExitCode != 3 || len(res.Stdout) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if fmt.Sprint(got) != "[started  stdout out heartbeat  stderr err]" || <-accept != api.TypeNDJSON {
		t.Errorf("events %q", got)
	}
}

// TestExecStreamLies: whatever comes, there is one request, a bounded line, and the right code.
func TestExecStreamLies(t *testing.T) {
	nothingLeft(t)
	endless := func(head, piece string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			lines(head)(w, r)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, piece); err != nil {
					return
				}
			}
		}
	}
	plain := func(media, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			_, _ = io.WriteString(w, body)
		}
	}
	failure := func(status int, c api.Code) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, jsonText(t, c.Body("r1")))
		}
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   api.Code
	}{
		"reset before the head":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, api.OutcomeUnknown},
		"reset behind started":    {func(w http.ResponseWriter, r *http.Request) { lines(lineStarted)(w, r); panic(http.ErrAbortHandler) }, api.OutcomeUnknown},
		"ends early":              {lines(lineStarted, lineOut), api.OutcomeUnknown},
		"ends within a line":      {lines(lineStarted, lineResult[:40]), api.OutcomeUnknown},
		"last line without LF":    {lines(lineStarted, strings.TrimSuffix(lineResult, "\n")), api.OutcomeUnknown},
		"empty":                   {lines(), api.OutcomeUnknown},
		"result twice":            {lines(lineStarted, lineResult, lineResult), api.ResponseInvalid},
		"error behind result":     {lines(lineStarted, lineResult, lineFailed(t, api.Timeout)), api.ResponseInvalid},
		"bytes behind result":     {lines(lineStarted, lineResult, "x"), api.ResponseInvalid},
		"result without started":  {lines(lineResult), api.ResponseInvalid},
		"output without started":  {lines(lineOut), api.ResponseInvalid},
		"started twice":           {lines(lineStarted, lineStarted), api.ResponseInvalid},
		"started of another":      {lines(strings.Replace(lineStarted, `"i"`, `"j"`, 1)), api.ResponseInvalid},
		"result of another":       {lines(lineStarted, strings.Replace(lineResult, `"i"`, `"j"`, 1)), api.ResponseInvalid},
		"output in the result":    {lines(lineStarted, strings.Replace(lineResult, `"stdout":""`, `"stdout":"b3V0"`, 1)), api.ResponseInvalid},
		"unknown type":            {lines(lineStarted, `{"type":"note"}`+"\n"), api.ResponseInvalid},
		"extra member":            {lines(lineStarted, `{"type":"heartbeat","at":1}`+"\n"), api.ResponseInvalid},
		"member of another type":  {lines(lineStarted, `{"type":"heartbeat","data":"b3V0"}`+"\n"), api.ResponseInvalid},
		"empty output":            {lines(lineStarted, `{"type":"stdout"}`+"\n"), api.ResponseInvalid},
		"too much output":         {lines(lineStarted, lineOut, lineErr, lineOut), api.ResponseInvalid},
		"endless output":          {endless(lineStarted, lineOut), api.ResponseInvalid},
		"endless line":            {endless(lineStarted, strings.Repeat("a", 1<<16)), api.ResponseInvalid},
		"not JSON":                {lines(lineStarted, "oops\n"), api.ResponseInvalid},
		"CRLF":                    {lines(strings.Replace(lineStarted, "\n", "\r\n", 1), "\r\n"), api.ResponseInvalid},
		"fails":                   {lines(lineStarted, lineFailed(t, api.SandboxOOM)), api.SandboxOOM},
		"fails with a made-up":    {lines(lineStarted, strings.Replace(lineFailed(t, api.SandboxOOM), "SANDBOX_OOM", "OTHER", 1)), api.ResponseInvalid},
		"fails, another sentence": {lines(lineStarted, strings.Replace(lineFailed(t, api.SandboxOOM), "memory", "luck", 1)), api.ResponseInvalid},
		"buffered answer":         {outcome(`"exitCode":0`, "i"), api.ResponseInvalid},
		"text":                    {plain("text/plain", lineStarted+lineResult), api.ResponseInvalid},
		"media type with more":    {plain(api.TypeNDJSON+"; charset=utf-8", lineStarted+lineResult), api.ResponseInvalid},
		"status 201": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", api.TypeNDJSON)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, lineStarted+lineResult)
		}, api.ResponseInvalid},
		"refused":                  {failure(409, api.ExecInProgress), api.ExecInProgress},
		"refused, unauthenticated": {failure(401, api.Unauthenticated), api.Unauthenticated},
		"refused, another status":  {failure(500, api.ExecInProgress), api.ResponseInvalid},
		"refused in plain text":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", 503) }, api.ResponseInvalid},
		"refused as text": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, jsonText(t, api.ExecInProgress.Body("r1")))
		}, api.ResponseInvalid},
		"endless refusal": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			w.WriteHeader(503)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, api.ResponseInvalid},
		"endless headers": {func(w http.ResponseWriter, r *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("a", 1000))
			}
			lines(lineStarted, lineResult)(w, r)
		}, api.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			l.answer = tt.answer
			_, err := c.ExecStream(t.Context(), "ws", "sb-1", streamed, func(api.ExecEvent) error { return nil })
			codeIs(t, err, tt.code)
			if n := len(l.seen()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestHeartbeatsOnly: heartbeats do not keep a caller for ever, nor does silence.
func TestHeartbeatsOnly(t *testing.T) {
	beats := func(w http.ResponseWriter, r *http.Request) {
		lines(lineStarted)(w, r)
		for r.Context().Err() == nil {
			lines(lineBeat)(w, r)
			time.Sleep(time.Millisecond)
		}
	}
	silent := func(w http.ResponseWriter, r *http.Request) { lines(lineStarted)(w, r); left(r) }
	for name, tt := range map[string]struct {
		answer  http.HandlerFunc
		silence time.Duration
	}{
		"the caller leaves": {beats, time.Hour}, "silence": {silent, 50 * time.Millisecond},
		"no head": {func(_ http.ResponseWriter, r *http.Request) { left(r) }, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			l, _, cfg := newLiar(t)
			l.answer, cfg.Silence = tt.answer, tt.silence
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Health(t.Context()); err != nil { // asked without the alarm
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			_, err = c.ExecStream(ctx, "ws", "sb-1", streamed, func(e api.ExecEvent) error {
				if n++; n == 20 {
					cancel()
				}
				return nil
			})
			codeIs(t, err, api.OutcomeUnknown)
		})
	}
}

// The connection ends with the callback's error, which the caller gets as it is.
func TestExecStreamLeftByItsReader(t *testing.T) {
	nothingLeft(t)
	gone := make(chan struct{})
	l, c, _ := newLiar(t)
	l.answer = func(w http.ResponseWriter, r *http.Request) {
		lines(lineStarted)(w, r)
		left(r)
		close(gone)
	}
	enough := errors.New("enough")
	if _, err := c.ExecStream(t.Context(), "ws", "sb-1", streamed, func(api.ExecEvent) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	<-gone
}

// counter counts what was read of every body but that of health.
type counter struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Opaque != "/v1/health" {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(res.Body, c), res.Body}
	}
	return res, err
}

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

func counted(t *testing.T, cfg Config) (*Client, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	cfg.Wrap = func(rt http.RoundTripper) http.RoundTripper { return counter{rt, &n} }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, &n
}

// TestStreamIsNotHeld: the client reads a buffer ahead of what it gives out, however much there is.
func TestStreamIsNotHeld(t *testing.T) {
	l, _, cfg := newLiar(t)
	c, read := counted(t, cfg)
	const chunk, total, ahead = 64 << 10, 4 << 20, 256 << 10
	line := jsonText(t, api.ExecEvent{Type: api.ExecStdout, Data: bytes.Repeat([]byte("x"), chunk)}) + "\n"
	l.answer = lines(lineStarted + strings.Repeat(line, total/chunk) + lineResult)
	req := streamed
	req.MaxOutputBytes = total
	given := int64(0)
	_, err := c.ExecStream(t.Context(), "ws", "sb-1", req, func(e api.ExecEvent) error {
		if given += int64(len(e.Data)); read.Load() > given/3*4+ahead {
			t.Fatalf("%d bytes were read when %d were given", read.Load(), given)
		}
		return nil
	})
	if err != nil || given != total {
		t.Errorf("%d bytes, %v", given, err)
	}
}

// TestLongLineIsCut: a line that cannot be one is not read to its end.
func TestLongLineIsCut(t *testing.T) {
	l, _, cfg := newLiar(t)
	c, read := counted(t, cfg)
	l.answer = lines(lineStarted, strings.Repeat("a", 1<<20))
	_, err := c.ExecStream(t.Context(), "ws", "sb-1", streamed, func(api.ExecEvent) error { return nil })
	if codeIs(t, err, api.ResponseInvalid); read.Load() > 16<<10 {
		t.Errorf("%d bytes were read", read.Load())
	}
	l.answer = sse(false, ready, strings.Repeat("a", 1<<20))
	read.Store(0)
	e, err := c.Events(t.Context(), "ws", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = drain(e)
	if codeIs(t, err, api.ResponseInvalid); read.Load() > 128<<10 {
		t.Errorf("%d bytes were read", read.Load())
	}
}

func TestCancel(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			_, _ = io.WriteString(w, text)
		}
	}
	result := strings.TrimSuffix(strings.TrimPrefix(lineResult, `{"type":"result",`), "\n")
	failed := strings.TrimSuffix(strings.TrimPrefix(lineFailed(t, api.ExecAborted), `{"type":"error",`), "\n")
	l.answer = body("{" + result)
	if res, err := c.Cancel(t.Context(), "ws", "sb-1", "i"); err != nil || *res.ExitCode != 3 || last(l.seen()) != "DELETE /v1/sandboxes/sb-1/exec/i" {
		t.Errorf("%+v, %v", res, err)
	}
	for name, tt := range map[string]struct {
		text string
		code api.Code
	}{
		"aborted": {"{" + failed, api.ExecAborted}, "neither": {"{}", api.ResponseInvalid}, "made-up": {"{" + strings.Replace(failed, "EXEC_ABORTED", "X", 1), api.ResponseInvalid},
		"both": {"{" + strings.TrimSuffix(result, "}") + "," + failed, api.ResponseInvalid}, "another": {"{" + strings.Replace(result, `"i"`, `"j"`, 1), api.ResponseInvalid},
	} {
		l.answer = body(tt.text)
		_, err := c.Cancel(t.Context(), "ws", "sb-1", "i")
		if codeIs(t, err, tt.code); t.Failed() {
			t.Fatalf("%s: %s", name, tt.text)
		}
	}
}
