// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// Faults that the model found, each by itself.

// A shutdown that leaves a name under which a container may still appear says so, after a moment in
// which it could have.
func TestShutdownNamesATombstone(t *testing.T) {
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			m := w.boot(Limits{})
			if err := m.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			var name string
			w.setFail(func(op, subject string) error {
				if op == "create" {
					name = subject
					return context.DeadlineExceeded
				}
				return nil
			})
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			wantCode(t, "create", err, api.EngineFailed)
			w.setFail(nil)
			if comes {
				time.AfterFunc(2*time.Second, func() { w.appear(name) })
			}
			began := time.Now()
			if err := m.Shutdown(t.Context()); (err == nil) != comes || !comes && !errors.Is(err, errTombstone) {
				t.Errorf("container comes: %v; the shutdown says %v", comes, err)
			}
			if took := time.Since(began); took > tombstonesWithin+haltWithin {
				t.Errorf("the shutdown took %s", took)
			}
			if left := w.names(); len(left) > 0 {
				t.Errorf("containers %v are left", left)
			}
		})
	}
}

// The engine starts again between the look at it and the create, which the new one takes: that the old
// one has ended proves nothing. The container that comes late is ours.
func TestCreateIsTakenByALaterEngine(t *testing.T) {
	for name, crash := range map[string]bool{"the same worker": false, "a later worker": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.instance = "boot/1"
				m := w.boot(Limits{})
				if err := m.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				var container string
				w.setFail(func(op, subject string) error {
					if op == "create" {
						container = subject
						w.mu.Lock()
						w.instance = "boot/2"
						w.mu.Unlock()
						return context.DeadlineExceeded
					}
					return nil
				})
				_, err := m.Create(t.Context(), request("lease", "ws"), "d")
				wantCode(t, "create", err, api.EngineFailed)
				w.setFail(nil)
				if crash {
					m.Shutdown(t.Context())
					m = w.boot(Limits{})
					if err := m.Reconcile(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute)
				if !w.recorded(container) {
					t.Error("the name is forgotten, and the engine that took its create lives")
				}
				w.appear(container)
				time.Sleep(10 * time.Second)
				if err := m.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				w.wantClean()
			})
		})
	}
}

// A create that is told to stop waits for the engine's answer: a container that is known is removed, and
// no name has to be watched for ever.
func TestDisposeDuringCreateLeavesNoTombstone(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		w.pause["create"] = 3 * time.Second
		ended := make(chan error, 1)
		go func() {
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			ended <- err
		}()
		time.Sleep(time.Second)
		m.mu.Lock()
		id := m.leases["lease"].rec.SandboxID
		m.mu.Unlock()
		if err := m.Dispose(t.Context(), "ws", id); err != nil {
			t.Errorf("dispose: %v", err)
		}
		if err := <-ended; err == nil {
			t.Error("the create succeeded")
		}
		if w.count("start") != 0 {
			t.Error("the container was started")
		}
		w.wantClean()
		w.pause = map[string]time.Duration{}
		mustCreate(t, m, "lease", "ws")
	})
}

// What runs in a sandbox ends when its retirement begins, however slow the store is.
func TestCommandsEndBeforeTheStoreAnswers(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
			<-ctx.Done()
			return control.Outcome{}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ended atomic.Int64
		go func() {
			m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
			ended.Store(time.Now().UnixNano())
		}()
		synctest.Wait()
		began := time.Now()
		w.mu.Lock()
		w.pause["store"] = 4 * time.Second
		w.mu.Unlock()
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Error(err)
		}
		if took := time.Duration(ended.Load() - began.UnixNano()); took > time.Second {
			t.Errorf("the command ended %s after the retirement began", took)
		}
		w.mu.Lock()
		clear(w.pause)
		w.mu.Unlock()
	})
}
