// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// fake is a lifecycle in memory. Its calls are counted, so that a test can say that a refused
// request reached nothing.
type fake struct {
	mu      sync.Mutex
	calls   []string
	byLease map[string]api.Receipt
	files   map[string][]byte
	changes fakeChanges

	end      context.CancelCauseFunc                                                      // of the sandbox of the last file operation
	failing  func() error                                                                 // likewise
	fail     error                                                                        // returned by every call when set
	onExec   func(context.Context, api.ExecRequest) (api.ExecResult, error)               // replaces exec when set
	onStart  func(context.Context, api.ExecRequest) (Execution, error)                    // likewise
	onCancel func(ctx context.Context, id string) (api.CancelResponse, error)             // likewise
	onCreate func()                                                                       // called by every create, outside the lock
	alter    func(*api.Receipt)                                                           // changes the receipt when set
	base     func(req api.CreateRequest, digest string) api.Receipt                       // an honest receipt
	onRead   func(ctx context.Context, path []byte) (r io.ReadCloser, n int64, err error) // replaces read when set
	onWrite  func(body io.Reader) error
}

func (f *fake) enter(name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	err, failing := f.fail, f.failing
	f.mu.Unlock()
	if failing != nil {
		return failing()
	}
	return err
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

func (f *fake) Create(_ context.Context, req api.CreateRequest, digest string) (api.Receipt, error) {
	if err := f.enter("create"); err != nil {
		return api.Receipt{}, err
	}
	if f.onCreate != nil {
		f.onCreate()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r, ok := f.byLease[req.ClientLeaseID]; ok {
		if r.RequestDigest != digest {
			return api.Receipt{}, api.E(api.IdempotencyConflict, nil)
		}
		return r, nil
	}
	r := f.base(req, digest)
	if f.alter != nil {
		f.alter(&r)
	}
	f.byLease[req.ClientLeaseID] = r
	return r, nil
}

func (f *fake) Get(_ context.Context, ws, sb string) (api.SandboxState, error) {
	return api.SandboxState{SandboxID: sb, WorkspaceID: ws, State: "ready", ExpiresAt: "2026-01-02T03:04:05.000Z", Generation: 1}, f.enter("get")
}

func (f *fake) Exec(ctx context.Context, _, _ string, req api.ExecRequest, _ string) (api.ExecResult, error) {
	if err := f.enter("exec"); err != nil {
		return api.ExecResult{}, err
	}
	if f.onExec != nil {
		return f.onExec(ctx, req)
	}
	zero := 0
	return api.ExecResult{InvocationID: req.InvocationID, Stdout: req.Stdin, ExitCode: &zero, CleanupProven: true}, nil
}

func (f *fake) Start(ctx context.Context, _, _ string, req api.ExecRequest, _ string) (Execution, error) {
	if err := f.enter("start"); err != nil {
		return nil, err
	}
	if f.onStart == nil {
		return nil, errors.New("no execution here")
	}
	return f.onStart(ctx, req)
}

func (f *fake) Cancel(ctx context.Context, _, _, id string) (api.CancelResponse, error) {
	if err := f.enter("cancel"); err != nil {
		return api.CancelResponse{}, err
	}
	if f.onCancel != nil {
		return f.onCancel(ctx, id)
	}
	zero := 0
	return api.CancelResponse{Result: &api.ExecResult{InvocationID: id, ExitCode: &zero, CleanupProven: true}}, nil
}

func (f *fake) Renew(_ context.Context, _, sb string) (api.RenewResponse, error) {
	return api.RenewResponse{SandboxID: sb, ExpiresAt: "2026-01-02T03:04:05.000Z"}, f.enter("renew")
}

func (f *fake) Dispose(context.Context, string, string) error { return f.enter("dispose") }
func (f *fake) Purge(context.Context, string) error           { return f.enter("purge") }

func (f *fake) Stat(_ context.Context, path []byte) (api.FSEntry, error) {
	return api.FSEntry{Name: string(path), Kind: "file"}, f.enter("stat")
}

func (f *fake) List(context.Context, []byte, string, int) ([]api.FSEntry, string, error) {
	return []api.FSEntry{{NameBytes: []byte{0xff}, Kind: "file"}}, "next", f.enter("list")
}
func (f *fake) Mkdir(context.Context, []byte) error          { return f.enter("mkdir") }
func (f *fake) Remove(context.Context, []byte) error         { return f.enter("remove") }
func (f *fake) Rename(context.Context, []byte, []byte) error { return f.enter("rename") }
func (f *fake) Readlink(context.Context, []byte) ([]byte, error) {
	return []byte("to\xff"), f.enter("readlink")
}

func (f *fake) Read(ctx context.Context, path []byte) (io.ReadCloser, int64, error) {
	if err := f.enter("read"); err != nil {
		return nil, 0, err
	}
	if f.onRead != nil {
		return f.onRead(ctx, path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.files[string(path)]
	if !ok {
		return nil, 0, fmt.Errorf("open: %w", workspace.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

func (f *fake) Write(_ context.Context, c api.FileCall, body io.Reader, _ string) (int64, string, error) {
	if err := f.enter("write"); err != nil {
		return 0, "", err
	}
	if f.onWrite != nil {
		return 0, "", f.onWrite(body)
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return 0, "", fmt.Errorf("%w: %w", workspace.ErrBody, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[string(c.Path)] = b
	return int64(len(b)), api.Digest(b), nil
}

// rig is a worker on a real socket and store, and a client of it.
type rig struct {
	t        *testing.T
	dir      string
	fake     *fake
	store    *state.Store
	nonces   failingNonces
	server   *Server
	client   *client.Client
	cfg      client.Config
	health   api.Health
	log      *lockedBuffer
	seen     *seen
	stop     context.CancelFunc
	finished chan error
	mounted  string // the real workspace, where a test has one
}

type lockedBuffer struct {
	only string // lines without it are dropped
	mu   sync.Mutex
	b    bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte(l.only)) {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// line returns the first line with text, or nothing.
func (l *lockedBuffer) line(text string) string {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

func (l *lockedBuffer) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var ceilings = api.Resources{CPUs: 1000, MemoryBytes: 1 << 30, PIDs: 256, WorkspaceBytes: 1 << 30, WorkspaceInodes: 10_000}

func hexOf(c string) string { return api.DigestPrefix + strings.Repeat(c, 64) }

func key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

type tweak struct {
	nonces, share, connections int
	allowQualification         bool
	mode                       api.Mode
	stall, heartbeat, patience time.Duration
	strange                    time.Duration
	drain                      time.Duration  // 10 s
	listeners                  []net.Listener // besides the socket
	logged                     string         // only lines with it are kept
	forgetful                  bool           // nonces are not stored, and fail as rig.nonces is told
}

func newRig(t *testing.T, tw tweak) *rig {
	t.Helper()
	if tw.mode == "" {
		tw.mode = api.Production
	}
	r := &rig{t: t, dir: t.TempDir(), log: &lockedBuffer{only: tw.logged}, seen: &seen{}}
	workerKey, authority := key(t), key(t)
	r.cfg = client.Config{
		Socket: filepath.Join(r.dir, "w.sock"), WorkerID: "worker-1", WorkerKey: workerKey.Public().(ed25519.PublicKey),
		Issuer: "control", KeyID: "k1", Key: authority, AllowQualification: tw.allowQualification,
	}
	r.start(workerKey, authority, tw)
	t.Cleanup(r.shutdown)
	return r
}

// start is one boot on the rig's state directory.
func (r *rig) start(workerKey, authority ed25519.PrivateKey, tw tweak) {
	t := r.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clock, err := capability.NewClock()
	must(err)
	r.store, err = state.Open(filepath.Join(r.dir, "state"), state.Options{Mode: tw.mode, Nonces: tw.nonces, NoncesPerWorkspace: tw.share, Now: clock.Now})
	must(err)
	verifier, err := capability.NewVerifier(capability.VerifierConfig{
		Issuer: "control", Audience: "worker-1", Epoch: r.store.Epoch(), Now: clock.Now,
		Keys: []capability.Key{{ID: "k1", Public: authority.Public().(ed25519.PublicKey)}},
	})
	must(err)
	signer, err := capability.NewSigner(workerKey)
	must(err)
	r.health = api.Health{
		ProtocolVersion: api.ProtocolVersion, WorkerID: "worker-1", BootEpoch: r.store.Epoch(), Mode: tw.mode,
		CohortID: hexOf("c"), PinsDigest: hexOf("d"), EvidenceDigests: []string{}, Features: Features(), Limits: DefaultLimits(ceilings),
	}
	if tw.connections > 0 {
		r.health.Limits.Connections = int64(tw.connections)
	}
	epoch := r.store.Epoch()
	r.fake = &fake{byLease: map[string]api.Receipt{}, files: map[string][]byte{}}
	r.fake.base = func(req api.CreateRequest, digest string) api.Receipt {
		return api.Receipt{
			WorkspaceID: req.WorkspaceID, ClientLeaseID: req.ClientLeaseID, WorkerID: "worker-1", SandboxID: newID(), Generation: 1,
			BootEpoch: epoch, Mode: tw.mode, RequestDigest: digest, ImageDigest: req.Image, WorkerDigest: hexOf("e"),
			SandboxBinary: hexOf("f"), CohortID: hexOf("c"), PinsDigest: hexOf("d"), ExpiresAtUnixMs: time.Now().Add(time.Hour).UnixMilli(),
		}
	}
	var nonces Nonces = r.store
	if tw.forgetful {
		nonces = &r.nonces
	}
	r.server, err = New(Options{
		Health: r.health, Verifier: verifier, Signer: signer, Nonces: nonces, Sessions: r.fake,
		OpenFiles: func(ctx context.Context, _, _ string) (context.Context, Files, func(), error) {
			ctx, cancel := context.WithCancelCause(ctx)
			r.fake.mu.Lock()
			r.fake.end = cancel
			r.fake.mu.Unlock()
			return ctx, r.fake, func() { cancel(nil) }, r.fake.enter("open")
		},
		OpenChanges: r.openChanges,
		Observer:    r.seen,
		Log:         slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	must(err)
	if tw.stall > 0 {
		r.server.stall = tw.stall
	}
	if tw.heartbeat > 0 {
		r.server.heartbeat = tw.heartbeat
	}
	if tw.patience > 0 {
		r.server.patience = tw.patience
	}
	if tw.drain == 0 {
		tw.drain = 10 * time.Second
	}
	if tw.strange > 0 {
		r.server.connections.strange = tw.strange
	}
	l, err := Listen(t.Context(), r.cfg.Socket)
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.finished = cancel, make(chan error, 1)
	go func() { r.finished <- r.server.Serve(ctx, tw.drain, append(tw.listeners, l)...) }()
	r.client, err = client.New(r.cfg)
	must(err)
}

// shutdown ends the boot; repeating it is harmless.
func (r *rig) shutdown() {
	if r.stop == nil {
		return
	}
	r.stop()
	if err := <-r.finished; err != nil {
		r.t.Errorf("serve: %v", err)
	}
	if err := r.store.Check(context.Background()); err != nil {
		r.t.Errorf("stored state: %v", err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
	r.stop = nil
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x", b)
}

func (r *rig) createRequest(ws string) api.CreateRequest {
	return api.CreateRequest{
		ProtocolVersion: api.ProtocolVersion, WorkspaceID: ws, SessionID: "s", ClientLeaseID: "lease-" + ws, IdleTimeoutMs: 60_000, HardTimeoutMs: 600_000,
		Image: hexOf("a"), Expected: api.Expected{CohortID: hexOf("c"), PinsDigest: hexOf("d")},
		Resources: api.Resources{CPUs: 100, MemoryBytes: 1 << 26, PIDs: 64, WorkspaceBytes: 1 << 24, WorkspaceInodes: 100},
	}
}

func codeIs(t *testing.T, err error, want api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
