// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// A look is a working directory that cannot be entered: it runs nothing, uses up no id, and goes on
// when its caller has gone. What it does not prove to have ended ends the sandbox, as for any command.
func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name    string
		out     control.Outcome
		err     error
		ok, end bool // what is told, and whether the sandbox ends
	}{
		{"nobody's", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENOENT}, true, false},
		{"a file's", control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENOTDIR}, true, false},
		{"a folder's", control.Outcome{ExitCode: 1, CleanupProven: true}, nil, true, false},
		{"no process", control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}, false, false},
		{"busy", control.Outcome{}, control.ErrBusy, false, false},
		{"lost", control.Outcome{}, control.ErrLost, false, true},
		{"unproven", control.Outcome{}, nil, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				var asked control.Spawn
				w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
					asked = s
					return tt.out, errors.Join(tt.err, ctx.Err())
				}
				gone, leave := context.WithCancel(t.Context())
				leave()
				if err := m.Look(gone, "ws", r.SandboxID, []byte("a/b")); (err == nil) != tt.ok {
					t.Errorf("look: %v", err)
				}
				if asked.Cwd != "a/b" || len(asked.Argv) != 1 {
					t.Errorf("asked for %+v", asked)
				}
				synctest.Wait()
				want := map[bool]string{false: "ready", true: "gone"}[tt.end]
				if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != want {
					t.Errorf("get gave %+v, %v; want %s", st, err, want)
				}
			})
		})
	}
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		wantCode(t, "another workspace's", m.Look(t.Context(), "other", r.SandboxID, []byte("a")), api.SandboxWorkspaceMismatch)
		if w.count("exec") != 0 {
			t.Error("something ran in a sandbox of another workspace")
		}
	})
}
