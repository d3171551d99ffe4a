// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// inventory is what the host and the engine hold, whoever made it. It is taken before and after
// each case, and is not asked of the runtime under test.
type inventory map[string]bool

// settleTime bounds the wait for what ends by itself after a removal was reported: the
// engine's shim reaps, the kernel drops empty cgroups.
const settleTime = 5 * time.Second

// takeInventory lists every container of the engine, every cgroup below its parent in each
// hierarchy, every process in there, and every mount and loop device below work, the folder of
// a launched runtime. Parts that the target lacks are left out.
func takeInventory(ctx context.Context, tg *target.Target, work string) (inventory, error) {
	out := inventory{}
	if err := out.mounts(work); err != nil {
		return nil, err
	}
	if tg.Observer == nil {
		return out, nil
	}
	socket, err := tg.Observer.EngineSocket()
	switch {
	case err == nil:
		var list []struct {
			ID    string `json:"Id"`
			Names []string
		}
		if err := engineGet(ctx, socket, "/containers/json?all=1", &list); err != nil {
			return nil, err
		}
		for _, c := range list {
			out[fmt.Sprintf("container %.12s %s", c.ID, strings.Join(c.Names, ","))] = true
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
	return out, out.cgroups("/sys/fs/cgroup", parent)
}

// mounts adds the mounts and loop devices whose mount point or backing file lies below work.
func (i inventory) mounts(work string) error {
	list, err := mountinfo.GetMounts(mountinfo.PrefixFilter(work))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range list {
		i["mount "+m.Mountpoint] = true
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
		if name := strings.TrimSpace(string(b)); strings.HasPrefix(name, work+"/") {
			i["loop "+name] = true
		}
	}
	return nil
}

// cgroups adds what lies below parent, on cgroup v2 (one tree) and on v1 (one tree a controller).
func (i inventory) cgroups(root, parent string) error {
	roots := []string{root}
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	for _, e := range entries {
		roots = append(roots, filepath.Join(root, e.Name()))
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
			i["cgroup "+path] = true
			procs, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			if err != nil {
				return nil // gone, or a threaded cgroup without processes of its own
			}
			for _, pid := range strings.Fields(string(procs)) {
				i["process "+pid] = true
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("walk cgroups: %w", err)
		}
	}
	return nil
}

// findLeftovers judges everything that is there after the clean-up and was not before the case.
func (t *T) findLeftovers(tg *target.Target, work string, before inventory) {
	if before == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime+10*time.Second)
	defer cancel()
	for deadline := time.Now().Add(settleTime); ; {
		after, err := takeInventory(ctx, tg, work)
		if err != nil {
			t.setEnd(Errored, "inventory", err.Error())
			return
		}
		var left []string
		for item := range after {
			if !before[item] {
				left = append(left, item)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			slices.Sort(left)
			t.judge("leftover", "%d things are left that were not there before: %s", len(left), strings.Join(left[:min(len(left), 8)], "; "))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
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
		t.setEnd(Errored, "inventory", err.Error())
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

// engineGet asks the engine itself, past tape and runtime. The path is of its unversioned API.
func engineGet(ctx context.Context, socket, path string, into any) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, nil)
	if err != nil {
		return fmt.Errorf("ask engine: %w", err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("ask engine: %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("ask engine %s: %w", path, err)
	}
	return nil
}
