// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// counting is a kernel that counts inodes and blocks by the ids which the volume stores, and holds no
// limit. Whether limits hold is not what these tests are about.
type counting struct {
	dir string // what is counted

	mu     sync.Mutex
	st     State
	limits map[uint32]Quota
	held   map[uint32]Quota // charged besides: files that are open and have no name, or somebody else's
	large  bool             // statfs does not show the limits
}

func newCounting(dir string) *counting {
	return &counting{dir: dir, st: State{Filesystem: "xfs", Accounted: true, Enforced: true}, limits: map[uint32]Quota{}, held: map[uint32]Quota{}}
}

func (c *counting) state(int) (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st, nil
}

func (c *counting) quota(_ int, id uint32) (Quota, error) {
	c.mu.Lock()
	q := Quota{ID: id, BytesLimit: c.limits[id].BytesLimit, InodesLimit: c.limits[id].InodesLimit, Bytes: c.held[id].Bytes, Inodes: c.held[id].Inodes}
	c.mu.Unlock()
	err := filepath.WalkDir(c.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil
		}
		if m, err := readable(fd, st.Mode); err == nil && m.projid == id {
			q.Inodes++
			q.Bytes += uint64(st.Blocks) * 512
		}
		return nil
	})
	return q, err
}

func (c *counting) setLimits(_ int, id uint32, bytes, inodes uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits[id] = Quota{BytesLimit: bytes, InodesLimit: inodes}
	return nil
}

func (c *counting) next(fd int, id uint32) (Quota, error) {
	c.mu.Lock()
	all := map[uint32]bool{}
	for i := range c.limits {
		all[i] = true
	}
	for i := range c.held {
		all[i] = true
	}
	c.mu.Unlock()
	for _, i := range slices.Sorted(maps.Keys(all)) {
		if i >= id {
			return c.quota(fd, i)
		}
	}
	return Quota{}, ErrNotFound
}

func (c *counting) statfs(fd int) (st unix.Statfs_t, err error) {
	if err = unix.Fstatfs(fd, &st); err != nil || c.large {
		return st, err
	}
	m, err := readable(fd, unix.S_IFDIR)
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, ok := c.limits[m.projid]; ok && m.inherit {
		st.Blocks, st.Files = l.BytesLimit/uint64(st.Bsize), l.InodesLimit
	}
	return st, err
}

const mib = 1 << 20

var ids = Range{First: MinProjectID, Last: MinProjectID + 99}

// newStore returns a store on the volume.
func newStore(t testing.TB) (*Store, *counting) {
	t.Helper()
	dir := newDir(t) + "/store"
	k := newCounting(dir)
	s, err := openStore(dir, k)
	must(t, err)
	return s, k
}

func applyTo(t testing.TB, s *Store, id string) Workspace {
	t.Helper()
	w, err := s.Apply(context.Background(), id, 8*mib, 64, ids, Reserve{})
	must(t, err)
	return w
}

// sound proves what must hold of a store at any time: no two records have one id, and each inode with
// an id of the range belongs to the workspace that has it.
func sound(t testing.TB, s *Store) {
	t.Helper()
	all, err := records(s.dir)
	must(t, err)
	owner := map[uint32]string{}
	for _, r := range all {
		if other, twice := owner[r.ProjectID]; twice {
			t.Errorf("%s and %s have project id %d", other, r.WorkspaceID, r.ProjectID)
		}
		owner[r.ProjectID] = r.WorkspaceID
	}
	for path, m := range marks(t, s.dir) {
		if m.projid < ids.First || m.projid > ids.Last {
			continue
		}
		p, err := pathsOf(s.dir, owner[m.projid])
		if err != nil {
			t.Errorf("%s has project id %d, which nobody has", path, m.projid)
			continue
		}
		rel, err := filepath.Rel(s.dir, path)
		must(t, err)
		if in := "trees/" + p.name; rel != in && !hasDir(rel, in) && !hasDir(rel, "trash") {
			t.Errorf("%s has project id %d of %s", path, m.projid, owner[m.projid])
		}
	}
}

func hasDir(path, dir string) bool { return len(path) > len(dir) && path[:len(dir)+1] == dir+"/" }

// files lists what a store has besides its skeleton.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	var out []string
	for _, sub := range []string{"records", "trees", "trash"} {
		entries, err := os.ReadDir(s.dir + "/" + sub)
		must(t, err)
		for _, e := range entries {
			out = append(out, sub+"/"+e.Name())
		}
	}
	return out
}

func releaseOf(t testing.TB, s *Store, id string) Done {
	t.Helper()
	d, err := s.Release(context.Background(), id, 5*time.Second)
	must(t, err)
	return d
}
