// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// The model drives a Manager over a host whose parts fail, with a clock of its own, and looks after
// each step at what docs/lifecycle.md says always holds. A seed says what is done in which order and what
// fails; which of two goroutines that are ready comes first is the scheduler's, so a failing seed is run
// with -count to see it again:
//
//	go test ./reference/session -run TestLifecycleModel -seed N -count 20

var (
	modelSeed  = flag.Uint64("seed", 0, "run this seed of the model only")
	modelSeeds = flag.Int("seeds", 60, "how many seeds of the model are run")
)

const (
	modelSteps = 400
	// Bounds of calls, beyond which somebody waits for something that has no bound.
	boundCreate   = 60*time.Second + 30*time.Second + time.Second                      // the create, and one attempt at its removal
	boundExec     = 10*time.Second + 2*time.Second + 2*time.Second + 5*time.Second     // claim, command, verdict, the claim given back
	boundSecret   = 10*time.Second + 2*60*time.Second + 30*time.Second + 2*time.Second // claim, two replacements, provider, command
	boundDispose  = 30*time.Second + backoffLast + 30*time.Second                      // an attempt under way, a pause, the next one
	boundQuery    = 31 * time.Second
	boundEndless  = 16*time.Minute + 20*time.Second // the hard expiry, and what an exec takes besides
	boundShutdown = 33 * time.Second
)

// TestLifecycleModel runs seeds that nobody has chosen.
func TestLifecycleModel(t *testing.T) {
	first, n := rand.Uint64N(1<<32), *modelSeeds
	if *modelSeed != 0 {
		first, n = *modelSeed, 1
	}
	t.Logf("seeds %d to %d", first, first+uint64(n)-1)
	gone := map[string]int{}
	for i := range n {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			bad, trail, rows := runModel(t, seed, "")
			if len(bad) > 0 {
				t.Errorf("%s\nafter:\n%s", strings.Join(bad, "\n"), strings.Join(trail, "\n"))
			}
			for r, n := range rows {
				gone[r] += n
			}
		})
	}
	// What the seeds never came to they have not tested.
	for _, l := range lifecycle {
		for _, e := range l.on {
			row := l.from + " " + string(e)
			t.Logf("%6d times %q", gone[row], row)
			if gone[row] == 0 && n >= 60 && !seldom[row] {
				t.Errorf("the seeds never came to %q", row)
			}
		}
	}
}

// seldom are rows that sixty seeds may miss: a moment between two calls of the engine, and something rare
// in it. Tests of their own come to them.
var seldom = map[string]bool{"replacing hard-expiry": true, "replacing cleanup": true, "replacing load": true}

// TestModelFindsDefects breaks one promise at a time. The model must notice each within a few seeds.
func TestModelFindsDefects(t *testing.T) {
	for d, says := range map[defect]string{
		removalBelieved:   "no record owns",
		writesDropped:     "",
		startsAnyway:      "after it was seen to retire",
		refusesAndMakes:   "no record owns",
		waitsForEver:      "is not back",
		leaseMoved:        "hard expiry",
		workspaceDropped:  "workspace",
		invocationDropped: "started twice",
		lookalikeRemoved:  "not ours",
	} {
		t.Run(string(d), func(t *testing.T) {
			for seed := uint64(1); seed <= 150; seed++ {
				bad, _, _ := runModel(t, seed, d)
				for _, b := range bad {
					if strings.Contains(b, says) {
						t.Logf("seed %d: %s", seed, b)
						return
					}
				}
			}
			t.Errorf("not noticed in 150 seeds")
		})
	}
}

// call is one call of the API that may not be back yet.
type call struct {
	what  string
	began time.Time
	bound time.Duration
	by    *proc
	back  bool
}

// told is a sandbox that a caller knows of.
type told struct {
	ws, sb, lease string
	hard          time.Time
}

// asked is an invocation that was asked for.
type asked struct {
	told
	req   api.ExecRequest
	bound time.Duration
}

