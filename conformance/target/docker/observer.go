// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"net"
	"strings"

	"github.com/docker/docker/api/types/filters"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/cgroup"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/engineview"
)

// observer looks through the engine and /proc. There is no log and no tape.
type observer struct{ *driver }

// Container finds the container by its labels: the engine is asked, not what the driver remembers.
func (o observer) Container(ctx context.Context, sandboxID string) (target.Container, error) {
	in, err := engineview.Inspect(ctx, o.engine, filters.NewArgs(filters.Arg("label", labelRun+"="+o.id), filters.Arg("label", labelSandbox+"="+sandboxID)))
	if err != nil {
		return target.Container{}, err
	}
	c := target.Container{ID: in.ID, Name: strings.TrimPrefix(in.Name, "/"), ImageID: in.Image, Labels: in.Config.Labels}
	if in.HostConfig != nil {
		c.Runtime = in.HostConfig.Runtime
	}
	for _, m := range in.Mounts {
		if m.Destination == workspaceDir {
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

func (o observer) EngineSocket() (string, error) { return o.cfg.Socket, nil }

// CgroupParent is the driver's own.
func (o observer) CgroupParent() (string, error) {
	if o.record.Cgroup == "" {
		return "", target.ErrUnavailable
	}
	return o.record.Cgroup, nil
}

// WorkerPid is the engine: no other daemon stands between a tenant's output and this driver, and
// what it can be made to hold, it holds on the host. The driver's own share is in the suite's process
// and is bounded by [target.Command].MaxOutput.
func (o observer) WorkerPid() (int, error) {
	if o.daemon == 0 {
		return 0, target.ErrUnavailable
	}
	return o.daemon, nil
}

// listener is the process that listens on a unix socket: unix(7), SO_PEERCRED gives who called
// listen(2). It is 0 where that tells nothing: systemd's, for a socket that it passed on, or one of
// another pid namespace.
func listener(socket string) (int, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) { cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if serr != nil {
		return 0, serr
	}
	if cred.Pid <= 1 {
		return 0, nil
	}
	return int(cred.Pid), nil
}

func (o observer) NetworkNamespace() (string, error) {
	if o.cfg.NetworkNamespace == "" {
		return "", target.ErrUnavailable
	}
	return o.cfg.NetworkNamespace, nil
}

func (o observer) LabNetwork() (string, error) {
	if o.cfg.Network == "" {
		return "", target.ErrUnavailable
	}
	return o.cfg.Network, nil
}

func (o observer) SandboxBinary() (path, digest string, err error) {
	if o.cfg.SandboxBinary == nil {
		return "", "", target.ErrUnavailable
	}
	return o.cfg.SandboxBinary.Path, o.cfg.SandboxBinary.Digest, nil
}

func (observer) Logs() ([]string, error) { return nil, target.ErrUnavailable }

func (observer) Tape(int64) ([]target.TapeCall, int64, error) { return nil, 0, target.ErrUnavailable }
