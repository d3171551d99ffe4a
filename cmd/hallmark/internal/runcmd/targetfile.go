// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Names of the drivers, as target and cohort files spell them.
const (
	driverAPI    = "api"
	driverDocker = "docker"
	driverExec   = "exec"
)

// TargetFile describes a target to be attacked, in strict JSON. docs/targets.md has one for each driver.
type TargetFile struct {
	Driver string `json:"driver"` // api, docker or exec
	// Workloads are the config digests of images that the target can start; the first is the main
	// one. A driver without images takes any digest, and then needs none.
	Workloads []string       `json:"workloads,omitempty"`
	Config    jsontext.Value `json:"config"` // the driver's own
}

// noImage stands for the workload of a target that starts no images.
const noImage = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// ReadTargetFile reads path; Config is left to the driver, which decodes it as strictly.
func ReadTargetFile(path string) (TargetFile, error) {
	var f TargetFile
	b, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := strictjson.Unmarshal(b, &f, strictjson.Default); err != nil {
		return f, fmt.Errorf("decode %s: %w", path, err)
	}
	switch {
	case len(f.Workloads) > 0:
	case f.Driver == driverExec:
		f.Workloads = []string{noImage}
	default:
		return f, fmt.Errorf("%s names no workload image", path)
	}
	return f, nil
}

// runTarget runs the suite against a target of somebody else's. Its cohort is not measured
// here, so nothing is signed.
func runTarget(ctx context.Context, p Params) (Result, error) {
	file, err := ReadTargetFile(p.TargetFile)
	if err != nil {
		return Result{}, targetError(err)
	}
	if len(p.Profiles) == 0 {
		p.Profiles = []string{conformance.ProfileBaseline}
	}
	var workloads []Workload
	for _, w := range file.Workloads {
		workloads = append(workloads, Workload{ConfigDigest: w})
	}
	o, err := options(ctx, p, workloads)
	if err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "hallmark-run-")
	if err != nil {
		return Result{}, failed("no temporary folder", err)
	}
	defer os.RemoveAll(dir)
	o.Driver, o.Target, o.Work = file.Driver, json.RawMessage(file.Config), filepath.Join(dir, "work")
	return finish(ctx, p, o, Result{Workloads: workloads})
}

func targetError(err error) error {
	return &exit.Error{Status: exit.Failed, Sentence: "the target file cannot be used", Cause: err,
		Remedy: "docs/targets.md shows one for each driver: it holds driver, workloads (config digests) and config, and nothing else"}
}
