// SPDX-License-Identifier: Apache-2.0

// Package cgroup names the cgroups of a process on the host and removes an empty parent cgroup. It
// never moves or ends a process.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
)

// Of maps each controller of pid to a host path: proc_pid_cgroup(5) has one line
// "id:controllers:path" per hierarchy, the unified one with an empty list.
func Of(pid int) (map[string]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	mounts, err := hierarchies()
	if err != nil {
		return nil, err
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
				if path, ok := shown(m, part[2]); ok {
					out[controller] = path
					break
				}
			}
		}
	}
	return out, nil
}

// Remove removes the cgroup parent, relative to each hierarchy's root, and the empty ones below it,
// in every hierarchy. Removing what is not there succeeds. A cgroup that still has a process stays,
// and is an error when ctx ends first: the kernel needs a moment after the last exit.
func Remove(ctx context.Context, parent string) error {
	if parent = filepath.Clean("/" + parent); parent == "/" {
		return errors.New("remove cgroup: that is the root")
	}
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var errs []error
		for _, m := range mounts {
			if path, ok := shown(m, parent); ok {
				errs = append(errs, removeTree(path))
			}
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup: %w", err)
		case <-tick.C:
		}
	}
}

// removeTree removes folders only: a cgroup's files go with it (cgroups(7)).
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func hierarchies() ([]*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("read cgroup mounts: %w", err)
	}
	return mounts, nil
}

// shown is the host path of a cgroup below a mount, which shows the subtree at its root.
func shown(m *mountinfo.Info, path string) (string, bool) {
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(m.Root, "/"))
	if !ok {
		return "", false
	}
	return filepath.Join(m.Mountpoint, rel), true
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
