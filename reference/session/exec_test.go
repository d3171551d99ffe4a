// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := m.Exec(ctx, "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "cancelled", err, api.ExecAborted)
		_, err = m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d")
		wantCode(t, "repetition", err, api.ExecAborted)
	})
}

func TestUnprovenCleanupEndsTheSandbox(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) { return control.Outcome{}, nil }
		if out, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d"); err != nil || out.CleanupProven {
			t.Errorf("exec gave %+v, %v", out, err)
		}
		synctest.Wait()
		st, err := m.Get(t.Context(), "ws", r.SandboxID)
		if err != nil || st.State != "gone" || st.Reason != "cleanup" {
			t.Errorf("get gave %+v, %v", st, err)
		}
	})
}
