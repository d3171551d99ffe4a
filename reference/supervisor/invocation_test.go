// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

func TestIdentity(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		o := must(t, c, spawnOf("look", "a b", "", "c\xff"))
		var got struct {
			Args, Env                              []string
			UID, GID, Groups, PID, SID, PGID, NNP  int
			Cwd                                    string
			FDs                                    []int
			CapInh, CapPrm, CapEff, CapBnd, CapAmb string
			SigIgn, SigBlk                         string
		}
		if err := json.Unmarshal(o.Stdout, &got); err != nil {
			t.Fatalf("%v: %s %s", err, o.Stdout, o.Stderr)
		}
		if got.UID != Tenant || got.GID != Tenant || got.Groups != 0 {
			t.Errorf("uid %d gid %d groups %d", got.UID, got.GID, got.Groups)
		}
		if got.PID != got.SID || got.PID != got.PGID {
			t.Errorf("pid %d session %d group %d", got.PID, got.SID, got.PGID)
		}
		if !reflect.DeepEqual(got.Env, Environment()) {
			t.Errorf("environment %q", got.Env)
		}
		if !slices.Equal(got.FDs, []int{0, 1, 2}) {
			t.Errorf("descriptors %v", got.FDs)
		}
		if got.Cwd != Workspace || len(got.Args) != 3 || got.Args[0] != "a b" || got.Args[1] != "" || got.NNP != 1 {
			t.Errorf("cwd %q args %q no_new_privs %d", got.Cwd, got.Args, got.NNP)
		}
		const none, bound = "0000000000000000", "00000000000000e0" // KILL 5, SETGID 6, SETUID 7
		if got.CapInh != none || got.CapPrm != none || got.CapEff != none || got.CapBnd != bound {
			t.Errorf("capabilities %s %s %s bounding %s", got.CapInh, got.CapPrm, got.CapEff, got.CapBnd)
		}
		if s.pid != 0 && (got.CapAmb != none || got.SigIgn != none || got.SigBlk != none) { // runsc has no such lines
			t.Errorf("ambient %q ignored %q blocked %q", got.CapAmb, got.SigIgn, got.SigBlk)
		}
		if out := must(t, c, spawnOf("escape")); bytes.Count(out.Stdout, []byte("operation not permitted")) != 3 {
			t.Errorf("escape: %s", out.Stdout)
		}
	})
}

func TestEnds(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		for _, tt := range []struct {
			name   string
			argv   []string
			exit   int
			signal string
		}{
			{"zero", []string{"tenant", "exit", "0"}, 0, ""},
			{"code", []string{"tenant", "exit", "255"}, 255, ""},
			{"signal", []string{"tenant", "die", "9"}, -1, "SIGKILL"},
			{"another signal", []string{"tenant", "die", "15"}, -1, "SIGTERM"},
			{"not found", []string{"nonesuch"}, 127, ""},
			{"not found by path", []string{"./nonesuch/x"}, 127, ""},
			{"no execute bit", []string{"noexec"}, 126, ""},
			{"a directory", []string{"/proc"}, 126, ""},
			{"no format", []string{"/bin/notype"}, 126, ""},
			{"not shell text", []string{"tenant exit 0; true"}, 127, ""},
		} {
			t.Run(tt.name, func(t *testing.T) {
				sp := spawnOf()
				sp.Argv = tt.argv
				o := must(t, c, sp)
				if o.ExitCode != tt.exit || o.Signal != tt.signal || o.TimedOut || o.DescendantsKilled != 0 {
					t.Errorf("%+v", o)
				}
			})
		}
		t.Run("no directory", func(t *testing.T) {
			sp := spawnOf("exit", "0")
			sp.Cwd = "nowhere"
			_, err := c.Exec(t.Context(), sp)
			var se *control.SpawnError
			if !errors.As(err, &se) || se.Step != control.StepCwd || se.Errno != syscall.ENOENT {
				t.Fatalf("%v", err)
			}
		})
		t.Run("stdin", func(t *testing.T) {
			sp := spawnOf("cat")
			sp.Stdin = bytes.Repeat([]byte("0123456789\x00\xff"), 1<<20/12)
			if o := must(t, c, sp); !bytes.Equal(o.Stdout, sp.Stdin) {
				t.Fatalf("%d bytes came back", len(o.Stdout))
			}
		})
		t.Run("stdin unread", func(t *testing.T) {
			sp := spawnOf("exit", "3")
			sp.Stdin = make([]byte, 1<<20)
			if o := must(t, c, sp); o.ExitCode != 3 {
				t.Fatalf("%+v", o)
			}
		})
	})
}

