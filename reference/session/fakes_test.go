// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

// world is everything outside the manager, in memory. It outlives managers, as a host does.
type world struct {
	t   *testing.T
	dir string // stands for every workspace on the host

	mu         sync.Mutex
	rows       map[string][]byte // bucket "/" key -> value
	containers map[string]*box   // by name
	mounted    map[string]bool
	images     map[string]bool // of workspaces
	instance   string
	serial     int
	calls      []string // op and subject, in order
	fail       func(op, subject string) error
	pause      map[string]time.Duration // by op
	admitted   map[string]bool          // container images
	renewed    string                   // what renewing the pins has changed of their digest
	exec       func(ctx context.Context, s control.Spawn) (control.Outcome, error)
	stream     func(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) // instead of exec
	statfs     control.Statfs
	look       func(ctx context.Context, paths [][]byte) error
	resolver   *credential.Resolver
	peak, busy int  // of concurrent removals
	oomKilled  bool // the kernel has killed at a limit
	oomError   error
}

type box struct {
	id    string
	spec  engine.Spec
	ended chan struct{}
	death engine.Death
	lost  chan struct{} // the bridge's Done
	once  sync.Once
}

var mount = quota.Mount{Path: "/", StatfsBlocks: 100, StatfsBlockSize: 1024, StatfsInodes: 10}

const goodImage = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

var limits = api.Resources{CPUs: 1000, MemoryBytes: 1 << 20, PIDs: 10, WorkspaceBytes: 1 << 20, WorkspaceInodes: 10}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, dir: t.TempDir(), rows: map[string][]byte{}, containers: map[string]*box{}, mounted: map[string]bool{}, instance: "engine-1",
		pause: map[string]time.Duration{}, admitted: map[string]bool{goodImage: true}, images: map[string]bool{},
		statfs: control.Statfs{Blocks: 100, BlockSize: 1024, Inodes: 10},
	}
}

// boot makes a manager over the world, as a new process of the worker.
func (w *world) boot(lim Limits) *Manager {
	w.t.Helper()
	w.mu.Lock()
	w.serial++
	epoch := fmt.Sprintf("epoch-%d", w.serial)
	w.mu.Unlock()
	m, err := New(Config{
		Identity: Identity{
			WorkerID: "worker", Mode: api.Qualification, BootEpoch: epoch, WorkerDigest: "sha256:w", SupervisorDigest: "sha256:s",
			SupervisorPath: "/supervisor", QuotaDigest: "sha256:q", SandboxBinaryDigest: "sha256:b",
		},
		Ceilings: limits, Limits: lim, Credentials: w.resolver, Store: w, Engine: w, Quota: w, Gate: w, Profile: func(string, []byte) error { return w.step("profile", "") },
		Connect: func(ctx context.Context, rw io.ReadWriteCloser) (Control, error) {
			return rw.(*link), w.step("connect", rw.(*link).name)
		},
		Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// step records a call, waits as long as the test says, and fails if the test says so.
func (w *world) step(op, subject string) error {
	w.mu.Lock()
	w.calls = append(w.calls, op+" "+subject)
	fail, pause := w.fail, w.pause[op]
	w.mu.Unlock()
	if pause > 0 {
		time.Sleep(pause) // virtual: every user of the world runs in a synctest bubble
	}
	if fail != nil {
		return fail(op, subject)
	}
	return nil
}

func (w *world) setFail(f func(op, subject string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

// slow lets every call of op take d.
func (w *world) slow(op string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pause[op] = d
}

func failing(op string, err error) func(string, string) error {
	return func(o, _ string) error {
		if o == op {
			return err
		}
		return nil
	}
}

func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.containers))
}

func (w *world) count(op string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if len(c) > len(op) && c[:len(op)+1] == op+" " {
			n++
		}
	}
	return n
}

// wantClean asserts that the world holds nothing of ours but what memory keeps.
func (w *world) wantClean() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.containers) > 0 || len(w.mounted) > 0 {
		w.t.Errorf("left behind: %d containers, mounts %v", len(w.containers), w.mounted)
	}
	for k, v := range w.rows {
		if !bytes.Contains(v, []byte(`"state":"gone"`)) {
			w.t.Errorf("row left behind: %s = %s", k, v)
		}
	}
}

// Store.

