// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Provided is the content of <cache>/provided.json. It says that the cache was filled on another machine, for one
// that can neither fetch nor build, such as a guest: the engine is installed there, the rest lies in the cache, and
// nothing else is looked for. Paths are relative to the cache folder.
type Provided struct {
	Runsc   Binary `json:"runsc"` // content-addressed, in runtimes/
	Busybox Binary `json:"busybox"`
	Probe   string `json:"probe"` // program of ci/lab/probe
}

const providedFile = "provided.json"

// readProvided returns nil for a cache without one.
func readProvided(cache string) (*Provided, error) {
	body, err := os.ReadFile(filepath.Join(cache, providedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is provided: %w", err)
	}
	p := new(Provided)
	if err := json.Unmarshal(body, p); err != nil {
		return nil, fmt.Errorf("read what is provided: %w", err)
	}
	for _, b := range []*Binary{&p.Runsc, &p.Busybox} {
		if !filepath.IsLocal(b.Path) {
			return nil, fmt.Errorf("read what is provided: %q is not in the cache", b.Path)
		}
		b.Path = filepath.Join(cache, b.Path)
	}
	if !filepath.IsLocal(p.Probe) {
		return nil, fmt.Errorf("read what is provided: %q is not in the cache", p.Probe)
	}
	p.Probe = filepath.Join(cache, p.Probe)
	return p, nil
}

// tools are the installed engine, and busybox, once what the cache holds has been found to be what it says.
func (p *Provided) tools() (toolset, error) {
	t := toolset{missing: map[string]string{}}
	for _, b := range []Binary{p.Runsc, p.Busybox} {
		digest, err := FileDigest(b.Path)
		if err != nil {
			return t, fmt.Errorf("what is provided: %w", err)
		}
		if digest != b.Digest {
			return t, fmt.Errorf("what is provided as %s is %s, and not %s", b.Path, digest, b.Digest)
		}
	}
	for name, b := range map[string]*Binary{"dockerd": &t.engine, "containerd": &t.containerd, "containerd-shim-runc-v2": &t.shim, "runc": &t.runc} {
		path, ok := lookInstalled(name)
		if !ok {
			return t, &MissingError{What: name + " is not installed, and the cache says that it is", Remedy: "install the engine, or remove " + providedFile + " from the cache"}
		}
		var err error
		if *b, err = t.add(Binary{Path: path}); err != nil {
			return t, err
		}
	}
	for _, name := range []string{RuntimeAlt, RuntimeDeb13, Bubblewrap} {
		t.missing[name] = "it is not provided"
	}
	t.busybox = p.Busybox
	return t, nil
}

// write puts p into a cache folder.
func (p Provided) write(cache string) error {
	body, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("write what is provided: %w", err)
	}
	return writeAtomic(filepath.Join(cache, providedFile), append(body, '\n'), 0o644)
}
