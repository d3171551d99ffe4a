// SPDX-License-Identifier: Apache-2.0

// Package cohort measures what a sandbox's strength depends on outside of the
// suite: kernel, container engine, sandbox binary and their settings.
//
// It owns the reading of those facts and nothing else: evidence owns their form
// and their digest. It observes /proc, /sys, system calls and the programs of
// the engine that serves a given socket. It never takes a fact from a
// configuration file, never deduces one from a version string, and lets no path,
// socket name or boot time in, so that two measurements on one host agree. What
// cannot be read is the word "unknown", never a guess. Facts that only the engine
// can tell are passed in: its client is not imported here. Read evidence next.
package cohort

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/hallmark-sandbox/hallmark/evidence"
)

// Unknown stands for a fact that this host does not let anyone read.
const Unknown = "unknown"

// EngineFacts is what the engine's API answers, and who answers it.
type EngineFacts struct {
	Pid             int    // process of the engine, as the peer of its socket
	Version         string // of the server
	StorageDriver   string
	ImageStore      string // classic, containerd
	SecurityOptions []string
	UserNamespaces  bool
	DefaultRuntime  string
	SwapLimit       bool
	RuntimePath     string   // registration of the sandbox runtime
	RuntimeArgs     []string // in its order
}

// Config says what to measure. Everything but Digest is required.
type Config struct {
	Engine EngineFacts
	Quota  evidence.CohortQuota
	// Digest reads a program; by default the whole of it each time.
	Digest func(path string) (string, error)
}

// Measure returns the descriptor of the cohort as it is now. [evidence.CohortID] gives its id.
func Measure(ctx context.Context, cfg Config) (evidence.CohortDescriptor, error) {
	var d evidence.CohortDescriptor
	if cfg.Engine.Pid <= 0 || cfg.Engine.RuntimePath == "" || cfg.Quota.Backend == "" || cfg.Quota.Filesystem == "" {
		return d, errors.New("measure cohort: the engine's process, the runtime's path and the quota backend are required")
	}
	if cfg.Digest == nil {
		cfg.Digest = digestPath
	}
	programs, err := enginePrograms(cfg.Engine.Pid, cfg.Digest)
	if err != nil {
		return d, fmt.Errorf("measure cohort: %w", err)
	}
	kernel, err := kernelFacts()
	if err != nil {
		return d, fmt.Errorf("measure cohort: %w", err)
	}
	binary, err := cfg.Digest(cfg.Engine.RuntimePath)
	if err != nil {
		return d, fmt.Errorf("measure cohort: sandbox binary: %w", err)
	}
	args, err := pathlessArgs(cfg.Engine.RuntimeArgs, cfg.Digest)
	if err != nil {
		return d, fmt.Errorf("measure cohort: runtime arguments: %w", err)
	}
	options := append([]string{}, cfg.Engine.SecurityOptions...)
	slices.Sort(options)
	return evidence.CohortDescriptor{
		Arch: runtime.GOARCH, Kernel: kernel, CgroupMode: cgroupMode(), LSMs: activeLSMs(),
		Engine: evidence.CohortEngine{
			Version: cfg.Engine.Version, EngineDigest: programs.engine, ContainerdDigest: programs.containerd, ShimDigest: programs.shim,
			StorageDriver: cfg.Engine.StorageDriver, ImageStore: cfg.Engine.ImageStore, SecurityOptions: options,
			UserNamespaces: cfg.Engine.UserNamespaces, DefaultRuntime: cfg.Engine.DefaultRuntime,
		},
		Runtime:        evidence.CohortRuntime{BinaryDigest: binary, Args: args},
		Sandbox:        evidence.CohortSandbox{Version: runtimeVersion(ctx, cfg.Engine.RuntimePath), Platform: platform(cfg.Engine.RuntimeArgs)},
		Quota:          cfg.Quota,
		SwapAccounting: cfg.Engine.SwapLimit,
		KernelCmdline:  kernelCmdline(), Mitigations: mitigations(), Sysctls: sysctls(),
	}, nil
}
