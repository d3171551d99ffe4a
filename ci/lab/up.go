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
)

// Options of [Up]. The zero value is usable inside the repository.
type Options struct {
	Cache string    // cache folder; empty means CacheDir()
	Repo  string    // repository, for ci/runsc; empty means RepoDir()
	Out   io.Writer // announcements and progress, a line each; nil means nowhere

	// Bound says that the lab is this process's alone: when the process is killed, the next Up
	// sweeps the lab, containers included, instead of handing it on.
	Bound bool
}

func (o *Options) fill() error {
	var err error
	if o.Cache == "" {
		if o.Cache, err = CacheDir(); err != nil {
			return err
		}
	}
	if o.Repo == "" {
		if o.Repo, err = RepoDir(); err != nil {
			return err
		}
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return nil
}

// Up returns the lab of the cache folder, starting it when none runs. What a
// killed lab left is swept first. A caller that gets Fresh takes it down again.
// A *[MissingError] says what the machine lacks; nothing has been changed then.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	if c := checkRoot(); !c.OK { // before what needs a repository: it is the first thing to say
		return nil, &MissingError{What: c.Name + ": " + c.Detail, Remedy: c.Remedy}
	}
	if err := opts.fill(); err != nil {
		return nil, err
	}
	provided, err := readProvided(opts.Cache)
	if err != nil {
		return nil, err
	}
	if err := checkMachine(provided != nil); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make cache folder: %w", err)
	}
	unlock, err := lockCache(ctx, opts.Cache, opts.Out)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := find(ctx, opts.Cache)
	switch {
	case err == nil && !l.orphan():
		return l, nil
	case err == nil:
		fmt.Fprintln(opts.Out, "lab: the command that started the running lab was killed: the lab is swept")
	case !errors.Is(err, ErrNotRunning):
		fmt.Fprintf(opts.Out, "lab: %v: it is swept\n", err)
	}
	t, err := newTerritory(opts.Cache)
	if err != nil {
		return nil, err
	}
	if err := t.sweepStale(ctx, opts.Out); err != nil {
		return nil, err
	}
	l, err = t.up(ctx, opts, provided)
	if err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepBound)
		defer cancel()
		_, serr := t.sweep(cleanup, 0)
		return nil, errors.Join(err, serr)
	}
	return l, nil
}

func (t territory) sweepStale(ctx context.Context, out io.Writer) error {
	netns := uint64(0)
	if body, err := os.ReadFile(recordPath(t.cache)); err == nil {
		var old Lab
		if json.Unmarshal(body, &old) == nil {
			netns = old.NetNSInode
		}
	}
	found, err := t.sweep(ctx, netns)
	for _, f := range found {
		fmt.Fprintf(out, "lab: swept stale %s\n", f)
	}
	if err != nil {
		return fmt.Errorf("sweep stale lab: %w", err)
	}
	if err := os.Remove(recordPath(t.cache)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sweep stale lab: %w", err)
	}
	return nil
}

func (t territory) up(ctx context.Context, opts Options, provided *Provided) (*Lab, error) {
	runtimes := filepath.Join(t.cache, "runtimes")
	if err := os.MkdirAll(runtimes, 0o755); err != nil {
		return nil, fmt.Errorf("make runtime folder: %w", err)
	}
	var tools toolset
	var ours Binary
	var err error
	if provided != nil {
		ours = provided.Runsc
		tools, err = provided.tools()
	} else {
		tools, ours, err = t.obtain(ctx, opts, runtimes)
	}
	if err != nil {
		return nil, err
	}
	l := &Lab{
		ID: t.id, Cache: t.cache, Socket: t.socket(), RunDir: t.runDir, DataRoot: t.dataRoot(), WorkDir: t.workDir(),
		CgroupParent: t.cgroup, CgroupMode: cgroupMode(), Network: NetworkName,
		Engine: tools.engine, Containerd: tools.containerd, Shim: tools.shim, Busybox: tools.busybox, Bubblewrap: tools.bubblewrap,
		Missing: tools.missing, Fresh: true,
	}
	if opts.Bound {
		l.OwnerPid = os.Getpid()
		if l.OwnerStart, err = startTime(l.OwnerPid); err != nil {
			return nil, fmt.Errorf("read own start time: %w", err)
		}
	}
	if l.Runtimes, err = register(ctx, tools, ours, runtimes); err != nil {
		return nil, err
	}
	for _, dir := range []string{t.dir, t.workDir(), t.runDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make lab folder: %w", err)
		}
	}
	config, err := t.engineConfig(l.Runtimes)
	if err != nil {
		return nil, fmt.Errorf("write engine configuration: %w", err)
	}
	if err := writeAtomic(filepath.Join(t.runDir, "daemon.json"), config, 0o600); err != nil {
		return nil, err
	}
	if err := t.startEngine(ctx, l, tools); err != nil {
		return nil, err
	}
	body, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write lab record: %w", err)
	}
	return l, writeAtomic(recordPath(t.cache), body, 0o644)
}

// obtain fetches and builds what the cache does not have yet.
func (t territory) obtain(ctx context.Context, opts Options, runtimes string) (toolset, Binary, error) {
	pkgs, err := openPackages(filepath.Join(t.cache, "packages"), opts.Out)
	if err != nil {
		return toolset{}, Binary{}, err
	}
	if err := pkgs.installSmallTools(ctx); err != nil {
		return toolset{}, Binary{}, err
	}
	tools, err := findTools(ctx, pkgs)
	if err != nil {
		return toolset{}, Binary{}, err
	}
	ours, err := buildRunsc(ctx, opts.Repo, runtimes, opts.Out)
	return tools, ours, err
}

// register makes the runtimes' registrations, each from a content-addressed file.
func register(ctx context.Context, tools toolset, ours Binary, runtimes string) (map[string]Runtime, error) {
	env := tools.environment()
	out := map[string]Runtime{
		RuntimeRunsc: {Name: RuntimeRunsc, Path: ours.Path, Digest: ours.Digest, Args: []string{"--platform=systrap"}},
		RuntimeRunc:  {Name: RuntimeRunc, Path: tools.runc.Path, Digest: tools.runc.Digest},
	}
	if tools.alternative.Path != "" {
		alt, err := addressed(tools.alternative.Path, runtimes, "runsc")
		if err != nil {
			return nil, err
		}
		// Without the first argument that build says "cannot run with network enabled in root network namespace".
		out[RuntimeAlt] = Runtime{Name: RuntimeAlt, Path: alt.Path, Digest: alt.Digest, Args: []string{"--network=none", "--platform=ptrace"}}
	}
	if tools.deb13.Path != "" {
		alt, err := addressed(tools.deb13.Path, runtimes, "runsc")
		if err != nil {
			return nil, err
		}
		out[RuntimeDeb13] = Runtime{Name: RuntimeDeb13, Path: alt.Path, Digest: alt.Digest, Args: []string{"--network=none", "--platform=systrap"}}
	}
	for name, r := range out {
		r.Version = runtimeVersion(ctx, r.Path, env)
		out[name] = r
	}
	return out, nil
}

// lockCache keeps a second Up or Down on the same cache waiting.
func lockCache(ctx context.Context, cache string, out io.Writer) (func(), error) {
	unlock, err := Lock(ctx, filepath.Join(cache, "lab.lock"), func() {
		fmt.Fprintln(out, "lab: waiting for another command that brings this cache's lab up or down")
	})
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	return unlock, nil
}
