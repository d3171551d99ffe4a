// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"
)

// stopBound is what the engine gets to stop by itself before it is killed.
const stopBound = 20 * time.Second

// Down removes every container, stops the engine and containerd, sweeps, and
// then looks at the whole host: an error lists what is still there. It also
// works on a lab whose engine has died.
func (l *Lab) Down(ctx context.Context) error {
	unlock, err := lockCache(ctx, l.Cache, io.Discard)
	if err != nil {
		return err
	}
	defer unlock()
	t, err := newTerritory(l.Cache)
	if err != nil {
		return err
	}
	stopErr := l.stop(ctx)
	if _, err := t.sweep(ctx, l.NetNSInode); err != nil {
		return errors.Join(fmt.Errorf("take lab down: %w", err), stopErr)
	}
	if err := os.Remove(recordPath(l.Cache)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("take lab down: %w", err)
	}
	return nil
}

// Sweep takes down whatever a lab on the cache folder has left, running or not,
// and returns a line for each thing that it found.
func Sweep(ctx context.Context, cache string) ([]string, error) {
	if c := checkRoot(); !c.OK {
		return nil, &MissingError{What: c.Name + ": " + c.Detail, Remedy: c.Remedy}
	}
	if _, err := os.Stat(cache); errors.Is(err, os.ErrNotExist) {
		return nil, nil // territory is named by the folder's path: nothing can have been made without it
	}
	unlock, err := lockCache(ctx, cache, io.Discard)
	if err != nil {
		return nil, err
	}
	defer unlock()
	t, err := newTerritory(cache)
	if err != nil {
		return nil, err
	}
	var lines lineList
	err = t.sweepStale(ctx, &lines)
	return lines, err
}

type lineList []string

func (l *lineList) Write(p []byte) (int, error) {
	*l = append(*l, string(p))
	return len(p), nil
}

// Leftovers scans the host for anything of the lab's on the cache folder and
// changes nothing. Of a running lab it lists all parts.
func Leftovers(cache string) ([]string, error) {
	t, err := newTerritory(cache)
	if err != nil {
		return nil, err
	}
	left, err := t.scan(0)
	var out []string
	for _, l := range left {
		out = append(out, l.String())
	}
	return out, err
}

// stop ends the engine in good order. Its errors matter only when the sweep
// that follows leaves something.
func (l *Lab) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopBound)
	defer cancel()
	start, err := startTime(l.EnginePid)
	if err != nil || start != l.EngineStart {
		return nil
	}
	removeErr := l.removeContainers(ctx)
	engine := process{pid: l.EnginePid, start: l.EngineStart}
	if err := engine.kill(unix.SIGTERM); err != nil {
		return errors.Join(removeErr, err)
	}
	for {
		if start, err := startTime(l.EnginePid); err != nil || start != l.EngineStart {
			return removeErr
		}
		select {
		case <-ctx.Done():
			return errors.Join(removeErr, errors.New("the engine did not stop in time"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *Lab) removeContainers(ctx context.Context) error {
	cli, err := l.Client()
	if err != nil {
		return err
	}
	defer cli.Close()
	list, err := cli.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range list {
		if err := cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			errs = append(errs, fmt.Errorf("remove container: %w", err))
		}
	}
	return errors.Join(errs...)
}