// model is one run.
type model struct {
	h     *host
	rng   *rand.Rand
	vault *credential.Resolver

	p      *proc    // nil between two processes
	m      *Manager // of p
	serves bool     // m has reconciled, and does not end

	mu      sync.Mutex
	calls   []*call
	known   []told
	claimed map[string]time.Time // by lease: when it was last asked for
	serial  int
	execs   []asked        // newest last
	rows    map[string]int // of the table, by state and event: how often each was gone
	trail   []string
	rowsMu  sync.Mutex
	ctx     context.Context
	done    context.CancelFunc
	began   time.Time
}

func runModel(t *testing.T, seed uint64, d defect) (bad, trail []string, rows map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		x := newModel(t, seed, d)
		x.boot()
		for range modelSteps {
			x.step()
			synctest.Wait()
			if x.check(); len(x.h.bad) > 0 {
				break
			}
		}
		bad, trail, rows = x.end(), x.trail, x.rows
	})
	return bad, trail, rows
}

// newModel is a host without a worker yet.
func newModel(t *testing.T, seed uint64, d defect) *model {
	v := &vault{expires: 24 * time.Hour}
	resolver, err := credential.New(credential.Options{
		Bindings:  []credential.Binding{{BindingID: "b", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}}},
		Providers: map[string]credential.Provider{"p": v}, Store: v,
		Now: func() (time.Time, error) { return time.Now(), nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &model{h: newHost(t, seed, d), rng: rand.New(rand.NewPCG(seed, 0)), vault: resolver, claimed: map[string]time.Time{}, rows: map[string]int{}, began: time.Now()}
	x.ctx, x.done = context.WithCancel(context.Background())
	return x
}

// note is one line of what was done.
func (x *model) note(format string, args ...any) {
	x.trail = append(x.trail, fmt.Sprintf("%12s ", time.Since(x.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// boot is a new process of the worker. It serves once it has reconciled.
func (x *model) boot() {
	x.serial++
	p := &proc{h: x.h, gone: make(chan struct{})}
	m, err := New(Config{
		Identity: Identity{
			WorkerID: "worker", Mode: api.Qualification, BootEpoch: fmt.Sprint("epoch-", x.serial), WorkerDigest: "sha256:w", SupervisorDigest: "sha256:s",
			SupervisorPath: "/supervisor", QuotaDigest: "sha256:q", SandboxBinaryDigest: "sha256:b",
		},
		Ceilings: limits, Limits: Limits{Outcomes: 3}, Credentials: x.vault, Store: p, Engine: p, Quota: p, Gate: p,
		Connect: func(ctx context.Context, rw io.ReadWriteCloser) (Control, error) {
			return rw.(*mlink), p.call(ctx, "connect", "", func() error { return nil })
		},
		Log: slog.New(rowCounter{slog.DiscardHandler, x}),
	})
	if err != nil {
		panic(err)
	}
	x.mu.Lock()
	x.p, x.m, x.serves = p, m, false
	x.mu.Unlock()
	x.async("reconcile", 62*time.Second, func(context.Context) error {
		err := m.Reconcile(context.Background())
		x.mu.Lock()
		defer x.mu.Unlock()
		x.serves = x.p == p && err == nil
		return nil
	})
}

// rowCounter counts the rows of the table that the Manager says it has gone.
type rowCounter struct {
	slog.Handler
	x *model
}

func (rowCounter) Enabled(context.Context, slog.Level) bool { return true }

func (c rowCounter) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "sandbox moves" {
		return nil
	}
	row := map[string]string{}
	r.Attrs(func(a slog.Attr) bool { row[a.Key] = a.Value.String(); return true })
	c.x.rowsMu.Lock()
	defer c.x.rowsMu.Unlock()
	c.x.rows[row["from"]+" "+row["on"]]++
	return nil
}

// async makes one call beside everything else.
func (x *model) async(what string, bound time.Duration, f func(ctx context.Context) error) {
	c := &call{what: what, began: time.Now(), bound: bound, by: x.p}
	x.mu.Lock()
	x.calls = append(x.calls, c)
	x.mu.Unlock()
	go func() {
		err := f(x.ctx)
		x.mu.Lock()
		c.back = true
		x.mu.Unlock()
		if known := new(api.Error); err != nil && !errors.As(err, &known) {
			x.h.mu.Lock()
			x.h.violateLocked("%s gave an error without a code: %v", what, err)
			x.h.mu.Unlock()
		}
	}()
}

// pick is a sandbox that is known, mostly one that serves.
func (x *model) pick() (told, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	var serving []told
	for _, k := range x.known {
		if s := x.m.live[k.sb]; s != nil && s.serves() {
			serving = append(serving, k)
		}
	}
	if len(serving) > 0 && x.rng.IntN(5) > 0 {
		return serving[x.rng.IntN(len(serving))], true
	}
	if len(x.known) == 0 || x.rng.IntN(4) > 0 {
		return told{}, false
	}
	return x.known[len(x.known)-1-x.rng.IntN(min(len(x.known), 6))], true
}

// unmade is a sandbox that is being made; nobody was told of it yet.
func (x *model) unmade() (told, bool) {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	for id, s := range x.m.live {
		if s.building() {
			return told{ws: s.rec.WorkspaceID, sb: id}, true
		}
	}
	return told{}, false
}

var modelOps = []string{"store", "precheck", "admit", "prepare", "verify", "usage", "release", "purge", "image", "create", "start", "binary",
	"bridge", "connect", "statfs", "remove", "list", "instance"}

// step does one thing.
func (x *model) step() {
	m := x.m
	switch n := x.rng.IntN(100); {
	case n < 16:
		x.create()
	case n < 34:
		x.exec()
	case n < 38:
		if k, ok := x.pick(); ok {
			x.note("renew %s", k.sb)
			x.async("renew", time.Millisecond, func(ctx context.Context) error {
				r, err := m.Renew(ctx, k.ws, k.sb)
				if err == nil && r.ExpiresAt > wire(k.hard) {
					return fmt.Errorf("a renewal goes to %s, past the hard expiry at %s", r.ExpiresAt, wire(k.hard))
				}
				return err
			})
		}
	case n < 41:
		if k, ok := x.pick(); ok {
			x.async("get", boundQuery, func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				st, err := m.Get(ctx, k.ws, k.sb)
				if err == nil && st.State != stateGone && st.ExpiresAt > wire(k.hard) {
					return fmt.Errorf("a lease ends at %s, past the hard expiry at %s", st.ExpiresAt, wire(k.hard))
				}
				return err
			})
		}
	case n < 46:
		if k, ok := x.pick(); ok {
			hold := time.Duration(x.rng.IntN(4000)) * time.Millisecond
			x.note("tree of %s for %s", k.sb, hold)
			x.async("tree", hold+time.Millisecond, func(ctx context.Context) error {
				ctx, _, release, err := m.Tree(ctx, k.ws, k.sb)
				if err != nil {
					return err
				}
				defer release()
				select {
				case <-time.After(hold):
				case <-ctx.Done():
				}
				return nil
			})
		}
	case n < 54:
		k, ok := x.unmade()
		if !ok || x.rng.IntN(2) == 0 {
			k, ok = x.pick()
		}
		if ok {
			x.note("dispose %s", k.sb)
			x.async("dispose "+k.sb, boundDispose, func(context.Context) error { return m.Dispose(context.Background(), k.ws, k.sb) })
		}
	case n < 56:
		ws := fmt.Sprint("w", x.rng.IntN(3))
		x.note("purge %s", ws)
		x.async("purge "+ws, boundQuery, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			return m.Purge(ctx, ws)
		})
	case n < 59:
		x.die()
	case n < 63:
		op := modelOps[x.rng.IntN(len(modelOps))]
		x.h.mu.Lock()
		x.h.chance[op] = 5 + x.rng.IntN(96)
		x.note("%s fails in %d%%", op, x.h.chance[op])
		x.h.mu.Unlock()
	case n < 72:
		x.note("nothing fails")
		x.h.mu.Lock()
		clear(x.h.chance)
		x.h.mu.Unlock()
	case n < 94:
		d := []time.Duration{time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 20 * time.Second, 61 * time.Second, 4 * time.Minute}[[]int{0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 4, 5}[x.rng.IntN(14)]]
		x.note("%s pass", d)
		time.Sleep(d)
	case n < 96:
		x.note("the engine starts again")
		x.h.restart()
	case n < 98:
		x.note("the worker is killed, and starts again")
		x.killed()
		x.boot()
	default:
		x.note("the worker ends, and starts again")
		x.shutdown()
		x.boot()
	}
	x.breakIt()
}

func (x *model) create() {
	ws, lease := fmt.Sprint("w", x.rng.IntN(3)), fmt.Sprint("l", x.rng.IntN(4), "-", x.serial)
	if x.rng.IntN(3) == 0 {
		x.serial++
	}
	hard := time.Duration(1+x.rng.IntN(15)) * time.Minute
	if x.rng.IntN(4) == 0 {
		hard = time.Duration(2+x.rng.IntN(15)) * time.Second
	}
	req := request(lease, ws)
	req.IdleTimeoutMs, req.HardTimeoutMs = int64(1+x.rng.IntN(300))*1000, hard.Milliseconds()
	patience := time.Hour
	if x.rng.IntN(5) == 0 {
		patience = time.Duration(x.rng.IntN(3000)) * time.Millisecond
	}
	x.note("create %s on %s, %s", lease, ws, hard)
	m, digest := x.m, fmt.Sprint(ws, hard, req.IdleTimeoutMs)
	x.async("create "+lease, boundCreate, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		x.mu.Lock()
		x.claimed[lease] = time.Now()
		x.mu.Unlock()
		r, err := m.Create(ctx, req, digest)
		x.mu.Lock()
		defer x.mu.Unlock()
		if err == nil {
			x.known = append(x.known, told{ws, r.SandboxID, lease, time.UnixMilli(r.ExpiresAtUnixMs)})
		}
		return err
	})
}

func (x *model) exec() {
	k, ok := x.pick()
	if !ok {
		x.create()
		return
	}
	x.serial++
	e := asked{k, command(fmt.Sprint("i", x.serial)), boundExec}
	e.req.Argv = []string{[]string{argShort, argShort, argShort, argEndless, argUnclean, argBusy}[x.rng.IntN(6)]}
	if e.req.Argv[0] == argEndless {
		e.bound = boundEndless
	}
	if x.rng.IntN(3) == 0 {
		e.req, e.bound = secretCommand(e.req.InvocationID), boundSecret
		e.req.Argv = []string{argShort}
	}
	if x.rng.IntN(3) == 0 || x.h.defect == invocationDropped && x.rng.IntN(4) > 0 {
		for _, old := range x.execs[max(0, len(x.execs)-10):] { // a repetition, in the same sandbox
			if old.sb == k.sb {
				e = old
			}
		}
	}
	x.execs = append(x.execs, e)
	id, req, bound := e.req.InvocationID, e.req, e.bound
	leaves := time.Hour
	if x.rng.IntN(4) == 0 {
		leaves = time.Duration(x.rng.IntN(2000)) * time.Millisecond
	}
	x.note("exec %s %s in %s, %d references", id, req.Argv[0], k.sb, len(req.CredentialRefs))
	m := x.m
	x.async("exec "+id, bound, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, leaves)
		defer cancel()
		_, err := m.Exec(ctx, k.ws, k.sb, req, fmt.Sprint(req.Argv[0], len(req.CredentialRefs)))
		return err
	})
	if x.rng.IntN(6) == 0 {
		x.async("cancel "+id, boundQuery, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			_, err := m.Cancel(ctx, k.ws, k.sb, id)
			return err
		})
	}
}

