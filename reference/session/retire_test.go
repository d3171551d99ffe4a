// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

func TestRemovalIsRetriedAndOwnershipKept(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		var mu sync.Mutex
		var at []time.Time
		w.setFail(func(op, _ string) error {
			if op != "remove" {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			if len(at) > 9 {
				return nil
			}
			return errors.New("removal secret detail")
		})
		wantCode(t, "dispose", m.Dispose(t.Context(), "ws", r.SandboxID), api.IncompleteCleanup)
		_, err := m.Create(t.Context(), request("other", "ws"), "d")
		wantCode(t, "create on the held workspace", err, api.IncompleteCleanup)
		_, err = m.Create(t.Context(), request("lease", "ws"), "d")
		wantCode(t, "create of the retiring lease", err, api.IncompleteCleanup)
		wantCode(t, "purge of the held workspace", m.Purge(t.Context(), "ws"), api.IncompleteCleanup)
		_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "exec while retiring", err, api.SandboxDisposed)
		st, err := m.Get(t.Context(), "ws", r.SandboxID)
		if err != nil || st.State != "retiring" || st.Reason != "dispose" {
			t.Errorf("get gave %+v, %v", st, err)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		var gaps []time.Duration
		for i := 1; i < len(at); i++ {
			gaps = append(gaps, at[i].Sub(at[i-1]).Round(time.Millisecond))
		}
		want := []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(gaps, want) {
			t.Errorf("removals were %v apart, want %v", gaps, want)
		}
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Errorf("dispose after the end: %v", err)
		}
		mustCreate(t, m, "other", "ws")
	})
}

func TestDeathIsTyped(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(w *world)
		want api.Code
	}{
		{"container", func(w *world) { w.die(engine.Death{ExitCode: 137}) }, api.SandboxDied},
		{"memory", func(w *world) { w.die(engine.Death{ExitCode: 137, OOMKilled: true}) }, api.SandboxOOM},
		{"bridge only", func(w *world) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, b := range w.containers {
				b.once.Do(func() { close(b.lost) })
			}
		}, api.SandboxDied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					<-ctx.Done()
					return control.Outcome{}, ctx.Err()
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() {
					_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
					ended <- err
				}()
				synctest.Wait()
				began := time.Now()
				tt.end(w)
				wantCode(t, "exec", <-ended, tt.want)
				if took := time.Since(began); took > time.Second {
					t.Errorf("typed after %v", took)
				}
				synctest.Wait()
				_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("j"), "d")
				wantCode(t, "later exec", err, tt.want)
			})
		})
	}
}

func TestStaleCallbacksDoNothing(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "old", "ws")
		m.mu.Lock()
		s := m.live[r.SandboxID]
		m.mu.Unlock()
		m.retire(s, s.rec.Generation+1, reasonDied)
		m.retire(s, s.rec.Generation-1, reasonDied)
		if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "ready" {
			t.Errorf("a callback of another generation acted: %+v, %v", st, err)
		}
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Fatal(err)
		}
		next := mustCreate(t, m, "new", "ws")
		m.retire(s, s.rec.Generation, reasonIdle) // of the sandbox that is gone
		time.Sleep(30 * time.Second)
		if st, err := m.Get(t.Context(), "ws", next.SandboxID); err != nil || st.State != "ready" {
			t.Errorf("a callback of the old sandbox hit the new one: %+v, %v", st, err)
		}
	})
}

// TestDisposeEndsWithTheManager: nobody retries any more after a shutdown that left something, so
// nobody must wait for the next attempt.
func TestDisposeEndsWithTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(Limits{})
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := mustCreate(t, m, "lease", "ws")
		w.setFail(failing("remove", errors.New("broken")))
		wantCode(t, "first dispose", m.Dispose(t.Context(), "ws", r.SandboxID), api.IncompleteCleanup)
		ended := make(chan error, 1)
		go func() { ended <- m.Dispose(context.Background(), "ws", r.SandboxID) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if m.Shutdown(ctx) == nil {
			t.Error("the shutdown says nothing of what it left")
		}
		select {
		case err := <-ended:
			wantCode(t, "dispose across the end", err, api.IncompleteCleanup)
		case <-time.After(time.Hour):
			t.Fatal("a dispose waits for a retry that never comes")
		}
	})
}

// TestInvocationsAreDroppedInBatches: the rows of a sandbox go, however many they are, without a look
// at those of others; and when it is interrupted the next attempt goes on.
func TestInvocationsAreDroppedInBatches(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		const others = bucketInvocations + "|sb-0/i"
		w.mu.Lock()
		w.rows[others], w.rows[bucketInvocations+"|"+sb+"0/i"] = []byte("d"), []byte("d")
		for i := range 2*dropBatch + 1 {
			w.rows[fmt.Sprintf("%s|%s/i%d", bucketInvocations, sb, i)] = []byte("d done")
		}
		w.mu.Unlock()
		batches := 0
		w.setFail(func(op, bucket string) error {
			if op == "store" && bucket == bucketInvocations {
				if batches++; batches == 2 {
					return errors.New("busy")
				}
			}
			return nil
		})
		before := w.count("each")
		wantCode(t, "interrupted", m.Dispose(t.Context(), "ws", sb), api.IncompleteCleanup)
		if err := m.Dispose(t.Context(), "ws", sb); err != nil {
			t.Fatal(err)
		}
		if batches != 4 || w.count("each") != before {
			t.Errorf("%d batches, and %d times all rows", batches, w.count("each")-before)
		}
		w.mu.Lock()
		for k := range w.rows {
			if strings.HasPrefix(k, bucketInvocations+"|"+sb+"/") {
				t.Fatalf("row %s is left", k)
			}
		}
		if w.rows[others] == nil || w.rows[bucketInvocations+"|"+sb+"0/i"] == nil {
			t.Error("a row of another sandbox is gone")
		}
		w.rows = map[string][]byte{} // nobody owns what this test has put there
		w.mu.Unlock()
	})
}