func TestOutputBoundary(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		const limit = 100_000
		for _, tt := range []struct {
			name     string
			out, err string
			dropped  int64
		}{
			{"under", "99999", "0", 0}, {"exact", "100000", "0", 0}, {"over", "100001", "0", 1},
			{"over on stderr", "0", "100001", 1}, {"split exact", "50000", "50000", 0},
			{"split over", "50000", "50001", 1}, {"far over", "3000000", "1", 2_900_001},
		} {
			t.Run(tt.name, func(t *testing.T) {
				sp := spawnOf("write", tt.out, tt.err)
				sp.MaxOutput = limit
				o := must(t, c, sp)
				if o.DroppedBytes != tt.dropped || (o.TruncatedStdout || o.TruncatedStderr) != (tt.dropped > 0) {
					t.Errorf("dropped %d truncated %v %v, want %d", o.DroppedBytes, o.TruncatedStdout, o.TruncatedStderr, tt.dropped)
				}
				if n := len(o.Stdout) + len(o.Stderr); tt.dropped > 0 && n != limit {
					t.Errorf("kept %d", n)
				}
				if strings.Trim(string(o.Stdout), "a") != "" || strings.Trim(string(o.Stderr), "b") != "" {
					t.Error("streams are mixed")
				}
			})
		}
	})
}

// What is written to one stream takes nothing of the budget from what was written to the other before,
// however close they are and whichever the collector looks at first.
func TestLaterFloodTakesNothingFromBefore(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		const rounds, budget = 30, 1000
		starved := 0
		for range rounds {
			sp := spawnOf("write", "100", "65536") // stdout first
			sp.MaxOutput = budget
			o := must(t, c, sp)
			if len(o.Stdout)+len(o.Stderr) != budget || o.DroppedBytes != 100+65536-budget || !o.TruncatedStderr || o.TruncatedStdout != (len(o.Stdout) < 100) {
				t.Fatalf("%d and %d bytes kept, %d dropped, truncated %v %v", len(o.Stdout), len(o.Stderr), o.DroppedBytes, o.TruncatedStdout, o.TruncatedStderr)
			}
			if len(o.Stdout) != 100 {
				starved++
			}
		}
		if starved > 0 {
			t.Errorf("in %d of %d commands the later stream took the budget of the earlier one", starved, rounds)
		}
	})
}

func TestFloodIsDrainedUntilTimeout(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		sp := spawnOf("flood", "65536")
		sp.Timeout, sp.MaxOutput = 2*time.Second, 100_000 // a busy machine takes its time to start it
		began := time.Now()
		o := must(t, c, sp)
		if !o.TimedOut || o.Signal != "SIGTERM" || len(o.Stdout)+len(o.Stderr) != 100_000 || o.DroppedBytes < 1<<20 {
			t.Errorf("%v: timed out %v signal %q kept %d dropped %d", time.Since(began), o.TimedOut, o.Signal, len(o.Stdout)+len(o.Stderr), o.DroppedBytes)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("took %v", d)
		}
		sp = spawnOf("flood", "1")
		sp.Timeout = 2 * time.Second
		if o := must(t, c, sp); len(o.Stdout) == 0 || len(o.Stderr) == 0 {
			t.Errorf("a stream starved: %d and %d bytes", len(o.Stdout), len(o.Stderr))
		}
	})
}

func TestSurvivorsEnd(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		for _, tt := range []struct {
			name  string
			argv  []string
			beats []string
			min   int64
		}{
			{"daemon", []string{"daemon", "daemon.beat"}, []string{"daemon.beat"}, 1},
			{"stopped", []string{"stopped", "stopped.beat"}, []string{"stopped.beat"}, 1},
			{"subreaper", []string{"reaper", "reaper.beat"}, []string{"reaper.beat"}, 2},
			{"nested subreapers", []string{"nested", "nested.beat"}, []string{"nested.beat1", "nested.beat2", "nested.beat3"}, 6},
			{"mark of a subreaper cleared", []string{"unmarked", "unmarked.beat"}, []string{"unmarked.beat"}, 1},
			{"each forks the other again", []string{"pair", "pair.beat"}, []string{"pair.beat"}, 2},
			{"let go by its tracer", []string{"traced", "traced.beat", "leave"}, []string{"traced.beat"}, 1},
			{"waits in vfork", []string{"vforker", "vforker.beat", "leave"}, []string{"vforker.beat"}, 2},
		} {
			t.Run(tt.name, func(t *testing.T) {
				began := time.Now()
				o := must(t, c, spawnOf(tt.argv...))
				if o.ExitCode != 0 || o.Signal != "" || o.DescendantsKilled < tt.min {
					t.Errorf("%+v", o)
				}
				t.Logf("%v, %d killed", time.Since(began), o.DescendantsKilled)
				for _, name := range tt.beats {
					s.quiet(t, name)
				}
				// What is stopped beats no more either way. It would be there.
				if left := beating(t, c); len(left) > 0 {
					t.Errorf("processes %v are left", left)
				}
			})
		}
		t.Run("killed by the tenant itself", func(t *testing.T) {
			if o := must(t, c, spawnOf("suicide")); o.DescendantsKilled != 0 || o.ExitCode != 0 {
				t.Errorf("%+v", o)
			}
		})
		t.Run("hold", func(t *testing.T) {
			began := time.Now()
			o := must(t, c, spawnOf("hold"))
			if string(o.Stdout) != "held\n" || o.DescendantsKilled != 1 || time.Since(began) > 2*time.Second {
				t.Errorf("%v: %+v", time.Since(began), o)
			}
		})
	})
}

