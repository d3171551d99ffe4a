// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"errors"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// times are both clocks of a host, moved by hand.
type times struct {
	wall    time.Time
	boot    time.Duration
	bootErr error
}

func newTimes(t *testing.T) (*times, *Clock) {
	t.Helper()
	h := &times{wall: time.Unix(1_700_000_000, 0), boot: time.Hour}
	c, err := newClock(func() time.Time { return h.wall }, func() (time.Duration, error) { return h.boot, h.bootErr })
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

// pass lets both clocks run; step moves wall time alone, as an operator or NTP does.
func (h *times) pass(d time.Duration) { h.wall, h.boot = h.wall.Add(d), h.boot+d }
func (h *times) step(d time.Duration) { h.wall = h.wall.Add(d) }

func TestClockFollowsBootTime(t *testing.T) {
	h, c := newTimes(t)
	start := h.wall
	h.pass(90 * time.Minute) // suspend counts too
	if now, err := c.Now(); err != nil || !now.Equal(start.Add(90*time.Minute)) {
		t.Errorf("in step: %v, %v", now, err)
	}
	h.step(29 * time.Second)
	if now, err := c.Now(); err != nil || !now.Equal(start.Add(90*time.Minute)) {
		t.Errorf("29 s ahead: %v, %v; the token clock must not follow wall time", now, err)
	}
	real, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	if now, err := real.Now(); err != nil || time.Since(now).Abs() > time.Second {
		t.Errorf("real clock: %v, %v", now, err)
	}
}

// 30 s either way are borne, a nanosecond more is not, and then never again until a restart.
func TestClockDeviation(t *testing.T) {
	for name, tt := range map[string]struct {
		step time.Duration
		ok   bool
	}{
		"30 s ahead":              {30 * time.Second, true},
		"30 s behind":             {-30 * time.Second, true},
		"30 s and 1 ns ahead":     {30*time.Second + 1, false},
		"30 s and 1 ns behind":    {-30*time.Second - 1, false},
		"a day ahead":             {24 * time.Hour, false},
		"a day behind":            {-24 * time.Hour, false},
		"292 years ahead or more": {1<<63 - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, c := newTimes(t)
			h.pass(time.Minute)
			h.step(tt.step)
			if _, err := c.Now(); (err == nil) != tt.ok || !tt.ok && !errors.Is(err, ErrClock) {
				t.Errorf("got %v", err)
			}
			h.step(-tt.step)
			h.pass(time.Minute)
			if _, err := c.Now(); (err == nil) != tt.ok {
				t.Errorf("after the step was taken back: %v", err)
			}
			if again, err := newClock(c.wall, c.boot); err != nil {
				t.Error(err)
			} else if _, err := again.Now(); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
	t.Run("drift adds up", func(t *testing.T) {
		h, c := newTimes(t)
		for range 30 {
			h.pass(time.Hour)
			h.step(time.Second)
			if _, err := c.Now(); err != nil {
				t.Fatal(err)
			}
		}
		h.step(time.Second)
		if _, err := c.Now(); !errors.Is(err, ErrClock) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no boot time", func(t *testing.T) {
		h, c := newTimes(t)
		h.bootErr = errors.New("no clock")
		if _, err := c.Now(); err == nil {
			t.Error("accepted")
		}
		if _, err := newClock(c.wall, c.boot); err == nil {
			t.Error("a clock was made")
		}
	})
}

// A clock that is not to be trusted refuses good tokens and bad ones alike with UNAVAILABLE.
func TestVerifierUsesTheClock(t *testing.T) {
	b := newBench(t)
	h, c := newTimes(t)
	cfg := b.verifier.cfg
	cfg.Now = c.Now
	v, err := NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.now = h.wall
	token, err := b.minter.Sign(b.claims(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(token, b.want); err != nil {
		t.Fatal(err)
	}
	h.step(-25 * time.Second) // wall time alone does not make a token live longer
	h.pass(time.Minute)
	if _, err := v.Verify(token, b.want); codeOf(err) != api.CapabilityExpired {
		t.Errorf("after its minute: %v", err)
	}
	h.step(-6 * time.Second)
	for _, text := range []string{token, "a.b.c"} {
		if _, err := v.Verify(text, b.want); codeOf(err) != api.Unavailable || !errors.Is(err, ErrClock) {
			t.Errorf("stepped clock: %v", err)
		}
	}
	h.step(31 * time.Second)
	if _, err := v.Verify(token, b.want); codeOf(err) != api.Unavailable {
		t.Errorf("after the step was taken back: %v", err)
	}
}

// Nonces expire by the same clock: a step back of wall time neither drops nor revives one, and
// beyond 30 s none is consumed.
func TestNoncesUseTheClock(t *testing.T) {
	h, c := newTimes(t)
	dir := t.TempDir() + "/s"
	open := func(now func() (time.Time, error)) *state.Store {
		t.Helper()
		s, err := state.Open(dir, state.Options{Mode: api.Production, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open(c.Now)
	exp := h.wall.Add(time.Minute).UnixMilli()
	consume := func(id string) error { return s.ConsumeNonce(t.Context(), id, "ws", exp) }
	if err := consume("used"); err != nil {
		t.Fatal(err)
	}
	h.step(20 * time.Second)
	h.pass(59 * time.Second) // wall time is past exp, the clock is not
	if err := consume("used"); !errors.Is(err, state.ErrReplay) {
		t.Errorf("before its end: %v", err)
	}
	if err := consume("unused"); err != nil {
		t.Errorf("before its end: %v", err)
	}
	h.pass(2 * time.Second)
	h.step(-40 * time.Second) // wall time is before exp, the clock is not
	for _, id := range []string{"used", "late"} {
		if err := consume(id); !errors.Is(err, state.ErrExpired) {
			t.Errorf("%s after its end: %v", id, err)
		}
	}
	// The others are purged by now. A step back far enough to let them in again lets nothing in.
	h.step(-2 * time.Minute)
	for _, id := range []string{"used", "unused", "late"} {
		if err := consume(id); !errors.Is(err, ErrClock) {
			t.Errorf("%s with a stepped clock: %v", id, err)
		}
	}
	h.step(3 * time.Minute)
	if err := consume("late"); !errors.Is(err, ErrClock) {
		t.Errorf("after the step was taken back: %v", err)
	}
}
