// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// Ways in which a call of a worker to its host may go. The worker never learns which it was.
type fault int

const (
	goesWell   fault = iota
	isRefused        // an error, and no effect
	losesReply       // the effect, and an error
	stalls           // nothing until the caller gives up
)

var (
	errBroken = errors.New("broken on purpose")
	errKilled = errors.New("the process that asked has been killed")
)

// defect is a promise that a test breaks on purpose, to see that the model notices.
type defect string

const (
	removalBelieved   defect = "a removal that did nothing is taken for one"
	writesDropped     defect = "the store acknowledges what it does not keep"
	startsAnyway      defect = "the engine starts a container for a caller that has given up"
	refusesAndMakes   defect = "a create that was refused happens all the same"
	waitsForEver      defect = "a removal does not heed its deadline"
	leaseMoved        defect = "a hard expiry is moved"
	workspaceDropped  defect = "the index of workspaces loses an entry"
	invocationDropped defect = "an invocation is forgotten that has run"
	lookalikeRemoved  defect = "a container is removed for its labels"
)

// host is everything outside the worker: an engine, disks, a store. It outlives workers.
type host struct {
	dir    string
	defect defect
	over   chan struct{} // closed at the end, for those that wait for ever

	mu        sync.Mutex
	rng       *rand.Rand
	rows      map[string][]byte // bucket "|" key
	boxes     map[string]*hbox  // by name
	mounts    map[string]bool   // by workspace
	images    map[string]bool
	instance  int
	serial    int
	chance    map[string]int       // per cent of calls of an operation that do not go well
	retiredAt map[string]time.Time // by sandbox: when it was first seen to retire
	spawned   map[string]int       // by sandbox "/" invocation
	running   map[string]int       // commands by sandbox
	bad       []string             // promises that were seen broken

	count     int  // calls so far
	killAt    int  // the call in which the worker is killed; 0 for none
	killAfter bool // when the call has had its effect, and not before
	full      bool // the store has no room
}

// hbox is one container.
type hbox struct {
	id, name, workspace, sandbox string
	foreign, started             bool
	ended, lost                  chan struct{}
	over, cut                    sync.Once
	death                        engine.Death
}

func (b *hbox) end(d engine.Death) {
	b.over.Do(func() { b.death = d; close(b.ended) })
	b.cut.Do(func() { close(b.lost) })
}

func newHost(t *testing.T, seed uint64, d defect) *host {
	h := &host{
		dir: t.TempDir(), defect: d, over: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 1)), rows: map[string][]byte{}, boxes: map[string]*hbox{},
		mounts: map[string]bool{}, images: map[string]bool{}, chance: map[string]int{}, retiredAt: map[string]time.Time{},
		spawned: map[string]int{}, running: map[string]int{},
	}
	for _, name := range []string{"hallmark-" + strings.Repeat("0", 32), "hallmark-bystander"} {
		h.boxes[name] = &hbox{id: "foreign-" + name, name: name, foreign: true, started: true, ended: make(chan struct{}), lost: make(chan struct{})}
	}
	return h
}

// violateLocked notes a promise that was broken.
func (h *host) violateLocked(format string, args ...any) {
	h.bad = append(h.bad, fmt.Sprintf(format, args...))
}

// busyLocked is the container of a workspace that runs, or nil.
func (h *host) busyLocked(ws string) *hbox {
	for _, b := range h.boxes {
		if b.workspace == ws && b.started {
			select {
			case <-b.ended:
			default:
				return b
			}
		}
	}
	return nil
}

// records are the durable records of sandboxes.
func (h *host) recordsLocked() map[string]record {
	out := map[string]record{}
	for k, v := range h.rows {
		if id, ok := strings.CutPrefix(k, bucketSandboxes+"|"); ok {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				h.violateLocked("record %s: %v", id, err)
			}
			out[id] = r
		}
	}
	return out
}

// late makes a container appear when a create that nobody waits for any more gets there.
func (h *host) late(s engine.Spec) {
	h.mu.Lock()
	after, instance := time.Duration(h.rng.IntN(120))*time.Second, h.instance
	h.mu.Unlock()
	time.AfterFunc(after, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.instance == instance {
			h.appearLocked(s)
		}
	})
}

func (h *host) appearLocked(s engine.Spec) *hbox {
	h.serial++
	b := &hbox{
		id: fmt.Sprintf("id-%d", h.serial), name: s.Name, workspace: filepath.Base(s.Workspace), sandbox: s.SandboxID,
		ended: make(chan struct{}), lost: make(chan struct{}),
	}
	if _, taken := h.boxes[s.Name]; taken {
		h.violateLocked("container name %s is used twice", s.Name)
	}
	h.boxes[s.Name] = b
	return b
}

