// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// The counts follow a life from create to removal.
func TestCountsFollowEvents(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		want := func(step string, sandboxes map[string]int, creating, execs int) Counts {
			t.Helper()
			c := m.Counts()
			if !maps.Equal(c.Sandboxes, sandboxes) || c.Creating != creating || c.Execs != execs {
				t.Errorf("%s: %+v", step, c)
			}
			return c
		}
		want("at the start", map[string]int{}, 0, 0)
		w.pause["create"] = time.Second
		created := make(chan string)
		go func() { created <- mustCreate(t, m, "lease", "ws").SandboxID }()
		synctest.Wait()
		c := want("while it is made", map[string]int{stateCreating: 1}, 1, 0)
		if c.ReservedBytes != limits.WorkspaceBytes || c.ReservedInodes != limits.WorkspaceInodes {
			t.Errorf("reserved %d bytes, %d inodes", c.ReservedBytes, c.ReservedInodes)
		}
		id := <-created
		want("ready", map[string]int{stateReady: 1}, 0, 0)

		release := make(chan struct{})
		w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			<-release
			return control.Outcome{CleanupProven: true}, nil
		}
		done := make(chan error)
		go func() {
			_, err := m.Exec(t.Context(), "ws", id, command("i"), "d")
			done <- err
		}()
		synctest.Wait()
		want("while a command runs", map[string]int{stateReady: 1}, 0, 1)
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want("after the command", map[string]int{stateReady: 1}, 0, 0)

		w.setFail(failing("remove", errors.New("no")))
		_ = m.Dispose(t.Context(), "ws", id)
		c = want("while removal fails", map[string]int{stateRetiring: 1}, 0, 0)
		if c.Retries == 0 || c.Removals != 0 || !maps.Equal(c.Retirements, map[string]uint64{reasonDispose: 1}) {
			t.Errorf("while removal fails: %+v", c)
		}
		w.setFail(nil)
		time.Sleep(time.Minute)
		c = want("gone", map[string]int{}, 0, 0)
		if c.Removals != 1 || c.ReservedBytes != 0 || c.ReservedInodes != 0 {
			t.Errorf("gone: %+v", c)
		}
	})
}

// What the records and the lifecycle use is what is named.
func TestCountsAreNamed(t *testing.T) {
	named := map[string]bool{}
	for _, s := range append(States(), Reasons()...) {
		named[s] = true
	}
	for _, s := range []string{stateIntended, stateCreating, stateReady, stateRetiring} {
		if w := (record{State: s}).wireState(); !named[w] {
			t.Errorf("state %s is not named", w)
		}
	}
}
