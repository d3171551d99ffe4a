// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweepBound is how long one sweep tries. A sandbox of a killed engine ends in
// well under a second; the rest is room for a busy host.
const sweepBound = 30 * time.Second

// sweep kills, unmounts, detaches and removes everything of the lab's, until a
// scan finds nothing. It returns what it found at first, and an error that lists
// what it could not remove.
func (t territory) sweep(ctx context.Context, netns uint64) ([]leftover, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	sockets := t.strayShimSockets()
	found, err := t.scan(netns)
	if err != nil {
		return nil, err
	}
	left := found
	for round := 0; len(left) > 0; round++ {
		errs := t.sweepOnce(round)
		if left, err = t.scan(netns); err != nil {
			return found, err
		}
		if len(left) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return found, errors.Join(append([]error{leftoverError(left)}, errs...)...)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, s := range sockets {
		if err := os.Remove(s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, fmt.Errorf("remove shim socket: %w", err)
		}
	}
	for _, dir := range []string{"/run/containerd/s", "/run/containerd"} {
		_ = os.Remove(dir) // made by our shims when no other containerd has; stays when it holds anything
	}
	for _, dir := range []string{t.runDir, t.dir} {
		if err := removeTree(dir); err != nil {
			return found, err
		}
	}
	return found, nil
}

func leftoverError(left []leftover) error {
	var names []string
	for _, l := range left {
		names = append(names, l.String())
	}
	slices.Sort(names)
	return fmt.Errorf("left on the host: %s", strings.Join(names, "; "))
}

// sweepOnce makes one pass in the order of dependence: processes hold mounts,
// mounts hold loop devices, processes hold cgroups.
func (t territory) sweepOnce(round int) []error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	spare := ancestors()
	procs, err := processes()
	add(err)
	alive := false
	for _, p := range procs {
		if !p.zombie && !spare[p.pid] && t.ownsProcess(p) {
			alive = true
			add(p.kill(unix.SIGKILL))
		}
	}
	if alive && round < 100 {
		return errs // look again before unmounting: a dying sentry still uses its mounts
	}
	mounts, err := t.mounts()
	add(err)
	for _, m := range mounts {
		flags := 0
		if round > 20 {
			flags = unix.MNT_DETACH // about a second of EBUSY: detach, the loop check below still waits for the device
		}
		if err := unix.Unmount(m, flags|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			add(fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	loops, err := t.loops()
	add(err)
	for _, l := range loops {
		add(detachLoop(l))
	}
	dirs, err := t.cgroupDirs()
	add(err)
	for _, d := range dirs {
		add(removeCgroup(d))
	}
	return errs
}

func detachLoop(dev string) error {
	f, err := os.OpenFile(dev, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("detach loop device: %w", err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && err != unix.ENXIO {
		return fmt.Errorf("detach %s: %w", dev, err)
	}
	return nil
}

// removeCgroup removes a cgroup tree bottom up. Only folders can be removed there.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// removeTree removes dir, clearing the immutable flag where it stops removal:
// the loop backend's mount points carry it. Nothing is mounted there any more.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walk := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			clearImmutable(path)
		}
		return nil
	})
	return errors.Join(walk, os.RemoveAll(dir))
}

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

func clearImmutable(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&immutableFlag != 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^immutableFlag)
	}
}

// strayShimSockets lists the sockets of our shims. Shims keep them in a folder
// that all containerds of a host share (/run/containerd/s); the bundle of each
// task names its own, in a file "address" or, since containerd 2, "bootstrap.json".
func (t territory) strayShimSockets() []string {
	var out []string
	keep := func(address string) {
		path := strings.TrimPrefix(strings.TrimSpace(address), "unix://")
		if filepath.Dir(path) == "/run/containerd/s" {
			out = append(out, path)
		}
	}
	tasks := filepath.Join(t.runDir, "containerd", "daemon", "io.containerd.runtime.v2.task", "*", "*")
	for _, name := range []string{"address", "shim.sock", "bootstrap.json"} {
		files, _ := filepath.Glob(filepath.Join(tasks, name)) // the pattern is constant and well formed
		for _, f := range files {
			body, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			var boot struct{ Address string }
			if json.Unmarshal(body, &boot) == nil {
				keep(boot.Address)
				continue
			}
			keep(string(body))
		}
	}
	return out
}
