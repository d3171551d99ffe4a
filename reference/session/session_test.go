// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// bubble runs f over a fresh world and a reconciled manager with virtual time, and proves
// at its end that a shutdown leaves nothing.
func bubble(t *testing.T, lim Limits, f func(t *testing.T, w *world, m *Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(lim)
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		f(t, w, m)
		w.setFail(nil)
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.wantClean()
	})
}

func request(lease, ws string) api.CreateRequest {
	return api.CreateRequest{
		ProtocolVersion: api.ProtocolVersion, WorkspaceID: ws, SessionID: "s", ClientLeaseID: lease,
		IdleTimeoutMs: 60_000, HardTimeoutMs: 600_000, Image: goodImage,
		Expected: api.Expected{CohortID: "cohort", PinsDigest: "pins"}, Resources: limits,
	}
}

func mustCreate(t *testing.T, m *Manager, lease, ws string) api.Receipt {
	t.Helper()
	r, err := m.Create(t.Context(), request(lease, ws), "d")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func command(id string) api.ExecRequest {
	return api.ExecRequest{InvocationID: id, Argv: []string{"x"}, TimeoutMs: 1000, MaxOutputBytes: 100}
}

func wantCode(t *testing.T, what string, err error, want api.Code) {
	t.Helper()
	var e *api.Error
	if want == "" && err == nil {
		return
	}
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("%s: error is %v, want %s", what, err, want)
	}
}

func TestLeaseEndsWhenIdleOrHard(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "idle", "ws")
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			time.Sleep(2 * time.Minute) // longer than the idle time
			return control.Outcome{CleanupProven: true}, nil
		}
		if _, err := m.Exec(t.Context(), "ws", r.SandboxID, command("long"), "d"); err != nil {
			t.Errorf("a busy sandbox was taken for idle: %v", err)
		}
		time.Sleep(59 * time.Second)
		_, _, release, err := m.Tree(t.Context(), "ws", r.SandboxID)
		if err != nil {
			t.Fatalf("the sandbox ended early: %v", err)
		}
		release()
		release() // a second call does nothing
		time.Sleep(59 * time.Second)
		if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "ready" {
			t.Fatalf("a use did not move the lease: %+v, %v", st, err)
		}
		time.Sleep(2 * time.Second)
		if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "gone" || st.Reason != "idle" {
			t.Errorf("get gave %+v, %v", st, err)
		}
		_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("late"), "d")
		wantCode(t, "exec after the lease", err, api.SandboxExpired)

		w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
			<-ctx.Done()
			return control.Outcome{}, ctx.Err()
		}
		r = mustCreate(t, m, "hard", "ws")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		_, err = m.Exec(ctx, "ws", r.SandboxID, command("for ever"), "d")
		wantCode(t, "exec across the hard expiry", err, api.SandboxExpired)
		if took := time.Since(began); took < 599*time.Second || took > 601*time.Second {
			t.Errorf("the hard expiry came after %v, want 10 min", took)
		}
	})
}

// TestRetirementEndsFileOperations: an operation hears of the end, and why, when it begins.
func TestRetirementEndsFileOperations(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(ctx context.Context, m *Manager, sb string) error
		want api.Code
	}{
		{"dispose", func(ctx context.Context, m *Manager, sb string) error { return m.Dispose(ctx, "ws", sb) }, api.SandboxDisposed},
		{"hard expiry", func(context.Context, *Manager, string) error { time.Sleep(10 * time.Minute); return nil }, api.SandboxExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				ctx, _, release, err := m.Tree(t.Context(), "ws", r.SandboxID)
				if err != nil {
					t.Fatal(err)
				}
				told := make(chan bool, 1)
				go func() {
					defer release()
					select {
					case <-ctx.Done():
						told <- true
					case <-time.After(10*time.Minute + time.Second):
						told <- false
					}
				}()
				if err := tt.end(t.Context(), m, r.SandboxID); err != nil {
					t.Error(err)
				}
				if !<-told {
					t.Error("the operation was not told")
				}
				wantCode(t, "cause", context.Cause(ctx), tt.want)
				synctest.Wait()
				if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "gone" {
					t.Errorf("the operation held the sandbox: %+v, %v", st, err)
				}
			})
		})
	}
}
