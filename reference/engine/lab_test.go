// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

var ceilings = api.Resources{CPUs: 1000, MemoryBytes: 256 << 20, PIDs: 256, WorkspaceBytes: 64 << 20, WorkspaceInodes: 4096}

// bench is a running lab with one engine client on it. Without a lab the test fails.
type bench struct {
	*testing.T
	lab        *lab.Lab
	engine     *engine.Engine
	cfg        engine.Config
	supervisor string
	worker     string // label value, new per test
}

var supervisor = sync.OnceValues(func() (string, error) {
	repo, err := lab.RepoDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hallmark-engine-test-")
	if err != nil {
		return "", err
	}
	return dir, build.All(context.Background(), build.Options{Source: repo, Out: dir, Only: []string{"hallmark-supervisor"}})
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := supervisor(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func newBench(t *testing.T, runtime string) *bench {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this test needs the lab: %v", err)
	}
	dir, err := supervisor()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, lab: l, supervisor: filepath.Join(dir, "hallmark-supervisor"), worker: "test-" + hexID()}
	b.cfg = engine.Config{
		Socket: l.Socket, Runtime: l.Runtimes[runtime].Name, CgroupParent: l.CgroupParent, Ceilings: ceilings,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if b.engine, err = engine.New(t.Context(), b.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := b.engine.List(context.Background(), b.worker)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %+v, %v", left, err)
		}
		b.engine.Close()
	})
	return b
}

func hexID() string {
	var raw [16]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

func (b *bench) spec(kind image.Kind) engine.Spec {
	b.Helper()
	built, err := b.lab.BuildImage(b.Context(), kind)
	if err != nil {
		b.Fatal(err)
	}
	img, err := b.engine.Image(b.Context(), built.ConfigDigest, built.ManifestDigest)
	if err != nil {
		b.Fatal(err)
	}
	ws := b.TempDir()
	if err := os.Chown(ws, api.Tenant, api.Tenant); err != nil {
		b.Fatal(err)
	}
	return engine.Spec{
		Name: "hallmark-" + hexID(), Image: img, Workspace: ws, Supervisor: b.supervisor, Resources: ceilings,
		WorkerID: b.worker, BootEpoch: hexID(), SandboxID: "sb-" + hexID(), Generation: 1, Mode: api.Qualification,
	}
}

func (b *bench) create(s engine.Spec) engine.Created {
	b.Helper()
	c, err := b.engine.Create(b.Context(), s)
	b.Cleanup(func() { b.remove(c.ID, s.Name) })
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bench) remove(id, name string) {
	if _, err := b.engine.Remove(context.Background(), id, name); err != nil {
		b.Errorf("remove %s: %v", name, err)
	}
}

func (b *bench) start(s engine.Spec) (engine.Created, int, *control.Client) {
	b.Helper()
	c := b.create(s)
	pid, err := b.engine.Start(b.Context(), c.ID)
	if err != nil {
		b.Fatal(err)
	}
	rw, err := b.engine.Bridge(b.Context(), c.ID)
	if err != nil {
		b.Fatal(err)
	}
	ctl, err := control.Connect(b.Context(), rw)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ctl.Close() })
	return c, pid, ctl
}

func TestProfileIsTheSameForEverySandbox(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	one, two := b.spec(image.Busybox), b.spec(image.Static)
	two.Resources = api.Resources{CPUs: 500, MemoryBytes: 128 << 20, PIDs: 100, WorkspaceBytes: 8 << 20, WorkspaceInodes: 64}
	two.ReadOnly = true
	c1, c2 := b.create(one), b.create(two)
	if c1.ProfileDigest != c2.ProfileDigest {
		t.Errorf("profiles differ:\n%s\n%s", c1.Profile, c2.Profile)
	}
	for _, secret := range []string{one.Workspace, one.SandboxID, one.Name, one.BootEpoch, b.supervisor, one.Image.ID, c1.ID, c1.ID[:12]} {
		if bytes.Contains(c1.Profile, []byte(secret)) {
			t.Errorf("profile contains %q, which belongs to one sandbox:\n%s", secret, c1.Profile)
		}
	}
}

