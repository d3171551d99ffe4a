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
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// TestDeathIsNoticedOnEveryPath: whatever is under way when a sandbox dies, and when nothing is, who waits and
// who comes later is told within a second that it died, and everything is removed; secretBubble and
// bubble look at the world and the leases at the end.
func TestDeathIsNoticedOnEveryPath(t *testing.T) {
	killed := engine.Death{ExitCode: 137}
	// hang is a command that only the sandbox's end ends.
	hang := func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
		<-ctx.Done()
		return control.Outcome{}, ctx.Err()
	}
	// dies kills the sandbox once everybody waits, and returns how long the answer then took.
	dies := func(w *world, wait func() error) (time.Duration, error) {
		answer := make(chan error, 1)
		go func() { answer <- wait() }()
		synctest.Wait()
		began := time.Now()
		w.die(killed)
		err := <-answer
		return time.Since(began), err
	}
	for _, tt := range []struct {
		name string
		path func(t *testing.T, w *world, m *Manager, v *vault, sb string) (time.Duration, error)
	}{
		{"idle", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			began := time.Now()
			w.die(killed)
			synctest.Wait()
			_, _, err := m.begin("ws", sb)
			return time.Since(began), err
		}},
		{"during a command", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			w.exec = hang
			return dies(w, func() error { _, err := m.Exec(t.Context(), "ws", sb, command("one"), "d"); return err })
		}},
		{"during a file operation", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			ctx, _, release, err := m.Tree(t.Context(), "ws", sb)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			return dies(w, func() error { <-ctx.Done(); return context.Cause(ctx) })
		}},
		{"during a watch of changes", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			ctx, _, release, err := m.Watch(t.Context(), "ws", sb)
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			return dies(w, func() error { <-ctx.Done(); return context.Cause(ctx) })
		}},
		{"while a secret is leased", func(t *testing.T, w *world, m *Manager, v *vault, sb string) (time.Duration, error) {
			w.slow("precheck", 500*time.Millisecond) // the first step of the replacement
			defer w.slow("precheck", 0)
			took, err := dies(w, func() error { _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); return err })
			if len(v.delivered) != 0 {
				t.Error("a secret was delivered to a sandbox that had died")
			}
			return took, err
		}},
		{"during a secret-bearing command", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			w.exec = hang
			return dies(w, func() error { _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); return err })
		}},
		{"after a secret-bearing command", func(t *testing.T, w *world, m *Manager, _ *vault, sb string) (time.Duration, error) {
			if _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			w.die(killed)
			synctest.Wait()
			_, _, err := m.begin("ws", sb)
			return time.Since(began), err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
				took, err := tt.path(t, w, m, v, sb)
				wantCode(t, "who waited", err, api.SandboxDied)
				if took > time.Second {
					t.Errorf("the answer came after %v", took)
				}
				synctest.Wait()
				_, err = m.Exec(t.Context(), "ws", sb, command("late"), "d")
				wantCode(t, "a later command", err, api.SandboxDied)
				_, _, _, err = m.Tree(t.Context(), "ws", sb)
				wantCode(t, "a later file operation", err, api.SandboxDied)
				st, err := m.Get(t.Context(), "ws", sb)
				if err != nil || st.State != stateGone || st.Reason != reasonDied {
					t.Errorf("the sandbox is %q for %q, %v", st.State, st.Reason, err)
				}
				if names := w.names(); len(names) != 0 {
					t.Errorf("containers left: %q", names)
				}
			})
		})
	}
}

// TestKernelsWordOnMemory: an engine that is slow, or has nothing to say, does not turn the end at
// the memory limit into another one.
func TestKernelsWordOnMemory(t *testing.T) {
	for _, tt := range []struct {
		name   string
		engine bool // answers, and says nothing of memory
		killed bool
		err    error
		want   api.Code
	}{
		{"killed, no engine", false, true, nil, api.SandboxOOM},
		{"killed, the engine has not noted it", true, true, nil, api.SandboxOOM},
		{"not killed, no engine", false, false, nil, api.SandboxDied},
		{"unknown, no engine", false, true, errors.New("the cgroup is gone"), api.SandboxDied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				r := mustCreate(t, m, "lease", "ws")
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					<-ctx.Done()
					return control.Outcome{}, ctx.Err()
				}
				ended := make(chan error, 1)
				go func() {
					_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("one"), "d")
					ended <- err
				}()
				synctest.Wait()
				began := time.Now()
				w.mu.Lock()
				w.oomKilled = tt.killed && tt.err == nil
				w.oomError = tt.err
				for _, b := range w.containers {
					b.once.Do(func() { close(b.lost) })
					if tt.engine {
						b.death = engine.Death{ExitCode: 137}
						time.AfterFunc(100*time.Millisecond, func() { close(b.ended) })
					}
				}
				w.mu.Unlock()
				wantCode(t, "exec", <-ended, tt.want)
				if took := time.Since(began); took > time.Second {
					t.Errorf("typed after %v", took)
				}
				synctest.Wait()
				_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("late"), "d")
				wantCode(t, "later exec", err, tt.want)
			})
		})
	}
	t.Run("no counter", func(t *testing.T) {
		bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
			w.setFail(failing("oom-kills", errors.New("no hierarchy")))
			r := mustCreate(t, m, "lease", "ws")
			w.die(engine.Death{OOMKilled: true})
			synctest.Wait()
			_, err := m.Exec(t.Context(), "ws", r.SandboxID, command("late"), "d")
			wantCode(t, "exec", err, api.SandboxOOM)
		})
	})
}
