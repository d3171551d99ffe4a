// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Flood sends the requests 0..n-1 over conns connections that are kept, as fast as they are
// answered, until they are all sent or until has come. It counts the answers by their code, with
// "ok" for those that refuse nothing; an answer that is not as the protocol says ends it with an error.
func Flood(ctx context.Context, dial Dial, conns, n int, until time.Time, request func(i int) (Request, error)) (map[string]int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var mu sync.Mutex
	counts := map[string]int{}
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			own := map[string]int{}
			if err := stream(ctx, dial, until, &next, int64(n), request, own); err != nil {
				cancel(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for code, k := range own {
				counts[code] += k
			}
		})
	}
	wg.Wait()
	return counts, context.Cause(ctx)
}

// stream is one connection's share of a flood. It connects again when the worker has closed.
func stream(ctx context.Context, dial Dial, until time.Time, next *atomic.Int64, n int64, request func(i int) (Request, error), counts map[string]int) error {
	var c net.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for ctx.Err() == nil && time.Now().Before(until) {
		i := next.Add(1) - 1
		if i >= n {
			return nil
		}
		r, err := request(int(i))
		if err != nil {
			return err
		}
		if c == nil {
			if c, err = open(ctx, dial); err != nil {
				return err
			}
		}
		a, err := Over(c, append(r.Head(), r.Body...))
		if err != nil {
			return fmt.Errorf("request %d of a flood: %w", i, err)
		}
		code := "ok"
		if a.Status >= 400 {
			if code, err = Refusal(a); err != nil {
				return fmt.Errorf("request %d of a flood: %w", i, err)
			}
		}
		counts[code]++
		if a.Close {
			c.Close()
			c = nil
		}
	}
	return nil
}