// die ends a container, or what connects the worker to it.
func (x *model) die() {
	x.h.mu.Lock()
	defer x.h.mu.Unlock()
	for _, b := range x.h.boxes {
		if b.foreign {
			continue
		}
		if x.rng.IntN(3) == 0 {
			x.note("the bridge of %s breaks", b.sandbox)
			b.cut.Do(func() { close(b.lost) })
		} else {
			x.note("%s dies", b.sandbox)
			b.end(engine.Death{ExitCode: 137, OOMKilled: x.rng.IntN(2) == 0})
		}
		return
	}
}

// killed ends the process as SIGKILL does: nothing that it does has an effect any more.
func (x *model) killed() {
	x.p.kill()
	m := x.m
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		m.Shutdown(ctx) // only so that its goroutines end
	}()
	x.mu.Lock()
	x.p, x.m, x.serves = nil, nil, false
	x.mu.Unlock()
	synctest.Wait()
}

// shutdown ends the process in order. What it says of leftovers must be true.
func (x *model) shutdown() {
	began, m := time.Now(), x.m
	x.mu.Lock()
	x.serves = false
	x.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := m.Shutdown(ctx)
	x.h.mu.Lock()
	defer x.h.mu.Unlock()
	if took := time.Since(began); took > boundShutdown {
		x.h.violateLocked("a shutdown took %s", took)
	}
	if err == nil {
		for id, r := range x.h.recordsLocked() {
			if r.State != stateGone {
				x.h.violateLocked("the shutdown left %s in state %s and says nothing", id, r.State)
			}
		}
	}
	x.p.kill()
}

