// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	var before string
	if len(list) > 0 {
		var err error
		if before, err = sourcesDigest(ctx, j.repo); err != nil {
			return nil, failed("the sources cannot be read", err)
		}
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
			if err == nil {
				err = unchanged(building, j.repo, before)
			}
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
	case errors.Is(built.err, errSourcesChanged):
		return "", &exit.Error{Status: exit.Failed, Sentence: built.err.Error(), Remedy: "`make build`, then again; work in another clone meanwhile"}
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

var errSourcesChanged = errors.New("the sources of the worker changed while mutants were built of them")

func unchanged(ctx context.Context, repo, before string) error {
	after, err := sourcesDigest(ctx, repo)
	if err == nil && after != before {
		err = errSourcesChanged
	}
	return err
}

// sourcesDigest is over every file that the go command may read for the patched programs, but for
// dependencies, which go.sum names.
func sourcesDigest(ctx context.Context, repo string) (string, error) {
	args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}"}
	for _, name := range patched {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = repo
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	files := []string{filepath.Join(repo, "go.mod"), filepath.Join(repo, "go.sum")}
	for dir := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(dir, repo+"/") {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			if e.Type().IsRegular() && !strings.HasSuffix(e.Name(), "_test.go") {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
	}
	h := sha256.New()
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
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
