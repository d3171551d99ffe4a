// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Extracted serves what runs beside the lab, such as a virtual machine, from the package folder that the lab uses.
type Extracted struct {
	cache string
	out   io.Writer
}

// Extract makes the package folder of a cache ready. out hears what is fetched; nothing is installed.
func Extract(cache string, out io.Writer) (*Extracted, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make cache folder: %w", err)
	}
	return &Extracted{cache, out}, nil
}

// Program returns an executable of a package of this release, with the libraries that the host lacks. One that
// is installed is not looked for: what runs is what the package index of the cache names.
func (e *Extracted) Program(ctx context.Context, name, pkg string) (b Binary, err error) {
	err = e.locked(ctx, func(p *packages) error {
		t := toolset{}
		b, err = t.take(ctx, p, name, pkg, false)
		return err
	})
	return b, err
}

// Folder returns the folder that a package of this release is extracted into.
func (e *Extracted) Folder(ctx context.Context, pkg string) (dir string, err error) {
	err = e.locked(ctx, func(p *packages) error {
		dir, err = p.get(ctx, pkg)
		return err
	})
	return dir, err
}

// locked keeps the package index to one command.
func (e *Extracted) locked(ctx context.Context, f func(*packages) error) error {
	unlock, err := lockCache(ctx, e.cache, e.out)
	if err != nil {
		return err
	}
	defer unlock()
	p, err := openPackages(filepath.Join(e.cache, "packages"), e.out)
	if err != nil {
		return err
	}
	return f(p)
}

// Archives are the roots of the Debian archives that apt is configured to use, each with a slash at its end.
// One archive has the packages of all releases.
func Archives(ctx context.Context) ([]string, error) { return debianArchives(ctx) }

// SmallTools installs the small tools that the host lacks, and says so before: mkfs.ext4 among them.
func (e *Extracted) SmallTools(ctx context.Context) error {
	return e.locked(ctx, func(p *packages) error { return p.installSmallTools(ctx) })
}
