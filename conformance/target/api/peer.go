// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// peers starts workers beside a launched one. What they have lies in the folders of that one, so
// that a killed run's is swept with them; the processes die with this one.
type peers struct{ *driver }

func (p peers) Start(ctx context.Context, spec target.PeerSpec) (_ target.Peer, err error) {
	var random [16]byte
	rand.Read(random[:])
	name := hex.EncodeToString(random[:])
	dir := filepath.Join(p.run.dir, "peer-"+name[:16])
	cfg, caller := p.run.worker, p.run.caller
	cfg.Listen = filepath.Join(p.run.sockets, "peer-"+name[:16]+".sock")
	caller.Socket = cfg.Listen
	cfg.Log = map[string]string{"path": filepath.Join(dir, "worker.log")}
	// A peer makes nothing on the engine that the tape would be asked about.
	cfg.Engine = maps.Clone(cfg.Engine)
	cfg.Engine["socket"] = p.cfg.Engine.Socket
	if !spec.SameState {
		cfg.WorkerID, caller.WorkerID = "suite-"+name, "suite-"+name
		cfg.StateDir, cfg.Workspaces.Dir = filepath.Join(dir, "state"), filepath.Join(dir, "workspaces")
	}
	if spec.Nonces != 0 || spec.NoncesPerWorkspace != 0 {
		cfg.Limits = &limits{spec.Nonces, spec.NoncesPerWorkspace}
	}
	out := &peer{dir: dir, socket: cfg.Listen}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Close())
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make peer folder: %w", err)
	}
	config, stderr := filepath.Join(dir, "worker.json"), filepath.Join(dir, "worker.stderr")
	if err := cfg.write(config); err != nil {
		return nil, err
	}
	c, err := client.New(caller)
	if err != nil {
		return nil, err
	}
	if out.process, err = startProcess(p.cfg.Launch.Worker, []string{"serve", "--config", config}, stderr); err != nil {
		return nil, fmt.Errorf("start peer: %w", err)
	}
	h, err := answers(ctx, c, out.process)
	var status *exec.ExitError
	switch {
	case errors.Is(err, errEnded) && errors.As(out.process.err, &status) && status.Exited():
		return nil, &target.Error{Code: fmt.Sprintf("exit-%d", status.ExitCode()), Cause: errors.New(tail(stderr))}
	case err != nil:
		return nil, fmt.Errorf("start peer: %w\n%s", err, tail(stderr, cfg.Log["path"]))
	}
	out.authority = authority{c, func() string { return h.BootEpoch }, cfg.Listen}
	return out, nil
}

// peer is one running second worker.
type peer struct {
	authority
	process *process
	dir     string
	socket  string

	once sync.Once
	err  error
}

func (p *peer) Close() error {
	p.once.Do(func() {
		var errs []error
		if p.process != nil && p.process.alive() {
			if err := p.process.terminate(drainTimeout); err != nil {
				errs = append(errs, fmt.Errorf("end peer: %w", err))
			}
		}
		if err := os.Remove(p.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		p.err = errors.Join(append(errs, target.RemoveTree(p.dir))...)
	})
	return p.err
}
