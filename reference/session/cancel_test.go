// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// ending is what a call that runs beside the test came to.
type ending struct {
	done chan struct{}
	res  api.ExecResult
	can  api.CancelResponse
	err  error
}

func (e *ending) over() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func goExec(ctx context.Context, m *Manager, sb, id string) *ending {
	e := &ending{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.res, e.err = m.Exec(ctx, "ws", sb, command(id), "d")
	}()
	return e
}

func goCancel(ctx context.Context, m *Manager, sb, id string) *ending {
	e := &ending{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.can, e.err = m.Cancel(ctx, "ws", sb, id)
	}()
	return e
}

// wantCancelled asserts that a cancel answered an outcome of that code, "" for a result.
func wantCancelled(t *testing.T, what string, can api.CancelResponse, err error, want api.Code) {
	t.Helper()
	switch {
	case err != nil:
		t.Errorf("%s: %v, want the outcome %s", what, err, want)
	case want == "":
		if can.Result == nil || can.Error != nil {
			t.Errorf("%s: %+v, want a result", what, can)
		}
	case can.Result != nil || can.Error == nil || can.Error.Code != want || can.Error.Message != want.Message():
		t.Errorf("%s: %+v, want the outcome %s", what, can, want)
	}
}

// wantIdle asserts that no slot of the sandbox or of the manager is taken.
func wantIdle(t *testing.T, m *Manager, sb string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.execs != 0 {
		t.Errorf("%d slots of the worker are taken", m.execs)
	}
	if s, ok := m.live[sb]; ok && (s.execs != 0 || s.active != 0) {
		t.Errorf("%d slots of the sandbox are taken, %d operations in progress", s.execs, s.active)
	}
}

// untilCancelled is a command that ends when it is told to, with its cleanup proven.
func untilCancelled(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
	<-ctx.Done()
	return control.Outcome{Signal: "SIGKILL", CleanupProven: true}, ctx.Err()
}

// atStore stops the n-th write of an invocation's row (1 is the claim of the first) until gate is
// closed, then lets it end with fail.
func atStore(w *world, n int32, gate <-chan struct{}, fail error) {
	var count atomic.Int32
	w.setFail(func(op, subject string) error {
		if op == "store" && subject == bucketInvocations && count.Add(1) == n {
			<-gate
			return fail
		}
		return nil
	})
}

// TestCancelWhileTheClaimIsStored: whoever comes first, the cancelled id stays taken and nothing
// ever runs under it.
func TestCancelWhileTheClaimIsStored(t *testing.T) {
	for _, tt := range []struct {
		name  string
		order []string
	}{
		{"cancel", []string{"cancel"}},
		{"twice", []string{"cancel", "cancel"}},
		{"cancel, then the caller leaves", []string{"cancel", "leave"}},
		{"the caller leaves, then cancel", []string{"leave", "cancel"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				gate := make(chan struct{})
				atStore(w, 1, gate, nil)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				exec := goExec(ctx, m, sb, "i")
				synctest.Wait()
				var cancels []*ending
				for _, step := range tt.order {
					if step == "leave" {
						leave()
					} else {
						cancels = append(cancels, goCancel(t.Context(), m, sb, "i"))
					}
					synctest.Wait()
				}
				for _, c := range append(cancels, exec) {
					if c.over() {
						t.Fatal("a call ended before the claim was durable")
					}
				}
				close(gate)
				<-exec.done
				wantCode(t, "exec", exec.err, api.ExecAborted)
				for _, c := range cancels {
					<-c.done
					wantCancelled(t, "cancel", c.can, c.err, api.ExecAborted)
				}
				_, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
				wantCode(t, "repetition", err, api.ExecAborted)
				_, err = m.Exec(t.Context(), "ws", sb, command("i"), "other")
				wantCode(t, "another request", err, api.IdempotencyConflict)
				can, err := m.Cancel(t.Context(), "ws", sb, "i")
				wantCancelled(t, "repeated cancel", can, err, api.ExecAborted)
				if n := w.count("exec"); n != 0 {
					t.Errorf("%d commands ran", n)
				}
				wantIdle(t, m, sb)
				if st, err := m.Get(t.Context(), "ws", sb); err != nil || st.State != "ready" {
					t.Errorf("get gave %+v, %v", st, err)
				}
			})
		})
	}
}

// TestCancelOfAClaimThatFails: the id was never taken, so there is nothing to be told of it.
func TestCancelOfAClaimThatFails(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		gate := make(chan struct{})
		atStore(w, 1, gate, errors.New("full"))
		exec := goExec(t.Context(), m, sb, "i")
		synctest.Wait()
		cancel := goCancel(t.Context(), m, sb, "i")
		synctest.Wait()
		close(gate)
		<-exec.done
		<-cancel.done
		wantCode(t, "exec", exec.err, api.Unavailable)
		wantCode(t, "cancel", cancel.err, api.OutcomeUnknown)
		wantIdle(t, m, sb)
		if out, err := m.Exec(t.Context(), "ws", sb, command("i"), "d"); err != nil || string(out.Stdout) != "i" {
			t.Errorf("the second try gave %+v, %v", out, err)
		}
	})
}

