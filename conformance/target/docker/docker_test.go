// SPDX-License-Identifier: Apache-2.0

package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
)

// The container is what a careful `docker run` makes, by the engine's own word.
func TestTheContainerIsConfined(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		tg := b.open()
		sb := b.sandbox(tg, target.Spec{CPUs: 500, MemoryBytes: 96 << 20, PIDs: 77, HardTimeout: 90 * time.Second})
		c := b.container(tg, sb)
		in, err := b.cli.ContainerInspect(b.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		h := in.HostConfig
		for what, ok := range map[string]bool{
			"network":      h.NetworkMode == "none",
			"root":         h.ReadonlyRootfs,
			"capabilities": slices.Equal(h.CapDrop, []string{"ALL"}) && len(h.CapAdd) == 0 && !h.Privileged,
			"privileges":   slices.Contains(h.SecurityOpt, "no-new-privileges"),
			"memory":       h.Memory == 96<<20 && h.MemorySwap == 96<<20,
			"CPU":          h.NanoCPUs == 5e8,
			"tasks":        h.PidsLimit != nil && *h.PidsLimit == 77,
			"user":         in.Config.User == "65532:65532",
			"restart":      h.RestartPolicy.IsNone(),
			"log":          h.LogConfig.Type == "none",
			"runtime":      h.Runtime == b.config.Runtime && c.Runtime == b.config.Runtime,
			"image":        in.Image == b.image && c.ImageID == b.image,
			"time-out":     slices.Equal(in.Config.Cmd, []string{"hold", "90"}),
			"mounts":       len(in.Mounts) == 2,
		} {
			if !ok {
				t.Errorf("%s: %+v", what, h)
			}
		}
		got := b.sh(sb, "id -u; df -m /tmp | tail -1 | awk '{print $2}'; grep CapEff /proc/self/status; cat /proc/1/cmdline | tr '\\0' ' '; env | grep -c .")
		for _, part := range []string{"65532", "CapEff:\t0000000000000000", "hold 90"} {
			if !strings.Contains(got, part) {
				t.Errorf("inside there is no %q:\n%s", part, got)
			}
		}
		// The observer speaks of this target's own.
		parent, err := tg.Observer.CgroupParent()
		if err != nil || !strings.HasPrefix(parent, b.config.CgroupParent+"/hallmark-") {
			t.Errorf("parent cgroup %q, %v", parent, err)
		}
		if dir := c.Cgroups["pids"]; !strings.Contains(dir, parent+"/") {
			t.Errorf("the container's cgroup is %q", dir)
		}
		if pid, err := tg.Observer.WorkerPid(); err != nil || pid != b.lab.EnginePid {
			t.Errorf("the engine is process %d, %v; the lab says %d", pid, err, b.lab.EnginePid)
		}
		if st, err := os.Stat(c.Workspace); err != nil || !st.IsDir() || c.Pid <= 1 {
			t.Errorf("%+v, %v", c, err)
		}
		res, err := tg.Controller.Foothold(b.Context(), sb.ID(), []string{"/bin/sh", "-c", "id -u; cat"}, []byte("fed"))
		if err != nil || string(res.Stdout) != "0\nfed" || res.ExitCode != 0 {
			t.Errorf("foothold: %+v, %v", res, err)
		}
		res, err = tg.Controller.Foothold(b.Context(), sb.ID(), []string{"/bin/touch", "/x"}, nil)
		if err != nil || !strings.Contains(string(res.Stderr), "Read-only file system") {
			t.Errorf("root writes to /: %+v, %v", res, err)
		}
		for _, part := range []string{"runtime.wire", "observer.tape", "controller.restart"} {
			if slices.Contains(tg.Parts, part) {
				t.Errorf("it offers %s", part)
			}
		}
	})
}

