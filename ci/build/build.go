// SPDX-License-Identifier: Apache-2.0

// Package build compiles the commands the same way everywhere: static, trimmed of paths,
// stamped with the source commit and tree state. It owns the flags and nothing else; mutants
// are built by the same function with an overlay, so that nothing but the patch differs.
package build

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const modulePath = "github.com/hallmark-sandbox/hallmark"

// Commands are the programs that a release holds, in build order: the suite is stamped with the
// digest of the attack program.
var Commands = []string{"hallmark-supervisor", "hallmark-quota", "hallmark-worker", Tenant, "hallmark"}

// Tenant is the attack program, which the suite writes into workspaces.
const Tenant = "hallmark-tenant"

func source(name string) string {
	if name == Tenant {
		return "./fixtures/tenant"
	}
	return "./cmd/" + name
}

// Options say what to build.
type Options struct {
	Source  string   // the module's root folder
	Out     string   // folder for the binaries; made when missing
	Only    []string // names out of [Commands]; empty means all
	Overlay string   // file for `go build -overlay`, or ""
	Stamp   *Stamp   // nil: that of Source, by [ReadStamp]
}

// Stamp is the identity that goes into every binary.
type Stamp struct {
	Commit    string // 40 hex digits, or "unknown" outside a git checkout
	TreeState string // "clean", "dirty" or "unknown"
}

// ReadStamp asks git for the commit of source and whether tracked or untracked files differ.
// Outside a checkout both members are "unknown": such binaries work, but their evidence is refused.
func ReadStamp(ctx context.Context, source string) Stamp {
	commit, err := gitOutput(ctx, source, "rev-parse", "HEAD")
	if err != nil || len(commit) != 40 {
		return Stamp{"unknown", "unknown"}
	}
	status, err := gitOutput(ctx, source, "status", "--porcelain")
	switch {
	case err != nil:
		return Stamp{commit, "unknown"}
	case status != "":
		return Stamp{commit, "dirty"}
	}
	return Stamp{commit, "clean"}
}

func gitOutput(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// All builds the commands into o.Out. Two clones of one clean commit give the same bytes.
func All(ctx context.Context, o Options) error {
	if o.Source == "" || o.Out == "" {
		return errors.New("build: source and out are required")
	}
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	// Tried here, since the go command's error would be text.
	probe, err := os.CreateTemp(out, ".writable-")
	if err != nil {
		return fmt.Errorf("write into %s: %w", out, err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return fmt.Errorf("write into %s: %w", out, err)
	}
	stamp := o.Stamp
	if stamp == nil {
		read := ReadStamp(ctx, o.Source)
		stamp = &read
	}
	names := o.Only
	if len(names) == 0 {
		names = Commands
	}
	for _, name := range names {
		if err := one(ctx, o, filepath.Join(out, name), name, *stamp); err != nil {
			return err
		}
	}
	return nil
}

func one(ctx context.Context, o Options, target, name string, stamp Stamp) error {
	ldflags := fmt.Sprintf("-s -w -buildid= -X %[1]s/buildinfo.commit=%[2]s -X %[1]s/buildinfo.treeState=%[3]s",
		modulePath, stamp.Commit, stamp.TreeState)
	if name == "hallmark" {
		tenant, err := os.ReadFile(filepath.Join(filepath.Dir(target), Tenant))
		if err != nil {
			return fmt.Errorf("build %s: the attack program comes first: %w", name, err)
		}
		ldflags += fmt.Sprintf(" -X %s/buildinfo.tenant=sha256:%x", modulePath, sha256.Sum256(tenant))
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags}
	if o.Overlay != "" {
		args = append(args, "-overlay", o.Overlay)
	}
	// Renamed into place: a running binary of the same name is replaced, not overwritten.
	temp := target + ".new"
	args = append(args, "-o", temp, source(name))
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.Source
	// `go build` does not clean up when it is interrupted: it and what it started end together, and
	// its work folder is one of ours.
	work, err := os.MkdirTemp(filepath.Dir(target), ".go-build-")
	if err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	defer os.RemoveAll(work)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// GOFLAGS is cleared so that a caller's environment cannot change the bytes.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOEXPERIMENT=", "GOTMPDIR="+work)
	if text, err := cmd.CombinedOutput(); err != nil {
		os.Remove(temp)
		return fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return os.Rename(temp, target)
}
