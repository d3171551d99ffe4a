// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/ci/vm"
)

// kit is a folder with all that `hallmark run` needs on a machine that can neither fetch nor build: laid out like the
// repository, so that it finds there what it finds here.
type kit struct {
	dir string
	key string // private key that signs the evidence

	remove func() error
}

// files are what goes into the guest.
func (k kit) files(repo, bin string) []vm.File {
	files := []vm.File{
		{From: k.dir, As: "."},
		{From: filepath.Join(repo, "ci", "cohorts"), As: "ci/cohorts"},
		{From: filepath.Join(repo, "ci", "runsc", "go.mod"), As: "ci/runsc/go.mod"},
		{From: k.key, As: "evidence.key"},
	}
	for _, name := range build.Commands {
		files = append(files, vm.File{From: filepath.Join(bin, name), As: "bin/" + name})
	}
	return files
}

// makeKit fills a temporary folder, which the caller removes.
func makeKit(ctx context.Context, o vm.Options, key string) (k kit, err error) {
	k.key = key
	if k.dir, k.remove, err = o.Temp(ctx); err != nil {
		return k, err
	}
	ex, err := lab.Extract(o.Cache, o.Out)
	if err == nil {
		err = ex.Fill(ctx, o.Repo, filepath.Join(k.dir, ".cache"))
	}
	if err != nil {
		return k, errors.Join(fmt.Errorf("fill the guest's cache: %w", err), k.remove())
	}
	return k, nil
}
