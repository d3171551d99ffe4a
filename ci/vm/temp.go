// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tempPrefix names the folders that [Options.Temp] makes.
const tempPrefix = ".temp-"

// Temp makes a folder for this process, on the file system of the cache. remove ends it; one whose process was
// killed before is removed by whoever prepares an image or makes a folder next.
func (o Options) Temp(ctx context.Context) (dir string, remove func() error, err error) {
	if err := os.MkdirAll(o.dir(), 0o755); err != nil {
		return "", nil, fmt.Errorf("make temporary folder: %w", err)
	}
	unlock, err := o.lock(ctx, tempLock)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if err := o.sweepTemp(); err != nil {
		return "", nil, fmt.Errorf("sweep what a killed command left: %w", err)
	}
	if dir, err = os.MkdirTemp(o.dir(), tempPrefix); err != nil {
		return "", nil, fmt.Errorf("make temporary folder: %w", err)
	}
	f, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("make temporary folder: %w", err), f.Close(), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), f.Close()) }, nil
}

// sweepTemp removes the folders that no process holds. It is called under the lock, so that none is between its
// making and its holding.
func (o Options) sweepTemp() error {
	dirs, err := filepath.Glob(filepath.Join(o.dir(), tempPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		f, err := os.Open(d)
		if errors.Is(err, os.ErrNotExist) {
			continue // its owner has just removed it
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, os.RemoveAll(d))
		}
		f.Close()
	}
	return errors.Join(errs...)
}