// breakIt breaks a promise of the Manager's own.
func (x *model) breakIt() {
	m := x.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch x.h.defect {
	case leaseMoved:
		for _, s := range m.live {
			s.hard = s.hard.Add(time.Hour)
		}
	case workspaceDropped:
		clear(m.workspaces)
	case invocationDropped:
		for _, s := range m.live {
			s.aged = false
			for id, inv := range s.invocations {
				if !inv.running {
					delete(s.invocations, id)
				}
			}
			s.finished, s.kept = nil, 0
		}
	case lookalikeRemoved:
		p := x.p
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			p.Remove(ctx, "", "hallmark-bystander")
		}()
	}
}

// check looks at everything that always holds. Precondition: everybody waits.
func (x *model) check() {
	x.mu.Lock()
	defer x.mu.Unlock()
	h, now := x.h, time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := x.calls[:0]
	for _, c := range x.calls {
		if c.back || c.by.killed.Load() {
			continue
		}
		kept = append(kept, c)
		if took := now.Sub(c.began); took > c.bound {
			h.violateLocked("%s is not back after %s; its bound is %s", c.what, took, c.bound)
		}
	}
	x.calls = kept

	records := h.recordsLocked()
	owners := map[string]string{}
	held := map[string]int{}
	for id, r := range records {
		if r.State == stateGone {
			continue
		}
		owners[r.Container] = id
		if !r.Released {
			held[r.WorkspaceID]++
		}
	}
	running := map[string]int{}
	for name, b := range h.boxes {
		if b.foreign {
			continue
		}
		if owners[name] == "" {
			h.violateLocked("no record owns container %s of sandbox %s", name, b.sandbox)
		}
		select {
		case <-b.ended:
		default:
			if b.started {
				running[b.workspace]++
			}
		}
	}
	for ws, n := range running {
		if n > 1 {
			h.violateLocked("workspace %s has %d running containers", ws, n)
		}
	}
	for ws := range h.mounts {
		if held[ws] == 0 {
			h.violateLocked("no record owns the mount of workspace %s", ws)
		}
	}
	for _, name := range []string{"hallmark-" + strings.Repeat("0", 32), "hallmark-bystander"} {
		if h.boxes[name] == nil {
			h.violateLocked("container %s, which is not ours, is gone", name)
		}
	}
	if x.m != nil {
		x.checkManagerLocked(records, now)
	}
}