func TestTimeoutAndCancel(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		sp := spawnOf("stubborn", "timeout.beat")
		sp.Timeout = 300 * time.Millisecond
		began := time.Now()
		o := must(t, c, sp)
		if d := time.Since(began); !o.TimedOut || o.Signal != "SIGKILL" || d < sp.Timeout+Grace || d > 3*time.Second || o.DescendantsKilled != 0 {
			t.Errorf("%v: %+v", d, o)
		}
		s.quiet(t, "timeout.beat")

		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		o, err := c.Exec(ctx, spawnOf("stubborn", "cancel.beat"))
		if !errors.Is(err, context.DeadlineExceeded) || !o.CleanupProven || o.TimedOut || o.Signal != "SIGKILL" {
			t.Errorf("%v: %+v", err, o)
		}
		s.quiet(t, "cancel.beat")
	})
}

// What does not hear SIGTERM, or is not there to hear it, gets SIGKILL after the grace.
func TestUnkillableStylesEnd(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		for _, verb := range []string{"stubborn", "halter", "fifo", "traced", "vforker", "reaper"} {
			t.Run(verb, func(t *testing.T) {
				file := verb + ".style"
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				argv := []string{verb, file}
				if verb == "reaper" {
					argv = append(argv, "middle") // the leader itself is the subreaper
				}
				type end struct {
					o   control.Outcome
					err error
				}
				ended := make(chan end, 1)
				go func() {
					o, err := c.Exec(ctx, spawnOf(argv...))
					ended <- end{o, err}
				}()
				s.awaitBeat(t, file)
				time.Sleep(200 * time.Millisecond) // into the style: the beat comes before it
				cancel()
				began := time.Now()
				e := <-ended
				if !errors.Is(e.err, context.Canceled) || !e.o.CleanupProven {
					t.Errorf("%v: %+v", e.err, e.o)
				}
				if d := time.Since(began); d > Grace+KillWithin {
					t.Errorf("took %v", d)
				}
				s.quiet(t, file)
				if left := beating(t, c); len(left) > 0 {
					t.Errorf("processes %v are left", left)
				}
			})
		}
	})
}

func TestNeighbourIsUntouched(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		type end struct {
			o   control.Outcome
			err error
		}
		ended := make(chan end, 1)
		go func() {
			sp := spawnOf("sleep", "2500")
			o, err := c.Exec(t.Context(), sp)
			ended <- end{o, err}
		}()
		for _, verb := range [][]string{{"daemon", "n.beat"}, {"runner", "2"}, {"stopped", "m.beat"}, {"hold"}} {
			must(t, c, spawnOf(verb...))
		}
		e := <-ended
		if e.err != nil || e.o.ExitCode != 0 || e.o.Signal != "" || e.o.DescendantsKilled != 0 || !e.o.CleanupProven {
			t.Fatalf("%v: %+v", e.err, e.o)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		results := make(chan error, maxInvocations+4)
		for range cap(results) {
			go func() {
				o, err := c.Exec(t.Context(), spawnOf("sleep", "1500"))
				if err == nil && (o.ExitCode != 0 || !o.CleanupProven) {
					err = errors.New("bad outcome")
				}
				results <- err
			}()
		}
		busy := 0
		for range cap(results) {
			if err := <-results; errors.Is(err, control.ErrBusy) {
				busy++
			} else if err != nil {
				t.Error(err)
			}
		}
		if busy != 4 {
			t.Errorf("%d were refused as busy, want 4", busy)
		}
		must(t, c, spawnOf("exit", "0"))
	})
}

// A descriptor of the stream that lives on in another invocation neither delays nor extends the
// outcome.
func TestPipeInAnotherInvocation(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		kept := make(chan struct{})
		go func() {
			defer close(kept)
			c.Exec(ctx, spawnOf("keep", "/tmp/keep.sock"))
		}()
		defer func() { cancel(); <-kept }()
		var o control.Outcome
		deadline := time.Now().Add(20 * time.Second)
		for {
			began := time.Now()
			o = must(t, c, spawnOf("pass", "/tmp/keep.sock"))
			if o.ExitCode == 0 {
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("took %v", d)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s", o.Stderr)
			}
		}
		if !bytes.HasPrefix(o.Stdout, []byte("passed\n")) {
			t.Errorf("%.40q", o.Stdout)
		}
	})
}
