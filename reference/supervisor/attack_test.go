// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

func TestBombsEnd(t *testing.T) {
	limitedSandbox(t, 80, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		baseline := processes(t, c)
		for _, tt := range []struct {
			name string
			argv []string
			min  int64 // killed beyond the leader
		}{
			{"bomb to its timeout", []string{"bomb"}, 30},
			{"bomb whose leader exits", []string{"bomb", "leave"}, 30},
			{"processes that continue each other", []string{"continuer", "4"}, 4},
		} {
			t.Run(tt.name, func(t *testing.T) {
				sp := spawnOf(tt.argv...)
				sp.Timeout = 1500 * time.Millisecond
				began := time.Now()
				o := must(t, c, sp)
				t.Logf("%v, %d killed, timed out %v", time.Since(began), o.DescendantsKilled, o.TimedOut)
				if o.DescendantsKilled < tt.min {
					t.Errorf("%d killed, want at least %d", o.DescendantsKilled, tt.min)
				}
				if d := time.Since(began); d > sp.Timeout+Grace+KillWithin {
					t.Errorf("took %v", d)
				}
				if n := processes(t, c); n > baseline+1 {
					t.Errorf("%d processes, %d before", n, baseline)
				}
			})
		}
	})
}

// Where forks finish that were under way at a signal, one bomb in twelve used to outlive its killing.
func TestBombEndsEachTime(t *testing.T) {
	limitedSandbox(t, 80, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		for range 8 {
			sp := spawnOf("bomb")
			sp.Timeout = time.Second
			if o := must(t, c, sp); !o.CleanupProven || o.DescendantsKilled < 10 {
				t.Errorf("%+v", o)
			}
		}
	})
}

