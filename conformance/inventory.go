// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/conformance/internal/proctable"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// thing is one entry of an inventory.
type thing struct {
	what   string // as it is reported
	id     string // the engine's id of a container
	path   string // of a mount, loop device or process: where on the host it lies
	cgroup string // of a cgroup or process, from its hierarchy's root
}

// inventory is what the host and the engine hold, whoever made it, under a key that names each thing
// for good. It is taken before and after each case, and is not asked of the runtime under test.
type inventory map[string]thing

// settleTime bounds the wait for what ends by itself after a removal was reported: the engine's shim
// reaps, the kernel drops empty cgroups, a goroutine that has been told to returns.
const settleTime = 5 * time.Second

// engineGone means that the engine did not answer the inventory. Nothing can be judged then.
type engineGone struct{ error }

func (e engineGone) Unwrap() error { return e.error }

const cgroupRoot = "/sys/fs/cgroup"

// takeInventory lists every container of the engine, every cgroup below its parent in each
// hierarchy, every process in there, and every mount, loop device and process below work, the
// folder of the run. Parts that the target lacks are left out. In a process that is shared with
// others, its descendants are not looked at.
func takeInventory(ctx context.Context, tg *target.Target, work string, shared bool) (inventory, error) {
	out := inventory{}
	if tg.Observer == nil {
		return out, out.host(work, 0, shared)
	}
	worker, err := tg.Observer.WorkerPid()
	if err != nil {
		worker = 0
	}
	if err := out.host(work, worker, shared); err != nil {
		return nil, err
	}
	socket, err := tg.Observer.EngineSocket()
	switch {
	case err == nil:
		if err := out.containers(ctx, socket); err != nil {
			return nil, engineGone{err}
		}
	case !errors.Is(err, target.ErrUnavailable):
		return nil, err
	}
	parent, err := tg.Observer.CgroupParent()
	if errors.Is(err, target.ErrUnavailable) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	return out, out.cgroups(cgroupRoot, parent)
}

// count is i by kind, the first word of a thing.
func (i inventory) count() map[string]int64 {
	out := map[string]int64{}
	for _, t := range i {
		kind, _, _ := strings.Cut(t.what, " ")
		out[kind]++
	}
	return out
}

// Inventory counts, by kind, what the host and the engine hold in this process's scope: containers, mounts,
// loop devices, cgroups, processes. It is what the suite compares before and after each case.
func (t *T) Inventory(ctx context.Context) (map[string]int64, error) { return t.count(ctx) }

// host adds what lies below work, and this process's descendants but for the daemon under test.
func (i inventory) host(work string, worker int, shared bool) error {
	if err := i.mounts(work); err != nil {
		return err
	}
	return i.processes(work, worker, shared)
}

// containers adds every container of the engine.
func (i inventory) containers(ctx context.Context, socket string) error {
	var list []struct {
		ID    string `json:"Id"`
		Names []string
	}
	if err := engineGet(ctx, socket, "/containers/json?all=1", &list); err != nil {
		return err
	}
	for _, c := range list {
		i["container "+c.ID] = thing{what: fmt.Sprintf("container %.12s %s", c.ID, strings.Join(c.Names, ",")), id: c.ID}
	}
	return nil
}

// mounts adds the mounts and loop devices whose mount point, source or backing file lies below work.
func (i inventory) mounts(work string) error {
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !below(m.Mountpoint, work) && !below(m.Root, work) && !below(m.Source, work), false
	})
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range list {
		i[fmt.Sprintf("mount %d %s", m.ID, m.Mountpoint)] = thing{what: "mount " + m.Mountpoint, path: m.Mountpoint}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // detached in between
		}
		if name := strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)"); below(name, work) {
			i["loop "+f] = thing{what: "loop " + name, path: name}
		}
	}
	return nil
}

// processes adds those whose program, root or working folder lies below work, and what descends from
// this process, but for the daemon under test. This process's own children under its own user are left
// to [footprint]: they are the suite's.
func (i inventory) processes(work string, worker int, shared bool) error {
	table, err := proctable.Processes()
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for pid, p := range table {
		if pid == os.Getpid() || pid == worker || p.Parent == os.Getpid() && ownUser(pid) {
			continue
		}
		path := ""
		for _, link := range []string{"cwd", "root", "exe"} {
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, link))
			if err == nil && below(strings.TrimSuffix(to, " (deleted)"), work) {
				path = to
			}
		}
		if path != "" || !shared && descends(table, p, worker) {
			i[processKey(p)] = thing{what: fmt.Sprintf("process %d (%s)", pid, p.Name), path: path}
		}
	}
	return nil
}

// descends reports whether p has this process as an ancestor, on a way that does not lead through
// the daemon under test, whose helpers come and go.
func descends(table map[int]proctable.Process, p proctable.Process, worker int) bool {
	for range table {
		switch p.Parent {
		case 0, worker:
			return false
		case os.Getpid():
			return true
		}
		p = table[p.Parent]
	}
	return false
}