// TestCancelWhileTheIDIsFreed: the caller left in time, and the row is on its way out. The cancel
// came too late to keep it, and says so; the id is usable.
func TestCancelWhileTheIDIsFreed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fail  error // of the removal of the row
		again api.Code
	}{
		{"freed", nil, ""},
		{"not freed", errors.New("full"), api.OutcomeUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				ctx, leave := context.WithCancel(t.Context())
				gate := make(chan struct{})
				var count atomic.Int32
				w.setFail(func(op, subject string) error {
					if op != "store" || subject != bucketInvocations {
						return nil
					}
					switch count.Add(1) {
					case 1:
						leave()
					case 2:
						<-gate
						return tt.fail
					}
					return nil
				})
				exec := goExec(ctx, m, sb, "i")
				synctest.Wait()
				cancel := goCancel(t.Context(), m, sb, "i")
				synctest.Wait()
				if exec.over() || cancel.over() {
					t.Fatal("a call ended before the row was gone")
				}
				close(gate)
				<-exec.done
				<-cancel.done
				if tt.fail == nil {
					wantCode(t, "exec", exec.err, api.ExecAborted)
					wantCode(t, "cancel", cancel.err, api.OutcomeUnknown)
				} else {
					wantCode(t, "exec", exec.err, api.OutcomeUnknown)
					wantCancelled(t, "cancel", cancel.can, cancel.err, api.OutcomeUnknown)
				}
				wantIdle(t, m, sb)
				_, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
				wantCode(t, "the id afterwards", err, tt.again)
			})
		})
	}
}

// TestCancelBeforeTheSpawn: the claim is durable, and control has not begun.
func TestCancelBeforeTheSpawn(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"not sent", context.Canceled},
		{"supervisor busy", control.ErrBusy},
		{"no process", &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				gate := make(chan struct{})
				w.setFail(func(op, _ string) error {
					if op == "exec" {
						<-gate
					}
					return nil
				})
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					if ctx.Err() == nil {
						t.Error("the command was not told to end")
					}
					return control.Outcome{CleanupProven: true}, tt.err
				}
				exec := goExec(t.Context(), m, sb, "i")
				synctest.Wait()
				cancel := goCancel(t.Context(), m, sb, "i")
				synctest.Wait()
				close(gate)
				<-exec.done
				<-cancel.done
				wantCode(t, "exec", exec.err, api.ExecAborted)
				wantCancelled(t, "cancel", cancel.can, cancel.err, api.ExecAborted)
				_, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
				wantCode(t, "repetition", err, api.ExecAborted)
				if n := w.count("exec"); n != 1 {
					t.Errorf("control was asked %d times", n)
				}
				wantIdle(t, m, sb)
			})
		})
	}
}

// TestCancelWhileRunning: every cancel waits for the proven end, and all get the same.
func TestCancelWhileRunning(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cancels int
		leave   string // when the caller leaves: "", "before", "after" the cancels
		proven  bool
		state   string
	}{
		{"once", 1, "", true, "ready"},
		{"ten times", 10, "", true, "ready"},
		{"the caller left before", 2, "before", true, "ready"},
		{"the caller leaves after", 2, "after", true, "ready"},
		{"cleanup is not proven", 1, "", false, "gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				gate := make(chan struct{})
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					<-ctx.Done()
					<-gate
					return control.Outcome{Signal: "SIGKILL", CleanupProven: tt.proven}, ctx.Err()
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				exec := goExec(ctx, m, sb, "i")
				synctest.Wait()
				if tt.leave == "before" {
					leave()
					synctest.Wait()
				}
				var cancels []*ending
				for range tt.cancels {
					cancels = append(cancels, goCancel(t.Context(), m, sb, "i"))
				}
				synctest.Wait()
				if tt.leave == "after" {
					leave()
					synctest.Wait()
				}
				for _, c := range append(cancels, exec) {
					if c.over() {
						t.Fatal("a call ended before the command had")
					}
				}
				close(gate)
				<-exec.done
				wantCode(t, "exec", exec.err, api.ExecAborted)
				for _, c := range cancels {
					<-c.done
					wantCancelled(t, "cancel", c.can, c.err, api.ExecAborted)
				}
				wantIdle(t, m, sb)
				if st, err := m.Get(t.Context(), "ws", sb); err != nil || st.State != tt.state {
					t.Errorf("get gave %+v, %v", st, err)
				}
				if tt.state == "ready" {
					_, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
					wantCode(t, "repetition", err, api.ExecAborted)
				}
			})
		})
	}
}
