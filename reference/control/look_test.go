// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestLookAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer Frame
		want   error // nil for none
		lost   bool  // the bridge ends with it
	}{
		{"looked up", Frame{Type: Looked, Payload: EncodeLooked(0)}, nil, false},
		{"not looked up", Frame{Type: Looked, Payload: EncodeLooked(syscall.EACCES)}, syscall.EACCES, false},
		{"late", Frame{Type: Looked, Payload: EncodeLooked(syscall.ETIMEDOUT)}, syscall.ETIMEDOUT, false},
		{"busy", Frame{Type: Refused, Payload: []byte{RefusedBusy}}, ErrBusy, false},
		{"no errno", Frame{Type: Looked, Payload: EncodeLooked(4096)}, ErrLost, true},
		{"no such refusal", Frame{Type: Refused, Payload: []byte{2}}, ErrLost, true},
		{"another answer", Frame{Type: Pong}, ErrLost, true},
		{"an outcome", Frame{Type: Lost}, ErrLost, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked []byte
			c := fake(t, func(k *Conn, f Frame) {
				if f.Type == Look {
					asked = f.Payload
					tt.answer.Request = f.Request
					k.Send(tt.answer)
					return
				}
				k.Send(Frame{Type: Pong, Request: f.Request})
			})
			for range 2 { // the second finds the place of the first
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if err := c.Look(ctx, []byte("a/b"), []byte{0xff}); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
					t.Errorf("look: %v", err)
				}
				cancel()
			}
			if paths, err := ParseLook(asked); err != nil || len(paths) != 2 || string(paths[0]) != "a/b" || string(paths[1]) != "\xff" {
				t.Errorf("asked for %q, %v", paths, err)
			}
			if err := c.Ping(t.Context()); (err != nil) != tt.lost {
				t.Errorf("ping: %v", err)
			}
		})
	}
}

// A look that breaks its bounds is not sent.
func TestLookBounds(t *testing.T) {
	c := fake(t, func(_ *Conn, f Frame) { t.Errorf("sent %+v", f) })
	long := []byte(strings.Repeat("a", MaxLookPath+1))
	for _, paths := range [][][]byte{nil, {{}}, {[]byte("a"), {}}, {[]byte("/a")}, {[]byte("a/")}, {[]byte("a//b")}, {[]byte(".")}, {[]byte("a/..")},
		{[]byte("a\x00")}, {long}, {long[1:], long}, bytes.Split([]byte("a b c d e"), []byte(" "))} {
		if err := c.Look(t.Context(), paths...); !errors.Is(err, ErrFrame) || errors.Is(err, ErrLost) {
			t.Errorf("%.40q: %v", paths, err)
		}
	}
}

// deafPeer reads requests and answers pings only; it counts the looks, and how many ended looks it was told of.
func deafPeer(t *testing.T) (c *Client, looks func() int) {
	var mu sync.Mutex
	n := 0
	c = fake(t, func(k *Conn, f Frame) {
		if f.Type == Ping {
			k.Send(Frame{Type: Pong, Request: f.Request})
			return
		}
		mu.Lock()
		n++
		mu.Unlock()
	})
	return c, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// A look that is never answered holds its caller until the caller's time is over, takes the place of later
// looks and of nothing else, however many come, and ends nothing.
func TestLookWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, looks := deafPeer(t)
		for range 2 * maxCalls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			if err := c.Look(ctx, []byte("a")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Fatalf("%v after %v", err, time.Since(began))
			}
			cancel()
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Errorf("ping: %v", err)
		}
		if n := looks(); n != 1 {
			t.Errorf("%d looks were sent", n)
		}
		c.Close()
		if err := c.Look(t.Context(), []byte("a")); !errors.Is(err, ErrLost) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// stuck is a bridge that takes no byte.
type stuck struct{ closed chan struct{} }

func (s stuck) Write([]byte) (int, error) { <-s.closed; return 0, io.ErrClosedPipe }
func (s stuck) Read([]byte) (int, error)  { <-s.closed; return 0, io.ErrClosedPipe }
func (s stuck) Close() error              { close(s.closed); return nil }

// A sandbox that does not read keeps nobody who looks beyond his time.
func TestLookThroughAStuckBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{rw: stuck{make(chan struct{})}, looking: make(chan struct{}, 1), calls: map[uint64]*call{}, done: make(chan struct{})}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Look(ctx, []byte("a")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
