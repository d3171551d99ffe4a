// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"sort"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
)

// Image resolves an image by digest. The classic image store names an image by its config
// digest, the containerd store by its manifest digest; whichever answers must answer with
// exactly the digest that was asked for, so that a tag can never stand in.
func (e *Engine) Image(ctx context.Context, configDigest, manifestDigest string) (Image, error) {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	for _, id := range []string{configDigest, manifestDigest} {
		if id == "" {
			continue
		}
		got, err := e.cli.ImageInspect(ctx, id)
		if cerrdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return Image{}, fmt.Errorf("inspect image: %w", err)
		}
		if got.ID != id {
			return Image{}, fmt.Errorf("engine answers %s for %s: %w", got.ID, id, ErrNoImage)
		}
		img := Image{ConfigDigest: configDigest, ID: id}
		if c := got.Config; c != nil {
			for v := range c.Volumes {
				img.Volumes = append(img.Volumes, v)
			}
			img.envNames = foreignNames(c.Env)
		}
		sort.Strings(img.Volumes)
		return img, nil
	}
	return Image{}, fmt.Errorf("%s: %w", configDigest, ErrNoImage)
}

// foreignNames returns the names in env that our own environment does not set.
func foreignNames(env []string) []string {
	ours := map[string]bool{}
	for _, kv := range environment {
		name, _, _ := strings.Cut(kv, "=")
		ours[name] = true
	}
	var out []string
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); name != "" && !ours[name] {
			ours[name] = true
			out = append(out, name)
		}
	}
	return out
}
