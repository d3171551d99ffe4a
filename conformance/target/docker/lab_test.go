// SPDX-License-Identifier: Apache-2.0

package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	engine "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/docker"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// tenant is PID 1 of the containers, built once.
var tenant = sync.OnceValues(func() (string, error) {
	repo, err := lab.RepoDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hallmark-docker-test-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, build.Tenant), build.All(context.Background(), build.Options{Source: repo, Out: dir, Only: []string{build.Tenant}})
})

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
		return
	}
	code := m.Run()
	if path, _ := tenant(); path != "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// bench is the lab with a folder for runs. Whatever a test does, nothing of its own is left.
type bench struct {
	*testing.T
	lab    *lab.Lab
	cli    *engine.Client
	runs   string // the runs' folders lie in here
	image  string
	config docker.Config
}

func newBench(t *testing.T, runtime string) *bench {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this test needs the lab: %v", err)
	}
	hold, err := tenant()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, lab: l}
	if b.cli, err = l.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.cli.Close() })
	built, err := l.BuildImage(t.Context(), image.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	b.image = built.ConfigDigest
	if b.runs, err = os.MkdirTemp(l.WorkDir, "docker-test-"); err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(l.CgroupParent, filepath.Base(b.runs))
	t.Cleanup(func() {
		if err := os.Remove(b.runs); err != nil {
			t.Errorf("a run's folder is left: %v", err)
		}
		for _, dir := range cgroups(parent) {
			if entries, err := filepath.Glob(dir + "/hallmark-*"); err != nil || len(entries) > 0 {
				t.Errorf("cgroups are left: %v, %v", entries, err)
			}
			os.Remove(dir) // the test's own; the driver's was below
		}
	})
	rt := l.Runtimes[runtime]
	b.config = docker.Config{
		Socket: l.Socket, Runtime: rt.Name, CgroupParent: parent, NetworkNamespace: l.NetNS, Network: l.Network,
		Hold: docker.Hold{Binary: hold, Argv: []string{"hold", "{seconds}"}}, SandboxBinary: &docker.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
	}
	return b
}

// cgroups are the folders of a cgroup in every hierarchy where it is.
func cgroups(parent string) []string {
	one, _ := filepath.Glob("/sys/fs/cgroup" + parent)
	each, _ := filepath.Glob("/sys/fs/cgroup/*" + parent)
	return append(one, each...)
}

// open opens the driver on a new folder and closes it with the test, which must leave nothing.
func (b *bench) open() *target.Target {
	b.Helper()
	dir := b.dir()
	tg, err := b.tryOpen(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tg.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
		if err := os.Remove(dir); err != nil {
			b.Errorf("the run's folder is not empty: %v", err)
		}
	})
	return tg
}

var runs struct {
	sync.Mutex
	n int
}

func (b *bench) dir() string {
	runs.Lock()
	defer runs.Unlock()
	runs.n++
	return filepath.Join(b.runs, fmt.Sprint("run", runs.n))
}

// run makes a run with one process beside the others, and holds it until the lock is closed.
func (b *bench) run() (dir string, lock *os.File) {
	b.Helper()
	work := b.dir()
	err := os.Mkdir(work, 0o711)
	if err == nil {
		lock, err = target.LockRun(work)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		lock.Close()
		if err := target.RemoveRun(work); err != nil {
			b.Errorf("the run's folder is not empty: %v", err)
		}
	})
	return filepath.Join(work, "p1"), lock
}

// openRun is open in a run of its own: it sweeps what lies beside.
func (b *bench) openRun() *target.Target {
	b.Helper()
	dir, _ := b.run()
	tg, err := b.tryOpen(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tg.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return tg
}

func (b *bench) tryOpen(dir string) (*target.Target, error) {
	raw, err := json.Marshal(b.config)
	if err != nil {
		b.Fatal(err)
	}
	return docker.Open(b.Context(), raw, dir)
}

// sandbox creates one, and disposes and purges it before the target is closed.
func (b *bench) sandbox(tg *target.Target, spec target.Spec) target.Sandbox {
	b.Helper()
	if spec.Image == "" {
		spec.Image = b.image
	}
	sb, err := tg.Runtime.Create(b.Context(), spec)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := sb.Dispose(ctx); err != nil {
			b.Errorf("dispose: %v", err)
		}
		if err := tg.Runtime.Purge(ctx, sb.WorkspaceID()); err != nil {
			b.Errorf("purge: %v", err)
		}
	})
	return sb
}

// sh runs a script that has to end by itself with 0 and returns its stdout.
func (b *bench) sh(sb target.Sandbox, script string) string {
	b.Helper()
	res, err := sb.Exec(b.Context(), target.Command{Argv: []string{"/bin/sh", "-c", script}})
	if err != nil || res.ExitCode != 0 {
		b.Fatalf("%s: exit code %d, %v: %s%s", script, res.ExitCode, err, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// container is the observer's view, which must be there.
func (b *bench) container(tg *target.Target, sb target.Sandbox) target.Container {
	b.Helper()
	c, err := tg.Observer.Container(b.Context(), sb.ID())
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// programs are the commands of the host processes in a container's cgroup.
func (b *bench) programs(c target.Container) string {
	b.Helper()
	procs, err := os.ReadFile(filepath.Join(c.Cgroups["pids"], "cgroup.procs"))
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, pid := range strings.Fields(string(procs)) {
		line, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil {
			out = append(out, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return strings.Join(out, "\n")
}

// want fails unless err is a refusal with this code and kind.
func (b *bench) want(what string, err error, code string, kind target.Kind) {
	b.Helper()
	if target.CodeOf(err) != code || target.KindOf(err) != kind {
		b.Errorf("%s: code %q, kind %q, want %q, %q: %v", what, target.CodeOf(err), target.KindOf(err), code, kind, err)
	}
}

func eachRuntime(t *testing.T, f func(b *bench)) {
	for _, name := range []string{lab.RuntimeRunc, lab.RuntimeRunsc} {
		t.Run(name, func(t *testing.T) { f(newBench(t, name)) })
	}
}
