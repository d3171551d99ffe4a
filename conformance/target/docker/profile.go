// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Where things are in a container.
const (
	workspaceDir = "/workspace"
	holdPath     = "/.hold"
	tmpOptions   = "rw,nosuid,nodev,noexec,mode=1777,size=64m" // charged to the sandbox's memory
)

// profile is what `docker run -d` would be told: the flags of a careful user.
//
//	--network none --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges
//	--user 65532:65532 --memory M --memory-swap M --cpus C --pids-limit P --log-driver none
//	--restart no --runtime R --mount type=bind,source=WORKSPACE,target=/workspace
//
// Seccomp, masked paths and the other namespaces are the engine's defaults.
func (d *driver) profile(spec target.Spec, id, workspace string) (*container.Config, *container.HostConfig) {
	argv := make([]string, len(d.cfg.Hold.Argv))
	for i, a := range d.cfg.Hold.Argv {
		if a == secondsArg {
			a = strconv.FormatInt(max(int64(spec.HardTimeout/time.Second), 1), 10)
		}
		argv[i] = a
	}
	config := &container.Config{
		Image: spec.Image, User: d.cfg.User, WorkingDir: workspaceDir, Env: []string{"HOME=" + workspaceDir},
		Entrypoint: []string{holdPath}, Cmd: argv,
		Labels:      map[string]string{labelRun: d.id, labelSandbox: id},
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // an image's own would be a command that nobody asked for
	}
	host := &container.HostConfig{
		Runtime: d.cfg.Runtime, NetworkMode: "none", ReadonlyRootfs: true,
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:     container.LogConfig{Type: "none"},
		Tmpfs:         map[string]string{"/tmp": tmpOptions},
		Init:          new(bool), // PID 1 reaps already
		Resources: container.Resources{
			CgroupParent: d.parent, NanoCPUs: spec.CPUs * 1e6, Memory: spec.MemoryBytes, MemorySwap: spec.MemoryBytes, PidsLimit: &spec.PIDs,
		},
		Mounts: []mount.Mount{
			{Type: mount.TypeBind, Source: d.cfg.Hold.Binary, Target: holdPath, ReadOnly: true},
			{Type: mount.TypeBind, Source: workspace, Target: workspaceDir},
		},
	}
	return config, host
}
