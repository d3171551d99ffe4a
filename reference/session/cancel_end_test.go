// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// TestCancelAfterTheEnd gives what the exec call got, again and again, and changes nothing.
func TestCancelAfterTheEnd(t *testing.T) {
	bubble(t, Limits{Outcomes: 2}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		if _, err := m.Exec(t.Context(), "ws", sb, command("good"), "d"); err != nil {
			t.Fatal(err)
		}
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENOENT}
		}
		_, err := m.Exec(t.Context(), "ws", sb, command("bad"), "d")
		wantCode(t, "exec", err, api.PathNotFound)
		for range 2 {
			can, err := m.Cancel(t.Context(), "ws", sb, "good")
			wantCancelled(t, "cancel of the good one", can, err, "")
			if can.Result != nil && (string(can.Result.Stdout) != "good" || *can.Result.ExitCode != 0) {
				t.Errorf("result %+v", can.Result)
			}
			can, err = m.Cancel(t.Context(), "ws", sb, "bad")
			wantCancelled(t, "cancel of the bad one", can, err, api.PathNotFound)
		}
		w.exec = nil
		if out, err := m.Exec(t.Context(), "ws", sb, command("good"), "d"); err != nil || string(out.Stdout) != "good" {
			t.Errorf("a late cancel changed the outcome: %+v, %v", out, err)
		}
		if _, err := m.Exec(t.Context(), "ws", sb, command("third"), "d"); err != nil { // pushes good out
			t.Fatal(err)
		}
		_, err = m.Cancel(t.Context(), "ws", sb, "good")
		wantCode(t, "cancel of an aged one", err, api.OutcomeUnknown)
		_, err = m.Cancel(t.Context(), "ws", sb, "never")
		wantCode(t, "cancel of an unknown one", err, api.OutcomeUnknown)
		_, err = m.Cancel(t.Context(), "other", sb, "bad")
		wantCode(t, "cancel through another workspace", err, api.SandboxWorkspaceMismatch)
		_, err = m.Cancel(t.Context(), "ws", "sb-unknown", "bad")
		wantCode(t, "cancel in an unknown sandbox", err, api.SandboxNotFound)
		wantIdle(t, m, sb)
	})
}

// TestCancelAndRetirement: a cancel neither holds a retirement up nor is lost in it.
func TestCancelAndRetirement(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(ctx context.Context, m *Manager, sb string) error
		want api.Code
	}{
		{"dispose", func(ctx context.Context, m *Manager, sb string) error { return m.Dispose(ctx, "ws", sb) }, api.SandboxDisposed},
		{"shutdown", func(ctx context.Context, m *Manager, _ string) error { return m.Shutdown(ctx) }, api.SandboxDisposed},
		{"hard expiry", func(context.Context, *Manager, string) error { time.Sleep(10 * time.Minute); return nil }, api.SandboxExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				stuck, leave := context.WithCancel(context.Background())
				defer leave()
				w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
					<-stuck.Done() // it ends with its bridge only
					return control.Outcome{}, control.ErrLost
				}
				exec := goExec(t.Context(), m, sb, "i")
				synctest.Wait()
				cancel := goCancel(t.Context(), m, sb, "i")
				synctest.Wait()
				if exec.over() || cancel.over() {
					t.Fatal("ended too early")
				}
				if err := tt.end(t.Context(), m, sb); err != nil {
					t.Error(err)
				}
				<-exec.done
				<-cancel.done
				wantCode(t, "exec", exec.err, tt.want)
				wantCancelled(t, "cancel", cancel.can, cancel.err, tt.want)
				synctest.Wait()
				_, err := m.Cancel(t.Context(), "ws", sb, "i")
				wantCode(t, "cancel afterwards", err, tt.want)
				if st, err := m.Get(t.Context(), "ws", sb); err != nil || st.State != "gone" {
					t.Errorf("get gave %+v, %v", st, err)
				}
				wantIdle(t, m, sb)
			})
		})
	}
	t.Run("while retiring", func(t *testing.T) {
		bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
			sb := mustCreate(t, m, "lease", "ws").SandboxID
			if _, err := m.Exec(t.Context(), "ws", sb, command("i"), "d"); err != nil {
				t.Fatal(err)
			}
			w.setFail(failing("remove", errors.New("busy")))
			wantCode(t, "dispose", m.Dispose(t.Context(), "ws", sb), api.IncompleteCleanup)
			_, err := m.Cancel(t.Context(), "ws", sb, "i")
			wantCode(t, "cancel", err, api.SandboxDisposed)
			_, err = m.Renew(t.Context(), "ws", sb)
			wantCode(t, "renew", err, api.SandboxDisposed)
		})
	})
}

// TestCancelThatCannotWait: its own deadline ends the wait, not the cancel.
func TestCancelThatCannotWait(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		gate := make(chan struct{})
		w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
			out, err := untilCancelled(ctx, s)
			<-gate
			return out, err
		}
		exec := goExec(t.Context(), m, sb, "i")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := m.Cancel(ctx, "ws", sb, "i")
		wantCode(t, "cancel", err, api.Timeout)
		close(gate)
		<-exec.done
		wantCode(t, "exec", exec.err, api.ExecAborted)
		can, err := m.Cancel(t.Context(), "ws", sb, "i")
		wantCancelled(t, "later cancel", can, err, api.ExecAborted)
		wantIdle(t, m, sb)
	})
}

// TestCancelAndRenewAreUses: each begins the idle time (60 s) again, and neither moves the hard expiry.
func TestCancelAndRenewAreUses(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		made := time.Now()
		for i := range 11 { // 550 s of 600
			if i%2 == 0 {
				_, err := m.Cancel(t.Context(), "ws", sb, "never")
				wantCode(t, "cancel", err, api.OutcomeUnknown)
			} else {
				got, err := m.Renew(t.Context(), "ws", sb)
				if err != nil {
					t.Fatalf("after %v: %v", time.Since(made), err)
				}
				want := time.Now().Add(time.Minute)
				if hard := made.Add(10 * time.Minute); want.After(hard) {
					want = hard
				}
				if got.SandboxID != sb || got.ExpiresAt != wire(want) {
					t.Errorf("renew gave %+v, want %s", got, wire(want))
				}
			}
			time.Sleep(50 * time.Second)
		}
		last, err := m.Renew(t.Context(), "ws", sb)
		if err != nil || last.ExpiresAt != wire(made.Add(10*time.Minute)) || !strings.HasSuffix(last.ExpiresAt, "Z") {
			t.Errorf("renew before the hard expiry gave %+v, %v", last, err)
		}
		time.Sleep(51 * time.Second)
		_, err = m.Renew(t.Context(), "ws", sb)
		wantCode(t, "renew after the hard expiry", err, api.SandboxExpired)
		_, err = m.Renew(t.Context(), "other", sb)
		wantCode(t, "renew through another workspace", err, api.SandboxWorkspaceMismatch)
		_, err = m.Renew(t.Context(), "ws", "sb-unknown")
		wantCode(t, "renew of an unknown sandbox", err, api.SandboxNotFound)
	})
}
