// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// patched are the programs that are built again for a mutant; the rest stays as it is.
var patched = []string{"hallmark-supervisor", "hallmark-quota", "hallmark-worker"}

// workFolder makes a folder for builds below dir, and first removes those of commands that were
// killed: nobody holds their lock any more.
func workFolder(dir string) (work string, release func(), err error) {
	old, err := filepath.Glob(filepath.Join(dir, "build-*"))
	if err != nil {
		return "", nil, failed("the cache cannot be used", err)
	}
	for _, path := range old {
		if f, err := lockFolder(path); err == nil {
			err = os.RemoveAll(path)
			f.Close()
			if err != nil {
				return "", nil, failed("an old build cannot be removed", err)
			}
		}
	}
	work, err = os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", nil, failed("the cache cannot be used", err)
	}
	f, err := lockFolder(work)
	if err != nil {
		os.RemoveAll(work)
		return "", nil, failed("the cache cannot be used", err)
	}
	return work, func() { os.RemoveAll(work); f.Close() }, nil
}

func lockFolder(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

type builtMutant struct {
	id, dir string
	err     error
}

// builds makes mutants in order, one ahead of the one that runs.
type builds struct {
	ctx    context.Context
	queue  chan builtMutant
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// buildAhead checks that the sources are those of these binaries, and starts to build.
func (j *job) buildAhead(ctx context.Context, in matrixInputs, list []mutants.Mutant, work string) (*builds, error) {
	if len(list) > 0 {
		if err := j.checkSources(ctx, in, filepath.Join(work, "unpatched")); err != nil {
			return nil, err
		}
	}
	building, cancel := context.WithCancel(ctx)
	b := &builds{ctx: building, queue: make(chan builtMutant), cancel: cancel}
	b.done.Go(func() {
		defer close(b.queue)
		for _, m := range list {
			dir, err := j.buildMutant(building, m, work)
			select {
			case b.queue <- builtMutant{m.ID, dir, err}:
			case <-building.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	return b, nil
}

// next returns the folder of the next mutant's programs.
func (b *builds) next() (string, error) {
	built, ok := <-b.queue
	switch {
	case !ok:
		return "", b.ctx.Err()
	case built.err != nil:
		return "", failed("mutant "+built.id+" cannot be built", built.err)
	}
	return built.dir, nil
}

// stop returns when nothing builds any more.
func (b *builds) stop() {
	b.cancel()
	b.done.Wait()
}

// buildMutant makes the patched programs, with the stamp of this one: nothing but the patch
// differs from the programs beside it.
func (j *job) buildMutant(ctx context.Context, m mutants.Mutant, work string) (string, error) {
	dir := filepath.Join(work, m.ID)
	overlay, err := m.Overlay(j.repo, dir)
	if err != nil {
		return "", err
	}
	return dir, build.All(ctx, build.Options{Source: j.repo, Out: dir, Overlay: overlay, Only: patched, Stamp: ownStamp()})
}

func ownStamp() *build.Stamp {
	return &build.Stamp{Commit: buildinfo.Commit(), TreeState: buildinfo.TreeState()}
}

// checkSources builds the unpatched programs and compares them with those beside this one: a
// mutant of other sources would say nothing about these binaries.
func (j *job) checkSources(ctx context.Context, in matrixInputs, dir string) error {
	defer os.RemoveAll(dir)
	if err := build.All(ctx, build.Options{Source: j.repo, Out: dir, Only: patched, Stamp: ownStamp()}); err != nil {
		return failed("the unpatched worker cannot be built", err)
	}
	for _, name := range patched {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return failed("the unpatched worker cannot be read", err)
		}
		if evidence.Digest(b) != in.binaries[name] {
			return &exit.Error{Status: exit.Failed, Sentence: "the " + name + " beside this program is not a build of these sources", Remedy: "`make build`, then again"}
		}
	}
	return nil
}
