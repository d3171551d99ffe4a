// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/filedigest"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/session"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
	"github.com/hallmark-sandbox/hallmark/reference/worker/metrics"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

// Bounds of the end: requests in progress, then sandboxes.
const (
	drainTimeout  = 30 * time.Second // PROTOCOL.md, section Limits
	retireTimeout = 30 * time.Second
	startTimeout  = 5 * time.Minute // reconcile after a crash retries removals
)

// The two files that evidence is about, in the state directory.
const (
	securityFile = "security-config.json"
	profileFile  = "launch-profile.json"
)

// daemon is everything that has to be ended.
type daemon struct {
	cfg   worker.Config
	log   *slog.Logger
	file  *logFile
	own   string // digest of this executable
	clock *capability.Clock

	store      *state.Store
	engine     *engine.Engine
	supervisor worker.Installed
	quota      worker.Installed
	gate       *startGate
	live       *admission.Live // in production mode
	digests    filedigest.Reader
	workspaces workspaces
	sessions   *session.Manager
	resolver   *credential.Resolver // nil without providers
	metrics    *metrics.Metrics
}

// serve runs the worker until ctx ends.
func serve(ctx context.Context, cfg worker.Config) (err error) {
	if err := seal(); err != nil {
		return &failure{exitFailed, "this process cannot be sealed", "allow the worker setrlimit(2) and prctl(2)", err}
	}
	log, file, closeLog, err := openLog(cfg.Log.Path)
	if err != nil {
		return &failure{exitFailed, "the log cannot be opened", "correct log.path", err}
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	d := &daemon{cfg: cfg, log: log, file: file}
	d.metrics = metrics.New(metrics.Build{Version: buildinfo.Version, Commit: buildinfo.Commit(), Tree: buildinfo.TreeState()}, time.Now())
	defer func() { err = errors.Join(err, d.close()) }()
	err = d.run(ctx)
	if err != nil {
		log.ErrorContext(ctx, "worker ends", "err", err)
	}
	return err
}

func (d *daemon) run(ctx context.Context) error {
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := d.prepare(start); err != nil {
		return err
	}
	if err := d.admit(start); err != nil {
		return err
	}
	server, err := d.build(start)
	if err != nil {
		return err
	}
	d.log.InfoContext(ctx, "reconcile")
	if err := d.sessions.Reconcile(start); err != nil {
		return errors.Join(needs(err, "what an earlier run left could not be removed", "see the log, then start again"), d.retire(ctx))
	}
	defer d.settle(ctx)()
	defer d.watchAdmission(ctx)()
	endMetrics, err := d.serveMetrics(ctx, server)
	if err != nil {
		return errors.Join(err, d.retire(ctx))
	}
	defer endMetrics() // last, so that the end can be watched
	listeners, err := d.listen(ctx)
	if err != nil {
		return errors.Join(err, d.retire(ctx))
	}
	cancel()
	d.log.InfoContext(ctx, "serving", "worker", d.cfg.WorkerID, "mode", d.cfg.Mode, "epoch", d.store.Epoch(), "cohort", d.gate.CohortID(), "pins", d.gate.PinsDigest())
	defer context.AfterFunc(ctx, func() { d.log.Info("draining") })()
	err = server.Serve(ctx, drainTimeout, listeners...)
	if err != nil {
		err = &failure{exitNegative, "requests were cut off", "see the log", err}
	}
	return errors.Join(err, d.retire(ctx))
}

// serveMetrics serves them until end is called, when the configuration asks for it. A listener
// that fails later is no reason to stop serving requests.
func (d *daemon) serveMetrics(ctx context.Context, server *worker.Server) (end func(), err error) {
	err = d.metrics.Watch(metrics.Sources{
		Connections: server.Connections, SuppressedLines: server.SuppressedLines, LostLines: d.file.lost.Load,
		Sessions: d.sessions.Counts, Nonces: d.store.Nonces, Limits: d.cfg.EffectiveLimits(),
	})
	if err != nil || d.cfg.Metrics == nil {
		return func() {}, err
	}
	l, err := metrics.Listen(ctx, *d.cfg.Metrics)
	if err != nil {
		return nil, needs(err, "metrics cannot be served", "correct metrics.listen, or end the process that holds it")
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.metrics.Serve(ctx, l, d.log); err != nil {
			d.log.ErrorContext(ctx, "metrics are not served any more", "err", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}

// listen binds everything that the configuration names, or nothing.
func (d *daemon) listen(ctx context.Context) (ls []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range ls {
				err = errors.Join(err, l.Close())
			}
			ls = nil
		}
	}()
	l, err := worker.Listen(ctx, d.cfg.Listen)
	if err != nil {
		return ls, needs(err, "the socket cannot be used", "correct listen, or end the process that holds it")
	}
	ls = append(ls, l)
	if d.cfg.TLS != nil {
		if l, err = worker.ListenTLS(ctx, *d.cfg.TLS, d.log); err != nil {
			return ls, needs(err, "the TLS listener cannot be used", "correct tls, or end the process that holds its address")
		}
		ls = append(ls, l)
	}
	if a := d.cfg.UnsafeCleartextLoopback; a != "" {
		if l, err = worker.ListenUnsafeCleartextLoopback(ctx, a); err != nil {
			return ls, needs(err, "the cleartext listener cannot be used", "correct unsafeCleartextLoopback, or leave it out")
		}
		d.log.WarnContext(ctx, "listening without TLS: every local user can connect", "address", a)
		ls = append(ls, l)
	}
	return ls, nil
}

// retire ends all sandboxes. Its bound is its own: ctx is what has just ended.
func (d *daemon) retire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireTimeout)
	defer cancel()
	if err := d.sessions.Shutdown(ctx); err != nil {
		return &failure{exitNegative, "the shutdown left something behind", "start the worker again on the same state directory: it removes what its records name", err}
	}
	return nil
}

