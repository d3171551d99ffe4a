// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// toolset is the programs of one lab, installed ones or extracted ones.
type toolset struct {
	engine, containerd, shim, runc, busybox, alternative, deb13, bubblewrap Binary

	path      []string // folders for PATH, first wins
	libraries []string // folders for LD_LIBRARY_PATH; usually none
	missing   map[string]string
}

// findTools prefers an engine that is installed, of whatever vendor, and takes
// the rest from packages. Without an installed dockerd all three parts are
// extracted, since the distribution tested those together.
func findTools(ctx context.Context, p *packages) (toolset, error) {
	t := toolset{missing: map[string]string{}}
	_, installed := lookInstalled("dockerd")
	for _, part := range []struct {
		bin          *Binary
		name, pkg    string
		mayInstalled bool
	}{
		{&t.engine, "dockerd", "docker.io", installed},
		{&t.containerd, "containerd", "containerd", installed},
		{&t.shim, "containerd-shim-runc-v2", "containerd", installed},
		{&t.runc, "runc", "runc", installed},
		{&t.busybox, "busybox", "busybox-static", false}, // an installed busybox may be dynamic
	} {
		var err error
		if *part.bin, err = t.take(ctx, p, part.name, part.pkg, part.mayInstalled); err != nil {
			return t, err
		}
	}
	var err error
	t.alternative, err = t.take(ctx, p, "runsc", "runsc", false)
	if errors.Is(err, errNoPackage) {
		t.leaveOut(p, RuntimeAlt, errors.New("the distribution has no package runsc"))
		err = nil
	}
	if err != nil {
		return t, err
	}
	// On folders of their own: they are no part of the engine, and nothing but one alternative needs each.
	apart := toolset{}
	dir, err := p.getPinned(ctx, runscDeb13)
	if err == nil {
		t.deb13, err = apart.from(ctx, p, "runsc", dir)
	}
	if err != nil && ctx.Err() == nil {
		t.leaveOut(p, RuntimeDeb13, err)
		err = nil
	}
	if err != nil {
		return t, err
	}
	if t.bubblewrap, err = apart.take(ctx, p, Bubblewrap, "bubblewrap", false); err != nil && ctx.Err() == nil {
		t.leaveOut(p, Bubblewrap, err)
		err = nil
	}
	return t, err
}

func (t *toolset) leaveOut(p *packages, name string, why error) {
	t.missing[name] = why.Error()
	fmt.Fprintf(p.out, "lab: %s is left out: %v\n", name, why)
}

// take returns one program and adds its folder and the libraries it lacks.
func (t *toolset) take(ctx context.Context, p *packages, name, pkg string, mayInstalled bool) (Binary, error) {
	if mayInstalled {
		if path, ok := lookInstalled(name); ok {
			return t.add(Binary{Path: path})
		}
	}
	dir, err := p.get(ctx, pkg)
	if err != nil {
		return Binary{}, err
	}
	return t.from(ctx, p, name, dir)
}

// from returns one program of an extracted package.
func (t *toolset) from(ctx context.Context, p *packages, name, dir string) (Binary, error) {
	for _, sub := range []string{"usr/bin", "usr/sbin", "bin", "sbin"} {
		path := filepath.Join(dir, sub, name)
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			continue
		}
		libs, err := p.libraries(ctx, path, dir)
		if err != nil {
			return Binary{}, err
		}
		for _, l := range libs {
			if !slices.Contains(t.libraries, l) {
				t.libraries = append(t.libraries, l)
			}
		}
		return t.add(Binary{Path: path, Package: filepath.Base(dir), Libraries: libs})
	}
	return Binary{}, fmt.Errorf("find %s: package %s does not hold it", name, filepath.Base(dir))
}

func (t *toolset) add(b Binary) (Binary, error) {
	var err error
	if b.Digest, err = FileDigest(b.Path); err != nil {
		return b, err
	}
	if dir := filepath.Dir(b.Path); !slices.Contains(t.path, dir) {
		t.path = append(t.path, dir)
	}
	return b, nil
}

// lookInstalled finds a program on PATH or in the folders for administrators,
// which an unprivileged login's PATH may lack.
func lookInstalled(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, true
		}
	}
	return "", false
}

// environment is what the engine runs with: the caller's, less what a service
// manager or another engine's client would be misled by.
func (t *toolset) environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "PATH", name == "LD_LIBRARY_PATH", name == "NOTIFY_SOCKET", name == "INVOCATION_ID",
			strings.HasPrefix(name, "LISTEN_"), strings.HasPrefix(name, "DOCKER_"), name == "TMPDIR":
		default:
			env = append(env, kv)
		}
	}
	path := append(slices.Clone(t.path), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	env = append(env, "PATH="+strings.Join(path, ":"))
	if len(t.libraries) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(t.libraries, ":"))
	}
	return env
}
