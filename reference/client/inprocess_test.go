// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

const (
	cohort = "sha256:a795d40b6a0f9f0c7d1e2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f70"
	pins   = "sha256:1d122e53a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c"
	image  = "sha256:b69b970f71e0f49da4a1f1f6ad0f7f0bb8a2d4a8cf13b1b8d9d5b9c1a0e2f3d4"
)

// inProcess starts the worker's server on a unix socket, and on others if there are any, over a
// lifecycle in memory. Its one command is echo.
func inProcess(others ...net.Listener) (cfg client.Config, stop func(), err error) {
	dir, err := os.MkdirTemp("", "hw-") // sockaddr_un(7): 108 bytes
	if err != nil {
		return cfg, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	workerKey, authority := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32))
	clock, err := capability.NewClock()
	if err != nil {
		return cfg, nil, err
	}
	store, err := state.Open(filepath.Join(dir, "state"), state.Options{Mode: api.Production, Now: clock.Now})
	if err != nil {
		return cfg, nil, err
	}
	verifier, err := capability.NewVerifier(capability.VerifierConfig{
		Issuer: "control-plane", Audience: "worker-1", Epoch: store.Epoch(), Now: clock.Now,
		Keys: []capability.Key{{ID: "key-1", Public: authority.Public().(ed25519.PublicKey)}},
	})
	if err != nil {
		return cfg, nil, err
	}
	signer, err := capability.NewSigner(workerKey)
	if err != nil {
		return cfg, nil, err
	}
	ceilings := api.Resources{CPUs: 2000, MemoryBytes: 1 << 30, PIDs: 1024, WorkspaceBytes: 1 << 28, WorkspaceInodes: 65536}
	m := &memory{epoch: store.Epoch(), files: map[string][]byte{}, changes: make(changes, 16)}
	server, err := worker.New(worker.Options{
		Health: api.Health{
			ProtocolVersion: api.ProtocolVersion, WorkerID: "worker-1", BootEpoch: store.Epoch(), Mode: api.Production, CohortID: cohort, PinsDigest: pins,
			EvidenceDigests: []string{}, Features: []string{"exec", "files"}, Limits: worker.DefaultLimits(ceilings),
		},
		Verifier: verifier, Signer: signer, Nonces: store, Sessions: m, Log: slog.New(slog.DiscardHandler),
		OpenFiles: func(ctx context.Context, _, _ string) (context.Context, worker.Files, func(), error) {
			return ctx, m, func() {}, nil
		},
		OpenChanges: func(ctx context.Context, _, _ string) (context.Context, worker.Changes, func(), error) {
			return ctx, m.changes, func() {}, nil
		},
	})
	if err != nil {
		return cfg, nil, err
	}
	cfg = client.Config{
		Socket: filepath.Join(dir, "worker.sock"), WorkerID: "worker-1", WorkerKey: workerKey.Public().(ed25519.PublicKey),
		Issuer: "control-plane", KeyID: "key-1", Key: authority,
	}
	l, err := worker.Listen(context.Background(), cfg.Socket)
	if err != nil {
		return cfg, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, 10*time.Second, append(others, l)...) }()
	return cfg, func() {
		cancel()
		for _, err := range []error{<-done, store.Close(), os.RemoveAll(dir)} {
			if err != nil {
				panic(err)
			}
		}
	}, nil
}

// memory is one sandbox and its files. What it does not implement is not called.
type memory struct {
	worker.Sessions
	worker.Files
	epoch   string
	changes changes

	mu    sync.Mutex
	files map[string][]byte
}

func (m *memory) Create(_ context.Context, req api.CreateRequest, digest string) (api.Receipt, error) {
	return api.Receipt{
		WorkspaceID: req.WorkspaceID, ClientLeaseID: req.ClientLeaseID, WorkerID: "worker-1", SandboxID: "7f3c9a52d1e84b06b7a9c0d4e5f61728", Generation: 1,
		BootEpoch: m.epoch, Mode: api.Production, RequestDigest: digest, ImageDigest: req.Image, WorkerDigest: api.Digest([]byte("worker")),
		SandboxBinary: api.Digest([]byte("sandbox")), CohortID: cohort, PinsDigest: pins, ExpiresAtUnixMs: time.Now().Add(time.Minute).UnixMilli(),
	}, nil
}

func (m *memory) Dispose(context.Context, string, string) error { return nil }
func (m *memory) Purge(context.Context, string) error           { return nil }

func (m *memory) Exec(_ context.Context, _, _ string, req api.ExecRequest, _ string) (api.ExecResult, error) {
	return echo(req), nil
}

func (m *memory) Start(_ context.Context, _, _ string, req api.ExecRequest, _ string) (worker.Execution, error) {
	res := echo(req)
	e := &echoed{res: res, ended: make(chan struct{})}
	for word := range strings.SplitAfterSeq(string(res.Stdout), " ") {
		e.left = append(e.left, []byte(word))
	}
	return e, nil
}

func echo(req api.ExecRequest) api.ExecResult {
	if req.Argv[0] != "echo" {
		status := 127
		return api.ExecResult{InvocationID: req.InvocationID, Stderr: []byte("not found\n"), ExitCode: &status, CleanupProven: true}
	}
	status := 0
	return api.ExecResult{InvocationID: req.InvocationID, Stdout: []byte(strings.Join(req.Argv[1:], " ") + "\n"), ExitCode: &status, CleanupProven: true}
}

// echoed gives its output word by word.
type echoed struct {
	res   api.ExecResult
	left  [][]byte
	once  sync.Once
	ended chan struct{}
}

func (e *echoed) Next(context.Context) (bool, []byte, error) {
	if len(e.left) == 0 {
		e.Close()
		return false, nil, io.EOF
	}
	chunk := e.left[0]
	e.left = e.left[1:]
	return false, chunk, nil
}

func (e *echoed) Ended() <-chan struct{}           { return e.ended }
func (e *echoed) Outcome() (api.ExecResult, error) { return e.res, nil }
func (e *echoed) Close()                           { e.once.Do(func() { close(e.ended) }) }

func (m *memory) Read(_ context.Context, path []byte) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.files[string(path)]
	if !ok {
		return nil, 0, fmt.Errorf("open: %w", workspace.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

func (m *memory) Write(_ context.Context, c api.FileCall, body io.Reader, _ string) (int64, string, error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return 0, "", fmt.Errorf("%w: %w", workspace.ErrBody, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[string(c.Path)]; ok && c.Mode == api.WriteCreate {
		return 0, "", fmt.Errorf("create: %w", workspace.ErrExists)
	}
	m.files[string(c.Path)] = b
	m.changes <- api.ChangeEvent{Type: api.ChangeCreated, Path: string(c.Path), Kind: "file"}
	return int64(len(b)), api.Digest(b), nil
}

func (m *memory) List(context.Context, []byte, string, int) ([]api.FSEntry, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []api.FSEntry
	for name, b := range m.files {
		out = append(out, api.FSEntry{Name: name, Kind: "file", Size: int64(len(b)), Mode: 0o644, Links: 1})
	}
	slices.SortFunc(out, func(a, b api.FSEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, "", nil
}

// changes is a workspace's history that nobody has read yet.
type changes chan api.ChangeEvent

func (c changes) Next(ctx context.Context) (api.ChangeEvent, error) {
	select {
	case e := <-c:
		return e, nil
	case <-ctx.Done():
		return api.ChangeEvent{}, ctx.Err()
	}
}
