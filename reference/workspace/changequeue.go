// SPDX-License-Identifier: Apache-2.0

//go:build linux

package workspace

import (
	"context"
	"sync"
)

// changeQueue holds changes until they are taken. When it is full everything in it is
// dropped for one Overflow: whoever takes that lists again, and needs nothing from before it.
type changeQueue struct {
	most, mostBytes int
	more            chan struct{} // capacity 1: something was added

	mu    sync.Mutex
	items []Change
	bytes int
	end   error // set once, by close
}

func newChangeQueue(most, mostBytes int) *changeQueue {
	return &changeQueue{most: most, mostBytes: mostBytes, more: make(chan struct{}, 1)}
}

func (c Change) bytes() int { return len(c.Path) + len(c.From) }

// add reports whether it made an Overflow of what was there.
func (q *changeQueue) add(c Change) (overflow bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) >= q.most || q.bytes+c.bytes() > q.mostBytes || c.Type == Overflow {
		q.items, q.bytes, overflow = []Change{{Type: Overflow}}, 0, true
	}
	if c.Type != Overflow {
		q.items = append(q.items, c)
		q.bytes += c.bytes()
	}
	q.wake()
	return overflow
}

func (q *changeQueue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *changeQueue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end = err
	q.wake()
}

func (q *changeQueue) next(ctx context.Context) (Change, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Change{}, err
		}
		q.mu.Lock()
		if len(q.items) > 0 {
			c := q.items[0]
			q.items[0] = Change{}
			if q.items = q.items[1:]; len(q.items) == 0 {
				q.items = nil
			}
			q.bytes -= c.bytes()
			q.mu.Unlock()
			return c, nil
		}
		end := q.end
		q.mu.Unlock()
		if end != nil {
			return Change{}, end
		}
		select {
		case <-q.more:
		case <-ctx.Done():
		}
	}
}
