// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// taped is a Manager over the engine's own client, a tape, and an engine that speaks HTTP.
type taped struct {
	*testing.T
	w       *world
	engine  *httpEngine
	tape    *tape.Proxy
	pidFile string
	dir     string
	digest  string // of what runs as a sandbox
	m       *Manager
	boots   int
}

// sleeping are processes that stand for a sandbox and for engines, one after another.
var sleeping []*exec.Cmd

var sleepers = sync.OnceValues(func() ([]*exec.Cmd, error) {
	for range 4 {
		cmd := exec.Command("/bin/sleep", "900")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		sleeping = append(sleeping, cmd)
	}
	return sleeping, nil
})

// EndSleepers is for TestMain.
func EndSleepers() {
	for _, cmd := range sleeping {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

func newTaped(t *testing.T) *taped {
	t.Helper()
	all, err := sleepers()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hlt-") // sockaddr_un(7): 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", all[0].Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	x := &taped{T: t, w: newWorld(t), engine: newHTTPEngine(t, dir, all[0].Process.Pid), dir: dir, pidFile: filepath.Join(dir, "pid"), digest: api.Digest(body)}
	v := &vault{expires: time.Hour}
	x.w.resolver, err = credential.New(credential.Options{
		Bindings:  []credential.Binding{{BindingID: "b", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}}},
		Providers: map[string]credential.Provider{"p": v}, Store: v,
		Now: func() (time.Time, error) { return time.Now(), nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	x.engineIs(1)
	if x.tape, err = tape.Listen(filepath.Join(dir, "tape.sock"), x.engine.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.tape.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// engineIs makes the nth process the engine's.
func (x *taped) engineIs(n int) {
	all, _ := sleepers()
	if err := os.WriteFile(x.pidFile, fmt.Appendln(nil, all[n].Process.Pid), 0o600); err != nil {
		x.Fatal(err)
	}
}

// tapeLink is a control client that says what a sound supervisor says.
type tapeLink struct {
	rw   io.ReadWriteCloser
	done chan struct{}
}

func (l *tapeLink) Stream(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) {
	select {
	case <-l.done:
		return control.Outcome{}, control.ErrLost
	default:
		sink(1, []byte(s.ID))
		return control.Outcome{CleanupProven: true}, nil
	}
}
func (l *tapeLink) Statfs(context.Context) (control.Statfs, error) {
	return control.Statfs{Blocks: 100, BlockSize: 1024, Inodes: 10}, nil
}
func (l *tapeLink) Look(context.Context, ...[]byte) error { return nil }
func (l *tapeLink) Done() <-chan struct{}                 { return l.done }
func (l *tapeLink) Err() error {
	select {
	case <-l.done:
		return control.ErrLost
	default:
		return nil
	}
}
func (l *tapeLink) Close() error { return l.rw.Close() }

// boot is a new process of the worker. The one before it, if any, is not told.
func (x *taped) boot() {
	x.Helper()
	x.boots++
	log := slog.New(slog.DiscardHandler)
	e, err := engine.New(x.Context(), engine.Config{Socket: x.dir + "/tape.sock", Runtime: "runsc", CgroupParent: "/hallmark", Ceilings: limits, PidFile: x.pidFile, Log: log})
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { e.Close() })
	x.m, err = New(Config{
		Identity: Identity{
			WorkerID: "worker", Mode: api.Qualification, BootEpoch: fmt.Sprint("epoch-", x.boots), WorkerDigest: "sha256:w", SupervisorDigest: "sha256:s",
			SupervisorPath: "/supervisor", QuotaDigest: "sha256:q", SandboxBinaryDigest: x.digest,
		},
		Ceilings: limits, Limits: Limits{CreateDeadline: 5 * time.Second, DisposeDeadline: 5 * time.Second}, Credentials: x.w.resolver,
		Store: x.w, Engine: e, Quota: x.w, Gate: x.w, Log: log,
		Connect: func(_ context.Context, rw io.ReadWriteCloser) (Control, error) {
			l := &tapeLink{rw, make(chan struct{})}
			go func() {
				defer close(l.done)
				io.Copy(io.Discard, rw)
			}()
			return l, nil
		},
	})
	if err != nil {
		x.Fatal(err)
	}
}

// phase is a part of a worker's life in which an engine is called.
type phase struct {
	name   string
	coded  bool           // its errors go to callers
	before func(x *taped) // what has to be there
	do     func(x *taped) error
}

var phases = []phase{
	{"start", false, func(*taped) {}, func(x *taped) error { return x.m.Reconcile(x.Context()) }},
	{"create", true, ready, func(x *taped) error { _, err := x.create(); return err }},
	{"exchange", true, func(x *taped) { ready(x); x.mustCreate() }, func(x *taped) error {
		_, err := x.m.Exec(x.Context(), "ws", x.sandbox(), secretCommand("i"), "d")
		return err
	}},
	{"dispose", true, func(x *taped) { ready(x); x.mustCreate() }, func(x *taped) error { return x.m.Dispose(x.Context(), "ws", x.sandbox()) }},
	{"reconcile", false, func(x *taped) { ready(x); x.mustCreate(); x.lose() }, func(x *taped) error { return x.m.Reconcile(x.Context()) }},
	{"shutdown", false, func(x *taped) { ready(x); x.mustCreate() }, func(x *taped) error { return x.m.Shutdown(x.Context()) }},
}

func ready(x *taped) {
	x.Helper()
	if err := x.m.Reconcile(x.Context()); err != nil {
		x.Fatal(err)
	}
}

func (x *taped) create() (api.Receipt, error) {
	return x.m.Create(x.Context(), request("lease", "ws"), "d")
}

func (x *taped) mustCreate() {
	x.Helper()
	if _, err := x.create(); err != nil {
		x.Fatal(err)
	}
}

// sandbox is the id of the only sandbox, or none.
func (x *taped) sandbox() string {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	for id := range x.m.live {
		return id
	}
	return "none"
}

// lose lets the process go without its end, as SIGKILL does, and starts the next one.
func (x *taped) lose() {
	old := x.m
	old.mu.Lock()
	for _, s := range old.live {
		s.rec.State = stateGone // its callbacks are stale: it does nothing any more
		s.end()
	}
	clear(old.live)
	old.mu.Unlock()
	old.halt()
	x.boot()
}

// calls are the calls of a phase when nothing fails, in order.
func calls(t *testing.T, p phase) []target.TapeCall {
	t.Helper()
	x := newTaped(t)
	x.boot()
	p.before(x)
	_, mark, err := x.tape.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.do(x); err != nil {
		t.Fatalf("%s without a fault: %v", p.name, err)
	}
	got, _, err := x.tape.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	x.ends()
	return got
}

// ends proves that the session comes to a clean end, in as many processes and engines as it needs for
// that: whoever cannot know whether a container still comes may ask for another engine.
func (x *taped) ends() {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	err := x.m.Shutdown(ctx)
	if took := time.Since(began); took > 30*time.Second {
		x.Errorf("the shutdown took %s", took)
	}
	for next := 2; err != nil && next < 4; next++ {
		if !errors.Is(err, errTombstone) {
			x.Errorf("the shutdown left more than a name: %v", err)
		}
		x.boot()
		if err := x.m.Reconcile(ctx); err != nil {
			x.Fatalf("the next start: %v", err)
		}
		time.Sleep(200 * time.Millisecond) // it has seen which engine to wait for
		x.engineIs(next)
		err = x.m.Shutdown(ctx)
	}
	if err != nil {
		x.Errorf("the session does not end: %v", err)
	}
	if ours, foreign := x.engine.left(); len(ours) > 0 || foreign != 2 {
		x.Errorf("containers %v are left, and %d of 2 foreign ones", ours, foreign)
	}
	x.w.wantClean()
}

// TestSessionEndsCleanUnderEveryFault disturbs each call of the engine in each phase of a worker's life in
// every way that the tape has. Whatever the phase then says, the session comes to an end that leaves
// nothing, and other people's containers stay.
func TestSessionEndsCleanUnderEveryFault(t *testing.T) {
	const soon = 300 * time.Millisecond
	faults := []target.TapeRule{
		{Status: 500}, {Status: 404}, {Status: 503}, {Fault: target.FaultReplaced, Status: 500}, {Fault: target.FaultReplaced, Status: 502},
		{Fault: target.FaultStall, For: soon}, {Fault: target.FaultLate, For: soon},
		{Fault: target.FaultLost}, {Fault: target.FaultCut}, {Fault: target.FaultTwice},
	}
	removals := []target.TapeRule{
		{Status: 409, Text: "removal of container is already in progress"}, {Status: 204}, {Status: 204, Times: 3}, {Status: 500, Times: 3},
		{Fault: target.FaultReplaced, Status: 404}, {Status: 404, Times: 3},
	}
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			seen := calls(t, p)
			if len(seen) == 0 {
				t.Fatal("the phase asks the engine nothing")
			}
			// Most of the time somebody waits, so many run at once, whatever the number of processors.
			var wg sync.WaitGroup
			defer wg.Wait()
			places := make(chan struct{}, 24)
			deletes := 0
			for i, c := range seen {
				var rules []target.TapeRule
				for _, r := range faults {
					r.Match, r.Nth = ".", i+1
					rules = append(rules, r)
				}
				if c.Method == "DELETE" {
					deletes++
					for _, r := range removals { // those that act several times act on removals only
						r.Method, r.Match, r.Nth = "DELETE", ".", deletes
						rules = append(rules, r)
					}
				}
				for _, r := range rules {
					places <- struct{}{}
					wg.Go(func() {
						defer func() { <-places }()
						t.Run(fmt.Sprintf("%d %s %s/%s %d x%d", i+1, c.Method, shape(c.Path), r.Fault, r.Status, max(r.Times, 1)), func(t *testing.T) { p.under(t, r) })
					})
				}
			}
		})
	}
}

// under runs the phase with one fault.
func (p phase) under(t *testing.T, r target.TapeRule) {
	x := newTaped(t)
	x.boot()
	p.before(x)
	if err := x.tape.Inject(r); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := p.do(x)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("%s took %s", p.name, took)
	}
	if known := new(api.Error); err != nil && p.coded && !errors.As(err, &known) {
		t.Errorf("an error without a code: %v", err)
	}
	x.ends()
}

// shape is a path without what differs from run to run.
func shape(path string) string {
	var out []string
	for _, p := range strings.Split(strings.Trim(path, "/"), "/")[1:] {
		if len(p) >= 32 {
			p = "ID"
		}
		out = append(out, p)
	}
	return strings.Join(out, " ")
}
