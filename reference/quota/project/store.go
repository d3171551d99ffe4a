// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/internal/durable"
)

// Project ids that a range may have. The engine gives its own ids to layers on the same filesystem, one
// after another from 1 on; a million of them stay below. The kernel keeps the highest for "none".
const (
	MinProjectID = 1 << 20
	MaxProjectID = 1<<32 - 2
)

// Bounds of a workspace. MinInodes is the loop backend's too; MaxWorkspaceInodes is what a walk
// remembers, less the root.
const (
	MinBytes           = 4 << 20
	MaxBytes           = 1 << 40
	MinInodes          = 16
	MaxWorkspaceInodes = MaxInodes - 1

	blockSize = 4096
)

// Range is the project ids that may be given, both ends included.
type Range struct{ First, Last uint32 }

func (r Range) check() error {
	if r.First < MinProjectID || r.Last > MaxProjectID || r.First > r.Last {
		return fmt.Errorf("%w: project ids %d to %d; they must be within %d to %d", ErrUsage, r.First, r.Last, MinProjectID, uint32(MaxProjectID))
	}
	return nil
}

// Reserve is what must stay free for the host: 10 % of the filesystem or these, whichever is more.
type Reserve struct{ Bytes, Inodes int64 }

// Store is one directory of workspaces. Operations on one workspace exclude each other, between
// processes too. Lock order: workspace, then directory.
type Store struct {
	dir    string
	kernel kernel
	at     barriers
	step   func(name string) // after each durable step; for tests
}

// Open checks dir, which must be absolute and without symlinks, and creates what is missing in it;
// its parent must exist. ErrNotEnforced comes before anything is made: where the filesystem that
// should be here is not mounted, nothing is written to what is underneath.
func Open(dir string) (*Store, error) { return openStore(dir, quotactl{}) }

func openStore(dir string, k kernel) (*Store, error) {
	s := &Store{dir: dir, kernel: k, step: func(string) {}}
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return nil, fmt.Errorf("%w: %q is not an absolute, clean path", ErrUsage, dir)
	}
	place := dir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		place = filepath.Dir(dir)
	}
	d, err := os.Open(place)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	defer d.Close()
	if _, err := s.enforced(d); err != nil {
		return nil, err
	}
	return s, durable.Directories(dir, "records", "trees", "trash")
}

// enforced asks the kernel.
func (s *Store) enforced(d *os.File) (State, error) {
	st, err := s.kernel.state(int(d.Fd()))
	if err != nil {
		return st, err
	}
	switch {
	case !st.Accounted:
		err = fmt.Errorf("%w: the kernel has none on the %s of %s; mount it with prjquota, on a kernel with that quota format", ErrNotEnforced, st.Filesystem, s.dir)
	case !st.Enforced:
		err = fmt.Errorf("%w: the kernel counts on the %s of %s and holds no limit", ErrNotEnforced, st.Filesystem, s.dir)
	}
	return st, err
}

// Ask returns what the kernel says of project quota on the filesystem of dir. It makes nothing.
func Ask(dir string) (State, error) {
	d, err := os.Open(dir)
	if err != nil {
		return State{}, fmt.Errorf("ask for the state of quota: %w", err)
	}
	defer d.Close()
	return quotactl{}.state(int(d.Fd()))
}

// lock returns the names of id under its lock. unlock leaves no file behind when there is no record.
func (s *Store) lock(ctx context.Context, id string) (p paths, unlock func(), err error) {
	if p, err = pathsOf(s.dir, id); err != nil {
		return p, nil, err
	}
	lock, err := durable.Lock(ctx, p.lock)
	if err != nil {
		return p, nil, err
	}
	return p, func() {
		if _, err := os.Lstat(p.record); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(p.lock) // still held: nobody else can take this inode for the lock
		}
		lock.Close()
	}, nil
}

// place is the directory of the trees, as long as it is open.
type place struct {
	*os.File
	State
	rootBytes int64 // what the kernel charges for an empty workspace's root
}

