// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/reference/cohort"
)

const probeBound = 60 * time.Second

// Probe tries in a throw-away sandbox of one runtime what its kernel offers.
// Keys are "sentry.openat2" and the like, values "yes", "no" or an errno name.
func (l *Lab) Probe(ctx context.Context, runtimeName, repo string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	if err := l.sweepProbes(ctx); err != nil {
		return nil, fmt.Errorf("sweep what a killed probe left: %w", err)
	}
	owner, err := probeOwner()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(l.WorkDir, probePrefix+owner+"-")
	if err != nil {
		return nil, fmt.Errorf("probe sandbox: %w", err)
	}
	defer os.RemoveAll(dir)
	provided, err := readProvided(l.Cache)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "probe")
	if provided != nil {
		program = provided.Probe
	} else if err := buildProbe(ctx, repo, program); err != nil {
		return nil, err
	}
	workspace := filepath.Join(dir, "workspace")
	if err := os.Mkdir(workspace, 0o777); err != nil {
		return nil, fmt.Errorf("probe sandbox: %w", err)
	}
	if err := os.Chown(workspace, 65532, 65532); err != nil {
		return nil, fmt.Errorf("probe sandbox: %w", err)
	}
	img, err := l.BuildImage(ctx, image.Static)
	if err != nil {
		return nil, err
	}
	out, err := l.runOnce(ctx, &container.Config{Image: img.ConfigDigest, Entrypoint: []string{"/probe"}, Cmd: []string{}, User: "65532:65532", Labels: map[string]string{probeLabel: owner}},
		&container.HostConfig{
			Runtime: runtimeName, NetworkMode: "none", ReadonlyRootfs: true, CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
			Tmpfs: map[string]string{"/tmp": "rw,nosuid,nodev,size=16m,mode=1777"},
			Mounts: []mount.Mount{
				{Type: mount.TypeBind, Source: program, Target: "/probe", ReadOnly: true},
				{Type: mount.TypeBind, Source: workspace, Target: "/workspace"},
			},
		})
	if err != nil {
		return nil, fmt.Errorf("probe sandbox under %s: %w", runtimeName, err)
	}
	answers := map[string]string{}
	if err := json.Unmarshal([]byte(out), &answers); err != nil {
		return nil, fmt.Errorf("probe sandbox under %s: read answer %q: %w", runtimeName, out, err)
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("probe sandbox under %s: no answer", runtimeName)
	}
	return answers, nil
}

// buildProbe builds the program that asks a sandbox's kernel.
func buildProbe(ctx context.Context, repo, file string) error {
	if out, err := goCommand(ctx, repo, "build", "-trimpath", "-buildvcs=false", "-o", file, "./ci/lab/probe").CombinedOutput(); err != nil {
		return fmt.Errorf("build probe: %w: %s", err, lastLine(out))
	}
	return nil
}

// runOnce runs one container to its end, removes it and returns its standard output.
func (l *Lab) runOnce(ctx context.Context, cfg *container.Config, host *container.HostConfig) (string, error) {
	cli, err := l.Client()
	if err != nil {
		return "", err
	}
	defer cli.Close()
	c, err := cli.ContainerCreate(ctx, cfg, host, nil, nil, "")
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		_ = cli.ContainerRemove(cleanup, c.ID, container.RemoveOptions{Force: true}) // Down looks again
	}()
	wait, errs := cli.ContainerWait(ctx, c.ID, container.WaitConditionNextExit)
	if err := cli.ContainerStart(ctx, c.ID, container.StartOptions{}); err != nil {
		return "", fmt.Errorf("start container: %w", err)
	}
	var status int64
	select {
	case res := <-wait:
		status = res.StatusCode
	case err := <-errs:
		return "", fmt.Errorf("wait for container: %w", err)
	}
	logs, err := cli.ContainerLogs(ctx, c.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return "", fmt.Errorf("read container output: %w", err)
	}
	defer logs.Close()
	var stdout, stderr strings.Builder
	if _, err := stdcopy.StdCopy(&stdout, &stderr, logs); err != nil {
		return "", fmt.Errorf("read container output: %w", err)
	}
	if status != 0 {
		return "", fmt.Errorf("container ended with status %d: %s", status, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Cohort measures the cohort of one runtime of the lab with the loop quota
// backend, and probes its capabilities.
func (l *Lab) Cohort(ctx context.Context, runtimeName, repo string) (evidence.Cohort, error) {
	rt, ok := l.Runtimes[runtimeName]
	if !ok {
		return evidence.Cohort{}, fmt.Errorf("measure cohort: the lab has no runtime %q: %s", runtimeName, l.Missing[runtimeName])
	}
	cli, err := l.Client()
	if err != nil {
		return evidence.Cohort{}, err
	}
	defer cli.Close()
	info, err := cli.Info(ctx)
	if err != nil {
		return evidence.Cohort{}, fmt.Errorf("measure cohort: %w", err)
	}
	facts := cohort.EngineFacts{
		Pid: l.EnginePid, Version: info.ServerVersion, StorageDriver: info.Driver, ImageStore: "classic",
		SecurityOptions: info.SecurityOptions, DefaultRuntime: info.DefaultRuntime, SwapLimit: info.SwapLimit,
		RuntimePath: rt.Path, RuntimeArgs: info.Runtimes[runtimeName].Args,
	}
	if registered := info.Runtimes[runtimeName].Path; runtimeName != RuntimeRunc && registered != rt.Path {
		return evidence.Cohort{}, fmt.Errorf("measure cohort: the engine's runtime %s is %s, not the one that the lab registered", runtimeName, registered)
	}
	for _, row := range info.DriverStatus {
		if row[0] == "driver-type" && strings.HasPrefix(row[1], "io.containerd.snapshotter") {
			facts.ImageStore = "containerd"
		}
	}
	for _, o := range info.SecurityOptions {
		facts.UserNamespaces = facts.UserNamespaces || strings.HasPrefix(o, "name=userns")
	}
	d, err := cohort.Measure(ctx, cohort.Config{Engine: facts, Quota: evidence.CohortQuota{Backend: "loop", Filesystem: "ext4"}})
	if err != nil {
		return evidence.Cohort{}, err
	}
	id, err := evidence.CohortID(d)
	if err != nil {
		return evidence.Cohort{}, err
	}
	caps, err := l.Probe(ctx, runtimeName, repo)
	return evidence.Cohort{ID: id, Descriptor: d, Capabilities: caps}, errors.Join(err)
}
