// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// TestWatchingIsNoUse: a sandbox that is watched and nothing else ends when it is idle, and its
// watchers hear of it.
func TestWatchingIsNoUse(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		time.Sleep(59 * time.Second)
		life, tree, release, err := m.Watch(t.Context(), "ws", r.SandboxID)
		if err != nil || tree == nil {
			t.Fatal(err)
		}
		defer release()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantCode(t, "cause", context.Cause(life), api.SandboxExpired)
		// Not released: retirement waits for the tree, and for nobody's stream.
		if st, err := m.Get(t.Context(), "ws", r.SandboxID); err != nil || st.State != "gone" || st.Reason != "idle" {
			t.Errorf("get gave %+v, %v", st, err)
		}
	})
}

func TestWatchesAreBounded(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		one, other := mustCreate(t, m, "one", "ws"), mustCreate(t, m, "other", "ws2")
		watch := func(ws string, r api.Receipt) (func(), error) {
			_, _, release, err := m.Watch(t.Context(), ws, r.SandboxID)
			return release, err
		}
		var releases []func()
		for range maxWatches {
			release, err := watch("ws", one)
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		_, err := watch("ws", one)
		wantCode(t, "a fifth", err, api.ExecConcurrencyExhausted)
		release, err := watch("ws2", other)
		wantCode(t, "another sandbox", err, "")
		release()
		releases[0]()
		releases[0]() // a second call does nothing
		release, err = watch("ws", one)
		wantCode(t, "after one has ended", err, "")
		_, err = watch("ws", one)
		wantCode(t, "a fifth again", err, api.ExecConcurrencyExhausted)
		_, err = watch("ws2", one)
		wantCode(t, "another workspace's", err, api.SandboxWorkspaceMismatch)
		for _, f := range append(releases, release) {
			f()
		}
		if err := m.Dispose(t.Context(), "ws", one.SandboxID); err != nil {
			t.Fatal(err)
		}
		_, err = watch("ws", one)
		wantCode(t, "a disposed one", err, api.SandboxDisposed)
	})
}

// TestRetirementWaitsForTheWatcher, but not for long: its tree cannot be closed before.
func TestRetirementWaitsForTheWatcher(t *testing.T) {
	w := newWorld(t) // in real time: a watcher waits in the kernel
	m := w.boot(Limits{})
	if err := m.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := mustCreate(t, m, "lease", "ws")
	life, tree, release, err := m.Watch(t.Context(), "ws", r.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	// The world's workspace is all of this host's root: a few directories are enough.
	watcher, err := tree.Watch(life, workspace.WatchLimits{Directories: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Dispose(t.Context(), "ws", r.SandboxID); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = watcher.Next(t.Context())
	}
	if life.Err() == nil {
		t.Errorf("the watcher ended before its sandbox: %v", err)
	}
	if err := m.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
