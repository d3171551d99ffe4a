// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// Who waits for the end of strays shares the next look with all others, and nobody else waits for a look at all.
func TestSweepsShareALook(t *testing.T) {
	r := &reaper{audit: newAudit(io.Discard), keepers: map[int]*child{}}
	looks, begun, end := 0, make(chan struct{}), make(chan struct{})
	r.sweeper.look = func(time.Time) ([]stat, bool) {
		looks++
		begun <- struct{}{}
		<-end
		return nil, true
	}
	type answer struct {
		killed int
		none   bool
	}
	answers := make(chan answer)
	ask := func(within time.Duration) {
		killed, none := r.sweep(time.Now().Add(within))
		answers <- answer{killed, none}
	}
	go ask(time.Minute)
	<-begun
	if !r.mu.TryLock() {
		t.Fatal("a look holds the lock of the keepers")
	}
	r.mu.Unlock()
	r.kill(&child{pid: os.Getpid()}) // of no keeper: it does nothing, and does not wait
	const others = 5
	for range others {
		go ask(time.Minute)
	}
	eventually(t, "all of them wait", func() bool {
		r.sweeper.mu.Lock()
		defer r.sweeper.mu.Unlock()
		return len(r.sweeper.waiting) == 1+others
	})
	if r.keepers[0] != nil || r.looking != 1 {
		t.Errorf("%d looks hold back the reaping", r.looking)
	}
	// One that waits no longer is not held up by the look.
	go ask(0)
	if a := <-answers; a.none {
		t.Error("proven by a look that has not ended")
	}
	end <- struct{}{}
	if a := <-answers; !a.none || a.killed != 0 {
		t.Errorf("the first: %+v", a)
	}
	select { // the look that was under way is no proof for who asked since
	case a := <-answers:
		t.Errorf("one of the others, by a look from before it asked: %+v", a)
	case <-begun:
	}
	end <- struct{}{}
	for range others {
		if a := <-answers; !a.none {
			t.Errorf("%+v", a)
		}
	}
	if looks != 2 {
		t.Errorf("%d looks", looks)
	}
	eventually(t, "an end", func() bool {
		r.sweeper.mu.Lock()
		defer r.sweeper.mu.Unlock()
		return !r.sweeper.running
	})
}

// tracerEnv is the pid that the process with it traces; strayEnv makes a PID 1 of this program.
const (
	tracerEnv = "HALLMARK_TEST_TRACER"
	strayEnv  = "HALLMARK_TEST_STRAYS"
)

