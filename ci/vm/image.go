// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// Image is a guest that can be started any number of times: no run changes it.
type Image struct {
	Root   string // raw ext4, the base of every run's own layer
	Kernel string
	Record Record
}

// Record says what an image was made of. It lies beside the image.
type Record struct {
	Key      string    `json:"key"`
	Recipe   recipe    `json:"recipe"`
	Init     string    `json:"init"`    // digest of /init
	Release  string    `json:"release"` // of the kernel
	Packages []Package `json:"packages"`
}

// Package is one package file.
type Package struct {
	File   string `json:"file"`
	Digest string `json:"digest"`
}

const (
	rootFile   = "root.img"
	kernelFile = "vmlinuz"
	recordFile = "image.json"
)

// Options of what this package does. Cache and Repo are required.
type Options struct {
	Cache string    // cache folder
	Repo  string    // this module's root folder, for the guest's init
	Out   io.Writer // announcements, a line each; nil means nowhere
}

func (o Options) check() error {
	if o.Cache == "" || o.Repo == "" {
		return errors.New("vm: cache and repository are required")
	}
	return nil
}

func (o Options) say(format string, args ...any) {
	if o.Out != nil {
		fmt.Fprintf(o.Out, "vm: "+format+"\n", args...)
	}
}

func (o Options) dir() string { return filepath.Join(o.Cache, "vm") }

// Prepare returns the image of the cache, and builds it when there is none of the present recipe and init. Only
// that wants the network. A build that is cut short leaves nothing that would be taken for an image.
func Prepare(ctx context.Context, o Options) (Image, error) {
	if err := o.check(); err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(o.dir(), 0o755); err != nil {
		return Image{}, fmt.Errorf("make image folder: %w", err)
	}
	unlock, err := o.lock(ctx, buildLock)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	initFile, err := buildInit(ctx, o)
	if err != nil {
		return Image{}, err
	}
	initDigest, err := lab.FileDigest(initFile)
	if err != nil {
		return Image{}, err
	}
	r := debian13
	key := r.key(initDigest)
	dir := filepath.Join(o.dir(), imagePrefix+key)
	if img, err := openImage(dir, key); err == nil {
		return img, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		o.say("the image in the cache cannot be used: %v: it is built again", err)
	}
	begin := time.Now()
	o.say("building the guest image (Debian %s, %d packages and what they need), once", r.Suite, len(r.Packages))
	if err := o.removeOld(r); err != nil {
		return Image{}, fmt.Errorf("remove old images: %w", err)
	}
	tmp, remove, err := o.Temp(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("build image: %w", err)
	}
	defer remove()
	if err := build(ctx, o, r, tmp, initFile, Record{Key: key, Recipe: r, Init: initDigest}); err != nil {
		return Image{}, fmt.Errorf("build image: %w", err)
	}
	if err := os.Rename(filepath.Join(tmp, "image"), dir); err != nil {
		return Image{}, fmt.Errorf("build image: %w", err)
	}
	o.say("built the guest image in %s", time.Since(begin).Round(time.Second))
	return openImage(dir, key)
}

const (
	imagePrefix    = "image-"
	packagesPrefix = "packages-"
)

// removeOld removes images and package files of other recipes. A guest that runs keeps its files open.
func (o Options) removeOld(r recipe) error {
	var errs []error
	for _, prefix := range []string{imagePrefix, packagesPrefix} {
		dirs, err := filepath.Glob(filepath.Join(o.dir(), prefix+"*"))
		errs = append(errs, err)
		for _, d := range dirs {
			if d == o.packagesDir(r) {
				continue
			}
			errs = append(errs, os.RemoveAll(d))
		}
	}
	return errors.Join(errs...)
}

func (o Options) packagesDir(r recipe) string {
	return filepath.Join(o.dir(), packagesPrefix+r.packagesKey())
}

func openImage(dir, key string) (Image, error) {
	body, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return Image{}, err
	}
	img := Image{Root: filepath.Join(dir, rootFile), Kernel: filepath.Join(dir, kernelFile)}
	if err := json.Unmarshal(body, &img.Record); err != nil {
		return Image{}, fmt.Errorf("read record of the image: %w", err)
	}
	if img.Record.Key != key {
		return Image{}, fmt.Errorf("the record is of %s, the folder of %s", img.Record.Key, key)
	}
	for _, f := range []string{img.Root, img.Kernel} {
		if st, err := os.Stat(f); err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
			return Image{}, fmt.Errorf("%s is not there", filepath.Base(f))
		}
	}
	return img, nil
}

// Locks of the folder: one image is built at a time, and one guest runs.
const (
	buildLock = "build.lock"
	guestLock = "guest.lock"
	tempLock  = "temp.lock"
)

// lock keeps a second one waiting.
func (o Options) lock(ctx context.Context, name string) (func(), error) {
	unlock, err := lab.Lock(ctx, filepath.Join(o.dir(), name), func() { o.say("waiting for another command that holds %s", name) })
	if err != nil {
		return nil, fmt.Errorf("lock virtual machines: %s: %w", name, err)
	}
	return unlock, nil
}