func (w *world) Put(ctx context.Context, bucket, key string, value []byte) error {
	return w.Update(ctx, bucket, state.Change{Key: key, Value: value})
}

func (w *world) Get(_ context.Context, bucket, key string) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.rows[bucket+"|"+key]
	if !ok {
		return nil, state.ErrNotFound
	}
	return bytes.Clone(v), nil
}

// Update gives up when ctx ends, as the real one does; nobody knows then what is durable.
func (w *world) Update(ctx context.Context, bucket string, changes ...state.Change) error {
	if err := w.step("store", bucket); err != nil {
		return err
	}
	if len(changes) > dropBatch {
		w.t.Errorf("%d changes at once", len(changes))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range changes {
		if c.Delete {
			delete(w.rows, bucket+"|"+c.Key)
		} else {
			w.rows[bucket+"|"+c.Key] = bytes.Clone(c.Value)
		}
	}
	return nil
}

func (w *world) Each(bucket string, f func(string, []byte) error) error {
	w.mu.Lock()
	w.calls = append(w.calls, "each "+bucket)
	rows := maps.Clone(w.rows)
	w.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		if len(k) > len(bucket) && k[:len(bucket)+1] == bucket+"|" {
			if err := f(k[len(bucket)+1:], rows[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) Keys(bucket, prefix string, most int) (keys []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(w.rows)) {
		if name, ok := strings.CutPrefix(k, bucket+"|"); ok && len(keys) < most && strings.HasPrefix(name, prefix) {
			keys = append(keys, name)
		}
	}
	return keys, nil
}

// recorded reports whether a record with this text is durable.
func (w *world) recorded(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, v := range w.rows {
		if len(k) > 10 && k[:10] == "sandboxes|" && bytes.Contains(v, []byte(text)) {
			return true
		}
	}
	return false
}

// Gate.

func (w *world) Precheck(_ context.Context, s admission.Start) error {
	if !w.admitted[s.ImageDigest] {
		return api.E(api.Unqualified, errors.New("not admitted"))
	}
	return w.step("precheck", "")
}

func (w *world) Admit(_ context.Context, s admission.Start) error {
	if s.LaunchProfileDigest == "" {
		w.t.Error("admission without a launch profile")
	}
	return w.step("admit", "")
}
func (w *world) ManifestDigest(string) string { return "" }
func (w *world) CohortID() string             { return "cohort" }
func (w *world) PinsDigest() string           { return "pins" + w.renewed }
func (w *world) EvidenceDigests() []string    { return nil }

// Quota.

func (w *world) Prepare(_ context.Context, s quota.Spec) (quota.Mount, error) {
	if !w.recorded(s.WorkspaceID) {
		w.t.Errorf("workspace %s was prepared before its intent was durable", s.WorkspaceID)
	}
	w.mu.Lock()
	w.images[s.WorkspaceID] = true // also when the rest fails
	w.mu.Unlock()
	if err := w.step("prepare", s.WorkspaceID); err != nil {
		return quota.Mount{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounted[s.WorkspaceID] = true
	m := mount
	m.Path = w.dir
	return m, nil
}

func (w *world) Verify(_ context.Context, ws string) error { return w.step("verify", ws) }

func (w *world) Usage(context.Context, string) (quota.Usage, error) {
	return quota.Usage{Bytes: 1, BytesLimit: 2, Inodes: 3, InodesLimit: 4}, nil
}

func (w *world) Release(_ context.Context, ws string) error {
	if err := w.step("release", ws); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mounted, ws)
	return nil
}

func (w *world) Purge(_ context.Context, ws string) error {
	if err := w.step("purge", ws); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.images, ws)
	return nil
}

func (w *world) Known(_ context.Context, ws string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.images[ws], nil
}

// hasImage reports whether the workspace takes space on the host.
func (w *world) hasImage(ws string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.images[ws]
}

// Engine.

func (w *world) Image(_ context.Context, config, _ string) (engine.Image, error) {
	return engine.Image{ConfigDigest: config, ID: config}, w.step("image", config)
}

func (w *world) Create(ctx context.Context, s engine.Spec) (engine.Created, error) {
	if !w.recorded(s.Name) {
		w.t.Errorf("container %s was created before its intent was durable", s.Name)
	}
	if err := w.step("create", s.Name); err != nil {
		return engine.Created{}, err
	}
	if ctx.Err() != nil {
		return engine.Created{}, ctx.Err()
	}
	id := w.appear(s.Name)
	_, b := w.box(id)
	b.spec = s
	return engine.Created{ID: id, ProfileDigest: "sha256:p"}, nil
}

// appear makes a container of that name exist.
func (w *world) appear(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serial++
	b := &box{id: fmt.Sprintf("id-%d", w.serial), ended: make(chan struct{}), lost: make(chan struct{})}
	w.containers[name] = b
	return b.id
}

func (w *world) Start(_ context.Context, id string) (int, error) { return 1, w.step("start", id) }

func (w *world) VerifyBinary(_ context.Context, id string, _ int, _ string) error {
	return w.step("binary", id)
}

// OOMKills says what the test says of the host's kernel.
func (w *world) OOMKills(int) (func() (bool, error), error) {
	return func() (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.oomKilled, w.oomError
	}, w.step("oom-kills", "")
}

func (w *world) box(id string) (string, *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, b := range w.containers {
		if b.id == id {
			return name, b
		}
	}
	return "", nil
}

func (w *world) Bridge(_ context.Context, id string) (io.ReadWriteCloser, error) {
	name, b := w.box(id)
	return &link{w: w, name: name, box: b}, w.step("bridge", name)
}

func (w *world) Wait(ctx context.Context, id string) (engine.Death, error) {
	_, b := w.box(id)
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

// die ends the only container that runs.
func (w *world) die(d engine.Death) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.containers {
		b.death = d
		close(b.ended)
		b.once.Do(func() { close(b.lost) })
	}
}

func (w *world) Remove(_ context.Context, id, name string) (bool, error) {
	w.mu.Lock()
	w.busy++
	w.peak = max(w.peak, w.busy)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
	}()
	if err := w.step("remove", name); err != nil {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.containers[name]
	if !ok || (id != "" && b.id != id) {
		return false, nil
	}
	delete(w.containers, name)
	b.once.Do(func() { close(b.lost) })
	return true, nil
}

func (w *world) List(context.Context, string) ([]engine.Listed, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []engine.Listed
	for name, b := range w.containers {
		out = append(out, engine.Listed{ID: b.id, Name: name})
	}
	return out, w.failLocked("list")
}

func (w *world) failLocked(op string) error {
	if w.fail == nil {
		return nil
	}
	return w.fail(op, "")
}

func (w *world) Instance(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.instance, w.failLocked("instance")
}

// link is a bridge and the control client over it in one.
type link struct {
	io.ReadWriteCloser
	w    *world
	name string
	box  *box
}

// Stream runs the world's stream, or its exec with the output given at the end.
func (l *link) Stream(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) {
	type end struct {
		out control.Outcome
		err error
	}
	ended := make(chan end, 1)
	exec, stream := l.w.exec, l.w.stream
	if exec == nil {
		exec = func(context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{Stdout: []byte(s.ID), CleanupProven: true}, nil
		}
	}
	if stream == nil {
		stream = func(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error) {
			out, err := exec(ctx, s)
			sink(1, out.Stdout)
			sink(2, out.Stderr)
			out.Stdout, out.Stderr = nil, nil
			return out, err
		}
	}
	l.w.step("exec", s.ID)
	go func() {
		out, err := stream(ctx, s, sink)
		ended <- end{out, err}
	}()
	select {
	case e := <-ended:
		return e.out, e.err
	case <-l.box.lost:
		return control.Outcome{}, control.ErrLost
	}
}

func (l *link) Statfs(context.Context) (control.Statfs, error) {
	return l.w.statfs, l.w.step("statfs", l.name)
}
func (l *link) Done() <-chan struct{} { return l.box.lost }
func (l *link) Err() error {
	select {
	case <-l.box.lost:
		return control.ErrLost
	default:
		return nil
	}
}
func (l *link) Close() error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.box.once.Do(func() { close(l.box.lost) })
	return nil
}

// Look runs the world's look, if it has one.
func (l *link) Look(ctx context.Context, paths ...[]byte) error {
	if err := l.w.step("look", l.name); err != nil {
		return err
	}
	if l.w.look == nil {
		return nil
	}
	return l.w.look(ctx, paths)
}
