// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
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
	// one. An exec target without images names none: the digest of what it says of its root stands
	// for one.
	Workloads []string       `json:"workloads,omitempty"`
	Config    jsontext.Value `json:"config"` // the driver's own
}

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
	if len(f.Workloads) == 0 && f.Driver != driverExec {
		return f, fmt.Errorf("%s names no workload image", path)
	}
	return f, nil
}

// workloads are the file's, or what stands for one where the target has no images.
func (f TargetFile) workloads(ctx context.Context) ([]Workload, error) {
	if len(f.Workloads) == 0 {
		digest, err := execdriver.Workload(ctx, json.RawMessage(f.Config))
		if err != nil {
			return nil, &exit.Error{Status: exit.Failed, Sentence: "the target's program cannot be asked what a sandbox is made of", Cause: err, Remedy: "docs/exec-driver.md says what it has to answer"}
		}
		return []Workload{{ConfigDigest: digest}}, nil
	}
	var out []Workload
	for _, w := range f.Workloads {
		out = append(out, Workload{ConfigDigest: w})
	}
	return out, nil
}

// runTarget runs the suite against p.Target. Its cohort is not measured here, so nothing is signed.
func runTarget(ctx context.Context, p Params) (Result, error) {
	if len(p.Profiles) == 0 {
		p.Profiles = []string{conformance.ProfileBaseline}
	}
	workloads, err := p.Target.workloads(ctx)
	if err != nil {
		return Result{}, err
	}
	o, err := options(ctx, p, workloads)
	if err != nil {
		return Result{}, err
	}
	var root string
	if p.Lab != nil && p.Target.Driver != driverExec {
		root = p.Lab.WorkDir // which the lab sweeps, should this process be killed, and nobody else looks into
	} else if root, err = runsFolder(); err != nil {
		return Result{}, err
	}
	o.Driver, o.Target, o.Work = p.Target.Driver, json.RawMessage(p.Target.Config), filepath.Join(root, "run-"+rand.Text())
	return finish(ctx, p, o, Result{Workloads: workloads})
}

// runsFolder is where runs on somebody's own target keep their state, side by side: a driver finds
// there what a killed run has left. A tenant of another user may walk through it.
func runsFolder() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("hallmark-runs-%d", os.Geteuid()))
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", failed("no folder for the run's state", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", failed("no folder for the run's state", err)
	}
	// The folder for temporary files is everybody's.
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return "", usage(nil, "remove it, or name another folder for temporary files with TMPDIR", "%s is not a folder of this user's alone", dir)
	}
	return dir, nil
}

func targetError(err error) error {
	return &exit.Error{Status: exit.Failed, Sentence: "the target file cannot be used", Cause: err,
		Remedy: "docs/targets.md shows one for each driver: it holds driver, workloads (config digests) and config, and nothing else"}
}
