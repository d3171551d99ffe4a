// SPDX-License-Identifier: Apache-2.0

// Package engineexec runs a command in a container by the engine's exec: create, attach, inspect.
// It keeps a bounded part of the output in constant memory and counts the rest exactly. It never
// ends a command: the engine has no call for that.
package engineexec

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	docker "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Options of one exec.
type Options struct {
	User  string // "uid:gid"
	Dir   string // absolute in the container
	Argv  []string
	Stdin []byte // none: the command has no stdin
	// MaxOutput bounds what is kept of stdout and stderr together, in bytes.
	MaxOutput int64
}

// Exec is one started command. Close it.
type Exec struct {
	cli   *docker.Client
	id    string
	at    types.HijackedResponse
	out   output
	start time.Time
	ended chan struct{} // the stream has ended
	err   error         // why, after ended; nil for its proper end
}

// Start starts the command. Its end does not depend on ctx.
func Start(ctx context.Context, cli *docker.Client, containerID string, o Options) (*Exec, error) {
	made, err := cli.ContainerExecCreate(ctx, containerID, container.ExecOptions{
		User: o.User, WorkingDir: o.Dir, Cmd: o.Argv, AttachStdin: len(o.Stdin) > 0, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, fmt.Errorf("create exec: %w", err)
	}
	e := &Exec{cli: cli, id: made.ID, out: output{left: o.MaxOutput}, start: time.Now(), ended: make(chan struct{})}
	if e.at, err = cli.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{}); err != nil {
		return nil, fmt.Errorf("start exec: %w", err)
	}
	go func() {
		defer close(e.ended)
		_, e.err = stdcopy.StdCopy(stream{&e.out, &e.out.stdout}, stream{&e.out, &e.out.stderr}, e.at.Reader)
	}()
	if len(o.Stdin) > 0 {
		go func() {
			// A command that ends without reading breaks this pipe, as it would break a shell's.
			if _, err := e.at.Conn.Write(o.Stdin); err == nil {
				e.at.CloseWrite()
			}
		}()
	}
	return e, nil
}

// pollPeriod is how often the engine is asked for the exit code once the stream has ended.
const pollPeriod = 20 * time.Millisecond

// Wait returns when the command has ended and the engine has closed its stream, or when ctx has
// ended: then with what came so far and ctx's cause. It can be called again. Held-open pipes delay
// the end of the stream: engines since 20.10 close it 2 s after the command's own end.
func (e *Exec) Wait(ctx context.Context) (target.Result, error) {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return e.result(), context.Cause(ctx)
	}
	if e.err != nil {
		return e.result(), fmt.Errorf("read exec: %w", e.err)
	}
	// The stream may end a moment before the engine has the exit code.
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		in, err := e.Inspect(ctx)
		if err != nil {
			return e.result(), err
		}
		if !in.Running {
			res := e.result()
			res.ExitCode = in.ExitCode
			return res, nil
		}
		select {
		case <-ctx.Done():
			return e.result(), context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Inspect is the engine's word about the command. Its Pid is the host's.
func (e *Exec) Inspect(ctx context.Context) (container.ExecInspect, error) {
	in, err := e.cli.ContainerExecInspect(ctx, e.id)
	if err != nil {
		return in, fmt.Errorf("inspect exec: %w", err)
	}
	return in, nil
}

// Close lets go of the stream and waits until nothing more is written to the output.
func (e *Exec) Close() {
	e.at.Close()
	<-e.ended
}

// result is the state so far; the exit code is not known.
func (e *Exec) result() target.Result {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	return target.Result{
		Stdout: bytes.Clone(e.out.stdout.kept), Stderr: bytes.Clone(e.out.stderr.kept), ExitCode: -1, Duration: time.Since(e.start),
		TruncatedStdout: e.out.stdout.dropped > 0, TruncatedStderr: e.out.stderr.dropped > 0, DroppedBytes: e.out.stdout.dropped + e.out.stderr.dropped,
	}
}

// output is what is kept of two streams that share one bound.
type output struct {
	mu             sync.Mutex
	left           int64
	stdout, stderr part
}

type part struct {
	kept    []byte
	dropped int64
}

// stream writes one of the two.
type stream struct {
	o *output
	p *part
}

func (s stream) Write(b []byte) (int, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	n := min(int64(len(b)), s.o.left)
	s.p.kept = append(s.p.kept, b[:n]...)
	s.o.left -= n
	s.p.dropped += int64(len(b)) - n
	return len(b), nil
}

// maxFoothold bounds what a foothold's program may print, in bytes.
const maxFoothold = 8 << 20

// Foothold runs argv as root in the container, in /. Its end by ctx leaves the program to the
// container's own end.
func Foothold(ctx context.Context, cli *docker.Client, containerID string, argv []string, stdin []byte) (target.Result, error) {
	e, err := Start(ctx, cli, containerID, Options{User: "0:0", Dir: "/", Argv: argv, Stdin: stdin, MaxOutput: maxFoothold})
	if err != nil {
		return target.Result{}, fmt.Errorf("foothold: %w", err)
	}
	defer e.Close()
	res, err := e.Wait(ctx)
	if err != nil {
		return res, fmt.Errorf("foothold: %w", err)
	}
	return res, nil
}