// restart is another process of the engine: containers end, and what it had taken is lost.
func (h *host) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.instance++
	for _, b := range h.boxes {
		if !b.foreign {
			b.end(engine.Death{ExitCode: 137})
		}
	}
}

// proc is one process of the worker, and what it sees of the host.
type proc struct {
	h      *host
	killed atomic.Bool
	gone   chan struct{} // closed when it is killed
}

func (p *proc) kill() {
	if p.killed.CompareAndSwap(false, true) {
		close(p.gone)
	}
}

// call is one call to the host. Every call must have a deadline.
func (p *proc) call(ctx context.Context, op, subject string, effect func() error) error {
	h := p.h
	if _, bounded := ctx.Deadline(); !bounded {
		h.mu.Lock()
		h.violateLocked("%s of %s has no deadline", op, subject)
		h.mu.Unlock()
	}
	h.mu.Lock()
	way, delay := goesWell, time.Duration(0)
	if h.rng.IntN(100) < h.chance[op] {
		way = fault(1 + h.rng.IntN(3))
	}
	if h.rng.IntN(4) == 0 {
		delay = time.Duration(h.rng.IntN(1500)) * time.Millisecond
	}
	heedless := h.defect == waitsForEver && op == "remove"
	if way == stalls || heedless && h.rng.IntN(4) == 0 {
		delay = time.Hour
	}
	h.mu.Unlock()
	if delay > 0 {
		done := ctx.Done()
		if heedless {
			done = nil
		}
		select {
		case <-time.After(delay):
		case <-done:
		case <-p.gone:
		case <-h.over:
		}
	}
	switch {
	case p.killed.Load():
		return errKilled
	case ctx.Err() != nil && !heedless:
		return ctx.Err()
	case way == isRefused:
		return errBroken
	}
	h.mu.Lock()
	h.count++
	strikes := h.count == h.killAt
	h.mu.Unlock()
	if strikes && !h.killAfter {
		p.kill()
		return errKilled
	}
	h.mu.Lock()
	err := effect()
	h.mu.Unlock()
	if strikes {
		p.kill()
		return errKilled
	}
	if way == losesReply {
		return errBroken
	}
	return err
}

// noEffectLocked says that something began in a sandbox that had been seen to retire before.
func (h *host) noEffectLocked(what, sandbox string) {
	if at, ok := h.retiredAt[sandbox]; ok && time.Now().After(at) {
		h.violateLocked("%s in sandbox %s, %s after it was seen to retire", what, sandbox, time.Since(at))
	}
}

// Store.

func (p *proc) Put(ctx context.Context, bucket, key string, value []byte) error {
	return p.Update(ctx, bucket, state.Change{Key: key, Value: value})
}

func (p *proc) Get(_ context.Context, bucket, key string) ([]byte, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	v, ok := p.h.rows[bucket+"|"+key]
	if !ok {
		return nil, state.ErrNotFound
	}
	return bytes.Clone(v), nil
}

func (p *proc) Update(ctx context.Context, bucket string, changes ...state.Change) error {
	return p.call(ctx, "store", bucket, func() error {
		if p.h.full {
			return unix.ENOSPC
		}
		if p.h.defect == writesDropped && bucket == bucketSandboxes && p.h.rng.IntN(3) == 0 {
			return nil
		}
		for _, c := range changes {
			if c.Delete {
				delete(p.h.rows, bucket+"|"+c.Key)
			} else {
				p.h.rows[bucket+"|"+c.Key] = bytes.Clone(c.Value)
			}
		}
		return nil
	})
}

