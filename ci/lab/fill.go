// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// Fill makes a cache folder for another machine of this architecture (see [Provided]), out of what the lab of this
// cache runs: the same runsc, probe and fixture images, built here when they are not there yet.
func (e *Extracted) Fill(ctx context.Context, repo, cache string) error {
	runtimes := filepath.Join(e.cache, "runtimes")
	if err := os.MkdirAll(runtimes, 0o755); err != nil {
		return fmt.Errorf("fill cache: %w", err)
	}
	var p Provided
	var runsc, busybox Binary
	err := e.locked(ctx, func(pkgs *packages) (err error) {
		if runsc, err = buildRunsc(ctx, repo, runtimes, e.out); err != nil {
			return err
		}
		t := toolset{}
		busybox, err = t.take(ctx, pkgs, "busybox", "busybox-static", false)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range []struct {
		from Binary
		name string
		to   *Binary
	}{{runsc, "runsc", &p.Runsc}, {busybox, "busybox", &p.Busybox}} {
		b, err := addressed(c.from.Path, filepath.Join(cache, "runtimes"), c.name)
		if err != nil {
			return err
		}
		if b.Path, err = filepath.Rel(cache, b.Path); err != nil {
			return err
		}
		*c.to = b
	}
	p.Probe = "probe"
	if err := buildProbe(ctx, repo, filepath.Join(cache, p.Probe)); err != nil {
		return err
	}
	for _, kind := range []image.Kind{image.Busybox, image.Static} {
		if _, err := image.Build(kind, image.Config{Dir: filepath.Join(cache, "images"), Busybox: busybox.Path}); err != nil {
			return fmt.Errorf("fill cache: %w", err)
		}
	}
	return p.write(cache)
}
