// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
)

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
		{"prepare", quota.ErrExhausted, api.QuotaExceeded},
		{"prepare", quota.ErrTooLarge, api.QuotaExceeded},
		{"prepare", quota.ErrOutsideLink, api.Unavailable},
		{"prepare", quota.ErrNotEnforced, api.Unavailable},
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
				if w.hasImage("ws") {
					t.Error("the image of a workspace that nobody was told of is left")
				}
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

// TestFailedCreateKeepsData: a workspace that was there before is not the create's to remove.
func TestFailedCreateKeepsData(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "first", "ws")
		if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
			t.Fatal(err)
		}
		w.setFail(failing("start", errors.New("broken")))
		_, err := m.Create(t.Context(), request("second", "ws"), "d")
		wantCode(t, "create", err, api.EngineFailed)
		w.setFail(nil)
		if !w.hasImage("ws") || w.count("purge") != 0 {
			t.Error("a failed create removed a workspace that it had not made")
		}
	})
}
