// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

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
		stuck := names[slices.IndexFunc(names, func(n string) bool { return n != forged })]
		w2.setFail(func(op, name string) error {
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
		_, err = m.Exec(t.Context(), "w1", rs[0].SandboxID, command("running"), "d")
		wantCode(t, "another workspace", err, api.SandboxWorkspaceMismatch)
		_, err = m.Cancel(t.Context(), "w0", rs[0].SandboxID, "running")
		wantCode(t, "cancel of what ran at the crash", err, api.OutcomeUnknown)
		_, err = m.Cancel(t.Context(), "w1", rs[0].SandboxID, "running")
		wantCode(t, "cancel through another workspace", err, api.SandboxWorkspaceMismatch)
		_, err = m.Cancel(t.Context(), "w0", rs[0].SandboxID, "new")
		wantCode(t, "cancel of what never ran", err, api.SandboxDisposed)
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

// TestUnknownOutcomeOutlivesCrashes: what ran at one crash is OUTCOME_UNKNOWN after the next ones too,
// wherever they cut the removal of the sandbox off.
func TestUnknownOutcomeOutlivesCrashes(t *testing.T) {
	for name, cut := range map[string]string{
		"before its retirement is durable": "mark", "before its invocations are dropped": bucketInvocations,
		"after its invocations are dropped": bucketSandboxes, "while no record can be stored": "records",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				w.exec = func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
					<-ctx.Done()
					return control.Outcome{CleanupProven: true}, ctx.Err()
				}
				go m.Exec(t.Context(), "ws", sb, command("running"), "d")
				synctest.Wait()
				crashed := func(w *world) *world {
					next := newWorld(t)
					next.rows = w.freeze()
					next.mounted["ws"] = true
					return next
				}
				second := crashed(w)
				released := false
				second.setFail(func(op, bucket string) error {
					released = released || op == "release"
					if op == "store" && (cut == "mark" || cut == "records" && bucket == bucketSandboxes || released && bucket == cut) {
						return errors.New("cut off")
					}
					return nil
				})
				again := second.boot(Limits{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := again.Reconcile(ctx); err == nil {
					t.Error("nothing was cut off")
				}
				third := crashed(second)
				second.setFail(nil)
				last := third.boot(Limits{})
				if err := last.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				_, err := last.Exec(t.Context(), "ws", sb, command("running"), "d")
				wantCode(t, "what ran at the first crash", err, api.OutcomeUnknown)
				_, err = last.Exec(t.Context(), "ws", sb, command("running"), "other")
				wantCode(t, "another request under its id", err, api.IdempotencyConflict)
				for _, m := range []*Manager{again, last} {
					if err := m.Shutdown(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
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
		g.add(record{SandboxID: fmt.Sprint("s", i), ClientLeaseID: fmt.Sprint("l", i), GoneUnixMs: now.Add(time.Duration(i) * time.Minute).UnixMilli()})
	}
	for _, tt := range []struct {
		after time.Duration
		want  []string
	}{
		{0, nil},
		{rememberFor - time.Second, nil}, // more than the bound, and none of them 24 h old
		{rememberFor, []string{"s0"}},
		{rememberFor, nil},
		{2 * rememberFor, []string{"s1"}}, // older than 24 h, and no more than the bound
		{3 * rememberFor, nil},
	} {
		if got := g.forget(now.Add(tt.after)); !slices.Equal(got, tt.want) {
			t.Errorf("after %s %q were forgotten, want %q", tt.after, got, tt.want)
		}
	}
	if _, ok := g.lease("l1"); ok {
		t.Error("a forgotten lease is still there")
	}
	if r, ok := g.lease("l2"); !ok || r.SandboxID != "s2" {
		t.Errorf("lease l2 is %+v, %v", r, ok)
	}
	for live, want := range map[int]bool{0: false, 3*memoryCeiling - 4: false, 3*memoryCeiling - 3: true} {
		if g.full(live) != want {
			t.Errorf("with 3 remembered and %d live it is full: %t", live, !want)
		}
	}
}

// TestShutdownIsBounded: a step of a create that heeds nothing does not hold the process.
func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(Limits{})
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.pause["bridge"] = time.Hour
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err := m.Create(t.Context(), request("lease", "ws"), "d")
			wantCode(t, "create", err, api.Unavailable)
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := m.Shutdown(ctx); err == nil {
			t.Error("the shutdown left a create and did not say so")
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the shutdown took %v", took)
		}
		<-ended
	})
}

// TestCreateCutOffLeavesNoImage: the process is killed while it prepares the workspace. What it
// made goes, since nobody was told of it; what was there before stays.
func TestCreateCutOffLeavesNoImage(t *testing.T) {
	for name, populated := range map[string]bool{"new workspace": false, "populated workspace": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.images["ws"] = populated
				old := w.boot(Limits{})
				if err := old.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.pause["prepare"] = time.Second
				created := make(chan error, 1)
				go func() {
					_, err := old.Create(t.Context(), request("lease", "ws"), "d")
					created <- err
				}()
				synctest.Wait()
				w2 := newWorld(t)
				w2.rows = w.freeze()
				w2.images["ws"] = w.hasImage("ws")
				if !w2.images["ws"] {
					t.Fatal("no witness: nothing was made yet")
				}
				m := w2.boot(Limits{})
				if err := m.Reconcile(t.Context()); err != nil {
					t.Error(err)
				}
				w2.wantClean()
				if w2.hasImage("ws") != populated {
					t.Errorf("after the restart the workspace has an image: %v, want %v", !populated, populated)
				}
				if err := m.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-created; err != nil {
					t.Error(err)
				}
				if err := old.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A reconcile that is overtaken by the end of the worker starts nothing any more.
func TestReconcileDuringTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.boot(Limits{})
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if m.Reconcile(t.Context()) == nil {
			t.Error("a manager that has ended serves")
		}
		_, err := m.Create(t.Context(), request("lease", "ws"), "d")
		wantCode(t, "create", err, api.Unavailable)
	})
}
