// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// life is one sandbox from its create to its end, with everything that a worker asks its host for. What
// fails is not tried again.
func (x *model) life() {
	m := x.m
	r, err := m.Create(x.ctx, request("lease", "w0"), "d")
	if err == nil {
		req := command("i1")
		req.Argv = []string{argShort}
		m.Exec(x.ctx, "w0", r.SandboxID, req, "d")
		m.Exec(x.ctx, "w0", r.SandboxID, secretCommand("i2"), "d")
		m.Dispose(x.ctx, "w0", r.SandboxID)
		ctx, cancel := context.WithTimeout(x.ctx, 30*time.Second) // as the API does
		defer cancel()
		m.Purge(ctx, "w0")
	}
}

// TestKilledAtEveryStep kills the worker in each of its calls to the host, before and after the call's
// effect. The next process removes all that is left, and the same lease works then, or says that it is over.
func TestKilledAtEveryStep(t *testing.T) {
	for _, after := range []bool{false, true} {
		steps := 0
		for at, more := 1, true; more; at++ {
			t.Run(fmt.Sprintf("call %d, after its effect %v", at, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := newModel(t, uint64(at), "")
					x.boot()
					time.Sleep(time.Minute)
					x.h.mu.Lock()
					x.h.count, x.h.killAt, x.h.killAfter = 0, at, after
					x.h.mu.Unlock()
					go x.life()
					time.Sleep(10 * time.Minute)
					if more = x.p.killed.Load(); more {
						steps++
						x.killed()
						x.boot()
						time.Sleep(5 * time.Minute)
						x.check()
						if !x.serves {
							t.Error("the next process does not serve")
						}
					}
					if bad := x.end(); len(bad) > 0 {
						t.Error(strings.Join(bad, "\n"))
					}
				})
			})
		}
		if steps < 40 {
			t.Errorf("the worker was killed in %d calls; a life has more", steps)
		}
	}
}

// TestFullDiskAtEveryStep lets the store have no room from the nth call on, for ten minutes. Nothing
// runs unowned meanwhile, and all of it is removed when there is room again.
func TestFullDiskAtEveryStep(t *testing.T) {
	for at, more := 0, true; more; at++ {
		t.Run(fmt.Sprint("from call ", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newModel(t, uint64(at), "")
				x.boot()
				time.Sleep(time.Minute)
				lived := make(chan struct{})
				x.h.mu.Lock()
				x.h.count = 0
				x.h.mu.Unlock()
				go func() {
					defer close(lived)
					x.life()
				}()
				more = false
				for over := false; !over; {
					x.h.mu.Lock()
					if x.h.count >= at {
						x.h.full, over, more = true, true, true
					}
					x.h.mu.Unlock()
					select {
					case <-lived:
						over = true
					case <-time.After(time.Millisecond):
					}
				}
				for range 10 {
					time.Sleep(time.Minute)
					synctest.Wait()
					x.check()
				}
				x.h.mu.Lock()
				x.h.full = false
				x.h.mu.Unlock()
				<-lived
				if bad := x.end(); len(bad) > 0 {
					t.Error(strings.Join(bad, "\n"))
				}
			})
		})
	}
}
