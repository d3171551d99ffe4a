// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"strings"

	"github.com/docker/docker/api/types/filters"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/cgroup"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/engineview"
)

// observer looks through the engine's own socket and /proc. It never asks the worker.
type observer struct{ *driver }

// Container prefers the running one: a retired generation may still be going away.
func (o observer) Container(ctx context.Context, sandboxID string) (target.Container, error) {
	if o.engine == nil {
		return target.Container{}, target.ErrUnavailable
	}
	args := filters.NewArgs(filters.Arg("label", "hallmark.sandbox="+sandboxID))
	if o.run != nil {
		args.Add("label", "hallmark.worker="+o.run.id)
	}
	in, err := engineview.Inspect(ctx, o.engine, args)
	if err != nil {
		return target.Container{}, err
	}
	c := target.Container{ID: in.ID, Name: strings.TrimPrefix(in.Name, "/"), ImageID: in.Image, Labels: in.Config.Labels}
	if in.HostConfig != nil {
		c.Runtime = in.HostConfig.Runtime
	}
	for _, m := range in.Mounts {
		if m.Destination == "/workspace" {
			c.Workspace = m.Source
		}
	}
	if in.State == nil || in.State.Pid == 0 {
		return c, nil // created or ended: there is no process and no cgroup to look at
	}
	c.Pid = in.State.Pid
	c.Cgroups, err = cgroup.Of(c.Pid)
	return c, err
}

func (o observer) EngineSocket() (string, error) {
	if o.cfg.Engine == nil {
		return "", target.ErrUnavailable
	}
	return o.cfg.Engine.Socket, nil
}

func (o observer) CgroupParent() (string, error) {
	if o.cfg.Engine == nil {
		return "", target.ErrUnavailable
	}
	return o.cgroupParent(), nil
}

func (o observer) WorkerPid() (int, error) {
	if w := o.worker.Load(); w != nil && w.alive() {
		return w.pid, nil
	}
	if o.cfg.Attach != nil && o.cfg.Attach.WorkerPid > 0 {
		return o.cfg.Attach.WorkerPid, nil
	}
	return 0, target.ErrUnavailable
}

func (o observer) NetworkNamespace() (string, error) {
	if o.cfg.Engine == nil || o.cfg.Engine.NetworkNamespace == "" {
		return "", target.ErrUnavailable
	}
	return o.cfg.Engine.NetworkNamespace, nil
}

func (o observer) LabNetwork() (string, error) {
	if o.cfg.Engine == nil || o.cfg.Engine.Network == "" {
		return "", target.ErrUnavailable
	}
	return o.cfg.Engine.Network, nil
}

func (o observer) SandboxBinary() (path, digest string, err error) {
	if o.cfg.Engine == nil {
		return "", "", target.ErrUnavailable
	}
	return o.cfg.Engine.SandboxBinary.Path, o.cfg.Engine.SandboxBinary.Digest, nil
}

func (o observer) Logs() ([]string, error) {
	switch {
	case o.run != nil:
		return []string{o.run.log(), o.run.stderr()}, nil
	case o.cfg.Attach.LogFile != "":
		return []string{o.cfg.Attach.LogFile}, nil
	}
	return nil, target.ErrUnavailable
}

func (o observer) Tape(mark int64) ([]target.TapeCall, int64, error) {
	if o.tape == nil {
		return nil, 0, target.ErrUnavailable
	}
	return o.tape.Since(mark)
}
