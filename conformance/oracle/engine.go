// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// Engine asks the container engine directly, past the runtime under test and past the tape.
type Engine struct {
	c     *client.Client
	owner Owner
}

// Owner keeps what an Engine makes: it is told before the making, together with the removal, which
// succeeds when there is nothing to remove. An error of Own means that nothing may be made any more.
// A conformance.T is an Owner.
type Owner interface {
	Own(what string, remove func(context.Context) error) error
}

// OpenEngine connects to the engine's unix socket. owner closes the connections and removes
// whatever the engine is asked to make.
func OpenEngine(socket string, owner Owner) (*Engine, error) {
	c, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	if err := owner.Own("connections to the engine", func(context.Context) error { return c.Close() }); err != nil {
		return nil, fmt.Errorf("open engine: %w", errors.Join(err, c.Close()))
	}
	return &Engine{c, owner}, nil
}

// Facts are the parts of an inspect answer that oracles compare.
type Facts struct {
	ID, Name, ImageID, Runtime, NetworkMode string
	Running, OOMKilled                      bool
	ExitCode, Pid                           int
	Env                                     []string
	Mounts                                  []string // paths on the host that are mounted into it
	Labels                                  map[string]string
}

// Inspect returns the facts of one container; found is false when the engine does not know it.
func (e *Engine) Inspect(ctx context.Context, id string) (f Facts, found bool, err error) {
	in, err := e.c.ContainerInspect(ctx, id)
	if errdefs.IsNotFound(err) {
		return Facts{}, false, nil
	}
	if err != nil {
		return Facts{}, false, fmt.Errorf("inspect container: %w", err)
	}
	if in.State == nil || in.HostConfig == nil || in.Config == nil {
		return Facts{}, true, errors.New("inspect container: answer is incomplete")
	}
	var mounts []string
	for _, m := range in.Mounts {
		if m.Source != "" { // a tmpfs has none
			mounts = append(mounts, m.Source)
		}
	}
	return Facts{
		Mounts: mounts,
		ID:     in.ID, Name: strings.TrimPrefix(in.Name, "/"), ImageID: in.Image, Runtime: in.HostConfig.Runtime,
		NetworkMode: string(in.HostConfig.NetworkMode), Running: in.State.Running, OOMKilled: in.State.OOMKilled,
		ExitCode: in.State.ExitCode, Pid: in.State.Pid, Env: in.Config.Env, Labels: in.Config.Labels,
	}, true, nil
}

// Runtimes are the runtimes that the engine has registered.
type Runtimes struct {
	Default string
	Paths   map[string]string // name to program; "" when it is registered by type
}

// Runtimes asks the engine for its runtimes.
func (e *Engine) Runtimes(ctx context.Context) (Runtimes, error) {
	info, err := e.c.Info(ctx)
	if err != nil {
		return Runtimes{}, fmt.Errorf("ask engine for runtimes: %w", err)
	}
	r := Runtimes{Default: info.DefaultRuntime, Paths: map[string]string{}}
	for name, rt := range info.Runtimes {
		r.Paths[name] = rt.Path
	}
	return r, nil
}

// Labelled lists the ids of all containers with the label name=value.
func (e *Engine) Labelled(ctx context.Context, name, value string) ([]string, error) {
	list, err := e.c.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", name+"="+value))})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	ids := make([]string, len(list))
	for i, c := range list {
		ids[i] = c.ID
	}
	return ids, nil
}

// Start starts a planted container.
func (e *Engine) Start(ctx context.Context, id string) error {
	if err := e.c.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return fmt.Errorf("start plant: %w", err)
	}
	return nil
}

// Wait waits for the end of a planted container and returns its exit code.
func (e *Engine) Wait(ctx context.Context, id string) (int, error) {
	for {
		f, found, err := e.Inspect(ctx, id)
		switch {
		case err != nil:
			return 0, err
		case !found:
			return 0, errors.New("wait for plant: it is gone")
		case !f.Running:
			return f.ExitCode, nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// Remove removes a container that the caller made, by id; absent is success.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.c.ContainerRemove(ctx, id, container.RemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove plant: %w", err)
	}
	return nil
}

// Output returns what a planted container wrote on stdout while f ran it: attach, start, wait.
func (e *Engine) Output(ctx context.Context, id string) ([]byte, int, error) {
	at, err := e.c.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, 0, fmt.Errorf("attach to plant: %w", err)
	}
	defer at.Close()
	if err := e.Start(ctx, id); err != nil {
		return nil, 0, err
	}
	stop := context.AfterFunc(ctx, at.Close)
	defer stop()
	body, err := io.ReadAll(io.LimitReader(at.Reader, 1<<20))
	if err != nil {
		return nil, 0, fmt.Errorf("read plant: %w", err)
	}
	code, err := e.Wait(ctx, id)
	return demultiplex(body), code, err
}

// demultiplex takes the engine's stream headers (8 bytes per chunk) out; a malformed rest is kept.
func demultiplex(b []byte) []byte {
	var out []byte
	for len(b) >= 8 {
		n := int(b[4])<<24 | int(b[5])<<16 | int(b[6])<<8 | int(b[7])
		if n > len(b)-8 {
			break
		}
		out, b = append(out, b[8:8+n]...), b[8+n:]
	}
	return append(out, b...)
}
