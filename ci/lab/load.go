// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/docker/docker/client"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// LoadImage loads a tarball as "docker load" does and returns the image id,
// after checking that the engine knows the image by its config digest.
func (l *Lab) LoadImage(ctx context.Context, tarPath string) (string, error) {
	img, err := tarball.ImageFromPath(tarPath, nil)
	if err != nil {
		return "", fmt.Errorf("read image tarball: %w", err)
	}
	want, err := img.ConfigName()
	if err != nil {
		return "", fmt.Errorf("read image tarball: %w", err)
	}
	f, err := os.Open(tarPath)
	if err != nil {
		return "", fmt.Errorf("load image: %w", err)
	}
	defer f.Close()
	cli, err := l.Client()
	if err != nil {
		return "", err
	}
	defer cli.Close()
	res, err := cli.ImageLoad(ctx, f, client.ImageLoadWithQuiet(true))
	if err != nil {
		return "", fmt.Errorf("load image: %w", err)
	}
	defer res.Body.Close()
	if err := loadResult(res.Body); err != nil {
		return "", fmt.Errorf("load image: %w", err)
	}
	got, err := cli.ImageInspect(ctx, want.String())
	if err != nil {
		return "", fmt.Errorf("load image: %w", err)
	}
	if got.ID != want.String() {
		return "", fmt.Errorf("load image: the engine calls it %s, its config digest is %s", got.ID, want)
	}
	return got.ID, nil
}

// loadResult reads the engine's progress stream, in which failures arrive with status 200.
func loadResult(r io.Reader) error {
	for d := json.NewDecoder(r); ; {
		var m struct{ Error string }
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Error != "" {
			return errors.New(m.Error)
		}
	}
}

// BuildImage builds a fixture image into the cache and loads it.
func (l *Lab) BuildImage(ctx context.Context, kind image.Kind) (image.Built, error) {
	b, err := image.Build(kind, image.Config{Dir: filepath.Join(l.Cache, "images"), Busybox: l.Busybox.Path})
	if err != nil {
		return b, err
	}
	_, err = l.LoadImage(ctx, b.TarPath)
	return b, err
}
