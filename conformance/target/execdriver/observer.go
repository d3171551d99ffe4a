// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
)

// observer looks where the program points, and at what the kernel and the engine say of it.
type observer struct{ *driver }

func (d *driver) has(part string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.about.Parts, part)
}

func (d *driver) description() describeAnswer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.about
}

// Container asks the program where the sandbox is and believes nothing that it can check.
func (o observer) Container(ctx context.Context, id string) (target.Container, error) {
	about := o.description()
	path, cgroup, engine := o.has("observer.workspace-path"), o.has("observer.cgroup"), o.has("observer.engine")
	if !path && !cgroup && !engine {
		return target.Container{}, target.ErrUnavailable
	}
	var a observeAnswer
	err := o.conn.call(ctx, "observe", o.conn.bounds.answer, &sandboxRequest{Sandbox: id}, &a)
	if target.KindOf(err) == target.KindGone {
		return target.Container{}, target.ErrNoContainer
	}
	if err != nil {
		return target.Container{}, err
	}
	c := target.Container{ID: id, Name: about.Name + "-" + id, Pid: a.Pid}
	if engine {
		if c, err = inspect(ctx, about.Engine, a.Container); err != nil {
			return target.Container{}, err
		}
		if a.Pid != 0 && a.Pid != c.Pid {
			return target.Container{}, violation("observe: the process of %s is %d, the engine says %d", id, a.Pid, c.Pid)
		}
	}
	if cgroup {
		if c.Cgroups, err = cgroupsBelow(about.CgroupParent, a.Cgroups); err != nil {
			return target.Container{}, err
		}
	}
	if c.Pid != 0 {
		if err := alive(c.Pid); err != nil {
			return target.Container{}, err
		}
	}
	if path {
		if err := o.provePath(ctx, id, a.Workspace); err != nil {
			return target.Container{}, err
		}
		c.Workspace = a.Workspace
	}
	return c, nil
}

// provePath writes a file with random contents through the program and looks for it on the host,
// once for each sandbox.
func (o observer) provePath(ctx context.Context, id, path string) error {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) {
		return violation("observe: the workspace path %q is not clean and absolute", path)
	}
	o.mu.Lock()
	known := o.checked[id+"\x00"+path]
	o.mu.Unlock()
	if known {
		return nil
	}
	name, body := ".hallmark-"+rand.Text(), []byte(rand.Text())
	f := files{sandbox{driver: o.driver, id: id}}
	if err := f.Write(ctx, name, body); err != nil {
		return fmt.Errorf("observe: check the workspace path: %w", err)
	}
	seen, err := os.ReadFile(filepath.Join(path, name))
	if rerr := f.Remove(ctx, name); rerr != nil {
		return fmt.Errorf("observe: check the workspace path: %w", rerr)
	}
	_, left := os.Lstat(filepath.Join(path, name))
	if err != nil || string(seen) != string(body) || !errors.Is(left, fs.ErrNotExist) {
		return violation("observe: %s is not the workspace of %s: what is written and removed through the program is not seen there", path, id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checked[id+"\x00"+path] = true
	return nil
}

// alive refuses a process that is not there, and the suite's own.
func alive(pid int) error {
	if pid <= 1 || pid == os.Getpid() || pid == os.Getppid() {
		return violation("observe: process %d is not a sandbox's", pid)
	}
	if err := unix.Kill(pid, 0); err != nil {
		return violation("observe: process %d: %v", pid, err)
	}
	return nil
}

// cgroupsBelow refuses folders that are no cgroups, or that do not lie below the parent that the
// program named: the suite looks for leftovers there.
func cgroupsBelow(parent string, dirs map[string]string) (map[string]string, error) {
	if len(dirs) == 0 {
		return nil, violation("observe: no cgroups, though the part is named")
	}
	for controller, dir := range dirs {
		var st unix.Statfs_t
		switch err := unix.Statfs(dir, &st); {
		case err != nil:
			return nil, violation("observe: cgroup %s of controller %q: %v", dir, controller, err)
		case dir != filepath.Clean(dir) || int64(st.Type) != unix.CGROUP_SUPER_MAGIC && int64(st.Type) != unix.CGROUP2_SUPER_MAGIC:
			return nil, violation("observe: %s of controller %q is no cgroup", dir, controller)
		case !strings.Contains(dir, parent+"/"):
			return nil, violation("observe: cgroup %s is not below the parent %s", dir, parent)
		}
	}
	return dirs, nil
}

// inspect asks the engine for a container: the program only says which.
func inspect(ctx context.Context, socket, id string) (target.Container, error) {
	if id == "" || strings.ContainsAny(id, "/?#% ") {
		return target.Container{}, violation("observe: container %q cannot be looked up", id)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/containers/"+id+"/json", nil)
	if err != nil {
		return target.Container{}, fmt.Errorf("%w: %w", errNoEngine, err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return target.Container{}, fmt.Errorf("%w: %w", errNoEngine, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return target.Container{}, target.ErrNoContainer
	}
	var in struct {
		ID, Name, Image string
		State           struct{ Pid int }
		HostConfig      struct{ Runtime string }
		Config          struct{ Labels map[string]string }
	}
	err = json.NewDecoder(http.MaxBytesReader(nil, res.Body, 4<<20)).Decode(&in)
	if res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	if err != nil {
		return target.Container{}, fmt.Errorf("%w: inspect: %w", errNoEngine, err)
	}
	return target.Container{
		ID: in.ID, Name: strings.TrimPrefix(in.Name, "/"), ImageID: in.Image, Runtime: in.HostConfig.Runtime, Pid: in.State.Pid, Labels: in.Config.Labels,
	}, nil
}

func given(v string) (string, error) {
	if v == "" {
		return "", target.ErrUnavailable
	}
	return v, nil
}

func (o observer) EngineSocket() (string, error) { return given(o.description().Engine) }
func (o observer) CgroupParent() (string, error) { return given(o.description().CgroupParent) }

func (o observer) WorkerPid() (int, error) {
	pid := o.description().WorkerPid
	if pid == 0 {
		return 0, target.ErrUnavailable
	}
	return pid, alive(pid)
}

func (o observer) NetworkNamespace() (string, error) {
	if n := o.description().Network; n != nil {
		return n.Namespace, nil
	}
	return "", target.ErrUnavailable
}

func (o observer) LabNetwork() (string, error) {
	if n := o.description().Network; n != nil {
		return n.Name, nil
	}
	return "", target.ErrUnavailable
}

// SandboxBinary takes the path from the program and the digest from the file.
func (o observer) SandboxBinary() (path, digest string, err error) {
	if path, err = given(o.description().SandboxBinary); err != nil {
		return "", "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", "", violation("describe: sandboxBinary: %v", err)
	}
	return path, evidence.Digest(b), nil
}

// Logs are the program's standard error and what else it names.
func (o observer) Logs() ([]string, error) {
	return append([]string{filepath.Join(o.dir, logName)}, o.description().Logs...), nil
}

func (o observer) Tape(int64) ([]target.TapeCall, int64, error) { return nil, 0, target.ErrUnavailable }
