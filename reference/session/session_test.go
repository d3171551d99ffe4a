// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
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

func TestCreateIsIdempotent(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		w.pause["create"] = time.Second
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[string]int{}
		for range 50 {
			wg.Go(func() {
				r, err := m.Create(t.Context(), request("lease", "ws"), "d")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				ids[r.SandboxID]++
			})
		}
		synctest.Wait()
		_, err := m.Create(t.Context(), request("lease", "ws"), "other")
		wantCode(t, "another request under the lease in flight", err, api.IdempotencyConflict)
		wg.Wait()
		if len(ids) != 1 || len(w.names()) != 1 || w.count("create") != 1 {
			t.Errorf("50 creates gave %v, containers %v", ids, w.names())
		}
		r := mustCreate(t, m, "lease", "ws")
		if ids[r.SandboxID] != 50 {
			t.Errorf("a later repetition gave %s", r.SandboxID)
		}
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Fatal(err)
		}
		_, err = m.Create(t.Context(), request("lease", "ws"), "d")
		wantCode(t, "the same request after removal", err, api.SandboxDisposed)
		_, err = m.Create(t.Context(), request("lease", "ws"), "other")
		wantCode(t, "another request after removal", err, api.IdempotencyConflict)
	})
}

func TestCreateIsRefused(t *testing.T) {
	big := limits
	big.PIDs++
	for _, tt := range []struct {
		name   string
		change func(*api.CreateRequest)
		want   api.Code
	}{
		{"workspace in use", func(r *api.CreateRequest) { r.WorkspaceID = "held" }, api.CreateConcurrencyExhausted},
		{"foreign image", func(r *api.CreateRequest) { r.Image = "sha256:other" }, api.Unqualified},
		{"other cohort", func(r *api.CreateRequest) { r.Expected.CohortID = "other" }, api.Unqualified},
		{"other pins", func(r *api.CreateRequest) { r.Expected.PinsDigest = "" }, api.Unqualified},
		{"over the ceiling", func(r *api.CreateRequest) { r.Resources = big }, api.RequestInvalid},
		{"no bound", func(r *api.CreateRequest) { r.Resources.MemoryBytes = 0 }, api.RequestInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				mustCreate(t, m, "first", "held")
				w.mu.Lock()
				before := len(w.rows)
				w.mu.Unlock()
				req := request("second", "ws")
				tt.change(&req)
				_, err := m.Create(t.Context(), req, "d")
				wantCode(t, "create", err, tt.want)
				if w.count("create") != 1 || w.count("prepare") != 1 || len(w.rows) != before {
					t.Errorf("a refused create had effects: %v", w.calls)
				}
			})
		})
	}
}

func TestCreatesAtOnceAreBounded(t *testing.T) {
	bubble(t, Limits{Creates: 2}, func(t *testing.T, w *world, m *Manager) {
		w.pause["create"] = time.Second
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { mustCreate(t, m, fmt.Sprint("l", i), fmt.Sprint("w", i)) })
		}
		synctest.Wait()
		_, err := m.Create(t.Context(), request("l3", "w3"), "d")
		wantCode(t, "third create", err, api.CreateConcurrencyExhausted)
		wg.Wait()
		mustCreate(t, m, "l3", "w3")
	})
}

// TestFailedCreateLeavesNothing fails each step once; afterwards the same request works.
func TestFailedCreateLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		op   string
		err  error
		want api.Code
	}{
		{"precheck", api.E(api.Unqualified, broken), api.Unqualified},
		{"image", engine.ErrNoImage, api.EngineFailed},
		{"store", broken, api.Unavailable},
		{"prepare", quota.ErrReserve, api.QuotaExceeded},
		{"prepare", quota.ErrMismatch, api.IdempotencyConflict},
		{"prepare", quota.ErrHelper, api.Unqualified},
		{"prepare", broken, api.Unavailable},
		{"create", errors.Join(engine.ErrNotCreated, broken), api.EngineFailed},
		{"profile", engine.ErrLaunch, api.Unqualified},
		{"admit", api.E(api.Unqualified, broken), api.Unqualified},
		{"verify", quota.ErrMissingMount, api.Unavailable},
		{"start", broken, api.EngineFailed},
		{"binary", engine.ErrLaunch, api.Unqualified},
		{"bridge", broken, api.EngineFailed},
		{"connect", control.ErrLost, api.EngineFailed},
		{"statfs", broken, api.EngineFailed},
	} {
		t.Run(tt.op+" "+string(tt.want), func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				w.setFail(failing(tt.op, tt.err))
				_, err := m.Create(t.Context(), request("lease", "ws"), "d")
				wantCode(t, "create", err, tt.want)
				w.setFail(nil)
				time.Sleep(time.Minute) // retirement of what the failing store kept
				w.wantClean()
				mustCreate(t, m, "lease", "ws")
			})
		})
	}
}

