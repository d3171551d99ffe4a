// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
)

// oomSettle is how long the engine may take to note the kernel's kill after the exit:
// the two events reach it on different ways.
const oomSettle = 500 * time.Millisecond

// Wait returns when the container has ended or is gone. The engine's own wait call wakes
// it at once; when that call breaks (a proxy, a restarting engine), it looks again twice a
// second. The only error is ctx's.
func (e *Engine) Wait(ctx context.Context, id string) (Death, error) {
	for {
		done, failed := e.cli.ContainerWait(ctx, id, container.WaitConditionNotRunning)
		select {
		case <-ctx.Done():
			return Death{}, ctx.Err()
		case <-done:
		case err := <-failed:
			if ctx.Err() != nil {
				return Death{}, ctx.Err()
			}
			e.cfg.Log.DebugContext(ctx, "wait broke", "container", id, "err", err)
		}
		if d, ended := e.death(ctx, id); ended {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return Death{}, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// death reads how the container ended; ended is false while it runs or cannot be asked.
func (e *Engine) death(ctx context.Context, id string) (Death, bool) {
	for deadline := time.Now().Add(oomSettle); ; {
		got, _, err := e.inspect(ctx, id)
		if cerrdefs.IsNotFound(err) {
			return Death{Gone: true, At: time.Now()}, true
		}
		if err != nil || got.State == nil || got.State.Running {
			return Death{}, false
		}
		d := Death{ExitCode: got.State.ExitCode, OOMKilled: got.State.OOMKilled, At: time.Now()}
		if d.OOMKilled || d.ExitCode != 137 || time.Now().After(deadline) {
			return d, true
		}
		select {
		case <-ctx.Done():
			return d, true
		case <-time.After(50 * time.Millisecond):
		}
	}
}
