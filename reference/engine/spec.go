// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// SupervisorTarget is where PID 1 is found inside every sandbox.
const SupervisorTarget = "/.hallmark/supervisor"

// WorkspaceTarget is the tenant's directory inside every sandbox.
const WorkspaceTarget = "/workspace"

// Labels of our containers. They are hints: ownership is proven by the durable record.
const (
	LabelWorker     = "hallmark.worker"
	LabelEpoch      = "hallmark.epoch"
	LabelSandbox    = "hallmark.sandbox"
	LabelGeneration = "hallmark.generation"
	LabelMode       = "hallmark.mode"
)

// Spec is what varies from one sandbox container to the next; the rest of the launch
// profile is fixed in this package.
type Spec struct {
	Name       string // hallmark-<32 hex>, new for each generation
	Image      Image  // from Engine.Image
	Workspace  string // host mount, absolute
	Supervisor string // content-addressed host path, absolute
	Resources  api.Resources
	// ReadOnly mounts the workspace read-only, for a secret-bearing invocation. The launch profile
	// is the same either way; the flag itself is compared with this one.
	ReadOnly bool

	WorkerID   string
	BootEpoch  string
	SandboxID  string
	Generation int64
	Mode       api.Mode
}

var nameRE = regexp.MustCompile(`^hallmark-[0-9a-f]{32}$`)

func (s Spec) validate() error {
	var errs []error
	if !nameRE.MatchString(s.Name) {
		errs = append(errs, fmt.Errorf("container name %q", s.Name))
	}
	if s.Image.ID == "" || len(s.Image.Volumes) > 0 {
		errs = append(errs, errors.New("image is unresolved or declares volumes"))
	}
	for _, p := range []string{s.Workspace, s.Supervisor} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p {
			errs = append(errs, fmt.Errorf("path %q is not absolute and clean", p))
		}
	}
	if r := s.Resources; r.CPUs <= 0 || r.MemoryBytes <= 0 || r.PIDs <= 0 || r.WorkspaceBytes <= 0 {
		errs = append(errs, errors.New("resources are not all positive"))
	}
	if s.WorkerID == "" || s.BootEpoch == "" || s.SandboxID == "" || s.Generation <= 0 || s.Mode == "" {
		errs = append(errs, errors.New("ownership labels are not all set"))
	}
	return errors.Join(errs...)
}

// Image is a workload image as the engine knows it.
type Image struct {
	ConfigDigest string   // as on the wire and in pins
	ID           string   // what create is given
	Volumes      []string // declared VOLUMEs; a sandbox of such an image is refused
	envNames     []string // names that the image sets, to be removed
}

// Created is a container that exists and has not started.
type Created struct {
	ID            string
	Profile       []byte // the normalised inspect output, RFC 8785
	ProfileDigest string // sha256 over Profile
}

// Death says how a container ended.
type Death struct {
	ExitCode  int
	OOMKilled bool
	Gone      bool // the engine knows no such container any more
	At        time.Time
}

// Listed is a container that carries our worker label. It proves nothing.
type Listed struct {
	ID, Name, WorkerID, BootEpoch, SandboxID string
	State                                    string // the engine's word: created, running, exited, ...
}

// Info is what the engine says about itself, for the cohort.
type Info struct {
	APIVersion       string
	Version          string
	Components       map[string]string // name -> version
	StorageDriver    string
	ImageStore       string // "classic" or "containerd"
	DataRoot         string
	CgroupVersion    string
	CgroupDriver     string
	SecurityOptions  []string
	DefaultRuntime   string
	RuntimePath      string // of the runtime that this worker names
	RuntimeArgs      []string
	SwapLimit        bool
	UsernsRemapped   bool
	KernelVersion    string
	InstancePid      int    // the engine's process
	Instance         string // changes whenever the engine's process does
	LiveRestore      bool
	OperatingSystem  string
	ExperimentalMode bool
}