// prepare takes the state directory and makes the parts that do not depend on admission.
func (d *daemon) prepare(ctx context.Context) (err error) {
	const host = "allow the worker setrlimit(2) and prctl(2)"
	if os.Geteuid() != 0 {
		return &failure{exitFailed, "the worker needs root", "start it as root", errors.New("effective uid is not 0")}
	}
	if d.own, err = worker.OwnDigest(); err != nil {
		return needs(err, "this executable cannot be read", host)
	}
	if err := workspace.Probe(); err != nil {
		return needs(err, "this host lacks a path primitive", host)
	}
	if d.clock, err = capability.NewClock(); err != nil {
		return needs(err, "this host lacks a clock", host)
	}
	limits := d.cfg.EffectiveLimits()
	if d.store, err = state.Open(d.cfg.StateDir, state.Options{
		Mode: d.cfg.Mode, Now: d.clock.Now, Nonces: int(limits.Nonces), NoncesPerWorkspace: int(limits.NoncesPerShare),
		Observe: d.committed,
	}); err != nil {
		return needs(err, "the state directory cannot be used", stateRemedy(err))
	}
	document, err := d.cfg.SecurityDocument()
	if err == nil {
		err = os.WriteFile(filepath.Join(d.cfg.StateDir, securityFile), document, 0o600)
	}
	if err != nil {
		return needs(err, "the state directory cannot be written", "make room and start again")
	}
	helpers := filepath.Join(d.cfg.StateDir, "helpers")
	if d.supervisor, err = worker.InstallHelper(helpers, d.cfg.Helpers.Supervisor); err == nil {
		d.quota, err = worker.InstallHelper(helpers, d.cfg.Helpers.Quota)
	}
	if err != nil {
		return needs(err, "a helper cannot be copied", "correct helpers")
	}
	d.engine, err = engine.New(ctx, engine.Config{
		Socket: d.cfg.Engine.Socket, Runtime: d.cfg.Engine.Runtime, CgroupParent: d.cfg.Engine.CgroupParent,
		Ceilings: d.cfg.Ceilings, PidFile: d.cfg.Engine.PidFile, Log: d.log,
	})
	return needsOrNil(err, "the engine cannot be used", "start the engine, or correct engine")
}

