// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
)

// checkEngine proves that the engine sees the same device at the workspace's path: a bind
// is resolved in the engine's mount namespace, which need not be this process's.
func (l *Loop) checkEngine(m loopimage.Mounted) error {
	path, err := l.cfg.EngineMountinfo()
	if err != nil {
		return fmt.Errorf("%w: find the engine's mount table: %w", ErrMissingMount, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: open the engine's mount table: %w", ErrMissingMount, err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, atPath(m.Path))
	if err != nil {
		return fmt.Errorf("%w: read the engine's mount table: %w", ErrMissingMount, err)
	}
	return matchEngine(mounts, m)
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
	have := "," + e.Options + ","
	for _, want := range []string{"rw", "nosuid", "nodev"} {
		if !strings.Contains(have, ","+want+",") {
			return fmt.Errorf("%w: the engine's mount lacks %s", ErrMissingMount, want)
		}
	}
	return nil
}
