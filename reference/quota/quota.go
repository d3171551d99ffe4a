// SPDX-License-Identifier: Apache-2.0

// Package quota gives every workspace a hard bound in bytes and inodes and proves it.
// It owns the workspace directory's images and mounts through one helper program, and
// observes the engine's mount table. It never reports a bound that the kernel did not
// confirm, never follows a path that a tenant can change, never runs a helper whose digest
// it has not just computed, and has no "off" mode. There are two backends: Loop, a file system image
// per workspace, and Project, project quota of ext4 or XFS. Read reference/quota/loopimage next, or
// reference/quota/project.
package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/quota/exitcode"
	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
)

// Sentinels, matched with errors.Is.
var (
	ErrReserve      = exitcode.ErrReserve      // the host reserve does not allow it; nothing was made
	ErrBusy         = exitcode.ErrBusy         // still in use
	ErrNotFound     = exitcode.ErrNotFound     // no such workspace
	ErrMissingMount = exitcode.ErrMissingMount // not mounted as it must be
	ErrSpec         = exitcode.ErrSpec         // impossible bounds
	ErrMismatch     = exitcode.ErrMismatch     // the workspace exists with other bounds; it is never resized
	ErrCorrupt      = exitcode.ErrCorrupt      // the image is damaged or gone
	ErrTool         = exitcode.ErrTool         // a program or kernel facility is missing
	ErrNotEnforced  = exitcode.ErrNotEnforced  // the kernel holds no limit
	ErrChanged      = exitcode.ErrChanged      // somebody else works in the workspace
	ErrOutsideLink  = exitcode.ErrOutsideLink  // to be repaired
	ErrForeign      = exitcode.ErrForeign      // a mount point or a device in the workspace
	ErrExhausted    = exitcode.ErrExhausted    // no project id is left
	ErrTooLarge     = exitcode.ErrTooLarge     // it held more than its bounds before
	ErrHelper       = errors.New("the quota helper is not the pinned one")
)

// Spec asks for a workspace.
type Spec struct {
	WorkspaceID string
	Bytes       int64 // 4 MiB .. 1 TiB, rounded up to 4 KiB
	Inodes      int64 // 16 .. two per 4 KiB
}

// Mount is a mounted workspace, as the kernel reported it. StatfsBlocks, StatfsBlockSize
// and StatfsInodes are f_blocks, f_bsize and f_files: a sandbox's own statfs of /workspace must
// show the same.
type Mount struct {
	Path            string
	DeviceMajor     uint32
	DeviceMinor     uint32
	StatfsBlocks    uint64
	StatfsBlockSize uint64
	StatfsInodes    uint64
	Bytes           int64 // bound
	Inodes          int64 // bound
}

// Usage is what a workspace's files take. An empty workspace is at 0 and 0. A full one is at
// Inodes == InodesLimit, and at Bytes >= BytesLimit by at most the kernel's pool: see loopimage.
type Usage struct{ Bytes, BytesLimit, Inodes, InodesLimit int64 }

// LoopConfig builds a Loop. Everything but Log and the reserves is required.
type LoopConfig struct {
	Dir           string // absolute; created with mode 0700 when it is missing
	Helper        string // path of hallmark-quota
	HelperDigest  string // sha256:<64 hex>, compared before every call
	ReserveBytes  int64  // floor of the host reserve; 10 % holds in any case
	ReserveInodes int64
	// EngineMountinfo returns the path of the engine's mount table, like /proc/<pid>/mountinfo.
	EngineMountinfo func() (string, error)
	Log             *slog.Logger
}

// Loop keeps one ext4 image per workspace. Safe for concurrent use.
type Loop struct {
	cfg  LoopConfig
	lock *os.File // held on Dir until Close
}

var digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// NewLoop checks the configuration, the helper and the directory, and holds the directory for
// this Loop alone until Close or the end of the process. ErrLocked when another one has it.
func NewLoop(cfg LoopConfig) (*Loop, error) {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("quota: "+what))
		}
	}
	need(filepath.IsAbs(cfg.Dir), "Dir must be absolute")
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
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make workspace directory: %w", err)
	}
	dir, err := filepath.EvalSymlinks(cfg.Dir) // the kernel names backing files without symlinks
	if err != nil {
		return nil, fmt.Errorf("resolve workspace directory: %w", err)
	}
	cfg.Dir = dir
	l := &Loop{cfg: cfg}
	if l.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := l.List(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Loop) call(ctx context.Context, out any, verb string, args ...string) error {
	return helper{l.cfg.Helper, l.cfg.HelperDigest, "loop", l.cfg.Dir}.call(ctx, out, verb, args...)
}

// Close gives the directory back. Workspaces stay as they are. No other method may be called
// afterwards.
func (l *Loop) Close() error {
	if err := l.lock.Close(); err != nil {
		return fmt.Errorf("unlock workspace directory: %w", err)
	}
	return nil
}

