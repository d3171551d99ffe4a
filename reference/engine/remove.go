// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
)

// Remove kills and removes the container and proves it: nil is returned only after the
// engine has answered "no such container" for the id (when known) and for the name. A name
// that now belongs to another id than the known one is reported and left alone. found says
// whether a container of ours was there at the beginning.
func (e *Engine) Remove(ctx context.Context, id, name string) (found bool, err error) {
	if !nameRE.MatchString(name) {
		return false, fmt.Errorf("remove container: name %q is not ours", name)
	}
	ctx, cancel := context.WithTimeout(ctx, changeDeadline)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		holder, err := e.holder(ctx, id, name)
		if err != nil {
			return found, err
		}
		if holder == "" {
			return found, nil
		}
		found = true
		err = e.cli.ContainerRemove(ctx, holder, container.RemoveOptions{Force: true, RemoveVolumes: true})
		// "already in progress" is a conflict, and an absent container a success: both are
		// settled by the next look.
		if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
			return found, fmt.Errorf("remove container: %w", err)
		}
		if err == nil {
			if holder, err := e.holder(ctx, id, name); err == nil && holder == "" {
				return found, nil
			}
		}
		select {
		case <-ctx.Done():
			return found, fmt.Errorf("%w: %w", ErrStillThere, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// holder returns the id of the container that still exists under id or name, "" for none.
func (e *Engine) holder(ctx context.Context, id, name string) (string, error) {
	keys := []string{name}
	if id != "" {
		keys = []string{id, name}
	}
	for _, key := range keys {
		got, _, err := e.inspect(ctx, key)
		if cerrdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if got.ContainerJSONBase == nil || got.ID == "" {
			return "", errors.New("inspect output has no id")
		}
		if got.Name != "/"+name && got.ID != id {
			continue // a prefix match of the engine, not the container of that name
		}
		if id != "" && got.ID != id {
			// Names are unique while their holder exists: ours is gone, and this is another's.
			e.cfg.Log.WarnContext(ctx, "name of a removed container is in use", "name", name, "container", got.ID)
			continue
		}
		return got.ID, nil
	}
	return "", nil
}

// List returns every container that carries the worker's label, in any state.
func (e *Engine) List(ctx context.Context, workerID string) ([]Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	rows, err := e.cli.ContainerList(ctx, container.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", LabelWorker+"="+workerID)),
	})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := make([]Listed, 0, len(rows))
	for _, r := range rows {
		l := Listed{
			ID: r.ID, WorkerID: r.Labels[LabelWorker], BootEpoch: r.Labels[LabelEpoch],
			SandboxID: r.Labels[LabelSandbox], State: r.State,
		}
		if len(r.Names) > 0 && len(r.Names[0]) > 1 {
			l.Name = r.Names[0][1:]
		}
		out = append(out, l)
	}
	return out, nil
}
