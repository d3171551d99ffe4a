// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Latencies are the outcomes of a repeated small operation.
type Latencies struct {
	N, Errors     int64
	P50, P99, Max time.Duration // of the operations that succeeded
	FirstError    string
}

// Probe repeats op every period until stop is called. An op that takes longer than the period is
// not overlapped: the next one starts at once. Each op is cut off at limit and then counts as an
// error.
func Probe(ctx context.Context, period, limit time.Duration, op func(context.Context) error) (stop func() Latencies) {
	ctx, cancel := context.WithCancel(ctx)
	var took []time.Duration
	var l Latencies
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			start := time.Now()
			opCtx, done := context.WithTimeout(context.WithoutCancel(ctx), limit)
			err := op(opCtx)
			done()
			l.N++
			if err != nil {
				l.Errors++
				if l.FirstError == "" {
					l.FirstError = err.Error()
				}
			} else {
				took = append(took, time.Since(start))
			}
			if sleep(ctx, max(0, period-time.Since(start))) != nil {
				return
			}
		}
	})
	return sync.OnceValue(func() Latencies {
		cancel()
		wg.Wait()
		slices.Sort(took)
		if n := len(took); n > 0 {
			l.P50, l.P99, l.Max = took[n/2], took[min(n-1, n*99/100)], took[n-1]
		}
		return l
	})
}

// HostProbe returns the host's own operation: a 4 KiB write with fsync into dir, then fork and
// exec of program. The file is removed by done.
func HostProbe(dir, program string, args ...string) (op func(context.Context) error, done func() error, err error) {
	f, err := os.CreateTemp(dir, "hallmark-host-probe-*")
	if err != nil {
		return nil, nil, fmt.Errorf("host probe: %w", err)
	}
	block := make([]byte, 4096)
	op = func(ctx context.Context) error {
		if _, err := f.WriteAt(block, 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return exec.CommandContext(ctx, program, args...).Run()
	}
	done = func() error {
		path, err := filepath.Abs(f.Name())
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return os.Remove(path)
	}
	return op, done, nil
}
