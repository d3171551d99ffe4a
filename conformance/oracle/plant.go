// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
)

// Plant is a container that the suite makes itself: a bystander, or the positive of an arming.
type Plant struct {
	Name    string // "" for a random one
	Image   string // id or name
	Runtime string // "" for the engine's default
	Network string // "none" when empty
	Labels  map[string]string
	Argv    []string
	Binary  string // host path mounted read-only at /plant, or ""
	Memory  int64  // bytes; 0 is 128 MiB
	PIDs    int64  // 0 is 64
	Log     string // driver of its log; "none" when empty
	// CgroupParent is that of the target, so that the plant is known for whose it is: see
	// target.Observer. "" is the engine's own.
	CgroupParent string
}

// Make creates the container without starting it and returns its id. It is recorded under its name
// before, and removed by its id after; a name that somebody has is refused.
func (e *Engine) Make(ctx context.Context, p Plant) (string, error) {
	if p.Name == "" {
		p.Name = "hallmark-plant-" + strings.ToLower(rand.Text())
	}
	if p.Network == "" {
		p.Network = "none"
	}
	if p.Memory == 0 {
		p.Memory = 128 << 20
	}
	if p.PIDs == 0 {
		p.PIDs = 64
	}
	if p.Log == "" {
		p.Log = "none"
	}
	host := &container.HostConfig{
		Runtime: p.Runtime, NetworkMode: container.NetworkMode(p.Network),
		LogConfig: container.LogConfig{Type: p.Log},
		Resources: container.Resources{Memory: p.Memory, MemorySwap: p.Memory, PidsLimit: &p.PIDs, CgroupParent: p.CgroupParent},
	}
	if p.Binary != "" {
		host.Mounts = []mount.Mount{{Type: mount.TypeBind, Source: p.Binary, Target: "/plant", ReadOnly: true}}
	}
	if _, taken, err := e.Inspect(ctx, p.Name); err != nil || taken {
		return "", errors.Join(fmt.Errorf("make plant: the name %s is taken: %v", p.Name, taken), err)
	}
	var made atomic.Pointer[string] // the id; "" when the engine has refused; nil when its answer was lost
	err := e.owner.Own("container "+p.Name, func(ctx context.Context) error {
		id := made.Load()
		if id == nil {
			f, found, err := e.Inspect(ctx, p.Name)
			if err != nil || !found {
				return err
			}
			id = &f.ID
		}
		if *id == "" {
			return nil
		}
		return e.Remove(ctx, *id)
	})
	if err != nil {
		return "", fmt.Errorf("make plant: %w", err)
	}
	answer, err := e.c.ContainerCreate(ctx, &container.Config{
		Image: p.Image, Entrypoint: p.Argv[:1], Cmd: p.Argv[1:], Labels: p.Labels,
	}, host, nil, nil, p.Name)
	if err == nil || refused(err) {
		made.Store(&answer.ID)
	}
	if err != nil {
		return "", fmt.Errorf("make plant: %w", err)
	}
	return answer.ID, nil
}

// refused reports whether the engine said that it has made nothing. A conflict is somebody else's
// container under the name.
func refused(err error) bool {
	return errdefs.IsConflict(err) || errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err)
}

// ImageNames are the tags of an image.
func (e *Engine) ImageNames(ctx context.Context, id string) ([]string, error) {
	in, err := e.c.ImageInspect(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("inspect image: %w", err)
	}
	return in.RepoTags, nil
}

// Commit makes a new image from a container, with labels of its own, and returns its id. label is random:
// by it the image is found when the engine's answer is lost.
func (e *Engine) Commit(ctx context.Context, id, label string) (string, error) {
	err := e.owner.Own("image of "+id, func(ctx context.Context) error {
		list, err := e.c.ImageList(ctx, image.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", plantLabel+"="+label))})
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		var errs []error
		for _, i := range list {
			errs = append(errs, e.RemoveImage(ctx, i.ID))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return "", fmt.Errorf("commit plant: %w", err)
	}
	in, err := e.c.ContainerInspect(ctx, id)
	if err != nil {
		return "", fmt.Errorf("commit plant: %w", err)
	}
	labels := map[string]string{plantLabel: label}
	if in.HostConfig != nil && in.HostConfig.CgroupParent != "" {
		labels[PlantParent] = in.HostConfig.CgroupParent
	}
	r, err := e.c.ContainerCommit(ctx, id, container.CommitOptions{Config: &container.Config{Labels: labels, Cmd: []string{"/plant"}}})
	if err != nil {
		return "", fmt.Errorf("commit plant: %w", err)
	}
	return r.ID, nil
}

// Labels of what the suite makes in the engine's image store: plantLabel finds it again, and
// PlantParent, the cgroup parent of the plant that an image was made from, says whose it is.
const (
	plantLabel  = "hallmark.plant"
	PlantParent = "hallmark.plant.parent"
)

// Name is an image name of the suite's own.
type Name struct {
	e     *Engine
	name  string
	mu    sync.Mutex
	given []string // every image that it may point to because of us
}

// Name points name at an image, as `docker tag` does. A name that somebody has is refused: who is
// killed could not give it back. Afterwards it goes, unless somebody has pointed it elsewhere.
func (e *Engine) Name(ctx context.Context, name, id string) (*Name, error) {
	if _, err := e.c.ImageInspect(ctx, name); !errdefs.IsNotFound(err) {
		return nil, errors.Join(fmt.Errorf("tag image: the name %s is taken: %v", name, err == nil), err)
	}
	n := &Name{e: e, name: name}
	if err := e.owner.Own("image name "+name, n.remove); err != nil {
		return nil, fmt.Errorf("tag image: %w", err)
	}
	return n, n.Move(ctx, id)
}

// Move points the name at another image.
func (n *Name) Move(ctx context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.given = append(n.given, id) // before: the answer may be lost
	if err := n.e.c.ImageTag(ctx, id, n.name); err != nil {
		return fmt.Errorf("tag image: %w", err)
	}
	return nil
}

func (n *Name) remove(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.e.untag(ctx, n.name, n.given)
}

// untag takes a name away. The engine deletes an image with its last name, and this one is not ours:
// the name goes to an empty image of our own first, which may go with it. A name that points to none
// of ours is somebody else's by now.
func (e *Engine) untag(ctx context.Context, name string, ours []string) error {
	in, err := e.c.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("untag image: %w", err)
	}
	if !slices.Contains(ours, in.ID) {
		return nil
	}
	if len(in.RepoTags)+len(in.RepoDigests) == 1 {
		empty := bytes.NewReader(make([]byte, 1024)) // the end of an archive without files
		answer, err := e.c.ImageImport(ctx, image.ImportSource{Source: empty, SourceName: "-"}, name, image.ImportOptions{})
		if err != nil {
			return fmt.Errorf("untag image: %w", err)
		}
		_, err = io.Copy(io.Discard, answer)
		if err = errors.Join(err, answer.Close()); err != nil {
			return fmt.Errorf("untag image: %w", err)
		}
	}
	return e.RemoveImage(ctx, name)
}

// RemoveImage removes an image that the caller made, or one of its names; absent is success.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.c.ImageRemove(ctx, ref, image.RemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}
