// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroupSettle is how long the cgroups of removed containers may outlive them: the engine's shim
// reaps, the kernel drops what is empty.
const cgroupSettle = 5 * time.Second

// removeCgroups removes a cgroup parent, "/lab/0a1b2c3d" from each hierarchy's root, with what is
// below it, in every hierarchy. What is below it and does not go by itself is named. No other
// cgroup is touched: a path of less than two names is nobody's own.
func removeCgroups(ctx context.Context, parent string) (left []string, err error) {
	if parent == "" {
		return nil, nil
	}
	if !filepath.IsAbs(parent) || filepath.Clean(parent) != parent || strings.Count(parent, "/") < 2 {
		return nil, fmt.Errorf("%q is no cgroup parent of a worker's own", parent)
	}
	var below []string
	for settled := time.Now().Add(cgroupSettle); ; {
		tops, err := inHierarchies(parent)
		if err != nil {
			return left, err
		}
		if below, err = foldersBelow(tops); err != nil {
			return left, err
		}
		if late := time.Now().After(settled); len(below) == 0 || late {
			if late {
				left = append(left, cgroupNames(below)...)
			}
			return left, removeFolders(ctx, append(below, tops...))
		}
		if err := pause(ctx); err != nil {
			return left, err
		}
	}
}

func cgroupNames(dirs []string) (names []string) {
	for _, d := range dirs {
		names = append(names, "cgroup "+d)
	}
	return names
}

// inHierarchies finds the cgroup in every mounted hierarchy where it exists. A cgroup mount shows
// the subtree at its root.
func inHierarchies(cgroup string) (dirs []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("read cgroup mounts: %w", err)
	}
	for _, m := range mounts {
		rel, ok := strings.CutPrefix(cgroup, strings.TrimSuffix(m.Root, "/"))
		if !ok {
			continue
		}
		dir := filepath.Join(m.Mountpoint, rel)
		if st, err := os.Lstat(dir); err == nil && st.IsDir() && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// foldersBelow lists the folders below dirs, deepest first.
func foldersBelow(dirs []string) (below []string, err error) {
	for _, top := range dirs {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path != top {
				below = append(below, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone while we look
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("walk cgroups: %w", err)
		}
	}
	slices.SortFunc(below, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return below, nil
}

// removeFolders removes cgroups, in this order. One with processes is busy until they have ended.
func removeFolders(ctx context.Context, dirs []string) error {
	for _, dir := range dirs {
		for {
			err := unix.Rmdir(dir)
			if err == nil || err == unix.ENOENT {
				break
			}
			if err != unix.EBUSY && err != unix.EINTR {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
			if pause(ctx) != nil {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}
