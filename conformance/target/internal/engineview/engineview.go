// SPDX-License-Identifier: Apache-2.0

// Package engineview reads one container from an engine, by its labels. It never changes any.
package engineview

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Engine is what is asked of the engine's client.
type Engine interface {
	ContainerList(ctx context.Context, options container.ListOptions) ([]container.Summary, error)
	ContainerInspect(ctx context.Context, id string) (container.InspectResponse, error)
}

// lagPeriod is how often the list is asked again while it has what inspect does not know.
const lagPeriod = 10 * time.Millisecond

// Inspect returns the container that the filters leave, the running one if there are several; none
// is [target.ErrNoContainer]. The engine's list may show a container for a moment that has been
// removed: only when list and inspect agree is there an answer.
func Inspect(ctx context.Context, engine Engine, by filters.Args) (container.InspectResponse, error) {
	for {
		rows, err := engine.ContainerList(ctx, container.ListOptions{All: true, Filters: by})
		if err != nil {
			return container.InspectResponse{}, fmt.Errorf("list containers: %w", err)
		}
		if len(rows) == 0 {
			return container.InspectResponse{}, target.ErrNoContainer
		}
		pick := rows[0]
		for _, r := range rows {
			if r.State == container.StateRunning { // a retired generation may still be going away
				pick = r
			}
		}
		in, err := engine.ContainerInspect(ctx, pick.ID)
		if err == nil {
			return in, nil
		}
		if !errdefs.IsNotFound(err) {
			return container.InspectResponse{}, fmt.Errorf("inspect container: %w", err)
		}
		select {
		case <-ctx.Done():
			return container.InspectResponse{}, fmt.Errorf("inspect container: %w", context.Cause(ctx))
		case <-time.After(lagPeriod):
		}
	}
}
