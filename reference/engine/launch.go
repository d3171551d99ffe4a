// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

// property is one row of the launch profile: what must be true of the inspect output.
// The expected values are written out here on purpose and are not taken from the builder:
// a defect in one of the two then shows.
type property struct {
	name string
	got  any
	want any
}

// CheckLaunch holds the engine's inspect output of a created, not yet started container
// against the launch profile of RUNTIME.md and returns every difference.
func CheckLaunch(c container.InspectResponse, s Spec, cfg Config) error {
	if c.ContainerJSONBase == nil || c.HostConfig == nil || c.Config == nil || c.State == nil || c.NetworkSettings == nil {
		return errors.New("inspect output is incomplete")
	}
	var errs []error
	for _, p := range properties(c, s, cfg) {
		if got, want := fmt.Sprint(p.got), fmt.Sprint(p.want); got != want {
			errs = append(errs, fmt.Errorf("%s is %q, not %q", p.name, got, want))
		}
	}
	return errors.Join(errs...)
}

func properties(c container.InspectResponse, s Spec, cfg Config) []property {
	h, k, r := c.HostConfig, c.Config, s.Resources
	return []property{
		{"started", c.State.Running || c.State.Pid != 0, false},
		{"name", c.Name, "/" + s.Name},
		{"image id", c.Image, s.Image.ID},
		{"runtime", h.Runtime, cfg.Runtime},
		{"cgroup parent", h.CgroupParent, cfg.CgroupParent},

		{"network mode", h.NetworkMode, "none"},
		{"networks", strings.Join(networks(c), ","), "none"},
		{"port bindings", len(h.PortBindings), 0},
		{"publish all ports", h.PublishAllPorts, false},
		{"links", len(h.Links), 0},
		{"extra hosts", len(h.ExtraHosts), 0},
		{"dns", len(h.DNS) + len(h.DNSOptions) + len(h.DNSSearch), 0},

		{"privileged", h.Privileged, false},
		{"read-only root", h.ReadonlyRootfs, true},
		{"dropped capabilities", capNames(h.CapDrop), "ALL"},
		{"added capabilities", capNames(h.CapAdd), "KILL,SETGID,SETUID"},
		{"security options", strings.Join(h.SecurityOpt, ","), "no-new-privileges"},
		{"user namespace mode", h.UsernsMode, ""},
		{"pid mode", h.PidMode, ""},
		{"uts mode", h.UTSMode, ""},
		{"ipc mode", h.IpcMode, "private"},
		{"cgroup namespace mode", h.CgroupnsMode, "private"},
		{"masked paths", len(h.MaskedPaths) > 0, true},
		{"read-only paths", len(h.ReadonlyPaths) > 0, true},
		{"extra groups", len(h.GroupAdd), 0},
		{"devices", len(h.Devices) + len(h.DeviceRequests) + len(h.DeviceCgroupRules), 0},
		{"sysctls", len(h.Sysctls), 0},
		{"oom kill disabled", h.OomKillDisable != nil && *h.OomKillDisable, false},
		{"oom score adjustment", h.OomScoreAdj, 0},
		{"cgroup", h.Cgroup, ""},
		{"isolation", h.Isolation, ""},

		{"memory", h.Memory, r.MemoryBytes},
		{"memory and swap", h.MemorySwap, r.MemoryBytes},
		{"pids limit", deref(h.PidsLimit), r.PIDs},
		{"cpu period", h.CPUPeriod, 100000},
		{"cpu quota", h.CPUQuota, int64(r.CPUs) * 100},
		{"cpu real-time", h.CPURealtimePeriod + h.CPURealtimeRuntime, 0},
		{"ulimits", ulimits(h), fmt.Sprintf("core=0:0,fsize=%d:%d,nofile=4096:4096", r.WorkspaceBytes, r.WorkspaceBytes)},
		{"shm size", h.ShmSize, 16777216},

		{"tmpfs", tmpfs(h), "/run=rw,nosuid,nodev,noexec,size=1048576,nr_inodes=128,mode=755;" +
			"/tmp=rw,nosuid,nodev,noexec,size=67108864,nr_inodes=16384,mode=1777"},
		{"binds", len(h.Binds), 0},
		{"volumes from", len(h.VolumesFrom), 0},
		{"volume driver", h.VolumeDriver, ""},
		{"image volumes", len(k.Volumes), 0},
		{"requested mounts", requested(h), mounts(s)},
		{"mounts", observed(c), mounts(s)},

		{"log driver", h.LogConfig.Type, "none"},
		{"restart policy", h.RestartPolicy.Name + ":" + container.RestartPolicyMode(strconv.Itoa(h.RestartPolicy.MaximumRetryCount)), "no:0"},
		{"auto remove", h.AutoRemove, false},
		{"init", h.Init != nil && *h.Init, false},
		{"container id file", h.ContainerIDFile, ""},

		{"user", k.User, "0:0"},
		{"hostname", k.Hostname + "/" + k.Domainname, "sandbox/"},
		{"entrypoint", strings.Join(k.Entrypoint, "\x00"), "/.hallmark/supervisor"},
		{"command", strings.Join(k.Cmd, "\x00"), "supervisor"},
		{"path and arguments", c.Path + " " + strings.Join(c.Args, " "), "/.hallmark/supervisor supervisor"},
		{"working directory", k.WorkingDir, "/"},
		{"environment", values(k.Env), "HOME=/;LANG=C.UTF-8;PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"stop signal", k.StopSignal, "SIGKILL"},
		{"health check", health(k), "NONE"},
		{"terminal and streams", k.Tty || k.OpenStdin || k.AttachStdin || k.AttachStdout || k.AttachStderr, false},

		{"label worker", k.Labels[LabelWorker], s.WorkerID},
		{"label epoch", k.Labels[LabelEpoch], s.BootEpoch},
		{"label sandbox", k.Labels[LabelSandbox], s.SandboxID},
		{"label generation", k.Labels[LabelGeneration], s.Generation},
		{"label mode", k.Labels[LabelMode], s.Mode},
	}
}

func networks(c container.InspectResponse) []string {
	var out []string
	for n := range c.NetworkSettings.Networks {
		out = append(out, n)
	}
	if len(out) == 0 {
		return []string{"none"} // engines list the network only after the start
	}
	sort.Strings(out)
	return out
}

// capNames sorts and strips the prefix that some engine versions add.
func capNames(in []string) string {
	out := make([]string, 0, len(in))
	for _, c := range in {
		out = append(out, strings.TrimPrefix(strings.ToUpper(c), "CAP_"))
	}
	sort.Strings(out)
	return strings.Join(out, ",")
}

func deref(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func ulimits(h *container.HostConfig) string {
	var out []string
	for _, u := range h.Ulimits {
		out = append(out, fmt.Sprintf("%s=%d:%d", u.Name, u.Soft, u.Hard))
	}
	sort.Strings(out)
	return strings.Join(out, ",")
}

func tmpfs(h *container.HostConfig) string {
	var out []string
	for target, options := range h.Tmpfs {
		out = append(out, target+"="+options)
	}
	sort.Strings(out)
	return strings.Join(out, ";")
}

func values(env []string) string {
	var out []string
	for _, kv := range env {
		if strings.Contains(kv, "=") { // a bare name unsets what the image sets
			out = append(out, kv)
		}
	}
	sort.Strings(out)
	return strings.Join(out, ";")
}

func health(k *container.Config) string {
	if k.Healthcheck == nil {
		return "inherited"
	}
	return strings.Join(k.Healthcheck.Test, " ")
}

func mounts(s Spec) string {
	return mountRow("bind", s.Supervisor, "/.hallmark/supervisor", true, "rprivate") + ";" +
		mountRow("bind", s.Workspace, "/workspace", s.ReadOnly, "rprivate")
}

func mountRow(kind, source, target string, readOnly bool, propagation string) string {
	return fmt.Sprintf("%s %s %s ro=%t %s", kind, source, target, readOnly, propagation)
}

func requested(h *container.HostConfig) string {
	var out []string
	for _, m := range h.Mounts {
		var o mount.BindOptions
		if m.BindOptions != nil {
			o = *m.BindOptions
		}
		row := mountRow(string(m.Type), m.Source, m.Target, m.ReadOnly, string(o.Propagation))
		if m.VolumeOptions != nil || m.TmpfsOptions != nil || o.CreateMountpoint {
			row += " with other options"
		}
		out = append(out, row)
	}
	return sorted(out)
}

func observed(c container.InspectResponse) string {
	var out []string
	for _, m := range c.Mounts {
		if m.Type == mount.TypeTmpfs {
			continue // listed by some engine versions; the tmpfs row covers it
		}
		out = append(out, mountRow(string(m.Type), m.Source, m.Destination, !m.RW, string(m.Propagation)))
	}
	return sorted(out)
}

// sorted orders rows by target, so that the engine's order does not matter.
func sorted(rows []string) string {
	slices.SortFunc(rows, func(a, b string) int {
		return strings.Compare(strings.Fields(a + " - - -")[2], strings.Fields(b + " - - -")[2])
	})
	return strings.Join(rows, ";")
}
