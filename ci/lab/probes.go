// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
)

// A probe's folder and container carry the process that makes them, so that the next probe finds
// what a killed one has left: probe-<pid>-<start time>-<random>, and the label.
const (
	probePrefix = "probe-"
	probeLabel  = "hallmark.lab.probe"
)

// probeOwner is this process as its probes name it.
func probeOwner() (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("read own start time: %w", err)
	}
	return fmt.Sprintf("%d-%d", os.Getpid(), start), nil
}

// probeOwnerLives reports whether a probe's maker has not ended. What is no maker's name counts as
// living: it is not removed.
func probeOwnerLives(owner string) bool {
	pid, start, ok := strings.Cut(owner, "-")
	n, err := strconv.Atoi(pid)
	want, serr := strconv.ParseUint(start, 10, 64)
	if !ok || err != nil || serr != nil {
		return true
	}
	now, err := startTime(n)
	return err == nil && now == want
}

// sweepProbes removes the folders and containers of probes whose makers have ended.
func (l *Lab) sweepProbes(ctx context.Context) error {
	folders, err := filepath.Glob(filepath.Join(l.WorkDir, probePrefix+"*-*-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range folders {
		name := strings.TrimPrefix(filepath.Base(dir), probePrefix)
		if !probeOwnerLives(name[:strings.LastIndexByte(name, '-')]) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	cli, err := l.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	rows, err := cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", probeLabel))})
	if err != nil {
		return fmt.Errorf("list probes: %w", err)
	}
	for _, c := range rows {
		if probeOwnerLives(c.Labels[probeLabel]) {
			continue
		}
		if err := cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true}); !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
