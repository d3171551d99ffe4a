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
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/buildinfo"
	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/runcmd"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/mutants"
)

// patched are the programs that a mutant may change; the rest stays as it is.
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

// builds makes mutants in order, two ahead of those that run, with what these leave of the processors.
type builds struct {
	ctx    context.Context
	queue  chan builtMutant
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// buildAhead checks that the sources are those of these binaries, and starts to build.
func (j *job) buildAhead(ctx context.Context, in matrixInputs, list []mutants.Mutant, work string) (*builds, error) {
	var before string
	var folders map[string][]string
	if len(list) > 0 {
		var err error
		if folders, err = programFolders(ctx, j.repo); err != nil {
			return nil, failed("the sources cannot be read", err)
		}
		if before, err = sourcesDigest(ctx, j.repo); err != nil {
			return nil, failed("the sources cannot be read", err)
		}
		if err := j.checkSources(ctx, in, filepath.Join(work, "unpatched")); err != nil {
			return nil, err
		}
	}
	building, cancel := context.WithCancel(ctx)
	b := &builds{ctx: building, queue: make(chan builtMutant, 1), cancel: cancel}
	b.done.Go(func() {
		defer close(b.queue)
		// What a thread starts has its priority. This one ends with the goroutine, never unlocked.
		runtime.LockOSThread()
		unix.Setpriority(unix.PRIO_PROCESS, 0, 19) // without it, builds only take more from the cases
		for _, m := range list {
			dir, err := j.buildMutant(building, in, m, affected(m, folders), work)
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

// next returns the folder of the programs of id, which must be the next mutant in the order of the builds.
func (b *builds) next(id string) (string, error) {
	built, ok := <-b.queue
	switch {
	case ok && built.id != id:
		return "", failed("mutant "+id+" cannot be run", fmt.Errorf("the next one that was built is %s", built.id))
	case !ok:
		return "", errors.Join(b.ctx.Err(), errors.New("no mutant is built any more"))
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

// buildMutant makes the programs that the patch changes, with the stamp of this one, and copies the
// others: nothing but the patch differs from the programs beside it.
func (j *job) buildMutant(ctx context.Context, in matrixInputs, m mutants.Mutant, changed []string, work string) (string, error) {
	dir := filepath.Join(work, m.ID)
	overlay, err := m.Overlay(j.repo, dir)
	if err != nil {
		return "", err
	}
	if len(changed) == 0 {
		return "", fmt.Errorf("%s changes none of %s", m.File, strings.Join(patched, ", "))
	}
	for _, name := range patched {
		if slices.Contains(changed, name) {
			continue
		}
		own, err := runcmd.Program(name)
		if err != nil {
			return "", err
		}
		b, err := os.ReadFile(own)
		if err != nil {
			return "", err
		}
		if evidence.Digest(b) != in.binaries[name] {
			return "", errSourcesChanged // the sources may be as they were, the program is another
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			return "", err
		}
	}
	return dir, build.All(ctx, build.Options{Source: j.repo, Out: dir, Overlay: overlay, Only: changed, Stamp: ownStamp()})
}

// affected are the programs with a package that m changes. The build of any other is that of the
// unpatched sources.
func affected(m mutants.Mutant, folders map[string][]string) []string {
	var out []string
	for _, name := range patched {
		if slices.ContainsFunc(m.Diffs, func(d mutants.Diff) bool { return slices.Contains(folders[name], path.Dir(d.Path)) }) {
			out = append(out, name)
		}
	}
	return out
}

// programFolders are, by program, the folders of its packages in this repository, from its root.
func programFolders(ctx context.Context, repo string) (map[string][]string, error) {
	root, err := filepath.EvalSymlinks(repo)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, name := range patched {
		dirs, err := packageFolders(ctx, repo, name)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if dir, err = filepath.EvalSymlinks(dir); err != nil {
				return nil, err
			}
			if below, ok := strings.CutPrefix(dir, root+"/"); ok {
				out[name] = append(out[name], below)
			}
		}
	}
	return out, nil
}

// packageFolders are the folders of all packages of programs, but for those of the standard library.
func packageFolders(ctx context.Context, repo string, programs ...string) ([]string, error) {
	args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}"}
	for _, name := range programs {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = repo
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	return strings.Fields(string(out)), nil
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
	dirs, err := packageFolders(ctx, repo, patched...)
	if err != nil {
		return "", err
	}
	files := []string{filepath.Join(repo, "go.mod"), filepath.Join(repo, "go.sum")}
	for _, dir := range dirs {
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