// checkManagerLocked looks at what the Manager holds in memory, beside the records.
func (x *model) checkManagerLocked(records map[string]record, now time.Time) {
	h, m := x.h, x.m
	m.mu.Lock()
	defer m.mu.Unlock()
	building, execs := 0, 0
	for id, s := range m.live {
		if m.leases[s.rec.ClientLeaseID] != s {
			h.violateLocked("sandbox %s does not hold its lease", id)
		}
		if holds := m.workspaces[s.rec.WorkspaceID] == s; holds == s.rec.Released {
			h.violateLocked("sandbox %s, released %v, holds its workspace: %v", id, s.rec.Released, holds)
		}
		if s.building() {
			building++
		}
		execs += s.execs
		switch {
		case s.rec.State == stateRetiring:
			if _, seen := h.retiredAt[id]; !seen {
				h.retiredAt[id] = now
			}
			if !s.rec.Failed && h.running[id] > 0 && now.Sub(h.retiredAt[id]) > time.Second {
				h.violateLocked("commands still run in sandbox %s, which was seen to retire %s ago", id, now.Sub(h.retiredAt[id]))
			}
		case s.serves():
			claimed, ok := x.claimed[s.rec.ClientLeaseID]
			for _, k := range x.known {
				if k.sb == id && !now.Before(k.hard) {
					h.violateLocked("sandbox %s serves past its hard expiry at %s", id, k.hard)
				}
				if k.sb == id && ok && k.hard.After(claimed.Add(16*time.Minute)) {
					h.violateLocked("sandbox %s has a hard expiry at %s, asked for at %s", id, k.hard, claimed)
				}
			}
			if s.active == 0 && !now.Before(s.expiry()) {
				h.violateLocked("sandbox %s serves past its lease", id)
			}
		}
		if s.active < 0 || s.execs < 0 || s.writes < 0 {
			h.violateLocked("sandbox %s counts %d operations, %d commands, %d writes", id, s.active, s.execs, s.writes)
		}
	}
	for ws, s := range m.workspaces {
		if m.live[s.rec.SandboxID] != s {
			h.violateLocked("workspace %s is held by what is gone", ws)
		}
	}
	if m.creating != building || m.execs != execs {
		h.violateLocked("%d creates are counted and %d are under way; %d commands and %d", m.creating, building, m.execs, execs)
	}
	if !x.serves {
		return
	}
	for id, r := range records {
		if _, live := m.live[id]; r.State != stateGone && !live {
			h.violateLocked("the record of %s in state %s is forgotten", id, r.State)
		}
	}
}

