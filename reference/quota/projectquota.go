// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/quota/project"
)

// ProjectConfig builds a Project. Everything but Log and the reserves is required.
type ProjectConfig struct {
	// Dir is absolute, and on a filesystem that is mounted with nosuid and nodev and enforces project
	// quota. It is created with mode 0700 when it is missing; its parent is not.
	Dir           string
	Filesystem    string // ext4 or xfs: what Dir must be on
	FirstID       int64  // project ids that are this worker's alone, both included; see project.Range
	LastID        int64
	Helper        string // path of hallmark-quota
	HelperDigest  string // sha256:<64 hex>, compared before every call
	ReserveBytes  int64  // floor of the host reserve; 10 % holds in any case
	ReserveInodes int64
	// EngineMountinfo returns the path of the engine's mount table, like /proc/<pid>/mountinfo.
	EngineMountinfo func() (string, error)
	Log             *slog.Logger
}

// Project keeps one directory per workspace under a project id. Safe for concurrent use.
type Project struct {
	cfg  ProjectConfig
	lock *os.File // held on Dir until Close
}

// NewProject checks the configuration, the helper, and with the kernel whether project quota is enforced
// where Dir is: ErrNotEnforced when not, before anything is made. It then holds the directory as NewLoop
// does.
func NewProject(cfg ProjectConfig) (*Project, error) {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("quota: "+what))
		}
	}
	need(filepath.IsAbs(cfg.Dir), "Dir must be absolute")
	need(cfg.Filesystem == "ext4" || cfg.Filesystem == "xfs", "Filesystem must be ext4 or xfs")
	need(cfg.FirstID >= project.MinProjectID && cfg.FirstID <= cfg.LastID && cfg.LastID <= project.MaxProjectID,
		fmt.Sprintf("FirstID and LastID must be within %d to %d", project.MinProjectID, uint32(project.MaxProjectID)))
	need(filepath.IsAbs(cfg.Helper), "Helper must be absolute")
	need(digestRE.MatchString(cfg.HelperDigest), "HelperDigest must be sha256:<64 hex digits>")
	need(cfg.ReserveBytes >= 0 && cfg.ReserveInodes >= 0, "a reserve is negative")
	need(cfg.EngineMountinfo != nil, "EngineMountinfo is required")
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	// The helper takes no path with a symlink, and the directory itself may still be missing.
	parent, err := filepath.EvalSymlinks(filepath.Dir(filepath.Clean(cfg.Dir)))
	if err != nil {
		return nil, fmt.Errorf("resolve workspace directory: %w", err)
	}
	dir := filepath.Join(parent, filepath.Base(cfg.Dir))
	where := dir
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir, where = real, real
	} else if errors.Is(err, os.ErrNotExist) {
		where = parent
	} else {
		return nil, fmt.Errorf("resolve workspace directory: %w", err)
	}
	cfg.Dir = dir
	p := &Project{cfg: cfg}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var st project.State
	if err := p.helper(where).call(ctx, &st, "state"); err != nil {
		return nil, fmt.Errorf("ask for the state of quota: %w", err)
	}
	if !st.Enforced || st.Filesystem != cfg.Filesystem {
		return nil, fmt.Errorf("%w: %s is on %s, project quota accounted %t, enforced %t; %s with all three is needed",
			ErrNotEnforced, where, st.Filesystem, st.Accounted, st.Enforced, cfg.Filesystem)
	}
	if _, err := p.List(ctx); err != nil { // it makes the directory
		return nil, err
	}
	if p.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Project) helper(dir string) helper {
	return helper{p.cfg.Helper, p.cfg.HelperDigest, "project", dir}
}

func (p *Project) call(ctx context.Context, out any, verb string, args ...string) error {
	return p.helper(p.cfg.Dir).call(ctx, out, verb, args...)
}

// Close gives the directory back. Workspaces stay as they are. No other method may be called
// afterwards.
func (p *Project) Close() error {
	if err := p.lock.Close(); err != nil {
		return fmt.Errorf("unlock workspace directory: %w", err)
	}
	return nil
}