// workspaces is the quota backend of this worker.
type workspaces interface {
	session.Quota
	Close() error
}

// bounded takes the workspace directory. There is no backend without a bound.
func (d *daemon) bounded() (workspaces, error) {
	w := d.cfg.Workspaces
	var out workspaces
	var err error
	if q := w.ProjectQuota; q != nil {
		out, err = orNil(quota.NewProject(quota.ProjectConfig{
			Dir: w.Dir, Filesystem: q.Filesystem, FirstID: q.FirstID, LastID: q.LastID, Helper: d.quota.Path, HelperDigest: d.quota.Digest,
			ReserveBytes: w.ReserveBytes, ReserveInodes: w.ReserveInodes, EngineMountinfo: d.engine.Mountinfo, Log: d.log,
		}))
	} else {
		out, err = orNil(quota.NewLoop(quota.LoopConfig{
			Dir: w.Dir, Helper: d.quota.Path, HelperDigest: d.quota.Digest,
			ReserveBytes: w.ReserveBytes, ReserveInodes: w.ReserveInodes,
			EngineMountinfo: d.engine.Mountinfo, Log: d.log,
		}))
	}
	switch {
	case errors.Is(err, quota.ErrLocked):
		return nil, needs(err, "another worker uses the workspace directory", "give each worker a workspaces.dir of its own, or end the other one")
	case errors.Is(err, quota.ErrNotEnforced):
		return nil, needs(err, "project quota is not enforced where workspaces are",
			"mount the file system of workspaces.dir with prjquota on a kernel that has it, or leave workspaces.projectQuota out")
	case err != nil:
		return nil, needs(err, "workspaces cannot be bounded", "correct workspaces")
	}
	return out, nil
}

// orNil keeps a nil pointer from becoming an interface that is not nil.
func orNil[T workspaces](w T, err error) (workspaces, error) {
	if err != nil {
		return nil, err
	}
	return w, nil
}

