// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// cleanUp removes what the case created, newest first, and nothing else, and checks that it is
// gone. It has a context of its own: an interrupted case is cleaned up too.
func (t *T) cleanUp(tg *target.Target) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupBudget)
	defer cancel()
	t.mu.Lock()
	t.closed = true // a goroutine that the case left behind creates nothing more
	t.mu.Unlock()
	// A create that is under way, on such a goroutine, is waited for; one that comes later still is
	// removed by [T.Adopt].
	guarded(ctx, func(context.Context) error { t.making.Wait(); return nil })
	t.mu.Lock()
	t.swept = true
	things, sandboxes, workspaces := t.owned, slices.Clone(t.sandboxes), slices.Clone(t.workspaces)
	t.mu.Unlock()
	for i := len(things) - 1; i >= 0; i-- {
		if err := guarded(ctx, things[i].remove); err != nil {
			t.setEnd(Errored, "cleanup-failed", strings.TrimPrefix(things[i].what+": "+err.Error(), ": "))
		}
	}
	t.revive(ctx, tg, len(sandboxes)+len(workspaces) > 0)
	for i := len(sandboxes) - 1; i >= 0; i-- {
		sb := sandboxes[i]
		if err := guarded(ctx, sb.Dispose); err != nil {
			t.leftover("dispose "+sb.ID(), err)
			continue
		}
		if tg.Observer == nil {
			continue
		}
		_, err := tg.Observer.Container(ctx, sb.ID())
		switch {
		case err == nil:
			t.judge("container-leaked", "the engine still has the container of the disposed sandbox %s", sb.ID())
		case !errors.Is(err, target.ErrNoContainer) && !errors.Is(err, target.ErrUnavailable):
			t.setEnd(Errored, "cleanup-failed", "look for leaked container: "+err.Error())
		}
	}
	for _, w := range workspaces {
		if err := guarded(ctx, func(ctx context.Context) error { return tg.Runtime.Purge(ctx, w) }); err != nil {
			t.leftover("purge "+w, err)
		}
	}
}

// leftover judges a clean-up that did not work: the target's own refusal is the target's
// failure, anything else the suite's.
func (t *T) leftover(step string, err error) {
	if target.CodeOf(err) != "" {
		t.judge("cleanup-incomplete", "%s: %v", step, err)
		return
	}
	t.setEnd(Errored, "cleanup-failed", step+": "+err.Error())
}

// revive starts a daemon that the case left dead. A case that ends its target starts it again
// itself, so a dead one has died of the attack.
func (t *T) revive(ctx context.Context, tg *target.Target, needed bool) {
	if !needed || tg.Controller == nil {
		return
	}
	probe, cancel := context.WithTimeout(ctx, 10*time.Second)
	_, err := tg.Runtime.Describe(probe)
	cancel()
	if err == nil {
		return
	}
	t.judge("target-died", "the runtime does not answer after the case: %v", err)
	if err := t.lent.Controller.Start(ctx); err != nil && !errors.Is(err, target.ErrUnavailable) {
		t.Log("start the runtime again: %v", err)
	}
}

// guarded calls f, turns a panic into an error, and gives up on an f that does not return when ctx
// has ended.
func guarded(ctx context.Context, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		finished := false
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("panic in clean-up: %v", v)
			} else if !finished {
				done <- errors.New("the clean-up's goroutine ended without a return")
			}
		}()
		err := f(ctx)
		finished = true
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(returnGrace):
		return fmt.Errorf("the clean-up did not return: %w", context.Cause(ctx))
	}
}

// share tells the case's part of what the runtime writes: the marks at its start.
type share struct {
	tape int64            // -1 without a tape
	logs map[string]int64 // length of each log file
}

func tapeMark(tg *target.Target) int64 {
	if tg.Observer == nil {
		return -1
	}
	calls, _, err := tg.Observer.Tape(0)
	if err != nil {
		return -1
	}
	return int64(len(calls))
}

// logOffsets remembers how long the runtime's logs were, so that only the case's own share is
// searched.
func logOffsets(tg *target.Target) map[string]int64 {
	out := map[string]int64{}
	if tg.Observer == nil {
		return out
	}
	paths, err := tg.Observer.Logs()
	if err != nil {
		return out
	}
	for _, p := range paths {
		if st, err := os.Stat(p); err == nil {
			out[p] = st.Size()
		} else {
			out[p] = 0
		}
	}
	return out
}

// searchCanaries looks for the case's tokens in what the runtime logged and asked of its engine.
func (t *T) searchCanaries(tg *target.Target, since share) {
	t.mu.Lock()
	planted := slices.Clone(t.canaries)
	t.mu.Unlock()
	if len(planted) == 0 || tg.Observer == nil {
		return
	}
	if since.tape >= 0 {
		calls, _, err := tg.Observer.Tape(since.tape)
		if err != nil {
			t.setEnd(Errored, "suite-error", "read tape: "+err.Error())
		}
		for _, c := range calls {
			t.findCanary(planted, fmt.Sprintf("engine call %s %s", c.Method, c.Path), append([]byte(c.Path+"?"+c.Query+"\n"), c.Body...))
		}
	}
	for path, offset := range since.logs {
		text, err := readFrom(path, offset)
		if err != nil {
			t.setEnd(Errored, "suite-error", "read runtime log: "+err.Error())
			continue
		}
		t.findCanary(planted, "the runtime's log", text)
	}
}

func (t *T) findCanary(planted []canary, where string, text []byte) {
	for _, c := range planted {
		if bytes.Contains(text, []byte(c.token)) {
			t.judge("canary-leaked", "the canary %q is in %s", c.name, where)
		}
	}
}

func readFrom(path string, offset int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, offset, 64<<20))
}