func TestUnboundedWorkspaceIsNotReady(t *testing.T) {
	for _, fs := range []control.Statfs{{}, {Blocks: 101, BlockSize: 1024, Inodes: 10}, {Blocks: 100, BlockSize: 1024, Inodes: 11}, {Blocks: 100, BlockSize: 4096, Inodes: 10}} {
		bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
			w.statfs = fs
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			wantCode(t, fmt.Sprintf("create over %+v", fs), err, api.Unavailable)
		})
	}
}

func TestCallerMayLeaveACreate(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		w.pause["create"] = 10 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := m.Create(ctx, request("lease", "ws"), "d")
		wantCode(t, "impatient create", err, api.Timeout)
		mustCreate(t, m, "lease", "ws")
		if w.count("create") != 1 {
			t.Errorf("%d creates", w.count("create"))
		}
	})
}

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

// TestLostAnswerBecomesATombstone loses the answer of a create; the container appears later.
func TestLostAnswerBecomesATombstone(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(w *world, container string)
	}{
		{"late container", func(w *world, container string) { w.appear(container) }},
		{"engine restarted", func(w *world, _ string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.instance = "engine-2"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				var container string
				w.setFail(func(op, subject string) error {
					if op == "create" {
						container = subject
						return context.DeadlineExceeded
					}
					return nil
				})
				_, err := m.Create(t.Context(), request("lease", "ws"), "d")
				wantCode(t, "create", err, api.EngineFailed)
				w.setFail(nil)
				time.Sleep(time.Hour)
				if !w.recorded(container) {
					t.Error("the name was forgotten while its create may be in flight")
				}
				_, err = m.Create(t.Context(), request("lease", "ws"), "d")
				wantCode(t, "the lease of the tombstone", err, api.IncompleteCleanup)
				r := mustCreate(t, m, "other", "ws") // nothing of it can run: the workspace is free
				tt.then(w, container)
				time.Sleep(10 * time.Second)
				if names := w.names(); len(names) != 1 || names[0] == container || w.recorded(container) {
					t.Errorf("containers %v; the tombstone of %s should be gone", names, container)
				}
				if _, err := m.Exec(t.Context(), "ws", r.SandboxID, command("i"), "d"); err != nil {
					t.Errorf("the new sandbox was hit: %v", err)
				}
			})
		})
	}
}

func TestRestartRemovesWhatIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		old := w.boot(Limits{})
		if err := old.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		var rs []api.Receipt
		for i := range 3 {
			rs = append(rs, mustCreate(t, old, fmt.Sprint("l", i), fmt.Sprint("w", i)))
		}
		w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
			<-ctx.Done()
			return control.Outcome{}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		go old.Exec(ctx, "w0", rs[0].SandboxID, command("running"), "d")
		synctest.Wait()
		forged := "hallmark-00000000000000000000000000000000"
		w.appear(forged)
		rows := w.freeze() // what is durable at the moment of the crash
		names := w.names()

		// The old process is gone; its goroutines only must not touch the new one's world.
		w2 := newWorld(t)
		w2.rows = rows
		for _, n := range names {
			w2.containers[n] = &box{id: w.containers[n].id, ended: make(chan struct{}), lost: make(chan struct{})}
		}
		for _, r := range rs {
			w2.mounted[r.WorkspaceID] = true
		}
		var stuck string
		w2.setFail(func(op, name string) error {
			if op == "remove" && stuck == "" {
				stuck = name
			}
			if op == "remove" && name == stuck {
				return errors.New("busy")
			}
			return nil
		})
		m := w2.boot(Limits{})
		err := m.Reconcile(t.Context())
		if err == nil || len(w2.names()) != 2 || !slices.Contains(w2.names(), stuck) || !slices.Contains(w2.names(), forged) {
			t.Errorf("reconcile gave %v, left %v; want %s (stuck) and the forged one", err, w2.names(), stuck)
		}
		_, err = m.Create(t.Context(), request("new", "new"), "d")
		wantCode(t, "create before reconcile is complete", err, api.Unavailable)
		w2.setFail(nil)
		time.Sleep(10 * time.Second)
		if names := w2.names(); len(names) != 1 || names[0] != forged {
			t.Errorf("left %v, want the forged one only", names)
		}
		_, err = m.Exec(t.Context(), "w0", rs[0].SandboxID, command("running"), "d")
		wantCode(t, "what ran at the crash", err, api.OutcomeUnknown)
		_, err = m.Exec(t.Context(), "w0", rs[0].SandboxID, command("running"), "other")
		wantCode(t, "another request under that id", err, api.IdempotencyConflict)
		_, err = m.Exec(t.Context(), "w0", rs[0].SandboxID, command("new"), "d")
		wantCode(t, "a new invocation", err, api.SandboxDisposed)
		w2.mu.Lock()
		delete(w2.containers, forged)
		w2.mu.Unlock()
		w2.wantClean()
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}

		// The third process remembers the same.
		again := w2.boot(Limits{})
		if err := again.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = again.Create(t.Context(), request("l1", "w1"), "d")
		wantCode(t, "a disposed lease after two restarts", err, api.SandboxDisposed)
		if err := again.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
		w.mu.Lock()
		delete(w.containers, forged)
		w.mu.Unlock()
		if err := old.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) freeze() map[string][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string][]byte{}
	for k, v := range w.rows {
		out[k] = slices.Clone(v)
	}
	return out
}

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
		_, release, err := m.Tree("ws", r.SandboxID)
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

func TestShutdownIsParallelAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(Limits{Creates: 10})
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			mustCreate(t, m, fmt.Sprint("l", i), fmt.Sprint("w", i))
		}
		w.pause["remove"] = 5 * time.Second
		stuck := w.names()[0]
		w.setFail(func(op, name string) error {
			if op == "remove" && name == stuck {
				return errors.New("busy")
			}
			return nil
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- m.Shutdown(ctx) }()
		synctest.Wait()
		_, err := m.Create(t.Context(), request("late", "late"), "d")
		wantCode(t, "create during shutdown", err, api.Unavailable)
		err = <-done
		if took := time.Since(began); took > 26*time.Second || w.peak != 8 {
			t.Errorf("shutdown took %v with %d removals at once", took, w.peak)
		}
		if err == nil || strings.Count(err.Error(), "sandbox sb-") != 1 {
			t.Errorf("shutdown gave %v; want the one that is left", err)
		}
		if names := w.names(); len(names) != 1 || names[0] != stuck || !w.recorded(stuck) {
			t.Errorf("left %v, want %s with its record", names, stuck)
		}
	})
}

func TestShutdownEndsACreateInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(Limits{})
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.pause["start"] = 3 * time.Second
		done := make(chan error, 1)
		go func() {
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			done <- err
		}()
		synctest.Wait()
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wantCode(t, "create", <-done, api.Unavailable)
		w.wantClean()
	})
}

func TestMemoryIsBounded(t *testing.T) {
	g := newMemory(3)
	now := time.Now()
	for i := range 5 {
		r := record{SandboxID: fmt.Sprint("s", i), ClientLeaseID: fmt.Sprint("l", i), GoneUnixMs: now.UnixMilli()}
		forgotten := g.add(r, now)
		if want := max(0, min(1, i-2)); len(forgotten) != want {
			t.Errorf("adding %d forgot %q", i, forgotten)
		}
	}
	if _, ok := g.lease("l1"); ok {
		t.Error("the oldest lease is still there")
	}
	if r, ok := g.lease("l2"); !ok || r.SandboxID != "s2" {
		t.Errorf("lease l2 is %+v, %v", r, ok)
	}
	late := now.Add(rememberFor + time.Second)
	if forgotten := g.add(record{SandboxID: "new", ClientLeaseID: "new", GoneUnixMs: late.UnixMilli()}, late); len(forgotten) != 3 {
		t.Errorf("a day later %q were forgotten", forgotten)
	}
}
