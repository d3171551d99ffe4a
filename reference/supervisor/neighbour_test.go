// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// A process whose first thread has left is a zombie to look at, and runs on.
func TestZombieLeaderEnds(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		for _, tt := range []struct {
			name     string
			argv     []string
			timedOut bool
			killed   int64
		}{
			{"leader", []string{"zleader", "leader.beat"}, true, 0},
			{"orphan", []string{"zleader", "orphan.beat", "orphan"}, false, 1},
		} {
			t.Run(tt.name, func(t *testing.T) {
				sp := spawnOf(tt.argv...)
				sp.Timeout = time.Second
				began := time.Now()
				o := must(t, c, sp)
				if o.TimedOut != tt.timedOut || o.DescendantsKilled != tt.killed || time.Since(began) > 3*time.Second {
					t.Errorf("%v: %+v", time.Since(began), o)
				}
				s.quiet(t, tt.argv[1])
			})
		}
		t.Run("cancel", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o, err := c.Exec(ctx, spawnOf("zleader", "cancelled.beat"))
			if !errors.Is(err, context.DeadlineExceeded) || !o.CleanupProven {
				t.Errorf("%v: %+v", err, o)
			}
			s.quiet(t, "cancelled.beat")
		})
	})
}

// attackBy runs an attack of one invocation while during starts others. It returns the attacker's outcome.
func attackBy(t *testing.T, c *control.Client, s control.Spawn, during func(until time.Time)) control.Outcome {
	t.Helper()
	ended := make(chan control.Outcome, 1)
	began := time.Now()
	go func() {
		o, err := c.Exec(t.Context(), s)
		if err != nil || !o.CleanupProven {
			t.Errorf("attacker: %v: %+v", err, o)
		}
		ended <- o
	}()
	during(began.Add(4 * time.Second))
	return <-ended
}

// A tenant that stops what it can delays a neighbour to its time-out, and neither the proof of its end nor
// the supervisor.
func TestStoppingNeighbour(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		runs, stopped := 0, 0
		attackBy(t, c, spawnOf("stopper", "5000"), func(until time.Time) {
			for time.Now().Before(until) {
				sp := spawnOf("exit", "0")
				sp.Timeout = 300 * time.Millisecond
				began := time.Now()
				o := must(t, c, sp)
				if d := time.Since(began); d > sp.Timeout+2*time.Second {
					t.Errorf("took %v: %+v", d, o)
				}
				runs++
				if o.TimedOut {
					stopped++
				}
			}
		})
		if stopped == 0 {
			t.Errorf("none of %d was stopped", runs)
		}
		t.Logf("%d of %d were stopped", stopped, runs)
	})
}

// No process of root's is a tenant's to signal, not for an instant of a spawn either.
func TestKeepersAreNotTheTenants(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		o := attackBy(t, c, spawnOf("sigroot", "5000", "listed"), func(until time.Time) {
			s.awaitBeat(t, "listed") // a launch stage on the list would be the tenant's to kill a moment later
			for time.Now().Before(until) {
				if o := must(t, c, spawnOf("exit", "0")); o.ExitCode != 0 {
					t.Fatalf("%+v", o)
				}
			}
		})
		if string(o.Stdout) != "true 0\n" {
			t.Errorf("%q", o.Stdout)
		}
	})
}

// A keeper that hangs is given up before the worker gives the bridge up, and its tree is dead by then.
func TestHungKeeperIsGivenUp(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		t.Run(map[bool]string{false: "time-out", true: "cancel"}[cancelled], func(t *testing.T) {
			s := hostSandbox(t) // only here can the keeper be found from outside
			c := s.connect(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sp := spawnOf("reaper", "hung.beat", "middle")
			if !cancelled {
				sp.Timeout = 2 * time.Second
			}
			began := time.Now()
			ended := make(chan error, 1)
			go func() {
				_, err := c.Exec(ctx, sp)
				ended <- err
			}()
			s.awaitBeat(t, "hung.beat")
			hung := 0
			for _, keeper := range childrenOf(t, s.pid) {
				if len(childrenOf(t, keeper)) > 0 {
					hung++
					if err := unix.Kill(keeper, unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
				}
			}
			limit := sp.Timeout + control.TerminateWithin
			if cancelled {
				began, limit = time.Now(), control.TerminateWithin
				cancel()
			}
			err := <-ended
			if d := time.Since(began); hung != 1 || !errors.Is(err, control.ErrLost) || d > limit-2*time.Second {
				t.Errorf("%d keepers hung: %v after %v", hung, err, d)
			}
			s.quiet(t, "hung.beat")
			must(t, c, spawnOf("exit", "0")) // on the same bridge
		})
	}
}

// A process of the tenant's without a parent is nobody's: it ends before the next outcome is called proven.
// A sentry can leave one behind; here it is made from outside.
func TestProcessWithoutAParentEnds(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		cmd := s.command("/bin/tenant", "become", Workspace+"/orphan.beat")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		defer func() { cmd.Process.Kill(); <-ended }()
		s.awaitBeat(t, "orphan.beat")
		must(t, c, spawnOf("exit", "0"))
		s.quiet(t, "orphan.beat")
	})
}

