// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

// launched is what a launched worker owns.
type launched struct {
	dir     string // state, workspaces, keys, logs
	sockets string // short-lived folder with a short path: sockaddr_un(7) has 108 bytes
	cgroup  string // its own cgroup parent, below the configured one; "" when that is no cgroupfs path
	config  string
	id      string
	digests map[string]string
	secrets secrets
	worker  workerConfig  // as it is in config
	caller  client.Config // of its client
}

// Times of a launched worker.
const (
	readyTimeout = 90 * time.Second // start-up reconcile included
	drainTimeout = 75 * time.Second // SIGTERM to exit: 30 s for requests, 30 s for sandboxes
)

// workerConfig is the file of `hallmark-worker serve --config`, as far as a qualification
// worker has one. It is written here and read by the worker's strict decoder.
type workerConfig struct {
	WorkerID      string             `json:"workerId"`
	Mode          api.Mode           `json:"mode"`
	Listen        string             `json:"listen"`
	StateDir      string             `json:"stateDir"`
	Engine        map[string]string  `json:"engine"`
	Helpers       map[string]string  `json:"helpers"`
	SandboxBinary SandboxBinary      `json:"sandboxBinary"`
	Workspaces    workspaces         `json:"workspaces"`
	Authority     capabilities       `json:"authority"`
	SigningKey    string             `json:"signingKey"`
	Ceilings      api.Resources      `json:"ceilings"`
	Candidates    candidates         `json:"candidates"`
	Limits        *limits            `json:"limits,omitempty"`
	Credentials   *credential.Config `json:"credentials"`
	Log           map[string]string  `json:"log"`
}

type workspaces struct {
	Dir           string `json:"dir"`
	ReserveBytes  int64  `json:"reserveBytes"`
	ReserveInodes int64  `json:"reserveInodes"`
}

type capabilities struct {
	Issuer string         `json:"issuer"`
	Keys   []authorityKey `json:"keys"`
}

// limits of a nonce store; zero is the worker's default.
type limits struct {
	Nonces             int64 `json:"nonces,omitzero"`
	NoncesPerWorkspace int64 `json:"noncesPerWorkspace,omitzero"`
}

type authorityKey struct {
	KID       string `json:"kid"`
	PublicKey []byte `json:"publicKey"`
}

type candidates struct {
	Images   []Image `json:"images"`
	CohortID string  `json:"cohortId"`
}

const issuer = "hallmark-suite"

// launch starts a worker of its own below dir: new id, new keys, new state.
func (d *driver) launch(ctx context.Context, dir string) error {
	// A run's folder holds one for each of its processes; the folders of other runs lie beside it.
	if err := SweepStale(ctx, filepath.Dir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("sweep what a killed run left: %w", err)
	}
	var random [16]byte
	rand.Read(random[:])
	name := hex.EncodeToString(random[:])
	sockets := d.cfg.Launch.Sockets
	if sockets == "" {
		sockets = os.TempDir()
	}
	sockets = filepath.Join(sockets, socketFolder+name[:16])
	d.run = &launched{dir: dir, sockets: sockets, config: filepath.Join(dir, "worker.json"), id: "suite-" + name, digests: map[string]string{}}
	if filepath.IsAbs(d.cfg.Engine.CgroupParent) {
		d.run.cgroup = filepath.Join(d.cfg.Engine.CgroupParent, name[:16])
	}
	// The record names everything before it exists.
	if err := d.run.record(d.cfg.Engine.Socket); err != nil {
		return err
	}
	if err := os.Mkdir(sockets, 0o700); err != nil {
		return fmt.Errorf("make socket folder: %w", err)
	}
	var err error
	for role, path := range map[string]string{"worker": d.cfg.Launch.Worker, "supervisor": d.cfg.Launch.Supervisor, "quota": d.cfg.Launch.Quota} {
		if d.run.digests[role], err = fileDigest(path); err != nil {
			return fmt.Errorf("digest of %s: %w", role, err)
		}
	}
	// Evidence names the registered runtime, whatever process that leaves behind as a sandbox.
	if d.run.digests["sandbox"] = d.cfg.Engine.SandboxBinary.Digest; d.cfg.Launch.RuntimeDigest != "" {
		d.run.digests["sandbox"] = d.cfg.Launch.RuntimeDigest
	}
	taped := filepath.Join(sockets, "engine.sock")
	if d.tape, err = tape.Listen(taped, d.cfg.Engine.Socket); err != nil {
		return err
	}
	capPublic, capKey, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make capability key: %w", err)
	}
	workerPublic, workerKey, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("make worker key: %w", err)
	}
	listen := filepath.Join(sockets, "worker.sock")
	if err := d.writeConfig(taped, listen, capPublic, workerKey); err != nil {
		return err
	}
	d.run.caller = client.Config{
		Socket: listen, WorkerID: d.run.id, WorkerKey: workerPublic, Issuer: issuer, KeyID: capability.KeyID(capPublic), Key: capKey,
		AllowQualification: true,
	}
	if d.client, err = client.New(d.run.caller); err != nil {
		return err
	}
	return d.start(ctx)
}

