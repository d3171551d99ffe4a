// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

func TestExecRunsOnce(t *testing.T) {
	bubble(t, Limits{Outcomes: 2, ExecsPerSandbox: 2}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		gate := make(chan struct{})
		w.exec = func(_ context.Context, s control.Spawn) (control.Outcome, error) {
			<-gate
			return control.Outcome{Stdout: []byte(s.ID), CleanupProven: true}, nil
		}
		var wg sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			wg.Go(func() {
				if _, err := m.Exec(t.Context(), "ws", r.SandboxID, command(id), "d"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		run := func(id, digest string) (api.ExecResult, error) {
			return m.Exec(t.Context(), "ws", r.SandboxID, command(id), digest)
		}
		_, err := run("a", "d")
		wantCode(t, "repetition of a running one", err, api.ExecInProgress)
		_, err = run("a", "other")
		wantCode(t, "another request under its id", err, api.IdempotencyConflict)
		_, err = run("c", "d")
		wantCode(t, "one too many", err, api.ExecConcurrencyExhausted)
		close(gate)
		wg.Wait()
		if out, err := run("a", "d"); err != nil || string(out.Stdout) != "a" {
			t.Errorf("stored outcome is %q, %v", out.Stdout, err)
		}
		for _, id := range []string{"c", "d"} { // push a and b out
			if _, err := run(id, "d"); err != nil {
				t.Error(err)
			}
		}
		_, err = run("a", "d")
		wantCode(t, "an aged outcome", err, api.OutcomeUnknown)
		_, err = run("a", "other")
		wantCode(t, "another request under an aged id", err, api.IdempotencyConflict)
		if n := w.count("exec"); n != 4 {
			t.Errorf("%d commands ran, want 4", n)
		}
		wantCode(t, "exec through another workspace", func() error {
			_, err := m.Exec(t.Context(), "other", r.SandboxID, command("x"), "d")
			return err
		}(), api.SandboxWorkspaceMismatch)
		wantCode(t, "exec in an unknown sandbox", func() error {
			_, err := m.Exec(t.Context(), "ws", "sb-unknown", command("x"), "d")
			return err
		}(), api.SandboxNotFound)
	})
}

func TestExecOutcomesAreMapped(t *testing.T) {
	code := 0
	for _, tt := range []struct {
		name string
		out  control.Outcome
		err  error
		want api.Code
	}{
		{"exit", control.Outcome{CleanupProven: true}, nil, ""},
		{"no such directory", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENOENT}, api.PathNotFound},
		{"no process", control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}, api.ExecAborted},
		{"unreadable directory", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.EACCES}, api.RequestInvalid},
		{"long directory name", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENAMETOOLONG}, api.RequestInvalid},
		{"symlink loop", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ELOOP}, api.PathUnsafe},
		{"refused frame", control.Outcome{}, control.ErrFrame, api.RequestInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(context.Context, control.Spawn) (control.Outcome, error) { return tt.out, tt.err }
				for range 2 { // an outcome is terminal: the second is the stored one
					got, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
					wantCode(t, "exec", err, tt.want)
					if tt.want == "" && (got.ExitCode == nil || *got.ExitCode != code || got.InvocationID != "i") {
						t.Errorf("result is %+v", got)
					}
				}
				if w.count("exec") != 1 {
					t.Errorf("%d commands ran", w.count("exec"))
				}
			})
		})
	}
}

// TestOutcomeIsNotRetryable: whatever code the end of a command has, its id answers it again and again, so none
// says that the same request may succeed later, but that of a removal that goes on.
func TestOutcomeIsNotRetryable(t *testing.T) {
	for _, code := range api.Codes() {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
					return control.Outcome{CleanupProven: true}, api.E(code, nil)
				}
				var first *api.Error
				_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
				if !errors.As(err, &first) || first.Code.Retryable() && first.Code != api.IncompleteCleanup {
					t.Errorf("exec: %v", err)
					return
				}
				_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
				wantCode(t, "repetition", err, first.Code)
				if n := w.count("exec"); n != 1 {
					t.Errorf("%d commands ran", n)
				}
			})
		})
	}
}

func TestBusySupervisorFreesTheID(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, control.ErrBusy
		}
		_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "exec", err, api.ExecConcurrencyExhausted)
		w.exec = nil
		if out, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d"); err != nil || string(out.Stdout) != "i" {
			t.Errorf("the second try gave %+v, %v", out, err)
		}
	})
}