// build makes the lifecycle and the server.
func (d *daemon) build(ctx context.Context) (*worker.Server, error) {
	var err error
	if d.workspaces, err = d.bounded(); err != nil {
		return nil, err
	}
	limits := d.cfg.EffectiveLimits()
	sc := session.Config{
		Identity: session.Identity{
			WorkerID: d.cfg.WorkerID, Mode: d.cfg.Mode, BootEpoch: d.store.Epoch(), WorkerDigest: d.own,
			SupervisorDigest: d.supervisor.Digest, SupervisorPath: d.supervisor.Path, QuotaDigest: d.quota.Digest,
			SandboxBinaryDigest: d.cfg.SandboxBinary.Digest,
		},
		Ceilings: d.cfg.Ceilings,
		Limits:   session.Limits{Creates: int(limits.Creates), Execs: int(limits.Execs), ExecsPerSandbox: int(limits.ExecsPerSandbox)},
		Store:    d.store, Engine: d.engine, Quota: d.workspaces, Gate: d.gate, Log: d.log,
	}
	if sc.Credentials, err = d.credentials(); err != nil {
		return nil, needs(err, "credentials cannot be provided", "correct credentials")
	}
	if d.cfg.Mode == api.Qualification {
		// Production pins the profile; here there is none yet, but all sandboxes are to be alike.
		recorder, err := engine.NewProfileRecorder(filepath.Join(d.cfg.StateDir, profileFile))
		if err != nil {
			return nil, needs(err, "the launch profile cannot be recorded", "give the run a new state directory")
		}
		sc.Profile = recorder.Observe
	}
	key, err := worker.LoadSigningKey(d.cfg.SigningKey)
	if err != nil {
		return nil, needs(err, "the signing key cannot be used", "make one with `hallmark evidence keygen` and name it in signingKey")
	}
	signer, err := capability.NewSigner(key)
	if err != nil {
		return nil, needs(err, "the signing key cannot be used", "correct signingKey")
	}
	verifier, err := capability.NewVerifier(capability.VerifierConfig{
		Issuer: d.cfg.Authority.Issuer, Audience: d.cfg.WorkerID, Epoch: d.store.Epoch(), Keys: d.cfg.VerifierKeys(), Now: d.clock.Now,
	})
	if err != nil {
		return nil, needs(err, "the authority cannot be used", "correct authority")
	}
	if d.sessions, err = session.New(sc); err != nil {
		return nil, needs(err, "the lifecycle cannot be built", "see the log")
	}
	server, err := worker.New(worker.Options{
		Health: api.Health{
			ProtocolVersion: api.ProtocolVersion, WorkerID: d.cfg.WorkerID, BootEpoch: d.store.Epoch(), Mode: d.cfg.Mode,
			CohortID: d.gate.CohortID(), PinsDigest: d.gate.PinsDigest(), EvidenceDigests: d.gate.EvidenceDigests(),
			Features: d.cfg.Features(), Limits: limits,
		},
		Admitted: func() (cohort, pins string, evidence []string) {
			return d.gate.CohortID(), d.gate.PinsDigest(), d.gate.EvidenceDigests()
		},
		Verifier: verifier, Signer: signer, Nonces: d.store, Sessions: worker.Lifecycle(d.sessions), Log: d.log, Observer: d.metrics,
		OpenFiles: func(ctx context.Context, ws, sb string) (context.Context, worker.Files, func(), error) {
			ctx, tree, release, err := d.sessions.Tree(ctx, ws, sb)
			if err != nil {
				return nil, nil, nil, err
			}
			claim := func() (func(), error) { return d.sessions.Mutate(ws, sb) }
			look := func(ctx context.Context, paths ...[]byte) {
				if err := d.sessions.Look(ctx, ws, sb, paths...); err != nil {
					d.log.InfoContext(ctx, "a sandbox may hold on to a file that was removed", "sandbox", sb, "err", err)
				}
			}
			return ctx, worker.GuardWrites(worker.ReleaseNames(worker.TreeFiles(tree), look), claim), release, nil
		},
		OpenChanges: func(ctx context.Context, ws, sb string) (context.Context, worker.Changes, func(), error) {
			ctx, tree, release, err := d.sessions.Watch(ctx, ws, sb)
			if err != nil {
				return nil, nil, nil, err
			}
			changes, release, err := worker.WatchTree(ctx, tree, release)
			return ctx, changes, release, err
		},
	})
	return server, needsOrNil(err, "the server cannot be built", "see the log")
}

// committed tells the metrics, and the log when the store is beyond help: requests are refused from
// then on.
func (d *daemon) committed(c state.Commit) {
	d.metrics.Committed(c)
	switch {
	case errors.Is(c.Err, state.ErrBroken):
		d.log.Error("the state store has failed: every request is refused until a restart", "err", c.Err)
	case c.Err != nil:
		d.log.Warn("no room for a commit of the state store", "writes", c.Writes, "err", c.Err)
	}
}

func (d *daemon) close() error {
	var errs []error
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	if d.workspaces != nil {
		errs = append(errs, d.workspaces.Close())
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	return errors.Join(errs...)
}

// stateRemedy says what helps against an error of [state.Open].
func stateRemedy(err error) string {
	switch {
	case errors.Is(err, state.ErrDamaged), errors.Is(err, state.ErrLost):
		return "nothing in it was changed: keep a copy, then restore the file, or start on a new directory; in that case remove\n" +
			"this worker's containers and mounts by hand, since the records of them are gone"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "make room and start again"
	case errors.Is(err, unix.EROFS):
		return "mount it read-write and start again"
	}
	return "give each worker and each mode a directory of its own, owned by root, with mode 0700, its file with mode 0600"
}

func needsOrNil(err error, sentence, remedy string) error {
	if err == nil {
		return nil
	}
	return needs(err, sentence, remedy)
}