// open returns the place; ErrNotEnforced when limits do not hold.
func (s *Store) open() (*place, error) {
	d, err := os.Open(s.dir + "/trees")
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	p := &place{File: d}
	if p.State, err = s.enforced(d); err == nil && p.Filesystem == "ext4" {
		p.rootBytes = blockSize // XFS keeps a small directory in its inode
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return p, nil
}

// limits are what the kernel has to hold, the root of the workspace included.
func (p *place) limits(r record) (bytes, inodes uint64) {
	return uint64(bound(r.Bytes) + p.rootBytes), uint64(r.Inodes) + 1
}

func bound(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize * blockSize }

// holds says whether the kernel has the limits of r.
func (s *Store) holds(p *place, r record) (Quota, error) {
	q, err := s.kernel.quota(int(p.Fd()), r.ProjectID)
	if err != nil {
		return q, err
	}
	if bytes, inodes := p.limits(r); q.BytesLimit != bytes || q.InodesLimit != inodes {
		return q, fmt.Errorf("%w: project id %d has limits of %d bytes and %d inodes instead of %d and %d",
			ErrNotEnforced, r.ProjectID, q.BytesLimit, q.InodesLimit, bytes, inodes)
	}
	return q, nil
}

// Workspace is what apply and verify print: what the kernel says now.
type Workspace struct {
	New        bool    `json:"new"`
	Path       string  `json:"path"`
	ProjectID  uint32  `json:"projectId"`
	Filesystem string  `json:"filesystem"`
	Major      uint32  `json:"major"`
	Minor      uint32  `json:"minor"`
	Blocks     uint64  `json:"blocks"` // statfs f_blocks
	BlockSize  uint64  `json:"blockSize"`
	Files      uint64  `json:"files"` // statfs f_files
	Bytes      int64   `json:"bytes"` // bound
	Inodes     int64   `json:"inodes"`
	Walked     Counted `json:"walked"`
}

// Used is what usage prints. An empty workspace is at 0 and 0: its root is not charged.
type Used struct {
	Bytes       int64  `json:"bytes"`
	BytesLimit  int64  `json:"bytesLimit"`
	Inodes      int64  `json:"inodes"`
	InodesLimit int64  `json:"inodesLimit"`
	ProjectID   uint32 `json:"projectId"`
}

// Listed is what list prints, in the order of ids.
type Listed struct {
	Workspaces []Entry `json:"workspaces"`
}

// Entry is one record.
type Entry struct {
	WorkspaceID string `json:"workspaceId"`
	ProjectID   uint32 `json:"projectId"`
	State       string `json:"state"` // intended, applied, releasing
}

// Done is what release prints.
type Done struct {
	Found bool `json:"found"` // something was there to release
}

// List returns every workspace with a record. A record that cannot be read is an error beside the rest.
func (s *Store) List() (Listed, error) {
	all, err := records(s.dir)
	out := Listed{Workspaces: []Entry{}}
	for _, r := range all {
		out.Workspaces = append(out.Workspaces, Entry{r.WorkspaceID, r.ProjectID, r.State})
	}
	return out, err
}

// Usage returns what the kernel counts. ErrNotEnforced when it holds other limits, or none.
func (s *Store) Usage(ctx context.Context, id string) (Used, error) {
	p, unlock, err := s.lock(ctx, id)
	if err != nil {
		return Used{}, err
	}
	defer unlock()
	rec, err := readRecord(p)
	if err != nil {
		return Used{}, err
	}
	at, err := s.open()
	if err != nil {
		return Used{}, err
	}
	defer at.Close()
	q, err := s.holds(at, rec)
	if err != nil {
		return Used{}, err
	}
	return Used{
		Bytes: max(int64(q.Bytes)-at.rootBytes, 0), BytesLimit: bound(rec.Bytes),
		Inodes: max(int64(q.Inodes)-1, 0), InodesLimit: rec.Inodes, ProjectID: rec.ProjectID,
	}, nil
}

// Verify looks at every inode of the workspace and at its limits; it changes nothing.
func (s *Store) Verify(ctx context.Context, id string) (Workspace, error) {
	p, unlock, err := s.lock(ctx, id)
	if err != nil {
		return Workspace{}, err
	}
	defer unlock()
	rec, err := readRecord(p)
	if err != nil {
		return Workspace{}, err
	}
	if rec.State != applied {
		return Workspace{}, fmt.Errorf("%w: %s is %s", ErrNotFound, id, rec.State)
	}
	at, err := s.open()
	if err != nil {
		return Workspace{}, err
	}
	defer at.Close()
	if _, err := s.holds(at, rec); err != nil {
		return Workspace{}, err
	}
	t, err := s.tree(at, p, rec)
	if err != nil {
		return Workspace{}, err
	}
	defer t.close()
	count, err := t.audit(ctx, rec.ProjectID)
	if err != nil {
		return Workspace{}, err
	}
	return s.observe(at, t, p, rec, count)
}

// tree opens the workspace's directory. One that was there before and is not is damage.
func (s *Store) tree(at *place, p paths, rec record) (*tree, error) {
	t, err := openTree(int(at.Fd()), p.name)
	if errors.Is(err, fs.ErrNotExist) && rec.State == applied {
		return nil, fmt.Errorf("%w: the directory of %s is gone", ErrCorrupt, p.id)
	}
	return t, err
}

// observe returns what the kernel says of the workspace's directory, or ErrMissingMount when that is
// not what a sandbox may get.
func (s *Store) observe(at *place, t *tree, p paths, rec record, count Counted) (Workspace, error) {
	st, err := s.kernel.statfs(t.mount)
	if err != nil {
		return Workspace{}, fmt.Errorf("ask filesystem: %w", err)
	}
	const need = unix.ST_NOSUID | unix.ST_NODEV
	if st.Flags&need != need || st.Flags&unix.ST_RDONLY != 0 {
		return Workspace{}, fmt.Errorf("%w: mount flags %#x; mount the filesystem with nosuid,nodev", ErrMissingMount, st.Flags)
	}
	// Both filesystems show a directory that passes its id on as large as its limits, while they hold.
	bytes, inodes := at.limits(rec)
	if st.Blocks*uint64(st.Bsize) > bytes || st.Files > inodes {
		return Workspace{}, fmt.Errorf("%w: the directory shows %d bytes and %d inodes", ErrNotEnforced, st.Blocks*uint64(st.Bsize), st.Files)
	}
	return Workspace{
		Path: p.tree, ProjectID: rec.ProjectID, Filesystem: at.Filesystem, Major: t.rootStat.Dev_major, Minor: t.rootStat.Dev_minor,
		Blocks: st.Blocks, BlockSize: uint64(st.Bsize), Files: st.Files, Bytes: bound(rec.Bytes), Inodes: rec.Inodes, Walked: count,
	}, nil
}