// A dead stray that a tenant keeps from being reaped, by tracing it, keeps no end from being proven.
func TestTracedCorpseIsNoStray(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{strayEnv + "=1", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "proven\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// sweepTraced is PID 1 with one stray, which another process traces.
func sweepTraced() error {
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return err
	}
	r, err := newReaper(newAudit(os.Stderr))
	if err != nil {
		return err
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		return err
	}
	stray, err := syscall.ForkExec(sleep, []string{"sleep", "600"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	said, fd, err := pipe("r")
	if err != nil {
		return err
	}
	tracer, err := r.start([]string{"tracer"}, []string{tracerEnv + "=" + strconv.Itoa(stray)}, []uintptr{0, uintptr(fd), 2})
	unix.Close(fd)
	if err != nil {
		return err
	}
	defer r.kill(tracer)
	if _, err := io.ReadFull(said, make([]byte, 1)); err != nil {
		return fmt.Errorf("no tracer: %w", err)
	}
	killed, none := r.sweep(time.Now().Add(5 * time.Second))
	st, err := readStat(stray)
	if err != nil || !st.dead() {
		return fmt.Errorf("the stray is no corpse that somebody keeps: %+v, %v", st, err)
	}
	if killed != 1 || !none {
		return fmt.Errorf("killed %d, none left %v", killed, none)
	}
	if killed, none = r.sweep(time.Now().Add(5 * time.Second)); killed != 0 || !none {
		return fmt.Errorf("again: killed %d, none left %v", killed, none)
	}
	fmt.Println("proven")
	return nil
}

// trace seizes a process, says so, and never waits for it.
func trace(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	if err := unix.PtraceSeize(n); err != nil {
		return fmt.Errorf("seize: %w", err)
	}
	os.Stdout.WriteString(".")
	time.Sleep(time.Hour)
	return nil
}

// Only an invocation that nobody ran beside gets strays counted: of any other they may be a neighbour's.
func TestCompany(t *testing.T) {
	p := &pool{audit: newAudit(io.Discard)}
	p.audit.count("keepers", 0)
	get := func() (*handle, uint64) {
		c, other := net.Pipe()
		t.Cleanup(func() { c.Close(); other.Close() })
		p.idle = append(p.idle, &handle{child: &child{gone: make(chan struct{})}, conn: c})
		h, id, busy, err := p.get(t.Context(), false)
		if busy || err != nil {
			t.Fatal(busy, err)
		}
		return h, id
	}
	want := func(what string, id uint64, want bool) {
		t.Helper()
		if got := p.accompanied(id); got != want {
			t.Errorf("%s: company %v", what, got)
		}
	}
	a, first := get()
	want("alone", first, false)
	p.put(a, true)
	a, first = get()
	want("after another", first, false)
	b, second := get()
	want("joined", first, true)
	want("joining", second, true)
	p.put(b, true)
	want("left alone again", first, true)
	b, second = get()
	p.put(a, true)
	want("whose elder has gone", second, true)
	p.put(b, true)
	_, third := get()
	want("when all have gone", third, false)
}

// A keeper that does not get ready holds up a caller for no longer than the caller waits.
func TestCallerLeavesAKeeperThatStarts(t *testing.T) {
	r := &reaper{audit: newAudit(io.Discard), keepers: map[int]*child{}}
	p := &pool{reaper: r, audit: r.audit}
	ctx, cancel := context.WithCancel(t.Context())
	type answer struct {
		busy bool
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		_, _, busy, err := p.get(ctx, false)
		answers <- answer{busy, err}
	}()
	var keeper int
	eventually(t, "a keeper that starts", func() bool { // this program, which sleeps then: see TestMain
		r.mu.Lock()
		defer r.mu.Unlock()
		for keeper = range r.keepers {
		}
		return keeper != 0
	})
	began := time.Now()
	cancel()
	a := <-answers
	if a.busy || !errors.Is(a.err, unix.ECANCELED) || time.Since(began) > readyWithin/2 {
		t.Errorf("%+v after %v", a, time.Since(began))
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(keeper, &ws, 0, nil); err != nil || ws.Signal() != unix.SIGKILL {
		t.Errorf("the keeper: %v, %v", ws, err)
	}
	if p.busy != 0 {
		t.Errorf("%d places are taken", p.busy)
	}
	if _, _, busy, err := p.get(ctx, false); busy || !errors.Is(err, unix.ECANCELED) || len(r.keepers) != 1 || p.busy != 0 {
		t.Errorf("when it had left before: %v %v, %d keepers, %d places", busy, err, len(r.keepers), p.busy)
	}
}

// A neighbour that makes strays without end, faster than looks follow each other, keeps no invocation from being
// proven to have ended, is written down to none, and runs on, as one does that makes none.
func TestStreamOfStrays(t *testing.T) {
	s := runscSandbox(t) // only there can a process leave
	c := s.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type end struct {
		o   control.Outcome
		err error
	}
	ended := make(chan end, 1)
	go func() {
		o, err := c.Exec(ctx, spawnOf("unmarked", "stream.beat", "stream"))
		ended <- end{o, err}
	}()
	s.awaitBeat(t, "stream.beat")
	plain := make(chan end, 1)
	go func() {
		o, err := c.Exec(ctx, spawnOf("reaper", "plain.beat", "middle"))
		plain <- end{o, err}
	}()
	s.awaitBeat(t, "plain.beat")
	for range 5 {
		began := time.Now()
		o := must(t, c, spawnOf("exit", "0"))
		t.Logf("%v", time.Since(began))
		if o.DescendantsKilled != 0 {
			t.Errorf("%+v", o)
		}
	}
	for _, name := range []string{"stream.beat", "plain.beat"} {
		size := func() int64 {
			st, err := os.Stat(s.workspace + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			return st.Size()
		}
		before := size()
		eventually(t, name+" goes on", func() bool { return size() > before+20 })
	}
	if n := s.stats(t, c)["orphans-killed"]; n < 20 {
		t.Errorf("%d strays: no stream", n)
	}
	cancel()
	for _, ended := range []chan end{ended, plain} {
		if e := <-ended; !errors.Is(e.err, context.Canceled) || !e.o.CleanupProven {
			t.Errorf("%v: %+v", e.err, e.o)
		}
	}
}
