// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// sse answers with an event stream of the given pieces, then holds it if hold is set.
func sse(hold bool, pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", api.TypeEvents)
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
		if hold {
			<-r.Context().Done()
		}
	}
}

const ready = ": ready\n\n"

func change(text string) string { return "event: change\ndata: " + text + "\n\n" }

func end(t *testing.T, c api.Code) string {
	return "event: end\ndata: " + jsonText(t, c.Body("r1").Error) + "\n\n"
}

// drain reads all events and returns the last error.
func drain(e *Events) (changes []string, last error) {
	for c, err := range e.All() {
		if last = err; err == nil {
			changes = append(changes, strings.TrimSpace(fmt.Sprintf("%s %s%s %s%s", c.Type, c.Path, c.PathBytes, c.From, c.FromBytes)))
		}
	}
	return changes, last
}

func TestEvents(t *testing.T) {
	nothingLeft(t)
	l, c, _ := newLiar(t)
	l.answer = sse(false, ready, change(`{"type":"created","path":"a","kind":"file"}`), ":\n\n", change(`{"type":"moved","pathBytes":"/w==","from":"a"}`),
		change(`{"type":"overflow"}`), end(t, api.SandboxExpired))
	e, err := c.Events(t.Context(), "ws", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := drain(e)
	codeIs(t, err, api.SandboxExpired)
	if fmt.Sprintf("%q", got) != `["created a" "moved \xff a" "overflow"]` {
		t.Errorf("changes %q", got)
	}
}

func TestEventsLie(t *testing.T) {
	nothingLeft(t)
	over := end(t, api.SandboxDisposed)
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		code   api.Code
	}{
		"breaks off":         {sse(false, ready, change(`{"type":"removed","path":"a"}`)), api.StreamClosed},
		"breaks in an event": {sse(false, ready, "event: change\n"), api.StreamClosed},
		"never ready":        {sse(false), api.StreamClosed},
		"not ready":          {sse(false, over), api.ResponseInvalid},
		"unknown event":      {sse(false, ready, "event: note\ndata: {}\n\n", over), api.ResponseInvalid},
		"event without data": {sse(false, ready, "event: change\n\n", over), api.ResponseInvalid},
		"data alone":         {sse(false, ready, "data: {}\n\n", over), api.ResponseInvalid},
		"data twice":         {sse(false, ready, "event: change\ndata: {\ndata: }\n\n", over), api.ResponseInvalid},
		"id":                 {sse(false, ready, "id: 1\n\n", over), api.ResponseInvalid},
		"unknown type":       {sse(false, ready, change(`{"type":"read","path":"a"}`)), api.ResponseInvalid},
		"extra member":       {sse(false, ready, change(`{"type":"removed","path":"a","by":"x"}`)), api.ResponseInvalid},
		"no path":            {sse(false, ready, change(`{"type":"removed"}`)), api.ResponseInvalid},
		"two paths":          {sse(false, ready, change(`{"type":"removed","path":"a","pathBytes":"/w=="}`)), api.ResponseInvalid},
		"moved from nowhere": {sse(false, ready, change(`{"type":"moved","path":"a"}`)), api.ResponseInvalid},
		"removed from":       {sse(false, ready, change(`{"type":"removed","path":"a","from":"b"}`)), api.ResponseInvalid},
		"overflow of a path": {sse(false, ready, change(`{"type":"overflow","path":"a"}`)), api.ResponseInvalid},
		"path out of it":     {sse(false, ready, change(`{"type":"removed","path":"../a"}`)), api.ResponseInvalid},
		"end, made-up":       {sse(false, ready, strings.Replace(over, "DISPOSED", "SLEEPS", 1)), api.ResponseInvalid},
		"long line":          {sse(true, ready, strings.Repeat("a", maxEventLine+1)), api.ResponseInvalid},
		"wrong media type":   {func(w http.ResponseWriter, r *http.Request) { lines(ready, over)(w, r) }, api.ResponseInvalid},
		"refused": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", api.TypeJSON)
			w.WriteHeader(429)
			_, _ = io.WriteString(w, jsonText(t, api.ExecConcurrencyExhausted.Body("r1")))
		}, api.ExecConcurrencyExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			l, c, _ := newLiar(t)
			l.answer = tt.answer
			e, err := c.Events(t.Context(), "ws", "sb-1")
			if err == nil {
				_, err = drain(e)
			}
			codeIs(t, err, tt.code)
			if n := len(l.seen()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestEventsFallSilent(t *testing.T) {
	nothingLeft(t)
	l, _, cfg := newLiar(t)
	l.answer, cfg.Silence = sse(true, ready), 50*time.Millisecond
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, err := c.Events(t.Context(), "ws", "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = drain(e)
	codeIs(t, err, api.StreamClosed)
}

// Leaving the loop, ending the context, and Close without a loop all end the connection.
func TestEventsAreLeft(t *testing.T) {
	for name, leave := range map[string]func(*Events, context.CancelFunc){
		"break":  func(e *Events, _ context.CancelFunc) { e.All()(func(api.ChangeEvent, error) bool { return false }) },
		"cancel": func(e *Events, cancel context.CancelFunc) { cancel(); _, _ = drain(e) },
		"close":  func(e *Events, _ context.CancelFunc) { e.Close(); e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			nothingLeft(t)
			gone := make(chan struct{})
			l, c, _ := newLiar(t)
			held := sse(true, ready, change(`{"type":"removed","path":"a"}`))
			l.answer = func(w http.ResponseWriter, r *http.Request) { held(w, r); close(gone) }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e, err := c.Events(ctx, "ws", "sb-1")
			if err != nil {
				t.Fatal(err)
			}
			leave(e, cancel)
			<-gone
		})
	}
}
