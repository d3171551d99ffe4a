// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// MaxDeviation is how far wall time may run from the token clock, either way.
const MaxDeviation = 30 * time.Second

// ErrClock means that wall time has been stepped since the start.
var ErrClock = errors.New("wall clock deviates from the token clock; a restart is needed")

// Clock is the one clock of tokens and nonces: wall time read at the start, advanced by
// CLOCK_BOOTTIME (clock_gettime(2)), which counts suspend and never steps. Once wall time has
// deviated by more than [MaxDeviation] it refuses until the process ends, since a step back
// after nonces were dropped would let their tokens in again.
type Clock struct {
	wall func() time.Time
	boot func() (time.Duration, error)

	startWall time.Time
	startBoot time.Duration

	mu     sync.Mutex
	broken bool // guarded by mu; never cleared
}

// NewClock reads both clocks once.
func NewClock() (*Clock, error) { return newClock(time.Now, bootTime) }

func newClock(wall func() time.Time, boot func() (time.Duration, error)) (*Clock, error) {
	b, err := boot()
	if err != nil {
		return nil, fmt.Errorf("read boot time: %w", err)
	}
	// Round strips the monotonic reading, which would hide a step of wall time.
	return &Clock{wall: wall, boot: boot, startWall: wall().Round(0), startBoot: b}, nil
}

// Now returns the time, or [ErrClock].
func (c *Clock) Now() (time.Time, error) {
	b, err := c.boot()
	if err != nil {
		return time.Time{}, fmt.Errorf("read boot time: %w", err)
	}
	now := c.startWall.Add(b - c.startBoot)
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.wall().Round(0).Sub(now).Abs(); d > MaxDeviation {
		c.broken = true
	}
	if c.broken {
		return time.Time{}, ErrClock
	}
	return now, nil
}