// end lets everything work again: nothing may be left then. It returns what was seen broken.
func (x *model) end() []string {
	x.h.mu.Lock()
	clear(x.h.chance)
	found := len(x.h.bad) > 0
	x.h.mu.Unlock()
	x.note("nothing fails any more, and the engine starts again")
	x.done()
	x.h.restart()
	if !found {
		time.Sleep(30 * time.Minute)
		x.h.restart() // what did not know which engine to wait for has learnt it
		time.Sleep(time.Minute)
		synctest.Wait()
		x.check()
		if !x.serves {
			x.note("the worker starts again")
			x.killed()
			x.boot()
			time.Sleep(2 * time.Minute)
			x.h.restart()
			time.Sleep(time.Minute)
		}
		x.shutdown()
		synctest.Wait()
		x.h.mu.Lock()
		for id, r := range x.h.recordsLocked() {
			if r.State != stateGone {
				x.h.violateLocked("the record of %s is left in state %s", id, r.State)
			}
		}
		for name, b := range x.h.boxes {
			if !b.foreign {
				x.h.violateLocked("container %s is left", name)
			}
		}
		for ws := range x.h.mounts {
			x.h.violateLocked("workspace %s is left mounted", ws)
		}
		x.h.mu.Unlock()
	} else {
		close(x.h.over)
		x.killed()
		time.Sleep(time.Hour) // everybody gives up
	}
	synctest.Wait()
	x.h.mu.Lock()
	defer x.h.mu.Unlock()
	return x.h.bad
}
