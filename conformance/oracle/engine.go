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
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"
)

// Engine asks the container engine directly, past the runtime under test and past the tape.
type Engine struct{ c *client.Client }

// OpenEngine connects to the engine's unix socket.
func OpenEngine(socket string) (*Engine, error) {
	c, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("open engine: %w", err)
	}
	return &Engine{c}, nil
}

// Close releases the connections.
func (e *Engine) Close() error { return e.c.Close() }

// Facts are the parts of an inspect answer that oracles compare.
type Facts struct {
	ID, Name, ImageID, Runtime, NetworkMode string
	Running, OOMKilled                      bool
	ExitCode, Pid                           int
	Env                                     []string
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
	return Facts{
		ID: in.ID, Name: strings.TrimPrefix(in.Name, "/"), ImageID: in.Image, Runtime: in.HostConfig.Runtime,
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

// Plant is a container that the suite makes itself: a bystander, or the positive of an arming.
type Plant struct {
	Name    string // "" for the engine's choice
	Image   string // id or name
	Runtime string // "" for the engine's default
	Network string // "none" when empty
	Labels  map[string]string
	Argv    []string
	Binary  string // host path mounted read-only at /plant, or ""
	Memory  int64  // bytes; 0 is 128 MiB
	PIDs    int64  // 0 is 64
	// CgroupParent is that of the target, so that the plant is known for whose it is: see
	// target.Observer. "" is the engine's own.
	CgroupParent string
}

// Make creates the container without starting it and returns its id. Remove it by that id.
func (e *Engine) Make(ctx context.Context, p Plant) (string, error) {
	if p.Network == "" {
		p.Network = "none"
	}
	if p.Memory == 0 {
		p.Memory = 128 << 20
	}
	if p.PIDs == 0 {
		p.PIDs = 64
	}
	host := &container.HostConfig{
		Runtime: p.Runtime, NetworkMode: container.NetworkMode(p.Network),
		LogConfig: container.LogConfig{Type: "none"},
		Resources: container.Resources{Memory: p.Memory, MemorySwap: p.Memory, PidsLimit: &p.PIDs, CgroupParent: p.CgroupParent},
	}
	if p.Binary != "" {
		host.Mounts = []mount.Mount{{Type: mount.TypeBind, Source: p.Binary, Target: "/plant", ReadOnly: true}}
	}
	made, err := e.c.ContainerCreate(ctx, &container.Config{
		Image: p.Image, Entrypoint: p.Argv[:1], Cmd: p.Argv[1:], Labels: p.Labels,
	}, host, nil, nil, p.Name)
	if err != nil {
		return "", fmt.Errorf("make plant: %w", err)
	}
	return made.ID, nil
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

// ImageNames are the tags of an image.
func (e *Engine) ImageNames(ctx context.Context, id string) ([]string, error) {
	in, err := e.c.ImageInspect(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("inspect image: %w", err)
	}
	return in.RepoTags, nil
}

// PlantParent is a label of images that the suite makes: the cgroup parent of the plant that they
// were made from, which says whose they are.
const PlantParent = "hallmark.plant.parent"

// Commit makes a new image from a plant, with labels that it lacks, and returns its id.
func (e *Engine) Commit(ctx context.Context, id, label string) (string, error) {
	in, err := e.c.ContainerInspect(ctx, id)
	if err != nil {
		return "", fmt.Errorf("commit plant: %w", err)
	}
	labels := map[string]string{"hallmark.plant": label}
	if in.HostConfig != nil && in.HostConfig.CgroupParent != "" {
		labels[PlantParent] = in.HostConfig.CgroupParent
	}
	r, err := e.c.ContainerCommit(ctx, id, container.CommitOptions{Config: &container.Config{Labels: labels, Cmd: []string{"/plant"}}})
	if err != nil {
		return "", fmt.Errorf("commit plant: %w", err)
	}
	return r.ID, nil
}

// Tag points name at an image, as `docker tag` does: a former holder of the name loses it.
func (e *Engine) Tag(ctx context.Context, id, name string) error {
	if err := e.c.ImageTag(ctx, id, name); err != nil {
		return fmt.Errorf("tag image: %w", err)
	}
	return nil
}

// RemoveImage removes an image or one of its names; absent is success.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.c.ImageRemove(ctx, ref, image.RemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image: %w", err)
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