// A pid namespace of the tenant's ends with the command that made it.
func TestNamespaceOfTheTenantsEnds(t *testing.T) {
	s := runscSandbox(t) // who has changed its root, as on the host here, may make none
	c := s.connect(t)
	for range 5 {
		if o := must(t, c, spawnOf("namespace", "inner.beat")); o.ExitCode != 0 {
			t.Fatalf("%+v: %s", o, o.Stderr)
		}
		for _, beat := range []string{"inner.beat1", "inner.beat2", "inner.beat3"} {
			s.quiet(t, beat)
		}
		if left := beating(t, c); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	}
}

// What has left the tree of its keeper ends with the next outcome in the sandbox, while a neighbour that kept to
// its tree runs on, and it is written down to nobody: whose it was cannot be told.
func TestStrayOfANeighbourEnds(t *testing.T) {
	s := runscSandbox(t) // only there can a process leave
	c := s.connect(t)
	type end struct {
		o   control.Outcome
		err error
	}
	runs := map[string]chan end{}
	for name, argv := range map[string][]string{"trick": {"unmarked", "trick.beat", "stay"}, "plain": {"reaper", "plain.beat", "middle"}} {
		ended := make(chan end, 1)
		runs[name] = ended
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			o, err := c.Exec(ctx, spawnOf(argv...))
			ended <- end{o, err}
		}()
		s.awaitBeat(t, name+".beat")
		defer func() {
			cancel()
			if e := <-ended; !errors.Is(e.err, context.Canceled) || !e.o.CleanupProven {
				t.Errorf("%s: %v: %+v", name, e.err, e.o)
			}
		}()
	}
	s.awaitBeat(t, "trick.beat.orphaned")
	if o := must(t, c, spawnOf("exit", "0")); o.DescendantsKilled != 0 {
		t.Errorf("written down to a neighbour: %+v", o)
	}
	if n := s.stats(t, c)["orphans-killed"]; n != 1 {
		t.Errorf("%d killed in all", n)
	}
	s.quiet(t, "trick.beat")
	select {
	case e := <-runs["plain"]:
		t.Errorf("a neighbour ended: %+v", e)
	default:
	}
}

// The launch stage serves keepers only.
func TestLaunchByATenant(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		sp := spawnOf()
		sp.Argv = []string{Binary, StageLaunch, "/", "tenant", "exit", "0"}
		if o := must(t, s.connect(t), sp); o.ExitCode != 1 {
			t.Errorf("%+v", o)
		}
	})
}

// Commands of one sandbox keep apart: while others are timed out, cancelled, drained and swept, each gets
// its own bytes, all of them, and its own end.
func TestInvocationsKeepApart(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		began := time.Now()
		must(t, c, spawnOf("exit", "0"))
		while := time.Second + 20*time.Since(began) // for several commands to begin at once, and to run a little
		var disturbers, others sync.WaitGroup
		disturbed := make(chan struct{})
		disturbers.Go(func() {
			sp := spawnOf("flood", "65536")
			sp.Timeout, sp.MaxOutput = while, 50_000
			o, err := c.Exec(t.Context(), sp)
			if err != nil || !o.TimedOut || len(o.Stdout)+len(o.Stderr) != 50_000 || o.DroppedBytes == 0 || !o.CleanupProven {
				t.Errorf("flood: %v: timed out %v, kept %d, dropped %d", err, o.TimedOut, len(o.Stdout)+len(o.Stderr), o.DroppedBytes)
			}
		})
		disturbers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), while)
			defer cancel()
			o, err := c.Exec(ctx, spawnOf("stubborn", "apart-cancel.beat"))
			if !errors.Is(err, context.DeadlineExceeded) || o.Signal != "SIGKILL" || !o.CleanupProven {
				t.Errorf("cancel: %v: %+v", err, o)
			}
		})
		disturbers.Go(func() {
			for range 2 {
				o, err := c.Exec(t.Context(), spawnOf("daemon", "apart-daemon.beat"))
				if err != nil || o.ExitCode != 0 || o.DescendantsKilled < 1 || !o.CleanupProven {
					t.Errorf("daemon: %v: %+v", err, o)
				}
			}
		})
		others.Go(func() {
			runs := 0
			for disturbing := true; disturbing || runs == 0; runs++ {
				sp := spawnOf("cat")
				sp.Stdin = bytes.Repeat([]byte{byte(runs), 0, '\n', 0xff}, 50_000)
				o, err := c.Exec(t.Context(), sp)
				if err != nil || !bytes.Equal(o.Stdout, sp.Stdin) || len(o.Stderr) != 0 || o.ExitCode != 0 || o.TimedOut || o.DescendantsKilled != 0 || !o.CleanupProven {
					t.Errorf("cat, run %d: %v: %d of %d bytes, exit %d %s, killed %d", runs, err, len(o.Stdout), len(sp.Stdin), o.ExitCode, o.Signal, o.DescendantsKilled)
					return
				}
				select {
				case <-disturbed:
					disturbing = false
				default:
				}
			}
			t.Logf("cat ran %d times in %v", runs, while)
		})
		others.Go(func() {
			o, err := c.Exec(t.Context(), spawnOf("sleep", strconv.FormatInt(2*while.Milliseconds(), 10)))
			if err != nil || o.ExitCode != 0 || o.Signal != "" || o.DescendantsKilled != 0 || o.Duration < 2*while-time.Second {
				t.Errorf("sleeper: %v: %+v", err, o)
			}
		})
		disturbers.Wait()
		close(disturbed)
		others.Wait()
		for _, beat := range []string{"apart-cancel.beat", "apart-daemon.beat"} {
			s.quiet(t, beat)
		}
	})
}
