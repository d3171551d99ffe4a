// SPDX-License-Identifier: Apache-2.0

// Package leftover records what a driver owns on an engine, and removes what a killed run left.
//
// A record is on disk before anything that it names exists, and goes last. Owned is what carries
// the record's random label, the record's own cgroup and the record's folder: nothing else is ever
// removed, and nothing of a process that lives.
package leftover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	docker "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/cgroup"
)

// File is the record's name in the folder that it speaks for.
const File = "owner.json"

// Record says whose a folder is, and what else belongs to it.
type Record struct {
	Owner  Process `json:"owner"`
	Engine string  `json:"engine"` // socket
	Label  string  `json:"label"`  // name=value of every container, random for each run
	Cgroup string  `json:"cgroup"` // parent of every container, nobody else's; "" when there is none
}

// Write puts r into dir, atomically.
func (r Record) Write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode owner record: %w", err)
	}
	tmp := filepath.Join(dir, File+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write owner record: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, File)); err != nil {
		return fmt.Errorf("write owner record: %w", err)
	}
	return nil
}

// removalBound is how long the last cgroup may take to empty.
const removalBound = 10 * time.Second

// Remove removes containers, cgroup and the content of dir, the record last, and names the
// containers that were there. cli is nil when the engine is gone, and its containers with it.
func (r Record) Remove(ctx context.Context, cli *docker.Client, dir string) (left []string, err error) {
	var errs []error
	if cli != nil && r.Label != "" {
		left, err = RemoveContainers(ctx, cli, r.Label)
		errs = append(errs, err)
	}
	if r.Cgroup != "" {
		bounded, cancel := context.WithTimeout(ctx, removalBound)
		errs = append(errs, cgroup.Remove(bounded, r.Cgroup))
		cancel()
	}
	errs = append(errs, target.ClearTree(dir, File))
	if err := errors.Join(errs...); err != nil {
		return left, err // the record stays, for the next sweep
	}
	if err := os.Remove(filepath.Join(dir, File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return left, fmt.Errorf("remove owner record: %w", err)
	}
	return left, nil
}

// RemoveContainers removes every container with the label, running or not, and names them.
func RemoveContainers(ctx context.Context, cli *docker.Client, label string) (left []string, err error) {
	rows, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range rows {
		left = append(left, "container "+c.ID[:min(12, len(c.ID))])
		errs = append(errs, RemoveContainer(ctx, cli, c.ID))
	}
	return left, errors.Join(errs...)
}

// RemoveContainer removes one container with its anonymous volumes and returns when the engine does
// not know it any more. One that is not there is success.
func RemoveContainer(ctx context.Context, cli *docker.Client, id string) error {
	// A conflict is a removal that somebody else has begun: it is waited for like our own.
	err := cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove container: %w", err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(removalBound); ; {
		_, err := cli.ContainerInspect(ctx, id)
		switch {
		case errdefs.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("inspect removed container: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("remove container: the engine still has it after %s", removalBound)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove container: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Sweep removes what killed runs left in the folders below parent, and in those of their processes
// below them: those with a record whose owner has died. Folders without a record, and those of the
// living, are not touched.
func Sweep(ctx context.Context, parent string) error {
	var dirs []string
	for _, pattern := range []string{"*", filepath.Join("*", "*")} {
		found, err := filepath.Glob(filepath.Join(parent, pattern, File))
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		for _, f := range found {
			dirs = append(dirs, filepath.Dir(f))
		}
	}
	var errs []error
	for _, dir := range dirs {
		name := filepath.Base(dir)
		b, err := os.ReadFile(filepath.Join(dir, File))
		if err != nil {
			continue
		}
		var r Record
		if err := json.Unmarshal(b, &r); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: read owner record: %w", name, err))
			continue
		}
		if r.Owner.Alive() {
			continue
		}
		if err := r.sweep(ctx, dir); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, target.RemoveDeadRuns(parent))...)
}

// sweep believes a record of this process's user only: it says what to remove on an engine, as root.
func (r Record) sweep(ctx context.Context, dir string) error {
	for _, path := range []string{dir, filepath.Join(dir, File)} {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another sweep was faster
		}
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok || int(sys.Uid) != os.Geteuid() || st.Mode()&(fs.ModeSymlink|0o022) != 0 {
			return nil
		}
	}
	var cli *docker.Client
	if _, err := os.Stat(r.Engine); err == nil {
		c, err := docker.NewClientWithOpts(docker.WithHost("unix://"+r.Engine), docker.WithAPIVersionNegotiation())
		if err != nil {
			return fmt.Errorf("engine client: %w", err)
		}
		defer c.Close()
		// An engine that does not answer may come back with its containers: its record waits for it.
		// Without a socket it is gone, as a lab that was taken down.
		_, err = c.Ping(ctx)
		switch {
		case err == nil:
			cli = c
		case docker.IsErrConnectionFailed(err):
			return nil
		default:
			return fmt.Errorf("ask engine: %w", err)
		}
	}
	if _, err := r.Remove(ctx, cli, dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
