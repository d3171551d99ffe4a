// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// A look runs no command, takes a bounded time whatever the supervisor does, goes on when its caller has gone,
// and never ends the sandbox.
func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name string
		look func(ctx context.Context) error
		want error
		took time.Duration
	}{
		{"looked up", func(context.Context) error { return nil }, nil, 0},
		{"not looked up", func(context.Context) error { return syscall.EACCES }, syscall.EACCES, 0},
		{"busy", func(context.Context) error { return control.ErrBusy }, control.ErrBusy, 0},
		{"lost", func(context.Context) error { return control.ErrLost }, control.ErrLost, 0},
		{"no answer", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, context.DeadlineExceeded, lookWithin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				var asked [][]byte
				w.look = func(ctx context.Context, paths [][]byte) error {
					asked = paths
					return tt.look(ctx)
				}
				gone, leave := context.WithCancel(t.Context())
				leave()
				began := time.Now()
				err := m.Look(gone, "ws", r.SandboxID, []byte("a/b"), []byte("c"))
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
					t.Errorf("look: %v", err)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
				if len(asked) != 2 || !bytes.Equal(asked[0], []byte("a/b")) || !bytes.Equal(asked[1], []byte("c")) {
					t.Errorf("asked for %q", asked)
				}
				synctest.Wait()
				if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "ready" {
					t.Errorf("get gave %+v, %v", st, err)
				}
				if n := w.count("exec"); n != 0 {
					t.Errorf("%d commands ran", n)
				}
				if _, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "digest"); err != nil {
					t.Errorf("a command after it: %v", err)
				}
			})
		})
	}
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		wantCode(t, "another workspace's", m.Look(t.Context(), "other", r.SandboxID, []byte("a")), api.SandboxWorkspaceMismatch)
		if w.count("look") != 0 {
			t.Error("something was looked up in a sandbox of another workspace")
		}
	})
}