// What leaves its session has to be found process by process. This kernel always allows that in time; a
// sentry whose every system call waits for a hundred busy processes may not. Then the outcome must
// say so, in time, since the worker replaces the sandbox on that word.
func TestScatteredBombsEnd(t *testing.T) {
	for _, argv := range [][]string{{"bomb", "scatter"}, {"runner", "3"}} {
		t.Run(argv[0], func(t *testing.T) {
			limitedSandbox(t, 100, func(t *testing.T, s *sandbox) {
				c := s.connect(t)
				sp := spawnOf(argv...)
				sp.Timeout = 5 * time.Second
				began := time.Now()
				o, err := c.Exec(t.Context(), sp)
				if err != nil && (s.pid != 0 || !errors.Is(err, control.ErrLost)) {
					t.Fatal(err)
				}
				d := time.Since(began)
				t.Logf("%v, %d killed, proven %v, %v", d, o.DescendantsKilled, o.CleanupProven, err)
				if s.pid != 0 && (!o.CleanupProven || o.DescendantsKilled == 0) {
					t.Errorf("%+v", o)
				}
				if d > sp.Timeout+control.TerminateWithin+time.Second {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}

// processes asks a tenant process how many there are.
func processes(t *testing.T, c *control.Client) int {
	t.Helper()
	o := must(t, c, spawnOf("count"))
	n, err := strconv.Atoi(strings.TrimSpace(string(o.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestZombiesAreReaped(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		before := processes(t, c)
		o := must(t, c, spawnOf("farm", "300"))
		if n, err := strconv.Atoi(strings.TrimSpace(string(o.Stdout))); err != nil || n < 200 {
			t.Fatalf("no farm: %q %q", o.Stdout, o.Stderr)
		}
		if after := processes(t, c); after > before+1 {
			t.Errorf("%d processes, %d before", after, before)
		}
	})
}

func TestTenantAgainstRoot(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		var got []string
		o := must(t, c, spawnOf("attack"))
		if err := json.Unmarshal(o.Stdout, &got); err != nil || len(got) != 0 {
			t.Errorf("succeeded: %v %v %s", got, err, o.Stderr)
		}
		before := s.stats(t, c)
		o = must(t, c, spawnOf("dial"))
		if n := bytes.Count(o.Stdout, []byte("permission denied")); n != 3 {
			t.Errorf("dial: %s", o.Stdout)
		}
		after := s.stats(t, c)
		if after["accepted"] != before["accepted"] || after["requests"] != before["requests"]+2 { // one exec, one stats
			t.Errorf("counters moved: %v, then %v", before, after)
		}
		// A signal that only root may send does not end PID 1 either.
		for _, sig := range []string{"TERM", "INT", "HUP", "QUIT", "PIPE", "USR1"} {
			if s.pid != 0 {
				if out, err := exec.Command("kill", "-"+sig, strconv.Itoa(s.pid)).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBridgeDeathEndsInvocations(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Exec(t.Context(), spawnOf("stubborn", "bridge.beat"))
			ended <- err
		}()
		s.awaitBeat(t, "bridge.beat")
		if out, err := s.command("/bin/tenant", "slay", "bridge").CombinedOutput(); err != nil || !bytes.HasSuffix(out, []byte(" <nil>\n")) {
			t.Fatalf("%v: %s", err, out)
		}
		if err := <-ended; !errors.Is(err, control.ErrLost) {
			t.Errorf("%v", err)
		}
		<-c.Done()
		other := s.connect(t)
		eventually(t, "the invocation ends", func() bool {
			return len(beating(t, other)) == 0
		})
		s.quiet(t, "bridge.beat")
	})
}

// beating lists the pids of tenant processes other than the one that lists.
func beating(t *testing.T, c *control.Client) []string {
	t.Helper()
	return strings.Fields(string(must(t, c, spawnOf("others")).Stdout))
}

func (s *sandbox) awaitBeat(t *testing.T, name string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if st, err := os.Stat(filepath.Join(s.workspace, name)); err == nil && st.Size() > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never beat", name)
		}
		time.Sleep(time.Millisecond)
	}
}

// When a keeper dies, what it kept falls to PID 1: it is killed, and nothing is claimed.
func TestKeeperDeath(t *testing.T) {
	s := hostSandbox(t) // only here can the keeper be found from outside
	c := s.connect(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), spawnOf("daemon", "keeper.beat", "middle"))
		ended <- err
	}()
	hold := make(chan error, 1)
	go func() {
		sp := spawnOf("reaper", "held.beat", "middle")
		sp.ID = "held"
		_, err := c.Exec(t.Context(), sp)
		hold <- err
	}()
	s.awaitBeat(t, "held.beat")
	<-ended
	killed := 0
	for _, keeper := range childrenOf(t, s.pid) {
		if len(childrenOf(t, keeper)) > 0 { // the busy one
			killed++
			if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-hold; killed != 1 || !errors.Is(err, control.ErrLost) {
		t.Errorf("%d keepers killed: %v", killed, err)
	}
	eventually(t, "orphans are killed", func() bool { return s.stats(t, c)["orphans-killed"] >= 1 })
	eventually(t, "the audit names it", func() bool {
		return strings.Contains(s.stderr.String(), `invocation not proven to have ended id="held"`)
	})
	s.quiet(t, "held.beat")
	must(t, c, spawnOf("exit", "0"))
}

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var out []int
	for _, task := range tasks {
		if b, err = os.ReadFile(task); err != nil {
			continue
		}
		for _, f := range bytes.Fields(b) {
			n, err := strconv.Atoi(string(f))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}

// A root process that queues a request and exits is refused, however often it tries; alive and
// with the challenge, the same request is served.
func TestQueuedRequestsOfDeadPeers(t *testing.T) {
	eachSandbox(t, func(t *testing.T, s *sandbox) {
		c := s.connect(t)
		sp := spawnOf("write", "1", "0")
		var guess [control.ChallengeSize]byte
		queued := control.AppendRequest(nil, &guess, 0, control.Frame{Type: control.Exec, Request: 1, Payload: sp.Encode()})
		before := s.stats(t, c)
		const tries = 20
		for range tries {
			cmd := s.command("/bin/tenant", "dead")
			cmd.Stdin = bytes.NewReader(queued)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		refused := func(m map[string]uint64) (n uint64) {
			for name, v := range m {
				if strings.HasPrefix(name, "refused.") {
					n += v
				}
			}
			return n
		}
		deadline := time.Now().Add(10 * time.Second)
		var after map[string]uint64
		for after = s.stats(t, c); refused(after) < refused(before)+tries; after = s.stats(t, c) {
			if time.Now().After(deadline) {
				t.Fatalf("not all were refused: %v, then %v", before, after)
			}
		}
		if after["invocations"] != before["invocations"] {
			t.Errorf("executed: %v, then %v", before, after)
		}
		t.Logf("%v", after)
		alive := s.connect(t)
		if o := must(t, alive, sp); string(o.Stdout) != "a" {
			t.Errorf("%+v", o)
		}
	})
}

// At the process limit nothing of ours dies: what cannot be started is said to be so.
func TestAtTheProcessLimit(t *testing.T) {
	s := limitedHost(t, pidsCgroup(t), 90)
	c := s.connect(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		o, err := c.Exec(ctx, spawnOf("bomb"))
		if err == nil || !o.CleanupProven {
			err = fmt.Errorf("%+v: %w", o, err)
		} else {
			err = nil
		}
		ended <- err
	}()
	refused := 0
	deadline := time.Now().Add(20 * time.Second)
	for refused < 20 {
		_, err := c.Exec(t.Context(), spawnOf("exit", "0"))
		var se *control.SpawnError
		switch {
		case errors.As(err, &se) && se.Step == control.StepFork && errors.Is(err, syscall.EAGAIN):
			refused++
		case err != nil:
			t.Fatalf("%v; %s", err, s.stderr)
		case time.Now().After(deadline):
			t.Fatal("the limit was never met")
		}
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	must(t, c, spawnOf("exit", "0"))
}

// A command for which a keeper has to be started hears it when that cannot make its threads, and costs the sandbox
// nothing. There is room for the keeper's process each time, and for a different number of threads.
func TestKeeperThatCannotStart(t *testing.T) {
	dir := pidsCgroup(t)
	s := limitedHost(t, dir, 200)
	c := s.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for i := range idleKeepers {
		file := fmt.Sprint("busy", i)
		running.Go(func() { c.Exec(ctx, spawnOf("beat", file)) })
		s.awaitBeat(t, file)
	}
	limit := func(n int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(n)), 0); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "pids.current"))
	if err != nil {
		t.Fatal(err)
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for room := range warmKeeper {
		limit(now + room)
		_, err := c.Exec(t.Context(), spawnOf("exit", "0"))
		var se *control.SpawnError
		if !errors.As(err, &se) || se.Step != control.StepFork || !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("with room for %d tasks: %v", room, err)
		}
	}
	limit(200)
	must(t, c, spawnOf("exit", "0"))
}

// Without a descriptor left PID 1 proves the end of a command that was alone. Beside another it cannot look, and
// says so: what could not be read is not taken for gone.
func TestProofWithoutADescriptor(t *testing.T) {
	s := hostSandbox(t) // only here is PID 1's limit another's to change
	c := s.connect(t)
	starve := func() (back func()) {
		var old unix.Rlimit
		if err := unix.Prlimit(s.pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
			t.Fatal(err)
		}
		if err := unix.Prlimit(s.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}, nil); err != nil {
			t.Fatal(err)
		}
		return func() { unix.Prlimit(s.pid, unix.RLIMIT_NOFILE, &old, nil) }
	}
	back := starve()
	must(t, c, spawnOf("daemon", "alone.beat"))
	back()
	s.quiet(t, "alone.beat")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Exec(ctx, spawnOf("beat", "beside.beat")) }()
	s.awaitBeat(t, "beside.beat")
	back = starve()
	o, err := c.Exec(t.Context(), spawnOf("exit", "0"))
	back()
	if err != nil || o.ExitCode != 0 || o.CleanupProven {
		t.Errorf("%v: %+v", err, o)
	}
	cancel()
	<-ended
	must(t, c, spawnOf("exit", "0"))
}

// limitedHost is a sandbox of this kernel in a cgroup with room for n tasks. RLIMIT_NPROC would not do: it
// counts all processes of the tenant's uid on the machine.
func limitedHost(t *testing.T, dir string, n int) *sandbox {
	t.Helper()
	s := hostSandbox(t)
	for _, pid := range append([]int{s.pid}, childrenOf(t, s.pid)...) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(n)), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

// limitedSandbox runs f where a bomb reaches about n processes. A sentry that meets its cgroup's limit dies,
// so there it is RLIMIT_NPROC, which counts the users of one sandbox only.
func limitedSandbox(t *testing.T, n int, f func(t *testing.T, s *sandbox)) {
	t.Run("host", func(t *testing.T) { f(t, limitedHost(t, pidsCgroup(t), n+40)) })
	t.Run("runsc", func(t *testing.T) { f(t, runscSandbox(t, n)) })
}

// pidsCgroup makes a cgroup with a pids controller, v2 or v1.
func pidsCgroup(t *testing.T) string {
	t.Helper()
	for _, parent := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir, err := os.MkdirTemp(parent, "hallmark-supervisor-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { eventually(t, "cgroup removed", func() bool { return os.Remove(dir) == nil }) })
		if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil {
			return dir
		}
	}
	t.Fatal("no cgroup with the pids controller")
	return ""
}

// The bridge speaks to PID 1 only.
func TestImpostorGetsNothing(t *testing.T) {
	l, err := listenAt(t)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		n, _ := c.Read(make([]byte, 1))
		got <- n
	}()
	if _, err := dial(l.Addr().String(), time.Second); !errors.Is(err, ErrImpostor) { // the listener is this test, not PID 1
		t.Errorf("%v", err)
	}
	if n := <-got; n != 0 {
		t.Errorf("%d bytes sent", n)
	}
}
