// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// OOMKills finds the kernel's counter of tasks that it killed at the memory limit of the container
// whose process is pid, and returns how to ask whether there is one. The engine notes such a kill on a
// way of its own, which may take longer than the end of the container; the counter stands before the
// first process is gone, and goes with the container's cgroup.
func (e *Engine) OOMKills(pid int) (killed func() (bool, error), err error) {
	body, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("find memory cgroup: %w", err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("find memory cgroup: %w", err)
	}
	c, err := findOOMCounter(string(body), mounts)
	return c.killed, err
}

// findOOMCounter reads proc_pid_cgroup(5): the v1 hierarchy with the memory controller, or else the unified one.
func findOOMCounter(groups string, mounts []*mountinfo.Info) (oomCounter, error) {
	found := oomCounter{}
	for line := range strings.Lines(groups) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		v1 := slices.Contains(strings.Split(part[1], ","), "memory")
		if !v1 && (part[0] != "0" || part[1] != "") {
			continue
		}
		for _, m := range mounts {
			if v1 != (m.FSType == "cgroup") || v1 && !slices.Contains(strings.Split(m.VFSOptions, ","), "memory") {
				continue
			}
			below, ok := strings.CutPrefix(part[2], strings.TrimSuffix(m.Root, "/"))
			if !ok {
				continue
			}
			if v1 {
				return oomCounter{filepath.Join(m.Mountpoint, below, "memory.oom_control")}, nil
			}
			found = oomCounter{filepath.Join(m.Mountpoint, below, "memory.events")}
		}
	}
	if found.path == "" {
		return found, errors.New("find memory cgroup: no hierarchy has the memory controller")
	}
	return found, nil
}

// oomCounter is the line oom_kill of a cgroup's file: memory.oom_control on v1 (Linux 4.13), memory.events on v2.
type oomCounter struct{ path string }

// killed reports whether the kernel has killed a task at the limit. An error means that it cannot be
// known, for example because the cgroup is gone.
func (c oomCounter) killed() (bool, error) {
	body, err := os.ReadFile(c.path)
	if err != nil {
		return false, fmt.Errorf("read OOM kills: %w", err)
	}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == "oom_kill" {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return false, fmt.Errorf("read OOM kills: %w", err)
			}
			return n > 0, nil
		}
	}
	return false, errors.New("read OOM kills: the kernel does not count them")
}
