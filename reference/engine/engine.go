// SPDX-License-Identifier: Apache-2.0

// Package engine makes, checks, starts, watches and removes sandbox containers through
// a Docker-compatible engine. It owns the launch profile: one builder makes the create
// request, and an independent table of required properties is held against the engine's
// own inspect output before every start. It observes the engine's mount table, the
// binary that runs a sandbox, and how a container ended.
//
// It never uses the engine's default runtime, never pulls or tags an image, never removes
// a container that its caller did not name, and never waits without a deadline. It is the
// only importer of the engine's client library in the worker. It does not decide what may
// run: reference/admission does. Read launch.go next, then reference/session.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// minAPI is the first version with a cgroup namespace mode (engine 20.10).
const minAPI = "1.41"

// Bounds of single calls. Slow cohorts (emulated VMs) need seconds for a start.
const (
	queryDeadline  = 10 * time.Second // inspect, list, info, ping
	changeDeadline = 45 * time.Second // create, start, one removal
	bridgeDeadline = 20 * time.Second
)

// Sentinels.
var (
	// ErrNoImage: the engine does not hold the image under its digest.
	ErrNoImage = errors.New("engine holds no such image")
	// ErrNotCreated: the engine answered the create with a refusal, or never saw it.
	ErrNotCreated = errors.New("container was not created")
	// ErrLaunch: what the engine made is not what was asked for, or not what is pinned.
	ErrLaunch = errors.New("launch profile is not as required")
	// ErrNotRunning: the container has ended or is being removed.
	ErrNotRunning = errors.New("container is not running")
	// ErrStillThere: removal could not be proven within its bound.
	ErrStillThere = errors.New("container removal is not proven")
	// ErrNoAnswer: of New; the engine is not running, or does not answer yet.
	ErrNoAnswer = errors.New("engine does not answer")
)

// Config of an Engine. Everything but PidFile is required.
type Config struct {
	Socket       string // absolute path of the engine's unix socket
	Runtime      string // name under which the sandbox runtime is registered
	CgroupParent string
	Ceilings     api.Resources
	// PidFile names the engine's pid file. Without it the engine's process is whoever
	// listens on Socket, which is wrong behind a proxy.
	PidFile string
	Log     *slog.Logger
}

// Engine is one engine, reached through one socket. Safe for concurrent use.
type Engine struct {
	cfg Config
	cli *client.Client
}

var runtimeRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// New connects, negotiates the API version and checks that the named runtime is
// registered.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	if cfg.Socket == "" || cfg.CgroupParent == "" || cfg.Log == nil || !runtimeRE.MatchString(cfg.Runtime) {
		return nil, errors.New("engine: socket, runtime, cgroup parent and log are required")
	}
	if r := cfg.Ceilings; r.CPUs <= 0 || r.MemoryBytes <= 0 || r.PIDs <= 0 || r.WorkspaceBytes <= 0 || r.WorkspaceInodes <= 0 {
		return nil, errors.New("engine: every ceiling is required")
	}
	cli, err := client.NewClientWithOpts(client.WithHost("unix://"+cfg.Socket), client.WithDialContext(dialer(cfg.Socket)), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("engine client: %w", err)
	}
	e := &Engine{cfg: cfg, cli: cli}
	if err := e.check(ctx); err != nil {
		return nil, errors.Join(err, cli.Close())
	}
	return e, nil
}

func (e *Engine) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	if _, err := e.cli.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w: %w", ErrNoAnswer, err)
	}
	e.cli.NegotiateAPIVersion(ctx)
	if v := e.cli.ClientVersion(); versions.LessThan(v, minAPI) {
		return fmt.Errorf("engine speaks API %s; %s is needed", v, minAPI)
	}
	info, err := e.cli.Info(ctx)
	if err != nil {
		return fmt.Errorf("info: %w: %w", ErrNoAnswer, err)
	}
	if _, ok := info.Runtimes[e.cfg.Runtime]; !ok {
		return fmt.Errorf("engine has no runtime %q", e.cfg.Runtime)
	}
	return nil
}

// Close gives idle connections up. Open bridges stay.
func (e *Engine) Close() error { return e.cli.Close() }

// refusal reports whether the engine itself answered the create of name with an error, so that it is
// known not to be in flight any more. What a proxy says for an engine that does not answer (502, 503, 504)
// is no such answer. Neither is that the name is in use: nobody else knows it, so the request has arrived
// twice, and the first may not be done.
func refusal(err error, name string) bool {
	return cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) || cerrdefs.IsPermissionDenied(err) ||
		cerrdefs.IsUnauthorized(err) || cerrdefs.IsNotImplemented(err) || cerrdefs.IsInternal(err) ||
		cerrdefs.IsConflict(err) && !strings.Contains(err.Error(), name)
}
