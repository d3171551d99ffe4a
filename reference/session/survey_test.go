// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// said is a log that can be read while it is written.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), what)
}

// Containers under names that the records of gone sandboxes have are removed, at a start and later, and
// one that cannot be keeps none of the others. What only looks like ours stays and is reported once; what
// is in use is not touched.
func TestSurvey(t *testing.T) {
	for name, restart := range map[string]bool{"later": false, "at a start": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				boot := func() (*Manager, *said) {
					m, log := w.boot(Limits{}), &said{}
					m.log = slog.New(slog.NewTextHandler(log, nil))
					if err := m.Reconcile(t.Context()); err != nil {
						t.Fatal(err)
					}
					return m, log
				}
				m, log := boot()
				var gone []string
				for i := range 5 {
					r := mustCreate(t, m, fmt.Sprint("l", i), fmt.Sprint("w", i))
					gone = append(gone, w.names()...)
					if err := m.Dispose(t.Context(), fmt.Sprint("w", i), r.SandboxID); err != nil {
						t.Fatal(err)
					}
				}
				if restart {
					if err := m.Shutdown(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				strangers := []string{"hallmark-" + randomHex(), gone[0] + "0", "x" + gone[0], "hallmark-"}
				for _, n := range append(gone, strangers...) {
					w.appear(n)
				}
				stuck := gone[2]
				w.setFail(func(op, subject string) error {
					if op == "remove" && subject == stuck {
						return errors.New("broken")
					}
					return nil
				})
				if restart {
					m, log = boot()
				} else {
					time.Sleep(surveyEvery + time.Second)
				}
				if got := w.names(); len(got) != len(strangers)+1 {
					t.Errorf("left are %v; want what only looks like ours, and %s", got, stuck)
				}
				w.setFail(nil)
				mustCreate(t, m, "other", "ws")
				time.Sleep(30 * time.Second) // within its idle time
				time.Sleep(25 * time.Second)
				if _, err := m.Exec(t.Context(), "ws", m.workspaces["ws"].rec.SandboxID, command("i"), "d"); err != nil {
					t.Errorf("a sandbox in use was hit: %v", err)
				}
				time.Sleep(50 * time.Second)
				if got := w.names(); len(got) != len(strangers)+1 {
					t.Errorf("left are %v; want what only looks like ours, and one in use", got)
				}
				time.Sleep(10 * time.Minute)
				if err := m.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				for _, n := range strangers {
					if !strings.Contains(strings.Join(w.names(), " ")+" ", n+" ") {
						t.Errorf("%s, which only looks like ours, is gone", n)
					}
				}
				if got := log.count("left alone"); got != len(strangers) {
					t.Errorf("%d reports of %d containers that look like ours", got, len(strangers))
				}
				if got := log.count("late container removed"); got != len(gone) {
					t.Errorf("%d late containers are said to be removed, of %d", got, len(gone))
				}
			})
		})
	}
}
