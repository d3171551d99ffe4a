// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/strslice"
	"github.com/docker/go-units"
)

// Fixed bounds of the writable places that are not the workspace. /dev/shm has no inode
// option in the engine's API; its bytes are bounded, and memory bounds the rest.
const (
	tmpOptions = "rw,nosuid,nodev,noexec,size=67108864,nr_inodes=16384,mode=1777"
	runOptions = "rw,nosuid,nodev,noexec,size=1048576,nr_inodes=128,mode=755"
	shmBytes   = 16 << 20
	nofile     = 4096
	cpuPeriod  = 100_000 // microseconds
	hostname   = "sandbox"
)

// environment is what the engine gives PID 1; the tenant's is the supervisor's matter.
var environment = []string{
	"HOME=/", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}

// capabilities that PID 1 keeps, in the spelling that the engine reports.
var capabilities = []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID"}

// request is everything that the create call carries.
type request struct {
	config  *container.Config
	host    *container.HostConfig
	network *network.NetworkingConfig
}

// build is the only place where a create request is made.
func (e *Engine) build(s Spec) request {
	env := append([]string{}, environment...)
	for _, name := range s.Image.envNames {
		env = append(env, name) // a bare name removes what the image sets
	}
	r := s.Resources
	pids := r.PIDs
	noInit := false
	return request{
		config: &container.Config{
			Hostname:    hostname,
			User:        "0:0",
			Env:         env,
			Image:       s.Image.ID,
			Entrypoint:  strslice.StrSlice{SupervisorTarget},
			Cmd:         strslice.StrSlice{"supervisor"},
			WorkingDir:  "/",
			StopSignal:  "SIGKILL",
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels: map[string]string{
				LabelWorker:     s.WorkerID,
				LabelEpoch:      s.BootEpoch,
				LabelSandbox:    s.SandboxID,
				LabelGeneration: strconv.FormatInt(s.Generation, 10),
				LabelMode:       string(s.Mode),
			},
		},
		host: &container.HostConfig{
			Runtime:        e.cfg.Runtime,
			NetworkMode:    "none",
			IpcMode:        "private",
			CgroupnsMode:   "private",
			ReadonlyRootfs: true,
			CapDrop:        strslice.StrSlice{"ALL"},
			CapAdd:         strslice.StrSlice(capabilities),
			SecurityOpt:    []string{"no-new-privileges"},
			LogConfig:      container.LogConfig{Type: "none"},
			RestartPolicy:  container.RestartPolicy{Name: "no"},
			ShmSize:        shmBytes,
			Init:           &noInit,
			Tmpfs:          map[string]string{"/tmp": tmpOptions, "/run": runOptions},
			Mounts: []mount.Mount{
				bind(s.Supervisor, SupervisorTarget, true),
				bind(s.Workspace, WorkspaceTarget, s.ReadOnly),
			},
			Resources: container.Resources{
				CgroupParent: e.cfg.CgroupParent,
				Memory:       r.MemoryBytes,
				MemorySwap:   r.MemoryBytes, // memory plus swap: no swap at all
				PidsLimit:    &pids,
				CPUPeriod:    cpuPeriod,
				CPUQuota:     int64(r.CPUs) * cpuPeriod / 1000,
				Ulimits: []*units.Ulimit{
					{Name: "core", Hard: 0, Soft: 0},
					{Name: "fsize", Hard: r.WorkspaceBytes, Soft: r.WorkspaceBytes},
					{Name: "nofile", Hard: nofile, Soft: nofile},
				},
			},
		},
		network: &network.NetworkingConfig{},
	}
}

func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}
