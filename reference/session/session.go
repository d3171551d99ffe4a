// SPDX-License-Identifier: Apache-2.0

// Package session owns the lifecycle of sandboxes: intended, creating, ready, retiring,
// gone. It is the only caller of the engine, the quota backend and the control channel for
// the purpose of making or ending one. It observes how containers end and what the gate
// says. It never acts on something that its durable record does not prove to be its own,
// never forgets ownership before removal is proven, never runs an invocation id twice, and
// never lets an error of another layer out unmapped: everything it returns is an
// *api.Error.
//
// Output of a command is kept once, bounded by the command's own budget, while it runs and after;
// the outcome and every reader of a stream share it, and no reader can hold a command up.
//
// Order of every effect: the record is durable, then the effect happens, then the record
// is replaced; a record is dropped or turned into a tombstone of 24 h or more only after the
// container is proven gone and the workspace is released.
//
// Locks: Manager.mu guards every field of Manager and sandbox that is not documented
// otherwise; nothing but the log is written while it is held. Every timer, watcher and removal carries the
// sandbox's id and generation and does nothing when either is stale.
//
// Reading order: config.go (what it needs), lifecycle.go (the states), record.go, create.go, exec.go, claim.go, output.go, secret.go,
// replace.go, cancel.go, retire.go, reconcile.go, survey.go. Then reference/admission.
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// Manager is the lifecycle of one worker process. Safe for concurrent use.
type Manager struct {
	cfg Config
	lim Limits
	log *slog.Logger

	stop context.Context // ends every background retry; set off by the end of Shutdown
	halt context.CancelFunc
	wg   sync.WaitGroup

	strangers map[string]int // by container: in how many surveys it was seen; survey's alone

	mu         sync.Mutex
	live       map[string]*sandbox // by sandbox id; everything that is not gone
	leases     map[string]*sandbox // by client lease id
	workspaces map[string]*sandbox // by workspace id; at most one sandbox each
	purging    map[string]bool     // workspaces that are being purged
	gone       *memory
	outlived   []string // ids whose records in the store are not needed any more
	creating   int
	done       tally
	execs      int
	reconciled bool
	closing    bool
}

// sandbox is one sandbox that is owned.
type sandbox struct {
	rec  record
	life context.Context // ends when retirement begins
	end  context.CancelFunc

	created chan struct{} // closed when the create has ended, either way
	failure error         // of the create; read after created is closed
	receipt api.Receipt   // likewise

	control Control
	killed  func() (bool, error) // by the kernel at its limit of memory; nil when that cannot be asked
	tree    *workspace.Tree
	mount   quota.Mount

	lastUse time.Time
	hard    time.Time
	timer   *time.Timer
	active  int           // operations in progress
	quiet   chan struct{} // closed when active is 0; replaced when it rises
	watches int           // streams of changes; they are no use of it

	execs       int
	secret      bool // one of execs is secret-bearing, so the only one
	writes      int  // changes of the workspace through the API that are under way
	invocations map[string]*invocation
	finished    []string // ids with a stored outcome, oldest first
	kept        int64    // bytes of stored output
	aged        bool     // some ids are in the store only

	dead    chan struct{} // closed when the sandbox is known to have ended by itself
	retired chan struct{} // closed when it is gone
	attempt chan struct{} // closed and replaced after each failed removal

	stored bool // a record may be durable; create's alone
	unsure bool // the create may have been taken by a later engine than the recorded one
	marked bool // the retirement is durable; retirement's alone
}

// New checks c and returns a Manager that serves after Reconcile.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Connect == nil {
		c.Connect = func(ctx context.Context, rw io.ReadWriteCloser) (Control, error) { return control.Connect(ctx, rw) }
	}
	if c.OpenTree == nil {
		c.OpenTree = workspace.OpenRecorded
	}
	lim := c.Limits.withDefaults()
	stop, halt := context.WithCancel(context.Background())
	return &Manager{
		cfg: c, lim: lim, log: c.Log, stop: stop, halt: halt,
		live: map[string]*sandbox{}, leases: map[string]*sandbox{}, workspaces: map[string]*sandbox{},
		purging: map[string]bool{}, gone: newMemory(lim.Disposed),
	}, nil
}

// Get returns the state of a sandbox and its workspace's usage.
func (m *Manager) Get(ctx context.Context, ws, sb string) (api.SandboxState, error) {
	m.mu.Lock()
	s, ok := m.live[sb]
	if !ok {
		defer m.mu.Unlock()
		r, err := m.remembered(ws, sb)
		if err != nil {
			return api.SandboxState{}, err
		}
		return api.SandboxState{
			SandboxID: sb, WorkspaceID: ws, State: stateGone, Reason: r.Reason,
			ExpiresAt: wire(time.UnixMilli(r.GoneUnixMs)), Generation: r.Generation,
		}, nil
	}
	if s.rec.WorkspaceID != ws {
		m.mu.Unlock()
		return api.SandboxState{}, api.E(api.SandboxWorkspaceMismatch, nil)
	}
	out := api.SandboxState{
		SandboxID: sb, WorkspaceID: ws, State: s.rec.wireState(), Reason: s.rec.Reason,
		ExpiresAt: wire(s.expiry()), Generation: s.rec.Generation,
	}
	ready := s.serves()
	m.mu.Unlock()
	if !ready {
		return out, nil
	}
	u, err := m.cfg.Quota.Usage(ctx, ws)
	if err != nil {
		return api.SandboxState{}, api.E(api.Unavailable, fmt.Errorf("read usage: %w", err))
	}
	out.Usage = api.Usage{Bytes: u.Bytes, BytesLimit: u.BytesLimit, Inodes: u.Inodes, InodesLimit: u.InodesLimit}
	return out, nil
}