// Known reports whether the workspace has been prepared before: it may then hold data. A
// half-made image is none.
func (l *Loop) Known(_ context.Context, workspaceID string) (bool, error) {
	known, err := loopimage.Known(l.cfg.Dir, workspaceID)
	if err != nil {
		return false, fmt.Errorf("look workspace up: %w", err)
	}
	return known, nil
}

// Prepare makes or finds the workspace's image, checks and mounts it, and verifies the
// mount in the engine's table. Idempotent; finishes what an interrupted call began.
func (l *Loop) Prepare(ctx context.Context, s Spec) (Mount, error) {
	if s.Bytes <= 0 || s.Bytes > loopimage.MaxBytes || s.Inodes <= 0 || s.Inodes > loopimage.MaxBytes {
		return Mount{}, fmt.Errorf("%w: %d bytes, %d inodes", ErrSpec, s.Bytes, s.Inodes)
	}
	var c loopimage.Created
	err := l.call(ctx, &c, "create", s.WorkspaceID, itoa(s.Bytes), itoa(s.Inodes), itoa(l.cfg.ReserveBytes), itoa(l.cfg.ReserveInodes))
	if err != nil {
		return Mount{}, fmt.Errorf("create workspace image: %w", err)
	}
	var m loopimage.Mounted
	if err := l.call(ctx, &m, "mount", s.WorkspaceID); err != nil {
		return Mount{}, fmt.Errorf("mount workspace image: %w", err)
	}
	if err := l.checkEngine(m); err != nil {
		return Mount{}, err
	}
	l.cfg.Log.InfoContext(ctx, "workspace prepared", "workspace", s.WorkspaceID, "new", c.New, "bytes", m.Bytes, "inodes", m.Inodes)
	return Mount{
		Path: m.Path, DeviceMajor: m.Major, DeviceMinor: m.Minor,
		StatfsBlocks: m.Blocks, StatfsBlockSize: m.BlockSize, StatfsInodes: m.Files,
		Bytes: m.Bytes, Inodes: m.Inodes,
	}, nil
}

// Verify asks the kernel and the engine's mount table whether the workspace is mounted as
// it must be; ErrMissingMount when not. To be called before every container start.
func (l *Loop) Verify(ctx context.Context, workspaceID string) error {
	var m loopimage.Mounted
	if err := l.call(ctx, &m, "verify", workspaceID); err != nil {
		return fmt.Errorf("verify workspace mount: %w", err)
	}
	return l.checkEngine(m)
}

// Usage returns the workspace's use; ErrMissingMount when it is not mounted.
func (l *Loop) Usage(ctx context.Context, workspaceID string) (Usage, error) {
	var u loopimage.Used
	if err := l.call(ctx, &u, "usage", workspaceID); err != nil {
		return Usage{}, fmt.Errorf("read workspace usage: %w", err)
	}
	return Usage{Bytes: u.Bytes, BytesLimit: u.BytesLimit, Inodes: u.Inodes, InodesLimit: u.InodesLimit}, nil
}

// releaseDefault bounds Release when ctx has no deadline; releaseMargin is left for the answer.
const (
	releaseDefault = 30 * time.Second
	releaseMargin  = 50 * time.Millisecond
)

// patience is how long the helper may wait for the kernel.
func patience(ctx context.Context) time.Duration {
	d, ok := ctx.Deadline()
	if !ok {
		return releaseDefault
	}
	left := time.Until(d)
	// A busy host starts the helper late, and its answer has to come before the deadline.
	return max(left-max(releaseMargin, min(left/4, time.Second)), 0)
}

// Release unmounts the workspace and returns nil only when no loop device names its image.
// ErrBusy when one still does at ctx's deadline. Releasing what is not mounted succeeds.
func (l *Loop) Release(ctx context.Context, workspaceID string) error {
	var d loopimage.Done
	if err := l.call(ctx, &d, "release", workspaceID, itoa(patience(ctx).Milliseconds())); err != nil {
		return fmt.Errorf("release workspace: %w", err)
	}
	return nil
}

// Purge removes the image and its record. ErrBusy while it is mounted or a loop device
// names it. Purging what does not exist succeeds.
func (l *Loop) Purge(ctx context.Context, workspaceID string) error {
	var d loopimage.Done
	if err := l.call(ctx, &d, "purge", workspaceID); err != nil {
		return fmt.Errorf("purge workspace: %w", err)
	}
	if d.Found {
		l.cfg.Log.InfoContext(ctx, "workspace purged", "workspace", workspaceID)
	}
	return nil
}

// List returns the id of every workspace that has a record, half-made ones included.
func (l *Loop) List(ctx context.Context) ([]string, error) {
	var out loopimage.Listed
	if err := l.call(ctx, &out, "list"); err != nil {
		return out.WorkspaceIDs, fmt.Errorf("list workspaces: %w", err)
	}
	return out.WorkspaceIDs, nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
