// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// hand is a clock that tests move.
type hand struct{ ms atomic.Int64 }

func newHand() *hand {
	h := &hand{}
	h.ms.Store(1_700_000_000_000)
	return h
}

func (h *hand) now() (time.Time, error) { return time.UnixMilli(h.ms.Load()), nil }

func (h *hand) in(d time.Duration) int64 { return h.ms.Load() + d.Milliseconds() }

func TestNonceOnceAndDurable(t *testing.T) {
	ctx, dir, h := t.Context(), t.TempDir()+"/s", newHand()
	s := open(t, dir, Options{Now: h.now})
	exp := h.in(time.Minute)
	if err := s.ConsumeNonce(ctx, "n1", "ws", exp); err != nil {
		t.Fatal(err)
	}
	if err := s.ConsumeNonce(ctx, "n1", "ws", exp); !errors.Is(err, ErrReplay) {
		t.Errorf("second use: %v", err)
	}
	if err := s.ConsumeNonce(ctx, "n1", "other", exp); !errors.Is(err, ErrReplay) {
		t.Errorf("use for another workspace: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{Now: h.now})
	if err := s.ConsumeNonce(ctx, "n1", "ws", exp); !errors.Is(err, ErrReplay) {
		t.Errorf("use after reopen: %v", err)
	}
	h.ms.Store(exp + 1)
	if err := s.ConsumeNonce(ctx, "n2", "ws", exp); !errors.Is(err, ErrExpired) {
		t.Errorf("a nonce that has ended: %v", err)
	}
	if err := s.ConsumeNonce(ctx, "", "ws", h.in(time.Minute)); err == nil {
		t.Error("an empty jti was consumed")
	}
}

func TestNonceParallelReplayHasOneWinner(t *testing.T) {
	h := newHand()
	s := open(t, t.TempDir()+"/s", Options{Now: h.now})
	var won, replayed atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			switch err := s.ConsumeNonce(context.Background(), "same", "ws", h.in(time.Minute)); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, ErrReplay):
				replayed.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || replayed.Load() != 49 {
		t.Errorf("%d won, %d replayed", won.Load(), replayed.Load())
	}
}

func TestNonceCapacityFailsClosed(t *testing.T) {
	ctx, dir, h := t.Context(), t.TempDir()+"/s", newHand()
	o := Options{Now: h.now, Nonces: 8, NoncesPerWorkspace: 5}
	s := open(t, dir, o)
	exp := h.in(time.Minute)
	for i := range 5 {
		if err := s.ConsumeNonce(ctx, fmt.Sprint("a", i), "ws-a", exp); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ConsumeNonce(ctx, "a5", "ws-a", exp); !errors.Is(err, ErrExhausted) {
		t.Errorf("beyond the share: %v", err)
	}
	for i := range 3 {
		if err := s.ConsumeNonce(ctx, fmt.Sprint("b", i), "ws-b", exp); err != nil {
			t.Fatalf("another workspace's share: %v", err)
		}
	}
	if err := s.ConsumeNonce(ctx, "c0", "ws-c", exp); !errors.Is(err, ErrExhausted) {
		t.Errorf("beyond the capacity: %v", err)
	}
	if err := s.ConsumeNonce(ctx, "a0", "ws-a", exp); !errors.Is(err, ErrReplay) {
		t.Errorf("a full store let the first nonce in again: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, o)
	if err := s.ConsumeNonce(ctx, "c0", "ws-c", exp); !errors.Is(err, ErrExhausted) {
		t.Errorf("beyond the capacity after reopen: %v", err)
	}
	h.ms.Store(exp + 1)
	if err := s.ConsumeNonce(ctx, "c0", "ws-c", h.in(time.Minute)); err != nil {
		t.Errorf("after the others ended: %v", err)
	}
	count := 0
	if err := s.Each(nonceBucket, func(string, []byte) error { count++; return nil }); err != nil || count != 1 {
		t.Errorf("%d nonces on disk after expiry, %v", count, err)
	}
}

func TestNonceNeedsTheClock(t *testing.T) {
	broken := errors.New("clock stepped")
	s := open(t, t.TempDir()+"/s", Options{Mode: api.Production, Now: func() (time.Time, error) { return time.Time{}, broken }})
	if err := s.ConsumeNonce(t.Context(), "n", "ws", time.Now().Add(time.Minute).UnixMilli()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkConsumeNonce64Clients(b *testing.B) {
	s, err := Open(b.TempDir()+"/s", Options{Mode: api.Production, Nonces: 1 << 30, NoncesPerWorkspace: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var n atomic.Int64
	exp := time.Now().Add(time.Hour).UnixMilli()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.ConsumeNonce(context.Background(), fmt.Sprint(n.Add(1)), "ws", exp); err != nil {
				b.Error(err)
			}
		}
	})
}