func (d *driver) writeConfig(engineSocket, listen string, capPublic ed25519.PublicKey, workerKey ed25519.PrivateKey) error {
	l, e, dir := d.cfg.Launch, d.cfg.Engine, d.run.dir
	keyFile := filepath.Join(dir, "worker.key")
	der, err := x509.MarshalPKCS8PrivateKey(workerKey)
	if err != nil {
		return fmt.Errorf("encode worker key: %w", err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write worker key: %w", err)
	}
	cfg := workerConfig{
		WorkerID: d.run.id, Mode: api.Qualification, Listen: listen, StateDir: filepath.Join(dir, "state"),
		Engine:        map[string]string{"socket": engineSocket, "runtime": e.Runtime, "cgroupParent": d.cgroupParent()},
		Helpers:       map[string]string{"supervisor": l.Supervisor, "quota": l.Quota},
		SandboxBinary: e.SandboxBinary,
		Workspaces:    workspaces{filepath.Join(dir, "workspaces"), l.ReserveBytes, l.ReserveInodes},
		Authority:     capabilities{issuer, []authorityKey{{capability.KeyID(capPublic), capPublic}}},
		SigningKey:    keyFile, Ceilings: l.Ceilings, Candidates: candidates{l.Images, l.CohortID},
		Log: map[string]string{"path": d.run.log()},
	}
	if l.WorkerSandbox != nil {
		cfg.SandboxBinary = *l.WorkerSandbox
	}
	if e.PidFile != "" {
		cfg.Engine["pidFile"] = e.PidFile // whoever listens on the engine's socket is the tape
	}
	if d.run.secrets, cfg.Credentials, err = makeSecrets(filepath.Join(dir, "credentials")); err != nil {
		return err
	}
	d.run.worker = cfg
	return cfg.write(d.run.config)
}

// write makes the worker's folders and its configuration file.
func (cfg workerConfig) write(path string) error {
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return fmt.Errorf("encode worker configuration: %w", err)
	}
	for _, p := range []string{cfg.StateDir, cfg.Workspaces.Dir} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return fmt.Errorf("make worker folder: %w", err)
		}
	}
	return os.WriteFile(path, b, 0o600)
}

// socketFolder begins the names of the folders for sockets.
const socketFolder = "hlk-"

// cgroupParent is that of every container that this target makes.
func (d *driver) cgroupParent() string {
	if d.run != nil && d.run.cgroup != "" {
		return d.run.cgroup
	}
	return d.cfg.Engine.CgroupParent
}

func (l *launched) log() string    { return filepath.Join(l.dir, "worker.log") }
func (l *launched) stderr() string { return filepath.Join(l.dir, "worker.stderr") }

// start runs the worker and returns when it has answered.
func (d *driver) start(ctx context.Context) error {
	p, err := startProcess(d.cfg.Launch.Worker, []string{"serve", "--config", d.run.config}, d.run.stderr())
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	d.worker.Store(p)
	if err := d.run.recordWorker(d.cfg.Engine.Socket, p.pid); err != nil {
		return err
	}
	d.client.Forget()
	h, err := answers(ctx, d.client, p)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(d.run.stderr(), d.run.log()))
	}
	d.epoch.Store(&h.BootEpoch)
	return nil
}

// errEnded says that a worker's process ended before it had answered.
var errEnded = errors.New("the worker ended at its start")

// errSilent says that a worker did not answer in time.
var errSilent = errors.New("the worker does not answer")

// answers waits until the worker gives a health answer. The error matches errEnded when its process
// has ended first.
func answers(ctx context.Context, c *client.Client, p *process) (api.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		h, err := c.Health(ctx)
		if err == nil {
			return h, nil
		}
		select {
		case <-p.done:
			return h, fmt.Errorf("%w: %v", errEnded, p.err)
		case <-ctx.Done():
			return h, fmt.Errorf("%w: %w", errSilent, err)
		case <-tick.C:
		}
	}
}

// tail is the end of what a worker said, for an error message.
func tail(paths ...string) string {
	var out []byte
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err == nil {
			out = append(out, b[max(0, len(b)-2000):]...)
		}
	}
	return string(out)
}

// documents are the observed launch profile, the configuration and the logs.
func (d *driver) documents() (map[string][]byte, error) {
	if d.run == nil {
		return nil, nil
	}
	out := map[string][]byte{}
	for name, path := range map[string]string{
		"launch-profile.json": filepath.Join(d.run.dir, "state", "launch-profile.json"),
		"worker-config.json":  filepath.Join(d.run.dir, "state", "security-config.json"),
		"worker.log":          d.run.log(),
		"worker.stderr":       d.run.stderr(),
	} {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		out[name] = b
	}
	calls, _, err := d.tape.Since(0)
	if err != nil {
		return nil, err
	}
	for _, c := range calls {
		line, err := json.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("encode tape: %w", err)
		}
		out["tape.jsonl"] = append(append(out["tape.jsonl"], line...), '\n')
	}
	return out, nil
}

// close ends the worker and proves that nothing of it is left; what is left is removed, and
// reported.
func (d *driver) close() error {
	var errs []error
	if w := d.worker.Load(); w != nil {
		if err := w.terminate(drainTimeout); err != nil {
			errs = append(errs, fmt.Errorf("end worker: %w\n%s", err, tail(d.run.stderr(), d.run.log())))
		}
	}
	if d.tape != nil {
		errs = append(errs, d.tape.Close())
	}
	if d.run != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		left, err := d.run.remove(ctx, d.engine)
		cancel()
		errs = append(errs, err)
		for _, what := range left {
			errs = append(errs, errors.New("left behind by the worker: "+what))
		}
	}
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	return errors.Join(errs...)
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