func (p *proc) Each(bucket string, f func(string, []byte) error) error {
	p.h.mu.Lock()
	rows := maps.Clone(p.h.rows)
	p.h.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		if key, ok := strings.CutPrefix(k, bucket+"|"); ok {
			if err := f(key, rows[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *proc) Keys(bucket, prefix string, most int) (keys []string, err error) {
	err = p.Each(bucket, func(k string, _ []byte) error {
		if len(keys) < most && strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
		return nil
	})
	return keys, err
}

// Gate.

func (p *proc) Precheck(ctx context.Context, _ admission.Start) error {
	return p.call(ctx, "precheck", "", func() error { return nil })
}

func (p *proc) Admit(ctx context.Context, _ admission.Start) error {
	return p.call(ctx, "admit", "", func() error { return nil })
}
func (p *proc) ManifestDigest(string) string { return "" }
func (p *proc) CohortID() string             { return "cohort" }
func (p *proc) PinsDigest() string           { return "pins" }
func (p *proc) EvidenceDigests() []string    { return nil }

// Quota.

func (p *proc) Known(_ context.Context, ws string) (bool, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	return p.h.images[ws], nil
}

func (p *proc) Prepare(ctx context.Context, s quota.Spec) (quota.Mount, error) {
	m := mount
	m.Path = filepath.Join(p.h.dir, s.WorkspaceID)
	return m, p.call(ctx, "prepare", s.WorkspaceID, func() error {
		p.h.images[s.WorkspaceID], p.h.mounts[s.WorkspaceID] = true, true
		return os.MkdirAll(m.Path, 0o755)
	})
}

func (p *proc) Verify(ctx context.Context, ws string) error {
	return p.call(ctx, "verify", ws, func() error {
		if !p.h.mounts[ws] {
			p.h.violateLocked("workspace %s is not mounted when it is verified", ws)
		}
		return nil
	})
}

func (p *proc) Usage(ctx context.Context, ws string) (u quota.Usage, err error) {
	return quota.Usage{BytesLimit: 1}, p.call(ctx, "usage", ws, func() error { return nil })
}

func (p *proc) Release(ctx context.Context, ws string) error {
	return p.call(ctx, "release", ws, func() error {
		if b := p.h.busyLocked(ws); b != nil {
			p.h.violateLocked("workspace %s is released while container %s of sandbox %s runs on it", ws, b.name, b.sandbox)
		}
		if !p.h.mounts[ws] {
			return quota.ErrNotFound
		}
		delete(p.h.mounts, ws)
		return nil
	})
}

func (p *proc) Purge(ctx context.Context, ws string) error {
	return p.call(ctx, "purge", ws, func() error {
		if b := p.h.busyLocked(ws); b != nil || p.h.mounts[ws] {
			p.h.violateLocked("workspace %s is purged while it is in use", ws)
		}
		if !p.h.images[ws] {
			return quota.ErrNotFound
		}
		delete(p.h.images, ws)
		return nil
	})
}

// Engine.

func (p *proc) Image(ctx context.Context, config, _ string) (engine.Image, error) {
	return engine.Image{ConfigDigest: config, ID: config}, p.call(ctx, "image", config, func() error { return nil })
}

func (p *proc) Create(ctx context.Context, s engine.Spec) (engine.Created, error) {
	var made *hbox
	err := p.call(ctx, "create", s.Name, func() error {
		made = p.h.appearLocked(s)
		return nil
	})
	if err == nil {
		return engine.Created{ID: made.id, ProfileDigest: "sha256:p"}, nil
	}
	if made == nil {
		p.h.mu.Lock()
		luck := p.h.rng.IntN(2)
		p.h.mu.Unlock()
		switch {
		case errors.Is(err, errBroken) && luck == 0:
			if p.h.defect == refusesAndMakes {
				p.h.late(s)
			}
			return engine.Created{}, errors.Join(engine.ErrNotCreated, err)
		case !errors.Is(err, errBroken) && luck == 0: // the request had left
			p.h.late(s)
		}
	}
	return engine.Created{}, err
}

func (p *proc) find(id string) *hbox {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	for _, b := range p.h.boxes {
		if b.id == id {
			return b
		}
	}
	return nil
}

func (p *proc) Start(ctx context.Context, id string) (int, error) {
	start := func() error {
		for _, b := range p.h.boxes {
			if b.id != id {
				continue
			}
			if other := p.h.busyLocked(b.workspace); other != nil {
				p.h.violateLocked("container %s is started on workspace %s while %s runs", b.name, b.workspace, other.name)
			}
			if !p.h.mounts[b.workspace] {
				p.h.violateLocked("container %s is started on workspace %s, which is not mounted", b.name, b.workspace)
			}
			p.h.noEffectLocked("a container is started", b.sandbox)
			b.started = true
			return nil
		}
		return errors.New("no such container")
	}
	err := p.call(ctx, "start", id, start)
	if p.h.defect == startsAnyway && ctx.Err() != nil {
		time.AfterFunc(300*time.Millisecond, func() {
			p.h.mu.Lock()
			defer p.h.mu.Unlock()
			start()
		})
	}
	return 1, err
}

func (p *proc) VerifyBinary(ctx context.Context, id string, _ int, _ string) error {
	return p.call(ctx, "binary", id, func() error { return nil })
}

func (p *proc) OOMKills(int) (func() (bool, error), error) { return nil, errBroken }

func (p *proc) Bridge(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	b := p.find(id)
	if b == nil {
		return nil, errors.New("no such container")
	}
	l := &mlink{p: p, box: b, closed: make(chan struct{}), done: make(chan struct{})}
	if err := p.call(ctx, "bridge", id, func() error { return nil }); err != nil {
		return nil, err
	}
	go func() {
		defer close(l.done)
		select {
		case <-l.closed:
		case <-b.lost:
		case <-p.gone:
		case <-p.h.over:
		}
	}()
	return l, nil
}

func (p *proc) Wait(ctx context.Context, id string) (engine.Death, error) {
	b := p.find(id)
	if b == nil {
		return engine.Death{Gone: true}, nil
	}
	select {
	case <-b.ended:
		return b.death, nil
	case <-ctx.Done():
		return engine.Death{}, ctx.Err()
	}
}

func (p *proc) Remove(ctx context.Context, id, name string) (found bool, err error) {
	err = p.call(ctx, "remove", name, func() error {
		b, ok := p.h.boxes[name]
		if !ok || id != "" && b.id != id {
			return nil
		}
		if b.foreign {
			p.h.violateLocked("container %s, which is not ours, is removed", name)
		}
		found = true
		if p.h.defect == removalBelieved && p.h.rng.IntN(2) == 0 {
			return nil
		}
		delete(p.h.boxes, name)
		b.end(engine.Death{Gone: true})
		return nil
	})
	return found, err
}

func (p *proc) List(ctx context.Context, _ string) (out []engine.Listed, err error) {
	err = p.call(ctx, "list", "", func() error {
		for name, b := range p.h.boxes {
			out = append(out, engine.Listed{ID: b.id, Name: name, WorkerID: "worker"})
		}
		return nil
	})
	return out, err
}

func (p *proc) Instance(ctx context.Context) (name string, err error) {
	err = p.call(ctx, "instance", "", func() error { name = fmt.Sprintf("boot/%d", p.h.instance); return nil })
	return name, err
}

// mlink is a bridge and the control client over it in one.
type mlink struct {
	io.ReadWriteCloser
	p            *proc
	box          *hbox
	once         sync.Once
	closed, done chan struct{}
}

// Commands of the model, the first argument of a spawn.
const (
	argShort   = "short"   // ends by itself, within two seconds
	argEndless = "endless" // ends when it is told to, or its sandbox ends
	argUnclean = "unclean" // its end is not proven
	argBusy    = "busy"    // the supervisor has no room
)

func (l *mlink) Stream(ctx context.Context, s control.Spawn, _ control.Sink) (control.Outcome, error) {
	h := l.p.h
	select {
	case <-l.done:
		return control.Outcome{}, control.ErrLost
	default:
	}
	if s.Argv[0] == argBusy {
		return control.Outcome{}, control.ErrBusy
	}
	h.mu.Lock()
	h.noEffectLocked("command "+s.ID+" is started", l.box.sandbox)
	if h.spawned[l.box.sandbox+"/"+s.ID]++; h.spawned[l.box.sandbox+"/"+s.ID] > 1 {
		h.violateLocked("command %s is started twice in sandbox %s", s.ID, l.box.sandbox)
	}
	h.running[l.box.sandbox]++
	life := time.Duration(h.rng.IntN(2000)) * time.Millisecond
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.running[l.box.sandbox]--; h.running[l.box.sandbox] == 0 {
			delete(h.running, l.box.sandbox)
		}
	}()
	if s.Argv[0] == argEndless {
		life = time.Hour
	}
	select {
	case <-time.After(life):
		return control.Outcome{CleanupProven: s.Argv[0] != argUnclean}, nil
	case <-ctx.Done():
		return control.Outcome{CleanupProven: true}, ctx.Err()
	case <-l.done:
		return control.Outcome{}, control.ErrLost
	}
}

func (l *mlink) Statfs(ctx context.Context) (control.Statfs, error) {
	return control.Statfs{Blocks: 100, BlockSize: 1024, Inodes: 10}, l.p.call(ctx, "statfs", "", func() error { return nil })
}
func (l *mlink) Look(ctx context.Context, _ ...[]byte) error {
	return l.p.call(ctx, "look", "", func() error { return nil })
}
func (l *mlink) Done() <-chan struct{} { return l.done }
func (l *mlink) Err() error {
	select {
	case <-l.done:
		return control.ErrLost
	default:
		return nil
	}
}
func (l *mlink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}