func TestCancelledExecIsAborted(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
			<-ctx.Done()
			return control.Outcome{Signal: "SIGKILL", CleanupProven: true}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		defer cancel()
		_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "cancelled", err, api.ExecAborted)
		_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "repetition", err, api.ExecAborted)
	})
}

// TestUnprovenCleanupEndsTheSandbox: also when the caller has gone or the deadline of the API
// has passed, so that the outcome comes with an error, and when there is no outcome at all.
func TestUnprovenCleanupEndsTheSandbox(t *testing.T) {
	type end func(ctx context.Context) (control.Outcome, error)
	left := func(o control.Outcome) end {
		return func(ctx context.Context) (control.Outcome, error) {
			<-ctx.Done()
			return o, ctx.Err()
		}
	}
	for _, tt := range []struct {
		name   string
		run    end
		want   api.Code
		reason string // "" for a sandbox that stays
	}{
		{"ended by itself", func(context.Context) (control.Outcome, error) { return control.Outcome{}, nil }, "", "cleanup"},
		{"cancelled", left(control.Outcome{Signal: "SIGKILL"}), api.ExecAborted, "cleanup"},
		{"cancelled without an outcome", left(control.Outcome{}), api.ExecAborted, "cleanup"},
		{"cancelled and proven", left(control.Outcome{Signal: "SIGKILL", CleanupProven: true}), api.ExecAborted, ""},
		{"unknown failure", func(context.Context) (control.Outcome, error) { return control.Outcome{}, errors.New("broken") }, api.ExecAborted, "cleanup"},
		{"not started", func(context.Context) (control.Outcome, error) {
			return control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}
		}, api.ExecAborted, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) { return tt.run(ctx) }
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				defer cancel()
				_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
				wantCode(t, "exec", err, tt.want)
				synctest.Wait()
				wantState := "gone"
				if tt.reason == "" {
					wantState = "ready"
				}
				st, err := m.Get(t.Context(), "ws", r.SandboxID)
				if err != nil || st.State != wantState || st.Reason != tt.reason {
					t.Errorf("get gave %+v, %v", st, err)
				}
			})
		})
	}
}

// TestEndBeforeTheProcess: the supervisor says that a command was cancelled before it had a process. That is an
// outcome, of which none is retryable, whether the time was over or the caller left.
func TestEndBeforeTheProcess(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"its time was over": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
		"its caller left": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, leave := context.WithCancel(ctx)
			time.AfterFunc(time.Second, leave)
			return ctx, leave
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					<-ctx.Done()
					return control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.ECANCELED}
				}
				ctx, cancel := end(t.Context())
				defer cancel()
				_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
				wantCode(t, "exec", err, api.ExecAborted)
				synctest.Wait()
				if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "ready" {
					t.Errorf("get gave %+v, %v", st, err)
				}
			})
		})
	}
}

// TestCallerThatLeftBeforeTheStartCostsNothing: nothing ran, so the id is free and the sandbox stays.
func TestCallerThatLeftBeforeTheStartCostsNothing(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		ctx, cancel := context.WithCancel(t.Context())
		w.setFail(func(op, subject string) error {
			if op == "store" && subject == bucketInvocations {
				cancel()
			}
			return nil
		})
		_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "exec", err, api.ExecAborted)
		w.setFail(nil)
		if out, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d"); err != nil || string(out.Stdout) != "i" {
			t.Errorf("the second try gave %+v, %v", out, err)
		}
	})
}

// TestLostKeeperEndsTheSandbox: the bridge lives on, but nobody watches what the keeper left.
func TestLostKeeperEndsTheSandbox(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		w.pause["remove"] = 10 * time.Second
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, fmt.Errorf("%w: keeper died", control.ErrLost)
		}
		began := time.Now()
		_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "exec", err, api.SandboxDied)
		if took := time.Since(began); took > 0 {
			t.Errorf("typed after %v", took)
		}
		st, err := m.Get(t.Context(), "ws", r.SandboxID)
		if err != nil || st.State != "retiring" || st.Reason != "died" {
			t.Errorf("get gave %+v, %v", st, err)
		}
		_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("j"), "d")
		wantCode(t, "later exec", err, api.SandboxDied)
	})
}
