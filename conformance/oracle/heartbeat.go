// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// BeatPeriod is how often a fixture's heartbeat appends to its file. Process ids of a sentry's
// guests are not visible on the host, so a survivor is known by its file.
const BeatPeriod = 50 * time.Millisecond

// FileSize is the size in bytes of a file on the host, 0 when it does not exist. It follows no link.
func FileSize(path string) (int64, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// WaitBeating waits until the file grows by at least beats bytes, at most within.
func WaitBeating(ctx context.Context, path string, beats int64, within time.Duration) error {
	first, err := FileSize(path)
	if err != nil {
		return err
	}
	end := time.Now().Add(within)
	for time.Now().Before(end) {
		now, err := FileSize(path)
		if err != nil {
			return err
		}
		if now-first >= beats {
			return nil
		}
		if err := sleep(ctx, BeatPeriod/5); err != nil {
			return err
		}
	}
	return fmt.Errorf("no %d beats within %s", beats, within)
}

// WatchBeats reads the file's size until stop is called, which returns by how many bytes it was seen
// to grow before that call: what is read afterwards does not count.
func WatchBeats(ctx context.Context, path string) (stop func() int64, err error) {
	first, err := FileSize(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	grown := make(chan int64, 1)
	go func() {
		most := int64(0)
		for {
			now, err := FileSize(path)
			if ctx.Err() == nil && err == nil {
				most = max(most, now-first)
			}
			if sleep(ctx, BeatPeriod/5) != nil {
				grown <- most
				return
			}
		}
	}()
	return sync.OnceValue(func() int64 { cancel(); return <-grown }), nil
}

// Stillness is what watching for the end of a heartbeat found. A file that is missing proves
// nothing: its writer may live on another name, or the folder may be another one.
type Stillness struct {
	Still bool          // no beat during the whole quiet time, of a file that was there all along
	Gone  bool          // the file was missing at one look at least; Still is then false
	After time.Duration // from the call to the last beat seen
	Beats int64         // bytes that appeared since the call
}

// WatchStill watches until the file has not grown for quiet, at most within in all. Still is
// false when it never rested that long. It ends at once when the file is missing.
func WatchStill(ctx context.Context, path string, quiet, within time.Duration) (Stillness, error) {
	var s Stillness
	start := time.Now()
	last, first, size := start, int64(-1), int64(-1)
	for {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			s.Gone = true
			return s, nil
		}
		if err != nil {
			return s, err
		}
		now := st.Size()
		if first < 0 {
			first, size = now, now
		}
		if now != size {
			last, size = time.Now(), now
		}
		s.After, s.Beats = last.Sub(start), size-first
		switch {
		case time.Since(last) >= quiet:
			s.Still = true
			return s, nil
		case time.Since(start) >= within:
			return s, nil
		}
		if err := sleep(ctx, BeatPeriod/5); err != nil {
			return s, err
		}
	}
}

// sleep waits for d or for the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
