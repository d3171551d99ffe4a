// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
)

// checkEngine proves that the engine sees the same device at the workspace's path: a bind
// is resolved in the engine's mount namespace, which need not be this process's.
func (l *Loop) checkEngine(m loopimage.Mounted) error {
	mounts, err := engineMounts(l.cfg.EngineMountinfo, atPath(m.Path))
	if err != nil {
		return err
	}
	return matchEngine(mounts, m)
}

func engineMounts(mounttable func() (string, error), keep mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	path, err := mounttable()
	if err != nil {
		return nil, fmt.Errorf("%w: find the engine's mount table: %w", ErrMissingMount, err)
	}
	mounts, err := readMounts(path, keep)
	if err != nil {
		return nil, fmt.Errorf("%w: read the engine's mount table: %w", ErrMissingMount, err)
	}
	return mounts, nil
}

func readMounts(path string, keep mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, keep)
}

// checkEngine proves that the engine finds the same directory at the workspace's path, on a mount that
// a sandbox may have.
func (p *Project) checkEngine(w project.Workspace) error {
	theirs, err := engineMounts(p.cfg.EngineMountinfo, above(w.Path))
	if err != nil {
		return err
	}
	ours, err := readMounts("/proc/self/mountinfo", above(w.Path))
	if err != nil {
		return fmt.Errorf("%w: read mount table: %w", ErrMissingMount, err)
	}
	return matchProject(lowest(theirs), lowest(ours), w)
}

// above keeps what is mounted at path or at a directory that it is in.
func above(path string) mountinfo.FilterFunc {
	return func(i *mountinfo.Info) (skip, stop bool) {
		within := i.Mountpoint == path || strings.HasPrefix(path, strings.TrimSuffix(i.Mountpoint, "/")+"/")
		return !within, false
	}
}

// lowest returns the mount that a path is on: of the deepest ones the last, which lies on top.
func lowest(mounts []*mountinfo.Info) *mountinfo.Info {
	var out *mountinfo.Info
	for _, m := range mounts {
		if out == nil || len(m.Mountpoint) >= len(out.Mountpoint) {
			out = m
		}
	}
	return out
}

func matchProject(theirs, ours *mountinfo.Info, w project.Workspace) error {
	switch {
	case theirs == nil || ours == nil:
		return fmt.Errorf("%w: the engine sees nothing mounted at its path", ErrMissingMount)
	case theirs.Major != int(w.Major) || theirs.Minor != int(w.Minor):
		return fmt.Errorf("%w: the engine sees device %d:%d instead of %d:%d", ErrMissingMount, theirs.Major, theirs.Minor, w.Major, w.Minor)
	case theirs.FSType != w.Filesystem || theirs.Mountpoint != ours.Mountpoint || theirs.Root != ours.Root:
		return fmt.Errorf("%w: the engine sees %s of %s at %s", ErrMissingMount, theirs.Root, theirs.FSType, theirs.Mountpoint)
	}
	return mountOptions(theirs)
}

func mountOptions(e *mountinfo.Info) error {
	have := "," + e.Options + ","
	for _, want := range []string{"rw", "nosuid", "nodev"} {
		if !strings.Contains(have, ","+want+",") {
			return fmt.Errorf("%w: the engine's mount lacks %s", ErrMissingMount, want)
		}
	}
	return nil
}

// atPath keeps every entry at path; the library's own filter stops at the first, and
// another mount could lie on top.
func atPath(path string) mountinfo.FilterFunc {
	return func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != path, false }
}

func matchEngine(mounts []*mountinfo.Info, m loopimage.Mounted) error {
	if len(mounts) != 1 {
		return fmt.Errorf("%w: the engine sees %d mounts at its path", ErrMissingMount, len(mounts))
	}
	e := mounts[0]
	switch {
	case e.Major != int(m.Major) || e.Minor != int(m.Minor):
		return fmt.Errorf("%w: the engine sees device %d:%d instead of %d:%d", ErrMissingMount, e.Major, e.Minor, m.Major, m.Minor)
	case e.FSType != "ext4" || e.Root != "/":
		return fmt.Errorf("%w: the engine sees %s of %s", ErrMissingMount, e.Root, e.FSType)
	}
	return mountOptions(e)
}
