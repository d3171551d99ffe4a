// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// The rows of PROTOCOL.md's section on idempotency that other files do not have: 50 creates at once,
// the digest after removal and conflicts in flight are in create_test.go; running, aged, busy and
// failed invocations in exec_test.go; a restart in reconcile_test.go.

// TestFiftyCreatesMakeOneLease counts what there is of it outside: one record, one workspace, one
// container, one supervisor.
func TestFiftyCreatesMakeOneLease(t *testing.T) {
	bubble(t, Limits{Creates: 1}, func(t *testing.T, w *world, m *Manager) {
		gate := make(chan struct{})
		w.setFail(func(op, _ string) error {
			if op == "prepare" {
				<-gate
			}
			return nil
		})
		var wg sync.WaitGroup
		receipts := make([]api.Receipt, 50)
		for i := range receipts {
			wg.Go(func() {
				var err error
				if receipts[i], err = m.Create(t.Context(), request("lease", "ws"), "d"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all of them wait for the same one
		close(gate)
		wg.Wait()
		for _, r := range receipts {
			if r != receipts[0] {
				t.Fatalf("receipts %+v and %+v", r, receipts[0])
			}
		}
		w.mu.Lock()
		records := 0
		for k := range w.rows {
			if strings.HasPrefix(k, bucketSandboxes+"|") {
				records++
			}
		}
		w.mu.Unlock()
		if records != 1 || len(w.names()) != 1 || w.count("prepare") != 1 || w.count("start") != 1 || w.count("bridge") != 1 {
			t.Errorf("%d records, %d containers, calls %v", records, len(w.names()), w.calls)
		}
	})
}

// TestLeaseOverItsWholeLife asks for the same and for another thing under one lease at every stage.
func TestLeaseOverItsWholeLife(t *testing.T) {
	bubble(t, Limits{Disposed: 1}, func(t *testing.T, w *world, m *Manager) {
		ask := func(stage string, same api.Code) {
			t.Helper()
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			wantCode(t, stage+": the same", err, same)
			_, err = m.Create(t.Context(), request("lease", "ws"), "other")
			wantCode(t, stage+": another", err, api.IdempotencyConflict)
		}
		r := mustCreate(t, m, "lease", "ws")
		ask("ready", "")
		w.setFail(failing("remove", errors.New("busy")))
		wantCode(t, "dispose", m.Dispose(t.Context(), "ws", r.SandboxID), api.IncompleteCleanup)
		ask("retiring", api.IncompleteCleanup)
		w.setFail(nil)
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Fatal(err)
		}
		ask("removed", api.SandboxDisposed)
		time.Sleep(24*time.Hour - time.Minute)
		ask("removed a day ago", api.SandboxDisposed)
		if err := m.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		m = w.boot(Limits{Disposed: 1})
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		ask("after a restart", api.SandboxDisposed)
		time.Sleep(2 * time.Minute)
		ask("one of the last", api.SandboxDisposed)
		other := mustCreate(t, m, "other", "other") // what is too old goes when the next one does
		if err := m.Dispose(t.Context(), "other", other.SandboxID); err != nil {
			t.Fatal(err)
		}
		again := mustCreate(t, m, "lease", "ws")
		if again.SandboxID == r.SandboxID {
			t.Error("a sandbox id came back")
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRenewedPinsAreForNewLeases: a repetition has its answer at every stage, whatever is pinned
// meanwhile; a new lease has to expect what is pinned now.
func TestRenewedPinsAreForNewLeases(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		first := mustCreate(t, m, "lease", "ws")
		w.renewed = " of now"
		if again := mustCreate(t, m, "lease", "ws"); again != first {
			t.Errorf("the repetition got %+v, want %+v", again, first)
		}
		ask := func(stage, lease, digest string, want api.Code) {
			t.Helper()
			_, err := m.Create(t.Context(), request(lease, "ws"), digest)
			wantCode(t, stage, err, want)
		}
		ask("another request", "lease", "other", api.IdempotencyConflict)
		w.setFail(failing("remove", errors.New("busy")))
		wantCode(t, "dispose", m.Dispose(t.Context(), "ws", first.SandboxID), api.IncompleteCleanup)
		ask("while it retires", "lease", "d", api.IncompleteCleanup)
		w.setFail(nil)
		if err := m.Dispose(t.Context(), "ws", first.SandboxID); err != nil {
			t.Fatal(err)
		}
		ask("after removal", "lease", "d", api.SandboxDisposed)
		ask("after removal, another request", "lease", "other", api.IdempotencyConflict)
		ask("a new lease", "new", "d", api.Unqualified)
		req := request("new", "ws")
		req.Expected.PinsDigest = w.PinsDigest()
		if _, err := m.Create(t.Context(), req, "d"); err != nil {
			t.Errorf("a new lease that expects them: %v", err)
		}
	})
}

// TestDisposedIDsAreNotForgottenEarly: however many there are, an id that is less than 24 h old
// answers as what it was; at the ceiling it is new leases that are refused, until there is room.
func TestDisposedIDsAreNotForgottenEarly(t *testing.T) {
	const kept = 2
	bubble(t, Limits{Disposed: kept}, func(t *testing.T, _ *world, m *Manager) {
		lease := func(i int) string { return fmt.Sprint("lease", i) }
		ws := func(i int) string { return fmt.Sprint("ws", i/kept) }
		for i := range kept * memoryCeiling {
			r := mustCreate(t, m, lease(i), ws(i))
			if err := m.Dispose(t.Context(), ws(i), r.SandboxID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		_, err := m.Create(t.Context(), request("new", "ws"), "d")
		wantCode(t, "beyond the ceiling", err, api.Unavailable)
		for i := range kept * memoryCeiling {
			_, err := m.Create(t.Context(), request(lease(i), ws(i)), "d")
			wantCode(t, lease(i), err, api.SandboxDisposed)
		}
		time.Sleep(24 * time.Hour)
		mustCreate(t, m, "new", "ws")
		for i := range kept * memoryCeiling {
			r, ok := m.gone.lease(lease(i))
			if want := i >= kept*(memoryCeiling-1); ok != want {
				t.Errorf("a day later %s is %+v, %t", lease(i), r, ok)
			}
		}
	})
}

// TestDisposedIDsHaveShares: a workspace that makes and ends sandboxes without end is refused at its share, over a
// restart too, and keeps nobody else out; it goes on as its ids come to 24 h, and none is forgotten earlier.
func TestDisposedIDsHaveShares(t *testing.T) {
	const kept = 3
	bubble(t, Limits{Disposed: kept}, func(t *testing.T, w *world, m *Manager) {
		made := 0
		one := func(m *Manager, ws string) error {
			made++
			r, err := m.Create(t.Context(), request(fmt.Sprint("lease", made), ws), "d")
			if err == nil {
				err = m.Dispose(t.Context(), ws, r.SandboxID)
			}
			time.Sleep(time.Minute)
			return err
		}
		for i := range kept {
			if err := one(m, "ws"); err != nil {
				t.Errorf("sandbox %d: %v", i, err)
			}
		}
		wantCode(t, "beyond the share", one(m, "ws"), api.Unavailable)
		if err := one(m, "other"); err != nil {
			t.Errorf("another workspace: %v", err)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		again := w.boot(Limits{Disposed: kept})
		if err := again.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
		wantCode(t, "beyond the share, after a restart", one(again, "ws"), api.Unavailable)
		for i := range kept {
			_, err := again.Create(t.Context(), request(fmt.Sprint("lease", i+1), "ws"), "d")
			wantCode(t, fmt.Sprint("lease", i+1), err, api.SandboxDisposed)
		}
		time.Sleep(24*time.Hour - 5*time.Minute - time.Second) // the first is 24 h and some minutes old, the second not yet
		if err := one(again, "ws"); err != nil {
			t.Errorf("when its first is 24 h old: %v", err)
		}
		if err := again.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestExecOverItsWholeLife: what a repetition of each kind of outcome gets, in both forms, while the
// sandbox lives, and what it gets afterwards.
func TestExecOverItsWholeLife(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  control.Outcome
		err  error
		want api.Code
	}{
		{"good", control.Outcome{Stdout: []byte("o"), CleanupProven: true}, nil, ""},
		{"failed command", control.Outcome{ExitCode: 3, CleanupProven: true}, nil, ""},
		{"signal", control.Outcome{ExitCode: -1, Signal: "SIGSEGV", CleanupProven: true}, nil, ""},
		{"timed out", control.Outcome{Stderr: []byte("e"), ExitCode: -1, Signal: "SIGKILL", TimedOut: true, CleanupProven: true}, nil, ""},
		{"flood", control.Outcome{Stdout: []byte("x"), TruncatedStdout: true, DroppedBytes: 1 << 40, CleanupProven: true}, nil, ""},
		{"not started", control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}, api.ExecAborted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				w.exec = func(context.Context, control.Spawn) (control.Outcome, error) { return tt.out, tt.err }
				first, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
				wantCode(t, "exec", err, tt.want)
				for range 2 {
					again, err := m.Exec(t.Context(), "ws", sb, command("i"), "d")
					wantCode(t, "repetition", err, tt.want)
					if !sameResult(again, first) || again.TimedOut != tt.out.TimedOut || again.Truncated.DroppedBytes != tt.out.DroppedBytes {
						t.Errorf("repetition %+v, first %+v", again, first)
					}
					r, err := m.Start(t.Context(), "ws", sb, command("i"), "d")
					if err != nil {
						t.Fatal(err)
					}
					stdout, stderr := drain(t, r)
					again, err = r.Outcome()
					r.Close()
					wantCode(t, "streamed repetition", err, tt.want)
					if !sameResult(again, first) || string(stdout) != string(tt.out.Stdout) || string(stderr) != string(tt.out.Stderr) {
						t.Errorf("streamed repetition %q %q %+v, first %+v", stdout, stderr, again, first)
					}
				}
				_, err = m.Exec(t.Context(), "ws", sb, command("i"), "other")
				wantCode(t, "another request", err, api.IdempotencyConflict)
				if n := w.count("exec"); n != 1 {
					t.Errorf("%d commands ran", n)
				}
				if err := m.Dispose(t.Context(), "ws", sb); err != nil {
					t.Fatal(err)
				}
				_, err = m.Exec(t.Context(), "ws", sb, command("i"), "d")
				wantCode(t, "after removal", err, api.SandboxDisposed)
			})
		})
	}
}

func sameResult(a, b api.ExecResult) bool {
	if (a.ExitCode == nil) != (b.ExitCode == nil) || a.ExitCode != nil && *a.ExitCode != *b.ExitCode {
		return false
	}
	a.ExitCode, b.ExitCode = nil, nil
	same := string(a.Stdout) == string(b.Stdout) && string(a.Stderr) == string(b.Stderr)
	a.Stdout, a.Stderr, b.Stdout, b.Stderr = nil, nil, nil, nil
	return same && a.InvocationID == b.InvocationID && a.Signal == b.Signal && a.DurationMs == b.DurationMs &&
		a.Truncated == b.Truncated && a.TimedOut == b.TimedOut && a.CleanupProven == b.CleanupProven
}

// TestLostReplyOfExec: the command had ended when its caller left, so the outcome is the command's.
func TestLostReplyOfExec(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		ctx, leave := context.WithCancel(t.Context())
		r, err := m.Start(ctx, "ws", sb, command("i"), "d")
		if err != nil {
			t.Fatal(err)
		}
		<-r.Ended()
		leave()
		r.Close()
		if out, err := m.Exec(t.Context(), "ws", sb, command("i"), "d"); err != nil || string(out.Stdout) != "i" {
			t.Errorf("the repetition got %+v, %v", out, err)
		}
		if n := w.count("exec"); n != 1 {
			t.Errorf("%d commands ran", n)
		}
	})
}

// TestAgedByBytes: the bound of kept output ages the oldest out, never the newest, and both forms
// answer the same for what is aged.
func TestAgedByBytes(t *testing.T) {
	bubble(t, Limits{OutcomeBytes: 10}, func(t *testing.T, w *world, m *Manager) {
		sb := mustCreate(t, m, "lease", "ws").SandboxID
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{Stdout: []byte("123456"), CleanupProven: true}, nil
		}
		for _, id := range []string{"a", "b"} {
			if _, err := m.Exec(t.Context(), "ws", sb, command(id), "d"); err != nil {
				t.Fatal(err)
			}
		}
		for _, form := range []func(digest string) error{
			func(digest string) error { _, err := m.Exec(t.Context(), "ws", sb, command("a"), digest); return err },
			func(digest string) error { _, err := m.Start(t.Context(), "ws", sb, command("a"), digest); return err },
		} {
			wantCode(t, "aged", form("d"), api.OutcomeUnknown)
			wantCode(t, "aged, another request", form("other"), api.IdempotencyConflict)
		}
		if out, err := m.Exec(t.Context(), "ws", sb, command("b"), "d"); err != nil || string(out.Stdout) != "123456" {
			t.Errorf("the newest is %+v, %v", out, err)
		}
		wantIdle(t, m, sb)
	})
}
