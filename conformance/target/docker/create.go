// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/leftover"
)

// runtime is the tenant's client.
type runtime struct{ *driver }

func (r runtime) Describe(ctx context.Context) (target.Description, error) {
	v, err := r.engine.ServerVersion(ctx)
	if err != nil {
		return target.Description{}, engineError(fmt.Errorf("ask engine: %w", err))
	}
	d := target.Description{
		Driver: "docker", Mode: "plain", Version: "engine " + v.Version + ", runtime " + r.cfg.Runtime, WorkerID: "docker-" + r.id,
		Claims: r.cfg.Claims, Digests: map[string]string{},
	}
	if r.cfg.SandboxBinary != nil {
		d.Digests["sandbox"] = r.cfg.SandboxBinary.Digest
	}
	return d, nil
}

// undoBound is for the removal of a container whose start failed.
const undoBound = 30 * time.Second

func (r runtime) Create(ctx context.Context, spec target.Spec) (_ target.Sandbox, err error) {
	spec = spec.WithDefaults()
	if spec.WorkspaceID == "" {
		spec.WorkspaceID = "ws-" + random()
	}
	watch, stop := context.WithCancel(context.Background()) // of the container, not of this call
	s := &sandbox{driver: r.driver, id: random(), ws: spec.WorkspaceID, dir: r.workspace(spec.WorkspaceID), over: make(chan struct{}), stopWait: stop}
	r.mu.Lock()
	r.live[s.id] = s // from here on the workspace is in use
	r.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		// The reply of a create may be lost: what carries this sandbox's label is what it made.
		stop()
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
		defer cancel()
		_, rerr := leftover.RemoveContainers(undo, r.engine, labelSandbox+"="+s.id)
		err = errors.Join(err, engineError(rerr))
		r.forget(s)
	}()
	if err := r.makeWorkspace(s.dir); err != nil {
		return nil, err
	}
	config, host := r.profile(spec, s.id, s.dir)
	made, err := r.engine.ContainerCreate(ctx, config, host, nil, nil, "hallmark-docker-"+s.id)
	if err != nil {
		return nil, createError(fmt.Errorf("create container: %w", err))
	}
	s.container = made.ID
	if err := r.engine.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		return nil, engineError(fmt.Errorf("start container: %w", err))
	}
	in, err := r.engine.ContainerInspect(ctx, made.ID)
	if err != nil {
		return nil, engineError(fmt.Errorf("inspect container: %w", err))
	}
	if in.State == nil || !in.State.Running || in.Image != spec.Image {
		return nil, refusal(CodeEngineFailed, "", fmt.Errorf("the container does not run, or not with the image %s: %+v, image %s", spec.Image, in.State, in.Image))
	}
	s.pid = in.State.Pid
	s.watch(watch)
	return s, nil
}

// workspace is the host folder of a workspace, whatever bytes its id has.
func (d *driver) workspace(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(d.workspaces(), hex.EncodeToString(sum[:16]))
}

// makeWorkspace makes the folder, or takes the one that is there, for the tenant.
func (d *driver) makeWorkspace(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make workspace: %w", err)
	}
	// Inside, root has no capability either: like everybody else it may look, and on the host nobody
	// but root gets through the folder above.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Lchown(dir, d.uid, d.gid)); err != nil {
		return fmt.Errorf("give workspace to the tenant: %w", err)
	}
	return nil
}

// Purge refuses while a sandbox uses the workspace: its mount would be on a folder without a name.
func (r runtime) Purge(_ context.Context, ws string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.live {
		if s.ws == ws {
			return refusal(CodeBusy, target.KindBusy, fmt.Errorf("sandbox %s uses it", s.id))
		}
	}
	if err := target.RemoveTree(r.workspace(ws)); err != nil {
		return fmt.Errorf("purge workspace: %w", err)
	}
	return nil
}

func (d *driver) forget(s *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.live, s.id)
}
