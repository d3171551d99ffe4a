// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// Workload is one image under qualification, present in the engine.
type Workload struct {
	Name           string
	ConfigDigest   string
	ManifestDigest string
}

// loadWorkloads builds or reads the named images and loads them into the lab's engine.
func loadWorkloads(ctx context.Context, l *lab.Lab, names []string) ([]Workload, error) {
	if len(names) == 0 {
		names = []string{string(image.Busybox), string(image.Static)}
	}
	var out []Workload
	for _, name := range names {
		if name == string(image.Busybox) || name == string(image.Static) {
			b, err := l.BuildImage(ctx, image.Kind(name))
			if err != nil {
				return nil, fmt.Errorf("image %s: %w", name, err)
			}
			out = append(out, Workload{Name: b.Name, ConfigDigest: b.ConfigDigest, ManifestDigest: b.ManifestDigest})
			continue
		}
		w, err := loadTarball(ctx, l, name)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		out = append(out, w)
	}
	return out, nil
}

func loadTarball(ctx context.Context, l *lab.Lab, path string) (Workload, error) {
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		return Workload{}, err
	}
	config, err := img.ConfigName()
	if err != nil {
		return Workload{}, err
	}
	manifest, err := img.Digest()
	if err != nil {
		return Workload{}, err
	}
	if _, err := l.LoadImage(ctx, path); err != nil {
		return Workload{}, err
	}
	return Workload{Name: strings.TrimSuffix(filepath.Base(path), ".tar"), ConfigDigest: config.String(), ManifestDigest: manifest.String()}, nil
}

// binaries finds the three programs of a launched worker.
func binaries(dir string, l *api.Launch) error {
	if dir == "" {
		own, err := ownFolder()
		if err != nil {
			return err
		}
		dir = own
	}
	for name, to := range map[string]*string{"hallmark-worker": &l.Worker, "hallmark-supervisor": &l.Supervisor, "hallmark-quota": &l.Quota} {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("%s is not in %s (`make build` makes it)", name, dir)
		}
		*to = path
	}
	return nil
}

// Program returns the absolute path of a program beside this one.
func Program(name string) (string, error) {
	dir, err := ownFolder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if !isFile(path) {
		return "", fmt.Errorf("%s is not in %s (`make build` makes it)", name, dir)
	}
	return path, nil
}

func ownFolder() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Dir(exe), nil
}

// tenantBinary finds the attack binary, or builds it into the cache from this module's source.
// A stamped suite takes only the one that it was built with; an unstamped one signs nothing.
func tenantBinary(ctx context.Context, p Params) (string, error) {
	path, err := findTenant(ctx, p)
	if err != nil {
		return "", err
	}
	if want := buildinfo.TenantDigest(); want != buildinfo.Unknown {
		got, err := fileDigest(path)
		if err != nil {
			return "", err
		}
		if got != want {
			return "", fmt.Errorf("%s is %s, this suite was built with %s", path, got, want)
		}
	} else if p.KeyFile != "" {
		return "", errors.New("this suite is not stamped with its attack program, so it cannot sign evidence")
	}
	return path, nil
}

func findTenant(ctx context.Context, p Params) (string, error) {
	if p.Tenant != "" {
		return filepath.Abs(p.Tenant)
	}
	if dir, err := ownFolder(); err == nil {
		if path := filepath.Join(dir, build.Tenant); isFile(path) {
			return path, nil
		}
	}
	repo, err := lab.RepoDir()
	if err != nil {
		return "", fmt.Errorf("neither beside this program nor to be built: %w", err)
	}
	cache, err := lab.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "tenant")
	return filepath.Join(dir, build.Tenant), build.All(ctx, build.Options{Source: repo, Out: dir, Only: []string{build.Tenant}})
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func fileDigest(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return evidence.Digest(b), nil
}
