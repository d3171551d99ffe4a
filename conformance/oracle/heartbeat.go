// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// Stillness is what watching for the end of a heartbeat found.
type Stillness struct {
	Still bool          // no beat during the whole quiet time
	After time.Duration // from the call to the last beat seen
	Beats int64         // bytes that appeared since the call
}

// WatchStill watches until the file has not grown for quiet, at most within in all. Still is
// false when it never rested that long.
func WatchStill(ctx context.Context, path string, quiet, within time.Duration) (Stillness, error) {
	first, err := FileSize(path)
	if err != nil {
		return Stillness{}, err
	}
	start := time.Now()
	last, size := start, first
	for {
		now, err := FileSize(path)
		if err != nil {
			return Stillness{}, err
		}
		if now != size {
			last, size = time.Now(), now
		}
		s := Stillness{After: last.Sub(start), Beats: size - first}
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
