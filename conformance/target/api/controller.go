// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// controller disturbs the worker and its sandboxes.
type controller struct{ *driver }

// maxFoothold bounds what a foothold's program may print on one stream.
const maxFoothold = 4 << 20

// Foothold is an engine exec as root, past the worker. Its end by ctx leaves the program to the
// sandbox's own end: the engine has no way to kill an exec.
func (c controller) Foothold(ctx context.Context, sandboxID string, argv []string, stdin []byte) (target.Result, error) {
	if c.engine == nil {
		return target.Result{}, target.ErrUnavailable
	}
	ct, err := observer(c).Container(ctx, sandboxID)
	if err != nil {
		return target.Result{}, err
	}
	ex, err := c.engine.ContainerExecCreate(ctx, ct.ID, container.ExecOptions{
		User: "0:0", Cmd: argv, WorkingDir: "/", AttachStdin: len(stdin) > 0, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return target.Result{}, fmt.Errorf("create foothold: %w", err)
	}
	start := time.Now()
	at, err := c.engine.ContainerExecAttach(ctx, ex.ID, container.ExecAttachOptions{})
	if err != nil {
		return target.Result{}, fmt.Errorf("start foothold: %w", err)
	}
	defer at.Close()
	stop := context.AfterFunc(ctx, at.Close)
	defer stop()
	if len(stdin) > 0 {
		if _, err := at.Conn.Write(stdin); err != nil {
			return target.Result{}, fmt.Errorf("feed foothold: %w", err)
		}
		if err := at.CloseWrite(); err != nil {
			return target.Result{}, fmt.Errorf("feed foothold: %w", err)
		}
	}
	stdout, stderr := &limited{}, &limited{}
	_, err = stdcopy.StdCopy(stdout, stderr, at.Reader)
	res := target.Result{Stdout: stdout.b.Bytes(), Stderr: stderr.b.Bytes(), Duration: time.Since(start),
		TruncatedStdout: stdout.dropped > 0, TruncatedStderr: stderr.dropped > 0, DroppedBytes: stdout.dropped + stderr.dropped}
	if ctx.Err() != nil {
		return res, fmt.Errorf("foothold: %w", context.Cause(ctx))
	}
	if err != nil {
		return res, fmt.Errorf("read foothold: %w", err)
	}
	// The stream may end a moment before the engine has the exit code.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		in, err := c.engine.ContainerExecInspect(ctx, ex.ID)
		if err != nil {
			return res, fmt.Errorf("inspect foothold: %w", err)
		}
		if !in.Running {
			res.ExitCode = in.ExitCode
			return res, nil
		}
		select {
		case <-ctx.Done():
			return res, fmt.Errorf("foothold: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// limited keeps the first maxFoothold bytes.
type limited struct {
	b       bytes.Buffer
	dropped int64
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), maxFoothold-l.b.Len())
	l.b.Write(p[:n])
	l.dropped += int64(len(p) - n)
	return len(p), nil
}

func (c controller) Kill(context.Context) error {
	w := c.worker.Load()
	if w == nil {
		return target.ErrUnavailable
	}
	w.kill()
	return nil
}

func (c controller) Start(ctx context.Context) error {
	w := c.worker.Load()
	if w == nil {
		return target.ErrUnavailable
	}
	if w.alive() {
		return errors.New("the worker is running")
	}
	return c.start(ctx)
}

func (c controller) Inject(rule target.TapeRule) error {
	if c.tape == nil {
		return target.ErrUnavailable
	}
	return c.tape.Inject(rule)
}