func TestDisposeAndPurge(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		bystander := b.bystander()
		tg := b.open()
		sb := b.sandbox(tg, target.Spec{WorkspaceID: "ws/with any\x00bytes"})
		ctx := b.Context()
		c := b.container(tg, sb)
		b.sh(sb, "echo kept >file")
		b.want("purge of a workspace in use", tg.Runtime.Purge(ctx, sb.WorkspaceID()), docker.CodeBusy, target.KindBusy)
		if state, err := sb.State(ctx); state != "ready" || err != nil {
			t.Errorf("%q, %v", state, err)
		}
		for range 2 {
			if err := sb.Dispose(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.cli.ContainerInspect(ctx, c.ID); err == nil {
			t.Error("the container is still there")
		}
		if _, err := tg.Observer.Container(ctx, sb.ID()); !errors.Is(err, target.ErrNoContainer) {
			t.Errorf("the observer says %v", err)
		}
		if state, err := sb.State(ctx); state != "gone" || err != nil {
			t.Errorf("%q, %v", state, err)
		}
		_, err := sb.Exec(ctx, target.Command{Argv: []string{"/bin/true"}})
		b.want("exec after dispose", err, docker.CodeGone, target.KindGone)
		_, err = sb.Files().Read(ctx, "file")
		b.want("read after dispose", err, docker.CodeGone, target.KindGone)

		// The workspace outlives its sandbox until it is purged.
		again := b.sandbox(tg, target.Spec{WorkspaceID: sb.WorkspaceID()})
		if got := b.sh(again, "cat file"); got != "kept" {
			t.Errorf("the workspace holds %q", got)
		}
		if err := again.Dispose(ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := tg.Runtime.Purge(ctx, sb.WorkspaceID()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(c.Workspace); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the workspace's folder: %v", err)
		}
		b.running(bystander)
	})
}

// bystander is a running container of somebody else's that looks like the driver's, down to a label.
func (b *bench) bystander() string {
	b.Helper()
	hold, err := tenant()
	if err != nil {
		b.Fatal(err)
	}
	made, err := b.cli.ContainerCreate(b.Context(), &container.Config{
		Image: b.image, Entrypoint: []string{"/plant"}, Cmd: []string{"hold", "300"}, Labels: map[string]string{"hallmark-docker.run": "somebody else's", "hallmark-docker.sandbox": "x"},
	}, &container.HostConfig{NetworkMode: "none", Binds: []string{hold + ":/plant:ro"}, LogConfig: container.LogConfig{Type: "none"}}, nil, nil, "")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := b.cli.ContainerRemove(context.Background(), made.ID, container.RemoveOptions{Force: true}); err != nil {
			b.Errorf("the bystander: %v", err)
		}
	})
	if err := b.cli.ContainerStart(b.Context(), made.ID, container.StartOptions{}); err != nil {
		b.Fatal(err)
	}
	return made.ID
}

func (b *bench) running(id string) {
	b.Helper()
	in, err := b.cli.ContainerInspect(b.Context(), id)
	if err != nil || !in.State.Running {
		b.Errorf("the bystander does not run any more: %v", err)
	}
}

// A sandbox that ends by itself is named by its end, and its container is removed by whoever notices.
func TestEndsAreNamed(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		tg := b.open()
		ctx := b.Context()
		killed := b.sandbox(tg, target.Spec{})
		if err := b.cli.ContainerKill(ctx, b.container(tg, killed).ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		_, err := killed.Exec(ctx, target.Command{Argv: []string{"/bin/true"}})
		b.want("exec in a killed sandbox", err, docker.CodeDied, target.KindDied)
		if _, err := tg.Observer.Container(ctx, killed.ID()); !errors.Is(err, target.ErrNoContainer) {
			t.Errorf("the dead container is still there: %v", err)
		}
		_, err = killed.Exec(ctx, target.Command{Argv: []string{"/bin/true"}})
		b.want("the next exec", err, docker.CodeDied, target.KindDied)
		if state, err := killed.State(ctx); state != "gone" || err != nil {
			t.Errorf("%q, %v", state, err)
		}

		// While a command runs.
		during := b.sandbox(tg, target.Spec{})
		time.AfterFunc(time.Second, func() { b.cli.ContainerKill(context.Background(), b.containerID(tg, during), "KILL") })
		_, err = during.Exec(ctx, target.Command{Argv: []string{"/bin/sleep", "60"}})
		b.want("exec under which the sandbox was killed", err, docker.CodeDied, target.KindDied)

		expired := b.sandbox(tg, target.Spec{HardTimeout: 2 * time.Second})
		res, err := expired.Exec(ctx, target.Command{Argv: []string{"/bin/sleep", "60"}})
		if err == nil { // the command's end may be seen first
			t.Logf("the command ended with %d", res.ExitCode)
			_, err = expired.Exec(ctx, target.Command{Argv: []string{"/bin/true"}})
		}
		b.want("exec past the hard time-out", err, docker.CodeExpired, target.KindGone)

		removed := b.sandbox(tg, target.Spec{})
		if err := b.cli.ContainerRemove(ctx, b.container(tg, removed).ID, container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		_, err = removed.Exec(ctx, target.Command{Argv: []string{"/bin/true"}})
		b.want("exec in a removed sandbox", err, docker.CodeGone, target.KindGone)
	})
}