// cgroups adds what lies below parent, on cgroup v2 (one tree) and on v1 (one tree a controller).
func (i inventory) cgroups(root, parent string) error {
	roots, err := hierarchies(root)
	if err != nil {
		return err
	}
	for _, r := range roots {
		top := filepath.Join(r, parent)
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // gone while we look
				return nil
			case err != nil:
				return err
			case !d.IsDir() || path == top:
				return nil
			}
			group := strings.TrimPrefix(path, r)
			i["cgroup "+path] = thing{what: "cgroup " + path, cgroup: group}
			procs, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			if err != nil {
				return nil // gone, or a threaded cgroup without processes of its own
			}
			for _, text := range strings.Fields(string(procs)) {
				pid, err := strconv.Atoi(text)
				if err != nil {
					continue
				}
				if p, err := proctable.ReadProcess(pid); err == nil {
					i[processKey(p)] = thing{what: fmt.Sprintf("process %d (%s)", pid, p.Name), cgroup: group}
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("walk cgroups: %w", err)
		}
	}
	return nil
}

// hierarchies are the root of the cgroup mounts and, on v1, the controllers' trees in it. The unified hierarchy has
// its own files in its root (cgroups(7)), and what folders there are in it are cgroups.
func hierarchies(root string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	roots := []string{root}
	for _, e := range entries {
		roots = append(roots, filepath.Join(root, e.Name()))
	}
	return roots, nil
}

// since lists what i has and before has not, but for what excused lets off; sorted.
func (i inventory) since(before inventory, excused func(thing) bool) []string {
	var left []string
	for key, t := range i {
		if _, ok := before[key]; !ok && !excused(t) {
			left = append(left, t.what)
		}
	}
	slices.Sort(left)
	return left
}

// elsewhere reports what provably lies in the scope of another process of this run, or of another
// run beside it, which accounts for it itself.
func (b *bench) elsewhere(ctx context.Context) func(thing) bool {
	scopes := append(b.othersScopes(), b.besideScopes()...)
	socket := ""
	if b.target.Observer != nil {
		socket, _ = b.target.Observer.EngineSocket() // without one there are no containers
	}
	return inScopes(ctx, scopes, socket)
}

// inScopes reports what lies in one of scopes. The engine is asked where a container belongs.
func inScopes(ctx context.Context, scopes []scope, socket string) func(thing) bool {
	return func(t thing) bool {
		if t.id != "" && len(scopes) > 0 {
			var seen struct{ HostConfig struct{ CgroupParent string } }
			if engineGet(ctx, socket, "/containers/"+t.id+"/json", &seen) != nil {
				return false // gone in between: the next look does not have it
			}
			t.cgroup = seen.HostConfig.CgroupParent
		}
		return slices.ContainsFunc(scopes, func(s scope) bool {
			return s.holds(t.cgroup) || t.path != "" && s.WorkDir != "" && below(t.path, s.WorkDir)
		})
	}
}

// findLeftovers judges everything that is there after the clean-up and was not before the case.
func (b *bench) findLeftovers(t *T, before inventory) {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime+10*time.Second)
	defer cancel()
	left, err := settle(b.settling(), func() ([]string, error) {
		after, err := takeInventory(ctx, b.target, b.work, b.sharing)
		if err != nil {
			return nil, err
		}
		return after.since(before, b.elsewhere(ctx)), nil
	})
	switch {
	case err != nil:
		t.blind(err)
	case len(left) > 0:
		t.judge("leftover", "%d things are left that were not there before: %s", len(left), strings.Join(left[:min(len(left), 8)], "; "))
	}
}

// settle looks until nothing is left, at most for the time within.
func settle(within time.Duration, look func() ([]string, error)) ([]string, error) {
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		left, err := look()
		if err != nil || len(left) == 0 || time.Now().After(deadline) {
			return left, err
		}
	}
}

// blind makes the case an error because the suite cannot look. That outweighs what was judged: a
// target cannot clean up through an engine that is gone.
func (t *T) blind(err error) {
	var gone engineGone
	if errors.As(err, &gone) {
		t.broke("engine-gone", "the engine does not answer: "+gone.Error())
		return
	}
	t.broke("inventory", err.Error())
}

// searchInspect looks for the case's canaries in what the engine tells of every container, while
// the case's own are still there.
func (t *T) searchInspect(tg *target.Target) {
	t.mu.Lock()
	planted := slices.Clone(t.canaries)
	t.mu.Unlock()
	if len(planted) == 0 || tg.Observer == nil {
		return
	}
	socket, err := tg.Observer.EngineSocket()
	if err != nil {
		return // the part is absent; that the search was not made is in Target.Parts
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var list []struct {
		ID string `json:"Id"`
	}
	if err := engineGet(ctx, socket, "/containers/json?all=1", &list); err != nil {
		t.blind(engineGone{err})
		return
	}
	for _, c := range list {
		var raw json.RawMessage
		if err := engineGet(ctx, socket, "/containers/"+c.ID+"/json", &raw); err != nil {
			continue // removed in between
		}
		t.findCanary(planted, "the engine's view of a container", raw)
	}
}
