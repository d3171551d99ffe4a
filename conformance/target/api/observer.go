// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
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
	rows, err := o.engine.ContainerList(ctx, container.ListOptions{All: true, Filters: args})
	if err != nil {
		return target.Container{}, fmt.Errorf("list containers: %w", err)
	}
	if len(rows) == 0 {
		return target.Container{}, target.ErrNoContainer
	}
	pick := rows[0]
	for _, r := range rows {
		if r.State == "running" {
			pick = r
		}
	}
	in, err := o.engine.ContainerInspect(ctx, pick.ID)
	if err != nil {
		return target.Container{}, fmt.Errorf("inspect container: %w", err)
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
	c.Cgroups, err = cgroupsOf(c.Pid)
	return c, err
}

// cgroupsOf maps each controller of pid to a host path: proc_pid_cgroup(5) has one line
// "id:controllers:path" per hierarchy, the unified one with an empty list.
func cgroupsOf(pid int) (map[string]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("read cgroup mounts: %w", err)
	}
	out := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(string(b))) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		for _, controller := range strings.Split(part[1], ",") {
			for _, m := range mounts {
				if !holds(m, controller) {
					continue
				}
				// A cgroup mount shows the subtree at its root.
				rel, ok := strings.CutPrefix(part[2], strings.TrimSuffix(m.Root, "/"))
				if ok {
					out[controller] = filepath.Join(m.Mountpoint, rel)
					break
				}
			}
		}
	}
	return out, nil
}

func holds(m *mountinfo.Info, controller string) bool {
	if controller == "" {
		return m.FSType == "cgroup2"
	}
	for _, o := range strings.Split(m.VFSOptions, ",") {
		if o == controller && m.FSType == "cgroup" {
			return true
		}
	}
	return false
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