// A read-only workspace is that for the tenant, and still shows its bounds.
func TestReadOnlyWorkspace(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	s := b.spec(image.Busybox)
	if err := os.WriteFile(filepath.Join(s.Workspace, "there"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(s.Workspace, "there"), api.Tenant, api.Tenant); err != nil {
		t.Fatal(err)
	}
	s.ReadOnly = true
	_, _, ctl := b.start(s)
	if fs, err := ctl.Statfs(t.Context()); err != nil || fs.Blocks == 0 {
		t.Errorf("statfs: %+v, %v", fs, err)
	}
	out, err := ctl.Exec(t.Context(), control.Spawn{
		ID: "one", Argv: []string{"sh", "-c", "cat there; for f in there new; do echo y >>$f; done; chmod 777 there; rm there; echo t >/tmp/t; cat /tmp/t"}, Timeout: 20 * time.Second, MaxOutput: 4000,
	})
	if err != nil || string(out.Stdout) != "xt\n" || strings.Count(string(out.Stderr), "Read-only file system") != 4 {
		t.Errorf("stdout %q, stderr %q, %v", out.Stdout, out.Stderr, err)
	}
	if got, err := os.ReadFile(filepath.Join(s.Workspace, "there")); err != nil || string(got) != "x" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestSandboxRunsThePinnedBinaryAndCommands(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	c, pid, ctl := b.start(b.spec(image.Busybox))
	if err := b.engine.VerifyBinary(t.Context(), c.ID, pid, b.lab.Runtimes[lab.RuntimeRunsc].Digest); err != nil {
		t.Error(err)
	}
	other := b.lab.Runtimes[lab.RuntimeRunc].Digest
	if err := b.engine.VerifyBinary(t.Context(), c.ID, pid, other); !errors.Is(err, engine.ErrLaunch) {
		t.Errorf("another digest gave %v", err)
	}
	b.wantCommands(ctl)
}

func (b *bench) wantCommands(ctl *control.Client) {
	b.Helper()
	out, err := ctl.Exec(b.Context(), control.Spawn{
		ID: "one", Argv: []string{"sh", "-c", "id -u; id -G; head -c 3 >in; cat in; pwd"}, Stdin: []byte("abc"), Timeout: 20 * time.Second, MaxOutput: 1000,
	})
	if want := "65532\n65532\nabc/workspace\n"; err != nil || string(out.Stdout) != want || out.ExitCode != 0 {
		b.Errorf("exec gave %q %q %d %v, want %q", out.Stdout, out.Stderr, out.ExitCode, err, want)
	}
}

// TestPlainRuntimeIsNoSandbox: the control. Everything works, but what runs is not runsc.
func TestPlainRuntimeIsNoSandbox(t *testing.T) {
	b := newBench(t, lab.RuntimeRunc)
	c, pid, ctl := b.start(b.spec(image.Busybox))
	b.wantCommands(ctl)
	if err := b.engine.VerifyBinary(t.Context(), c.ID, pid, b.lab.Runtimes[lab.RuntimeRunsc].Digest); !errors.Is(err, engine.ErrLaunch) {
		t.Errorf("runc passed for runsc: %v", err)
	}
}

func TestDefaultRuntimeIsNeverUsed(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	info, err := b.engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.DefaultRuntime == b.cfg.Runtime {
		t.Fatalf("the lab's default runtime is %s: this test would show nothing", info.DefaultRuntime)
	}
	if info.RuntimePath != b.lab.Runtimes[lab.RuntimeRunsc].Path || info.InstancePid != b.lab.EnginePid || info.Instance == "" {
		t.Errorf("info %+v does not describe the lab's engine", info)
	}
	c := b.create(b.spec(image.Static))
	if !bytes.Contains(c.Profile, []byte(`"Runtime":"`+b.cfg.Runtime+`"`)) {
		t.Errorf("profile does not name the runtime:\n%s", c.Profile)
	}
	missing := b.cfg
	missing.Runtime = "not-registered"
	if e, err := engine.New(t.Context(), missing); err == nil {
		e.Close()
		t.Error("an engine without the runtime was accepted")
	}
}

// Nobody asks for it: the wait itself tells. How soon is for a benchmark; on a busy machine the
// engine alone may take a second.
func TestDeathIsNoticed(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	c, pid, _ := b.start(b.spec(image.Busybox))
	deaths := make(chan engine.Death, 1)
	go func() {
		d, err := b.engine.Wait(t.Context(), c.ID)
		if err == nil {
			deaths <- d
		}
	}()
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-deaths:
		took := time.Since(killed)
		t.Logf("noticed after %v: %+v", took, d)
		if d.OOMKilled || d.Gone {
			t.Errorf("noticed after %v: %+v", took, d)
		}
	case <-time.After(10 * time.Second):
		t.Error("never noticed")
	}
}

func TestOutOfMemoryIsTyped(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	s := b.spec(image.Busybox)
	s.Resources.MemoryBytes = 64 << 20
	c, _, ctl := b.start(s)
	// The bridge alone is not enough: the engine was seen to keep its stream open for half a
	// minute after the sandbox had died. Whoever owns the sandbox waits for the container too.
	ended := make(chan error, 1)
	go func() {
		_, err := ctl.Exec(t.Context(), control.Spawn{
			ID: "eat", Argv: []string{"sh", "-c", "dd if=/dev/zero of=/dev/null bs=300M count=1"}, Timeout: 20 * time.Second, MaxOutput: 1000,
		})
		ended <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	d, err := b.engine.Wait(ctx, c.ID)
	if err != nil || !d.OOMKilled {
		t.Errorf("death %+v, %v; want out of memory", d, err)
	}
	ctl.Close()
	if err := <-ended; !errors.Is(err, control.ErrLost) {
		t.Errorf("exec gave %v, want %v", err, control.ErrLost)
	}
}

func TestRemoveProvesAndSparesOthers(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	mine, other := b.spec(image.Static), b.spec(image.Static)
	other.Name = mine.Name[:len(mine.Name)-4] + "ffff"
	c, o := b.create(mine), b.create(other)
	found, err := b.engine.Remove(t.Context(), c.ID, mine.Name)
	if err != nil || !found {
		t.Fatalf("remove gave found=%v, %v", found, err)
	}
	if found, err = b.engine.Remove(t.Context(), c.ID, mine.Name); err != nil || found {
		t.Errorf("the second remove gave found=%v, %v", found, err)
	}
	if found, err = b.engine.Remove(t.Context(), "", "hallmark-"+strings.Repeat("0", 32)); err != nil || found {
		t.Errorf("an absent name gave found=%v, %v", found, err)
	}
	if _, err := b.engine.Remove(t.Context(), o.ID, "somebody-elses"); err == nil {
		t.Error("a name that is not ours was accepted")
	}
	left, err := b.engine.List(t.Context(), b.worker)
	if err != nil || len(left) != 1 || left[0].ID != o.ID {
		t.Errorf("left are %+v, %v; want %s only", left, err, o.ID)
	}
	// By name alone, as after a crash between the create and its answer.
	if found, err = b.engine.Remove(t.Context(), "", other.Name); err != nil || !found {
		t.Errorf("remove by name gave found=%v, %v", found, err)
	}
}

func TestAnotherContainerUnderOurNameIsSpared(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	s := b.spec(image.Static)
	c := b.create(s)
	if _, err := b.engine.Remove(t.Context(), c.ID, s.Name); err != nil {
		t.Fatal(err)
	}
	squatter := b.create(s) // same name, another id
	if _, err := b.engine.Remove(t.Context(), c.ID, s.Name); err != nil {
		t.Errorf("removal of a container that is gone: %v", err)
	}
	left, err := b.engine.List(t.Context(), b.worker)
	if err != nil || len(left) != 1 || left[0].ID != squatter.ID {
		t.Errorf("left are %+v, %v; want the squatter", left, err)
	}
}

func TestCreateSaysWhetherOneCanStillAppear(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	s := b.spec(image.Static)
	b.create(s)
	// Nobody else knows the name, so the first request under it may still be on its way.
	if _, err := b.engine.Create(t.Context(), s); err == nil || errors.Is(err, engine.ErrNotCreated) {
		t.Errorf("a name in use gave %v", err)
	}
	gone := b.spec(image.Static)
	gone.Image.ID = "sha256:" + strings.Repeat("0", 64)
	if _, err := b.engine.Create(t.Context(), gone); !errors.Is(err, engine.ErrNotCreated) {
		t.Errorf("a missing image gave %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cut := b.spec(image.Static)
	b.Cleanup(func() { b.remove("", cut.Name) })
	if _, err := b.engine.Create(ctx, cut); err == nil || errors.Is(err, engine.ErrNotCreated) {
		t.Errorf("a create that was cut off gave %v", err)
	}
}

func TestImageWithVolumesOrUnderATagIsRefused(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	s := b.spec(image.Static)
	s.Image.Volumes = []string{"/data"}
	if _, err := b.engine.Create(t.Context(), s); !errors.Is(err, engine.ErrNotCreated) {
		t.Errorf("an image with a volume gave %v", err)
	}
	built, err := b.lab.BuildImage(t.Context(), image.Static)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.engine.Image(t.Context(), built.Name, ""); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("a tag gave %v", err)
	}
	if _, err := b.engine.Image(t.Context(), built.ConfigDigest[:20], ""); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("a shortened digest gave %v", err)
	}
}

// TestForeignContainerOfOurLabel shows that List is a hint: it returns what anyone labels.
func TestForeignContainerOfOurLabel(t *testing.T) {
	b := newBench(t, lab.RuntimeRunsc)
	cli, err := b.lab.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	s := b.spec(image.Static)
	forged, err := cli.ContainerCreate(t.Context(), &container.Config{
		Image: s.Image.ID, Cmd: []string{"/none"}, Labels: map[string]string{engine.LabelWorker: b.worker, engine.LabelSandbox: "../../etc"},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer cli.ContainerRemove(context.Background(), forged.ID, container.RemoveOptions{Force: true})
	listed, err := b.engine.List(t.Context(), b.worker)
	if err != nil || len(listed) != 1 || listed[0].SandboxID != "../../etc" {
		t.Errorf("listed %+v, %v", listed, err)
	}
	all, err := cli.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("id", forged.ID))})
	if err != nil || len(all) != 1 {
		t.Errorf("the forged container is %+v, %v", all, err)
	}
}