// Renew says that the sandbox is in use: its idle time begins again. It never makes a lease
// shorter, never moves the hard expiry, and never revives what has ended.
func (m *Manager) Renew(_ context.Context, ws, sb string) (api.RenewResponse, error) {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return api.RenewResponse{}, err
	}
	release()
	m.mu.Lock()
	defer m.mu.Unlock()
	return api.RenewResponse{SandboxID: sb, ExpiresAt: wire(s.expiry())}, nil
}

// Tree returns the workspace of a ready sandbox for one operation. release must be called
// once; until then the sandbox is in use and its idle time does not run. The returned context
// is ctx, and ends too when retirement begins, with the sandbox's code as its cause: retirement
// waits for the operation, so the operation must not wait for anything else.
func (m *Manager) Tree(ctx context.Context, ws, sb string) (context.Context, *workspace.Tree, func(), error) {
	s, release, err := m.begin(ws, sb)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, end := m.while(ctx, s)
	return ctx, s.tree, func() {
		end()
		release()
	}, nil
}

// readyLocked checks binding and lease.
func (m *Manager) readyLocked(ws, sb string) (*sandbox, error) {
	s, ok := m.live[sb]
	if !ok {
		r, err := m.remembered(ws, sb)
		if err != nil {
			return nil, err
		}
		return nil, api.E(r.code(), nil)
	}
	if s.rec.WorkspaceID != ws {
		return nil, api.E(api.SandboxWorkspaceMismatch, nil)
	}
	switch {
	case s.serves():
	case s.rec.State == stateRetiring:
		return nil, api.E(s.rec.code(), nil)
	default:
		return nil, api.E(api.Unavailable, errors.New("sandbox is being created"))
	}
	if m.expireLocked(s) {
		return nil, api.E(api.SandboxExpired, nil)
	}
	return s, nil
}

// begin checks binding and lease and marks the sandbox as in use.
func (m *Manager) begin(ws, sb string) (*sandbox, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.readyLocked(ws, sb)
	if err != nil {
		return nil, nil, err
	}
	if s.active == 0 {
		s.quiet = make(chan struct{})
	}
	s.active++
	s.lastUse = time.Now()
	m.armLocked(s)
	return s, sync.OnceFunc(func() { m.release(s) }), nil
}

func (m *Manager) release(s *sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.active--
	s.lastUse = time.Now()
	if s.active == 0 {
		close(s.quiet)
	}
	if s.serves() {
		m.armLocked(s)
	}
}

// expiry is when the lease ends as things stand: min(last use + idle, hard).
func (s *sandbox) expiry() time.Time {
	idle := s.lastUse.Add(time.Duration(s.rec.IdleMs) * time.Millisecond)
	if idle.Before(s.hard) {
		return idle
	}
	return s.hard
}

// armLocked sets the lease timer. While an operation runs, only the hard expiry counts.
func (m *Manager) armLocked(s *sandbox) {
	at := s.hard
	if s.active == 0 {
		at = s.expiry()
	}
	if s.timer != nil {
		s.timer.Reset(time.Until(at))
		return
	}
	id, generation := s.rec.SandboxID, s.rec.Generation
	s.timer = time.AfterFunc(time.Until(at), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if now, ok := m.live[id]; ok && now.rec.Generation == generation && now.serves() {
			if !m.expireLocked(now) {
				m.armLocked(now)
			}
		}
	})
}

// expireLocked begins the retirement of a sandbox whose lease has ended.
func (m *Manager) expireLocked(s *sandbox) bool {
	now := time.Now()
	switch {
	case !now.Before(s.hard):
		m.retireLocked(s, reasonHard)
	case s.active == 0 && !now.Before(s.expiry()):
		m.retireLocked(s, reasonIdle)
	default:
		return false
	}
	return true
}

// remembered looks a sandbox up that is not live.
func (m *Manager) remembered(ws, sb string) (record, error) {
	r, ok := m.gone.sandbox(sb)
	switch {
	case !ok:
		return r, api.E(api.SandboxNotFound, nil)
	case r.WorkspaceID != ws:
		return r, api.E(api.SandboxWorkspaceMismatch, nil)
	}
	return r, nil
}

func wire(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func randomHex() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

// fail maps the error of another layer to a code, keeping one that is mapped already.
func fail(code api.Code, step string, err error) error {
	var known *api.Error
	if errors.As(err, &known) {
		return known
	}
	return api.E(code, fmt.Errorf("%s: %w", step, err))
}
