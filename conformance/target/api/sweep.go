// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	docker "github.com/docker/docker/client"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

// recordFile says whose folder this is. It is on disk before anything else exists.
const recordFile = "launch.json"

// ownership is what a later run needs to remove what a killed one left.
type ownership struct {
	Owner    processID `json:"owner"`  // the suite's process
	Worker   processID `json:"worker"` // zero before the first start
	WorkerID string    `json:"workerId"`
	Engine   string    `json:"engine"` // socket
	Sockets  string    `json:"sockets"`
}

type processID struct {
	Pid   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
}

func (p processID) alive() bool {
	if p.Pid == 0 {
		return false
	}
	now, err := startTicks(p.Pid)
	return err == nil && now == p.Start
}

func (l *launched) record(engine string) error { return l.recordWorker(engine, 0) }

func (l *launched) recordWorker(engine string, pid int) error {
	o := ownership{WorkerID: l.id, Engine: engine, Sockets: l.sockets}
	var err error
	o.Owner.Pid = os.Getpid()
	if o.Owner.Start, err = startTicks(o.Owner.Pid); err != nil {
		return fmt.Errorf("own start time: %w", err)
	}
	if pid != 0 {
		o.Worker.Pid = pid
		if o.Worker.Start, err = startTicks(pid); err != nil {
			return fmt.Errorf("worker's start time: %w", err)
		}
	}
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode launch record: %w", err)
	}
	tmp := filepath.Join(l.dir, recordFile+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write launch record: %w", err)
	}
	return os.Rename(tmp, filepath.Join(l.dir, recordFile))
}

// SweepStale removes what killed runs left below parent: folders with a launch record whose
// owner has died, that worker's process and containers, mounts and loop devices below them.
// Folders without a record, and those of living runs, are not touched.
func SweepStale(ctx context.Context, parent string) error {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		b, err := os.ReadFile(filepath.Join(dir, recordFile))
		if err != nil {
			continue
		}
		var o ownership
		if err := json.Unmarshal(b, &o); err != nil {
			errs = append(errs, fmt.Errorf("read launch record of %s: %w", e.Name(), err))
			continue
		}
		if o.Owner.alive() {
			continue
		}
		errs = append(errs, o.sweep(ctx, dir))
	}
	return errors.Join(errs...)
}

func (o ownership) sweep(ctx context.Context, dir string) error {
	if o.Worker.alive() {
		syscall.Kill(o.Worker.Pid, syscall.SIGKILL)
		for deadline := time.Now().Add(10 * time.Second); o.Worker.alive() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	l := &launched{dir: dir, sockets: o.Sockets, id: o.WorkerID}
	var cli *docker.Client
	if _, err := os.Stat(o.Engine); err == nil { // an engine that is gone has no containers
		if cli, err = docker.NewClientWithOpts(docker.WithHost("unix://"+o.Engine), docker.WithAPIVersionNegotiation()); err != nil {
			return err
		}
		defer cli.Close()
		if _, err := cli.Ping(ctx); err != nil {
			cli = nil
		}
	}
	if _, err := l.remove(ctx, cli); err != nil {
		return err
	}
	return os.Remove(dir)
}

// remove deletes containers, mounts, loop devices and files of the worker, and says which of
// the first three were there. The folder itself stays, empty.
func (l *launched) remove(ctx context.Context, engine *docker.Client) (left []string, err error) {
	var errs []error
	if engine != nil && l.id != "" {
		found, err := removeContainers(ctx, engine, l.id)
		left, errs = append(left, found...), append(errs, err)
	}
	found, err := unmountBelow(l.dir)
	left, errs = append(left, found...), append(errs, err)
	found, err = detachLoops(ctx, l.dir)
	left, errs = append(left, found...), append(errs, err)
	errs = append(errs, clearFolder(l.dir))
	if strings.HasPrefix(filepath.Base(l.sockets), "hlk-") {
		errs = append(errs, os.RemoveAll(l.sockets))
	}
	return left, errors.Join(errs...)
}

// removeContainers removes what carries this worker's random id.
func removeContainers(ctx context.Context, cli *docker.Client, id string) (left []string, err error) {
	rows, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", "hallmark.worker="+id))})
	if err != nil {
		return nil, fmt.Errorf("list the worker's containers: %w", err)
	}
	var errs []error
	for _, c := range rows {
		left = append(left, "container "+c.ID[:min(12, len(c.ID))])
		errs = append(errs, cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true}))
	}
	return left, errors.Join(errs...)
}

func unmountBelow(dir string) (left []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var errs []error
	for i := len(mounts) - 1; i >= 0; i-- {
		left = append(left, "mount "+filepath.Base(mounts[i].Mountpoint))
		if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount: %w", err))
		}
	}
	return left, errors.Join(errs...)
}

// detachLoops clears the loop devices that are backed by a file below dir. The kernel lets go
// when the last user has: poll until none names such a file.
func detachLoops(ctx context.Context, dir string) (left []string, err error) {
	for first := true; ; first = false {
		devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return left, err
		}
		found := 0
		for _, p := range devices {
			b, err := os.ReadFile(p)
			if err != nil || !strings.HasPrefix(string(b), dir+"/") {
				continue
			}
			found++
			name := strings.Split(p, "/")[3]
			if first {
				left = append(left, "loop device "+name)
			}
			if f, err := os.Open("/dev/" + name); err == nil {
				unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
				f.Close()
			}
		}
		if found == 0 {
			return left, nil
		}
		select {
		case <-ctx.Done():
			return left, fmt.Errorf("%d loop devices are still attached", found)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// clearFolder empties dir. Mount points of workspaces are immutable while nothing is mounted
// on them, on purpose; that flag goes first (ioctl_iflags(2)).
func clearFolder(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d == nil || !d.IsDir() {
			return nil
		}
		f, operr := os.Open(path)
		if operr != nil {
			return nil
		}
		defer f.Close()
		flags, gerr := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if gerr == nil && flags&immutableFlag != 0 {
			unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutableFlag)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("walk run folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, err)...)
}