// Known reports whether the workspace has been prepared before: it may then hold data.
func (p *Project) Known(_ context.Context, workspaceID string) (bool, error) {
	known, err := project.Known(p.cfg.Dir, workspaceID)
	if err != nil {
		return false, fmt.Errorf("look workspace up: %w", err)
	}
	return known, nil
}

// Prepare makes or finds the workspace, gives it its limits, applies its project id to everything in it
// and verifies that. Idempotent; finishes what an interrupted call began.
func (p *Project) Prepare(ctx context.Context, s Spec) (Mount, error) {
	if s.Bytes <= 0 || s.Bytes > project.MaxBytes || s.Inodes <= 0 || s.Inodes > project.MaxWorkspaceInodes {
		return Mount{}, fmt.Errorf("%w: %d bytes, %d inodes", ErrSpec, s.Bytes, s.Inodes)
	}
	var w project.Workspace
	err := p.call(ctx, &w, "apply", s.WorkspaceID, itoa(s.Bytes), itoa(s.Inodes), itoa(p.cfg.FirstID), itoa(p.cfg.LastID), itoa(p.cfg.ReserveBytes), itoa(p.cfg.ReserveInodes))
	if err != nil {
		return Mount{}, fmt.Errorf("apply project quota: %w", err)
	}
	if err := p.checkEngine(w); err != nil {
		return Mount{}, err
	}
	p.cfg.Log.InfoContext(ctx, "workspace prepared", "workspace", s.WorkspaceID, "new", w.New, "bytes", w.Bytes, "inodes", w.Inodes,
		"project", w.ProjectID, "found", w.Walked.Inodes, "unset", w.Walked.Unset)
	return Mount{
		Path: w.Path, DeviceMajor: w.Major, DeviceMinor: w.Minor,
		StatfsBlocks: w.Blocks, StatfsBlockSize: w.BlockSize, StatfsInodes: w.Files,
		Bytes: w.Bytes, Inodes: w.Inodes,
	}, nil
}

// Verify looks at every inode of the workspace, at its limits, and at the engine's mount table; it
// changes nothing. To be called before every container start. It takes longer than a loop image's:
// BenchmarkApply100000 of reference/quota/project says how long.
func (p *Project) Verify(ctx context.Context, workspaceID string) error {
	var w project.Workspace
	if err := p.call(ctx, &w, "verify", workspaceID); err != nil {
		return fmt.Errorf("verify project quota: %w", err)
	}
	return p.checkEngine(w)
}

// Usage returns the workspace's use, by the kernel; ErrNotEnforced when it holds other limits, or none.
func (p *Project) Usage(ctx context.Context, workspaceID string) (Usage, error) {
	var u project.Used
	if err := p.call(ctx, &u, "usage", workspaceID); err != nil {
		return Usage{}, fmt.Errorf("read workspace usage: %w", err)
	}
	return Usage{Bytes: u.Bytes, BytesLimit: u.BytesLimit, Inodes: u.Inodes, InodesLimit: u.InodesLimit}, nil
}

// Release has nothing to give back: nothing is mounted for a workspace, and its limits stay.
func (p *Project) Release(context.Context, string) error { return nil }

// Purge removes the workspace, and gives its project id back when the kernel counts nothing of it.
// ErrBusy when something is still charged at ctx's deadline. Purging what does not exist succeeds.
func (p *Project) Purge(ctx context.Context, workspaceID string) error {
	var d project.Done
	if err := p.call(ctx, &d, "release", workspaceID, itoa(patience(ctx).Milliseconds())); err != nil {
		return fmt.Errorf("purge workspace: %w", err)
	}
	if d.Found {
		p.cfg.Log.InfoContext(ctx, "workspace purged", "workspace", workspaceID)
	}
	return nil
}

// List returns the id of every workspace that has a record, half-made ones included.
func (p *Project) List(ctx context.Context) ([]string, error) {
	var out project.Listed
	err := p.call(ctx, &out, "list")
	ids := []string{}
	for _, w := range out.Workspaces {
		ids = append(ids, w.WorkspaceID)
	}
	if err != nil {
		return ids, fmt.Errorf("list workspaces: %w", err)
	}
	return ids, nil
}
