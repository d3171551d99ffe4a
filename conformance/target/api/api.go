// SPDX-License-Identifier: Apache-2.0

// Package api drives any runtime that speaks the worker API.
//
// It attaches to a running worker, or launches hallmark-worker itself with keys and state of
// its own, the tape between worker and engine. It observes through the engine's own socket and
// the host's /proc. It owns the process, the sockets and the folder of a worker that it has
// launched, and the containers that carry that worker's random id; it removes nothing else.
package api

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	docker "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Config is a target file for this driver. Exactly one of Attach and Launch.
type Config struct {
	Attach *Attach `json:"attach,omitempty"`
	Launch *Launch `json:"launch,omitempty"`
	// Engine lets the suite look from outside. Without it the cases that need it are not run.
	Engine *Engine `json:"engine,omitempty"`
}

// Attach names a worker that runs already.
type Attach struct {
	Socket    string `json:"socket"`
	WorkerID  string `json:"workerId"`
	WorkerKey []byte `json:"workerKey"` // Ed25519 public key, 32 bytes
	Issuer    string `json:"issuer"`
	KeyID     string `json:"keyId"`
	KeyFile   string `json:"keyFile"` // PEM PKCS #8: the key that the worker trusts for capabilities
	WorkerPid int    `json:"workerPid,omitzero"`
	LogFile   string `json:"logFile,omitempty"`
}

// Engine is the container engine below the worker, and what is known of its host.
type Engine struct {
	Socket           string        `json:"socket"`
	PidFile          string        `json:"pidFile,omitempty"`
	Runtime          string        `json:"runtime"`
	CgroupParent     string        `json:"cgroupParent"`
	NetworkNamespace string        `json:"networkNamespace,omitempty"`
	Network          string        `json:"network,omitempty"`
	SandboxBinary    SandboxBinary `json:"sandboxBinary"`
}

// SandboxBinary is the runtime binary that must be running.
type SandboxBinary struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

// Launch starts hallmark-worker in qualification mode.
type Launch struct {
	Worker        string        `json:"worker"` // binaries
	Supervisor    string        `json:"supervisor"`
	Quota         string        `json:"quota"`
	Images        []Image       `json:"images"` // candidates
	CohortID      string        `json:"cohortId"`
	Ceilings      api.Resources `json:"ceilings"`
	ReserveBytes  int64         `json:"reserveBytes"`
	ReserveInodes int64         `json:"reserveInodes"`
	// Sockets is an existing folder with a short path for the worker's sockets, which whoever owns
	// the engine removes with it; "" is the folder for temporary files.
	Sockets string `json:"sockets,omitempty"`
	// WorkerSandbox is what the worker is told to find running as a sandbox, where that is not
	// Engine.SandboxBinary: the control on another runtime.
	WorkerSandbox *SandboxBinary `json:"workerSandbox,omitempty"`
	// RuntimeDigest is that of the registered runtime, where that is not Engine.SandboxBinary's.
	RuntimeDigest string `json:"runtimeDigest,omitempty"`
}

// Bounds of a worker that the suite launches. The launch profile names the ceilings, so a
// production worker that is to use the evidence has the same.
var Ceilings = api.Resources{CPUs: 2000, MemoryBytes: 1 << 30, PIDs: 1024, WorkspaceBytes: 256 << 20, WorkspaceInodes: 65536}

// What a launched worker leaves free for the host.
const (
	ReserveBytes  = 1 << 30
	ReserveInodes = 10_000
)

// Image is a candidate by both digests.
type Image struct {
	ConfigDigest   string `json:"configDigest"`
	ManifestDigest string `json:"manifestDigest"`
}

// driver is one open target.
type driver struct {
	cfg    Config
	client *client.Client
	engine *docker.Client          // nil without Config.Engine
	tape   *tape.Proxy             // nil when attached
	worker atomic.Pointer[process] // nil when attached; replaced by a restart
	run    *launched               // nil when attached
	epoch  atomic.Pointer[string]  // the boot epoch of the last start that was seen
}

// Open reads config (strict JSON of [Config]) and returns the target.
func Open(ctx context.Context, config json.RawMessage, dir string) (_ *target.Target, err error) {
	var cfg Config
	if err := strictjson.Unmarshal(config, &cfg, strictjson.Default); err != nil {
		return nil, fmt.Errorf("target file: %w", err)
	}
	if (cfg.Attach == nil) == (cfg.Launch == nil) {
		return nil, errors.New("target file: exactly one of attach and launch is needed")
	}
	if cfg.Launch != nil && cfg.Engine == nil {
		return nil, errors.New("target file: launch needs an engine")
	}
	d := &driver{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if cfg.Engine != nil {
		d.engine, err = docker.NewClientWithOpts(docker.WithHost("unix://"+cfg.Engine.Socket), docker.WithAPIVersionNegotiation())
		if err != nil {
			return nil, fmt.Errorf("engine client: %w", err)
		}
	}
	if cfg.Launch != nil {
		err = d.launch(ctx, dir)
	} else {
		err = d.attach(ctx)
	}
	if err != nil {
		return nil, err
	}
	return d.target(), nil
}

func (d *driver) attach(ctx context.Context) error {
	a := d.cfg.Attach
	text, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return fmt.Errorf("read capability key: %w", err)
	}
	key, err := capability.ParsePrivateKey(text)
	if err != nil {
		return fmt.Errorf("read capability key: %w", err)
	}
	d.client, err = client.New(client.Config{
		Socket: a.Socket, WorkerID: a.WorkerID, WorkerKey: ed25519.PublicKey(a.WorkerKey),
		Issuer: a.Issuer, KeyID: a.KeyID, Key: key, AllowQualification: true,
	})
	if err != nil {
		return err
	}
	h, err := d.client.Health(ctx)
	if err != nil {
		return fmt.Errorf("ask the worker: %w", err)
	}
	d.epoch.Store(&h.BootEpoch)
	return nil
}

// target lists the parts that this configuration gives.
func (d *driver) target() *target.Target {
	t := &target.Target{
		Runtime: runtime{d}, Wire: wire{d}, Observer: observer{d}, Controller: controller{d}, Authority: d.authority(),
		Parts: []string{"runtime.wire", "runtime.authority", "runtime.concurrent"}, Documents: d.documents, Close: d.close,
	}
	if d.run != nil {
		t.Peers, t.Parts = peers{d}, append(t.Parts, "controller.peers")
		t.Secrets, t.Parts = d.run.secrets, append(t.Parts, "controller.secrets")
	}
	add := func(ok bool, parts ...string) {
		if ok {
			t.Parts = append(t.Parts, parts...)
		}
	}
	e := d.cfg.Engine
	add(e != nil, "observer.engine", "observer.workspace-path", "observer.cgroup", "controller.foothold")
	add(e != nil && e.NetworkNamespace != "" && e.Network != "", "observer.network")
	add(d.worker.Load() != nil || d.cfg.Attach != nil && d.cfg.Attach.WorkerPid > 0, "observer.worker-process")
	add(d.tape != nil, "observer.tape")
	add(d.worker.Load() != nil, "controller.restart", "controller.terminate")
	return t
}