func (b *bench) containerID(tg *target.Target, sb target.Sandbox) string {
	c, err := tg.Observer.Container(context.Background(), sb.ID())
	if err != nil {
		b.Error(err)
	}
	return c.ID
}

func TestCreateRefuses(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	tg := b.open()
	_, err := tg.Runtime.Create(t.Context(), target.Spec{Image: "sha256:" + strings.Repeat("0", 64), WorkspaceID: "w"})
	b.want("an unknown image", err, docker.CodeImageUnknown, "")
	_, err = tg.Runtime.Create(t.Context(), target.Spec{Image: b.image, CPUs: 1_000_000, WorkspaceID: "w"})
	b.want("a thousand CPUs", err, docker.CodeUnsupported, target.KindUnsupported)
	_, err = tg.Runtime.Create(t.Context(), target.Spec{Image: b.image, MemoryBytes: 1 << 20, WorkspaceID: "w"})
	b.want("one MiB", err, docker.CodeUnsupported, target.KindUnsupported)
	if err := tg.Runtime.Purge(t.Context(), "w"); err != nil {
		t.Errorf("what a failed create left in use: %v", err)
	}
}

func TestCloseReportsWhatIsLeft(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	bystander := b.bystander()
	dir := b.dir()
	tg, err := b.tryOpen(dir)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := tg.Runtime.Create(t.Context(), target.Spec{Image: b.image})
	if err != nil {
		t.Fatal(err)
	}
	c := b.container(tg, sb)
	err = tg.Close()
	if err == nil || !strings.Contains(err.Error(), "container "+c.ID[:12]) || !strings.Contains(err.Error(), "1 workspaces") {
		t.Errorf("close says %v", err)
	}
	if _, err := b.cli.ContainerInspect(t.Context(), c.ID); err == nil {
		t.Error("the container is still there")
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("the folder is not empty: %v", err)
	}
	b.running(bystander)
}

func TestTargetFilesAreChecked(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	good := b.config
	for name, change := range map[string]func(*docker.Config){
		"socket":        func(c *docker.Config) { c.Socket = "docker.sock" },
		"no runtime":    func(c *docker.Config) { c.Runtime = "" },
		"other runtime": func(c *docker.Config) { c.Runtime = "no-such-runtime" },
		"root":          func(c *docker.Config) { c.User = "0:0" },
		"named user":    func(c *docker.Config) { c.User = "nobody" },
		"hold":          func(c *docker.Config) { c.Hold.Binary = filepath.Join(t.TempDir(), "absent") },
		"no seconds":    func(c *docker.Config) { c.Hold.Argv = []string{"hold", "60"} },
		"network":       func(c *docker.Config) { c.NetworkNamespace = "" },
		"sandbox":       func(c *docker.Config) { c.SandboxBinary = &docker.SandboxBinary{Path: "/x", Digest: "abc"} },
		"parent":        func(c *docker.Config) { c.CgroupParent = "/a/../b" },
	} {
		b.config = good
		change(&b.config)
		if tg, err := b.tryOpen(b.dir()); err == nil {
			t.Errorf("%s: accepted", name)
			tg.Close()
		}
	}
	b.config = good
	raw, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`{}`, strings.Replace(string(raw), `"socket"`, `"Socket"`, 1), strings.TrimSuffix(string(raw), "}") + `,"extra":1}`} {
		if _, err := docker.Open(t.Context(), json.RawMessage(bad), b.dir()); err == nil {
			t.Errorf("accepted %.60s", bad)
		}
	}
	if left, err := os.ReadDir(b.runs); err != nil || len(left) > 0 {
		t.Errorf("refused target files left %v, %v", left, err)
	}
}

func TestContract(t *testing.T) {
	eachRuntime(t, func(b *bench) {
		program, err := tenant()
		if err != nil {
			t.Fatal(err)
		}
		dir := b.dir()
		targettest.Run(t, func(t *testing.T) *target.Target {
			tg, err := b.tryOpen(dir)
			if err != nil {
				t.Fatal(err)
			}
			return tg
		}, targettest.Options{Tenant: program, Image: b.image, Dir: dir})
		if err := os.Remove(dir); err != nil {
			t.Errorf("the run's folder is not empty: %v", err)
		}
	})
}
