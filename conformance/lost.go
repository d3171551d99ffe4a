// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"time"
)

// lostAfter is how long a target may be silent before the run calls it lost: a busy engine answers
// late.
const lostAfter = 5 * time.Second

// lost looks, after a case that went wrong, whether there is a target left to go on with: its engine
// where the suite knows one, and the runtime itself. It returns what is gone, or "".
func (b *bench) lost(ctx context.Context) string {
	answers := func(ask func(context.Context) error) (err error) {
		ctx, cancel := context.WithTimeout(ctx, lostAfter)
		defer cancel()
		for {
			if err = ask(ctx); err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(lostAfter / 20):
			}
		}
	}
	if b.target.Observer != nil {
		if socket, err := b.target.Observer.EngineSocket(); err == nil {
			err := answers(func(ctx context.Context) error { return engineGet(ctx, socket, "/version", new(any)) })
			if err != nil {
				return fmt.Sprintf("the engine does not answer: %v", err)
			}
		}
	}
	err := answers(func(ctx context.Context) error { _, err := b.target.Runtime.Describe(ctx); return err })
	if err != nil {
		return fmt.Sprintf("the runtime does not answer: %v", err)
	}
	return ""
}
