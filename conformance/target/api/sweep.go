// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	docker "github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/cgroup"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/leftover"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

// recordFile says whose folder this is. It is on disk before anything else exists.
const recordFile = "launch.json"

// ownership is what a later run needs to remove what a killed one left.
type ownership struct {
	Format   string    `json:"format"`
	Owner    processID `json:"owner"`  // the suite's process
	Worker   processID `json:"worker"` // zero before the first start
	WorkerID string    `json:"workerId"`
	Engine   string    `json:"engine"` // socket
	Sockets  string    `json:"sockets"`
	Cgroup   string    `json:"cgroup"` // from each hierarchy's root; "" for none of its own
}

type processID struct {
	Pid   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
}

func (p processID) valid() bool { return p.Pid > 0 && p.Start != "" }

func (p processID) alive() bool {
	if p.Pid <= 0 {
		return false
	}
	now, err := startTicks(p.Pid)
	return err == nil && now == p.Start
}

func (l *launched) record(engine string) error { return l.recordWorker(engine, 0) }

func (l *launched) recordWorker(engine string, pid int) error {
	o := ownership{Format: format, WorkerID: l.id, Engine: engine, Sockets: l.sockets, Cgroup: l.cgroup}
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

// SweepStale removes what killed runs left below parent: in each run's folder those of processes
// with a launch record whose owner has died, that worker's process and containers, mounts and loop
// devices below them, and its cgroup parent with everything in it. Folders without a record, and
// those of living processes, are not touched. Sweeps wait for each other.
func SweepStale(ctx context.Context, parent string) error {
	d, err := os.Open(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if st, err := d.Stat(); err != nil || !target.Own(st) {
		return err // anybody could hold the lock for ever; nothing is swept there
	}
	if err := lock(ctx, d); err != nil {
		return err
	}
	return target.SweepRuns(parent, recordFile, func(d target.Dead) error {
		o, err := parse(d.Record)
		if err != nil || o == nil || o.Owner.alive() {
			return err
		}
		return o.sweep(ctx, d.Dir)
	})
}

func lock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s: %w", f.Name(), context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// format begins every record: a file of another program's is not taken for one.
const format = "hallmark-launch/1"

// labelWorker is the label of a worker's containers.
const labelWorker = "hallmark.worker"

var workerForm = regexp.MustCompile(`^suite-([0-9a-f]{32})$`)

// parse returns nil for what does not say that it is a launch record: it would say whom to kill.
// What says so and is broken is an error.
func parse(b []byte) (*ownership, error) {
	if !bytes.Contains(b, []byte(format)) {
		return nil, nil
	}
	var o ownership
	if err := strictjson.Unmarshal(b, &o, strictjson.Default); err != nil {
		return nil, fmt.Errorf("read launch record: %w", err)
	}
	id := workerForm.FindStringSubmatch(o.WorkerID)
	if o.Format != format || !o.Owner.valid() || o.Worker != (processID{}) && !o.Worker.valid() || id == nil || !filepath.IsAbs(o.Engine) ||
		filepath.Base(o.Sockets) != socketFolder+id[1][:16] || o.Cgroup != "" && filepath.Base(o.Cgroup) != id[1][:16] {
		return nil, errors.New("read launch record: it says what no record of this driver's does")
	}
	return &o, nil
}

// sweepBound is how long the remains of one process may take.
const sweepBound = time.Minute

func (o ownership) sweep(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	if o.Worker.alive() {
		syscall.Kill(o.Worker.Pid, syscall.SIGKILL)
		for deadline := time.Now().Add(10 * time.Second); o.Worker.alive() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	l := &launched{dir: dir, sockets: o.Sockets, id: o.WorkerID, cgroup: o.Cgroup}
	var cli *docker.Client
	if _, err := os.Stat(o.Engine); err == nil { // an engine that is gone has no containers
		if cli, err = docker.NewClientWithOpts(docker.WithHost("unix://"+o.Engine), docker.WithAPIVersionNegotiation()); err != nil {
			return err
		}
		defer cli.Close()
		switch _, err := cli.Ping(ctx); {
		case docker.IsErrConnectionFailed(err):
			return nil // it may come back with its containers: the record waits for it
		case err != nil:
			return fmt.Errorf("ask engine: %w", err)
		}
	}
	_, err := l.remove(ctx, cli)
	return err
}

// remove deletes containers, images, mounts, loop devices, cgroups and files of the worker and its
// process, and says which of the first four were there. The folder itself stays, empty. The record
// goes last, and only when nothing else is left: who is killed meanwhile is swept once more.
func (l *launched) remove(ctx context.Context, engine *docker.Client) (left []string, err error) {
	var errs []error
	if engine != nil && l.id != "" {
		found, err := leftover.RemoveOwned(ctx, engine, labelWorker+"="+l.id, l.cgroup)
		left, errs = append(left, found...), append(errs, err)
	}
	found, err := unmountBelow(l.dir)
	left, errs = append(left, found...), append(errs, err)
	if err != nil {
		return left, errors.Join(errs...) // what is still mounted there must not be cleared with the folder
	}
	found, err = detachLoops(ctx, l.dir)
	left, errs = append(left, found...), append(errs, err)
	errs = append(errs, removeCgroup(ctx, l.cgroup), clearFolder(l.dir))
	if strings.HasPrefix(filepath.Base(l.sockets), socketFolder) {
		errs = append(errs, target.RemoveTree(l.sockets))
	}
	if err := errors.Join(errs...); err != nil {
		return left, err // the record stays, for the next sweep
	}
	if err := os.Remove(filepath.Join(l.dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return left, fmt.Errorf("remove launch record: %w", err)
	}
	return left, nil
}

// cgroupBound is how long the last cgroup may take to empty.
const cgroupBound = 10 * time.Second

// removeCgroup removes a worker's own cgroup parent. A path of less than two names is nobody's own.
func removeCgroup(ctx context.Context, parent string) error {
	if parent == "" {
		return nil
	}
	if !filepath.IsAbs(parent) || filepath.Clean(parent) != parent || strings.Count(parent, "/") < 2 {
		return fmt.Errorf("%q is no cgroup parent of a worker's own", parent)
	}
	ctx, cancel := context.WithTimeout(ctx, cgroupBound)
	defer cancel()
	return cgroup.Remove(ctx, parent)
}

var unmount = unix.Unmount // tests refuse it

func unmountBelow(dir string) (left []string, err error) {
	mounts, err := target.MountsBelow(dir)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var errs []error
	for i := len(mounts) - 1; i >= 0; i-- {
		left = append(left, "mount "+filepath.Base(mounts[i].Mountpoint))
		if err := unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount: %w", err))
		}
	}
	return left, errors.Join(errs...)
}

// detachLoops clears the loop devices that are backed by a file below dir. The kernel lets go
// when the last user has: poll until none names such a file.
func detachLoops(ctx context.Context, dir string) (left []string, err error) {
	dir, err = filepath.EvalSymlinks(dir) // as the kernel names the file
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
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

// clearFolder empties dir but for the record. Mount points of workspaces are immutable while nothing is mounted
// on them, on purpose; that flag goes first (ioctl_iflags(2)).
func clearFolder(dir string) error {
	// A sweep names dir by a link of the kernel's, and the walk does not follow one at its root.
	err := filepath.WalkDir(dir+"/.", func(path string, d fs.DirEntry, err error) error {
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
	return target.ClearTree(dir, recordFile) // a mount that could not be detached stays
}
