// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// Engine is session's view of the container engine; *engine.Engine is one. Every call
// has its own deadline besides ctx. Safe for concurrent use.
type Engine interface {
	// Image resolves an admitted image; it does not pull. engine.ErrNoImage when absent.
	Image(ctx context.Context, configDigest, manifestDigest string) (engine.Image, error)
	// Create makes the container and checks its launch properties. On any error the
	// container may exist unless errors.Is(err, engine.ErrNotCreated).
	Create(ctx context.Context, s engine.Spec) (engine.Created, error)
	// Start starts it and returns the host pid of the sandbox.
	Start(ctx context.Context, id string) (pid int, err error)
	// VerifyBinary compares what runs at pid with the pinned digest.
	VerifyBinary(ctx context.Context, id string, pid int, digest string) error
	// OOMKills finds the kernel's counter of kills at the memory limit of the sandbox at pid. killed may
	// be asked at any time; it fails when the sandbox is gone.
	OOMKills(pid int) (killed func() (bool, error), err error)
	// Bridge opens the control connection.
	Bridge(ctx context.Context, id string) (io.ReadWriteCloser, error)
	// Wait returns when the container has ended, or with ctx's error.
	Wait(ctx context.Context, id string) (engine.Death, error)
	// Remove returns nil only when neither id (if known) nor name exists any more.
	// found reports whether a container was there when it began.
	Remove(ctx context.Context, id, name string) (found bool, err error)
	// List returns what carries this worker's label.
	List(ctx context.Context, workerID string) ([]engine.Listed, error)
	// Instance changes whenever the engine's process does.
	Instance(ctx context.Context) (string, error)
}

// Quota is session's view of the workspace backend; *quota.Loop and *quota.Project are ones.
type Quota interface {
	// Known reports whether the workspace was prepared before, so that it may hold data.
	Known(ctx context.Context, workspaceID string) (bool, error)
	Prepare(ctx context.Context, s quota.Spec) (quota.Mount, error)
	Verify(ctx context.Context, workspaceID string) error
	Usage(ctx context.Context, workspaceID string) (quota.Usage, error)
	Release(ctx context.Context, workspaceID string) error
	Purge(ctx context.Context, workspaceID string) error
}

// Control is session's view of a supervisor; *control.Client is one.
type Control interface {
	Stream(ctx context.Context, s control.Spawn, sink control.Sink) (control.Outcome, error)
	Statfs(ctx context.Context) (control.Statfs, error)
	Look(ctx context.Context, paths ...[]byte) error
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Store is the durable store; *state.Store is one. A nil error means committed.
type Store interface {
	Put(ctx context.Context, bucket, key string, value []byte) error
	// Get matches state.ErrNotFound when there is no such row.
	Get(ctx context.Context, bucket, key string) ([]byte, error)
	// Update makes all changes to one bucket, or none.
	Update(ctx context.Context, bucket string, changes ...state.Change) error
	// Each calls f for every row, in key order.
	Each(bucket string, f func(key string, value []byte) error) error
	// Keys returns the first keys that begin with prefix, in order, at most so many.
	Keys(bucket, prefix string, most int) ([]string, error)
}

// Identity is what receipts and records say about this worker process.
type Identity struct {
	WorkerID            string
	Mode                api.Mode
	BootEpoch           string
	WorkerDigest        string
	SupervisorDigest    string
	SupervisorPath      string // content-addressed, root-owned
	QuotaDigest         string
	SandboxBinaryDigest string
}

// Limits bound what the manager does at once. Zero members take the defaults.
type Limits struct {
	Creates         int           // creates at once; 4
	Execs           int           // invocations at once; 64
	ExecsPerSandbox int           // 4
	Outcomes        int           // outcomes kept per sandbox; 4,096
	OutcomeBytes    int64         // output kept per sandbox; 16 MiB
	CreateDeadline  time.Duration // 60 s
	DisposeDeadline time.Duration // 30 s, one attempt
	Disposed        int           // disposed ids kept beyond 24 h; 10,000. There are no creates at ten times as many
}

// Config builds a Manager. Everything but Credentials, Connect, OpenTree, Profile, Limits is required.
type Config struct {
	Identity Identity
	Ceilings api.Resources
	Limits   Limits

	Store  Store
	Engine Engine
	Quota  Quota
	Gate   admission.Gate

	// Credentials resolves references; nil refuses all of them.
	Credentials *credential.Resolver

	// Connect speaks the control protocol over a bridge; control.Connect by default.
	Connect func(ctx context.Context, rw io.ReadWriteCloser) (Control, error)
	// OpenTree opens a workspace on the host; workspace.OpenRecorded by default.
	OpenTree func(mount string, rec workspace.Recorder) (*workspace.Tree, error)
	// Profile is given every observed launch profile before it is admitted; may be nil.
	Profile func(digest string, profile []byte) error

	Log *slog.Logger
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("session: %s is required", what))
		}
	}
	id := c.Identity
	need(id.WorkerID != "" && id.BootEpoch != "" && id.WorkerDigest != "" && id.SupervisorDigest != "" &&
		id.SupervisorPath != "" && id.QuotaDigest != "" && id.SandboxBinaryDigest != "", "every member of Identity")
	need(id.Mode == api.Qualification || id.Mode == api.Production, "a known mode")
	need(c.Store != nil, "Store")
	need(c.Engine != nil, "Engine")
	need(c.Quota != nil, "Quota")
	need(c.Gate != nil, "Gate")
	need(c.Log != nil, "Log")
	r := c.Ceilings
	need(r.CPUs > 0 && r.MemoryBytes > 0 && r.PIDs > 0 && r.WorkspaceBytes > 0 && r.WorkspaceInodes > 0, "every ceiling")
	return errors.Join(errs...)
}

func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&l.Creates, 4)
	def(&l.Execs, 64)
	def(&l.ExecsPerSandbox, 4)
	def(&l.Outcomes, 4096)
	def(&l.Disposed, 10000)
	if l.OutcomeBytes <= 0 {
		l.OutcomeBytes = 16 << 20
	}
	if l.CreateDeadline <= 0 {
		l.CreateDeadline = time.Minute
	}
	if l.DisposeDeadline <= 0 {
		l.DisposeDeadline = 30 * time.Second
	}
	return l
}
