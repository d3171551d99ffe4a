// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
)

// ClearTree removes what is in dir except the files named keep. Where something is mounted on dir or
// below, a program that was killed may have bound a folder of the host there: nothing is removed,
// and that is an error. A dir that is not there is empty.
func ClearTree(dir string, keep ...string) error {
	real, err := filepath.EvalSymlinks(dir) // the kernel names mount points without links
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %s is mounted", dir, mounts[0].Mountpoint)
	}
	entries, err := os.ReadDir(real)
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(real, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// RemoveTree is os.RemoveAll for a folder in which others may have mounted something: see ClearTree.
func RemoveTree(dir string) error {
	if err := ClearTree(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
