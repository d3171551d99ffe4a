// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/leftover"
)

// sandbox is one container over one workspace.
type sandbox struct {
	*driver
	id, ws    string
	dir       string // of the workspace, on the host
	container string
	pid       int // host pid of the container's process when it was started

	over     chan struct{} // closed when the engine says that the container has ended, or says nothing more
	stopWait context.CancelFunc

	mu       sync.Mutex
	end      error // *target.Error once the container is known to have ended; then it is removed
	disposed bool
}

func (s *sandbox) ID() string          { return s.id }
func (s *sandbox) WorkspaceID() string { return s.ws }

// watch is `docker wait`: an exec's own stream may never end when its container does. Engine 20.10
// loses the exec of a runsc sandbox that died under it.
func (s *sandbox) watch(ctx context.Context) {
	ended, failed := s.engine.ContainerWait(ctx, s.container, container.WaitConditionNotRunning)
	go func() {
		defer close(s.over)
		select {
		case <-ended:
		case <-failed:
		}
	}()
}

// State asks the engine. An ended container is removed by this, as by a failed command.
func (s *sandbox) State(ctx context.Context) (string, error) {
	err := s.ended(ctx)
	switch target.KindOf(err) {
	case target.KindOOM, target.KindDied, target.KindGone:
		return "gone", nil
	}
	if err != nil {
		return "", err
	}
	return "ready", nil
}

// Dispose removes the container and returns when the engine does not know it any more. The workspace
// stays until it is purged.
func (s *sandbox) Dispose(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := leftover.RemoveContainer(ctx, s.engine, s.container); err != nil {
		return engineError(err)
	}
	s.disposed = true
	s.stopWait()
	<-s.over
	s.forget(s)
	return nil
}

// settleBound is how long the engine may take to notice what became of a container: the end of its
// process, and the kernel's word that it was killed for memory, come as events of their own.
const settleBound = 2 * time.Second

// ended returns how the sandbox ended, or nil when the engine says that it runs. An ended container
// is removed: nobody restarts it, and its limits are nobody's any more.
func (s *sandbox) ended(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disposed {
		return refusal(CodeGone, target.KindGone, errors.New("the sandbox was disposed"))
	}
	if s.end != nil {
		return s.end
	}
	in, err := s.engine.ContainerInspect(ctx, s.container)
	if errdefs.IsNotFound(err) {
		s.end = refusal(CodeGone, target.KindGone, err)
		return s.end
	}
	if err != nil {
		return engineError(fmt.Errorf("inspect container: %w", err))
	}
	if in.State == nil {
		return refusal(CodeEngineFailed, "", errors.New("the engine tells no state of the container"))
	}
	if in.State.Running {
		return nil
	}
	end := s.endOf(ctx, in.State)
	if err := leftover.RemoveContainer(ctx, s.engine, s.container); err != nil {
		return errors.Join(end, engineError(err))
	}
	s.end = end
	return end
}

// endOf names the end of a container that does not run any more.
func (s *sandbox) endOf(ctx context.Context, st *container.State) error {
	// Killed, and not yet known for what: the engine may be a moment behind.
	for deadline := time.Now().Add(settleBound); st.ExitCode == 137 && !st.OOMKilled && time.Now().Before(deadline); {
		rest(ctx, 50*time.Millisecond)
		in, err := s.engine.ContainerInspect(ctx, s.container)
		if err != nil || in.State == nil {
			break
		}
		st = in.State
	}
	cause := fmt.Errorf("the container is %s, exit code %d, OOMKilled %v %s", st.Status, st.ExitCode, st.OOMKilled, st.Error)
	switch {
	case st.OOMKilled:
		return refusal(CodeOOM, target.KindOOM, cause)
	case st.ExitCode == 0: // PID 1 ends with 0 at its time-out only
		return refusal(CodeExpired, target.KindGone, cause)
	}
	return refusal(CodeDied, target.KindDied, cause)
}

// diedNow is [sandbox.ended] for a moment at which the container's process may be gone: then the
// engine is given time to notice.
func (s *sandbox) diedNow(ctx context.Context) error {
	for deadline := time.Now().Add(settleBound); ; {
		err := s.ended(ctx)
		if err != nil || time.Now().After(deadline) {
			return err
		}
		if _, alive := leftover.Find(s.pid); alive == nil {
			return nil
		}
		rest(ctx, 50*time.Millisecond)
	}
}

// rest sleeps for d or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
