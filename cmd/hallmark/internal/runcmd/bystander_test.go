// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	docker "github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(spoiltSuite())
		return
	}
	os.Exit(m.Run())
}

// spoiltSuite is the catalogue and four cases that end as badly as a case can.
func spoiltSuite() conformance.Suite {
	s := conformance.Suite{Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(), Drivers: Drivers()}
	for id, end := range map[string]func(ctx context.Context, t *conformance.T) error{
		"ZZ-01": func(_ context.Context, t *conformance.T) error { t.FailNow("judged", "x"); return nil },
		"ZZ-02": func(ctx context.Context, _ *conformance.T) error { <-ctx.Done(); return ctx.Err() },
		"ZZ-03": func(context.Context, *conformance.T) error { panic("bug") },
		"ZZ-04": func(context.Context, *conformance.T) error { runtime.Goexit(); return nil },
	} {
		s.Cases = append(s.Cases, conformance.Case{
			ID: id, Revision: 1, Title: "spoilt", Tier: conformance.Full, Timeout: 15 * time.Second, Features: []conformance.Feature{conformance.FeatureExec},
			Run: func(ctx context.Context, t *conformance.T) error {
				t.Witness("ran", 1)
				t.Sandbox(ctx, target.Spec{})
				if _, err := t.Target().Runtime.Create(ctx, target.Spec{Image: t.Image()}); err != nil {
					return err
				}
				return end(ctx, t)
			},
		})
	}
	return s
}

// bystanders are things of somebody else's on the lab's engine and host, under names that look like
// those of the suite and of a worker.
type bystanders struct {
	cli     *docker.Client
	running string
	created string
	image   string // the image that a name of the suite's points at
	pid     int
	folder  string
	mount   string
	cgroups []string
	sleeper *exec.Cmd
}

func plantBystanders(t *testing.T, l *lab.Lab, image string) *bystanders {
	t.Helper()
	ctx := t.Context()
	cli, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	b := &bystanders{cli: cli, image: image}
	end := func(f func(ctx context.Context) error) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	end(func(context.Context) error { return cli.Close() })
	labels := map[string]string{
		"hallmark.worker": "suite-00112233445566778899aabbccddeeff", "hallmark.sandbox": "sb-bystander", "hallmark.generation": "1", "hallmark.plant": "bystander",
	}
	mk := func(name string) string {
		t.Helper()
		c, err := cli.ContainerCreate(ctx, &container.Config{Image: image, Entrypoint: []string{"/bin/sleep"}, Cmd: []string{"3600"}, Labels: labels},
			&container.HostConfig{Runtime: lab.RuntimeRunc, NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}}, nil, nil, name)
		if err != nil {
			t.Fatal(err)
		}
		end(func(ctx context.Context) error {
			return cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true})
		})
		return c.ID
	}
	b.running, b.created = mk("hallmark-plant-bystander"), mk("hallmark-00112233445566778899aabbccddeeff")
	if err := cli.ContainerStart(ctx, b.running, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	in, err := cli.ContainerInspect(ctx, b.running)
	if err != nil {
		t.Fatal(err)
	}
	b.pid = in.State.Pid
	if err := cli.ImageTag(ctx, image, "hallmark-im01:pinned"); err != nil {
		t.Fatal(err)
	}

	b.folder = filepath.Join(l.WorkDir, "run-bystander")
	if err := os.MkdirAll(filepath.Join(b.folder, "p1", "workspaces", "mnt"), 0o700); err != nil {
		t.Fatal(err)
	}
	end(func(context.Context) error { return os.RemoveAll(b.folder) })
	if err := os.WriteFile(filepath.Join(b.folder, "p1", "keep"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.mount = filepath.Join(b.folder, "p1", "workspaces", "mnt")
	if err := unix.Mount("bystander", b.mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	end(func(context.Context) error { return unix.Unmount(b.mount, 0) })
	roots, err := filepath.Glob("/sys/fs/cgroup/*" + l.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range append(roots, "/sys/fs/cgroup"+l.CgroupParent) {
		dir := filepath.Join(root, "00112233445566778899aabbccddeeff")
		if os.Mkdir(dir, 0o755) == nil {
			b.cgroups = append(b.cgroups, dir)
			end(func(context.Context) error { return unix.Rmdir(dir) })
		}
	}
	if len(b.cgroups) == 0 {
		t.Fatal("no bystander's cgroup could be made")
	}
	b.sleeper = exec.Command("sleep", "3600")
	b.sleeper.Dir = b.folder
	if err := b.sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	end(func(context.Context) error {
		err := b.sleeper.Process.Kill()
		b.sleeper.Wait()
		return err
	})
	return b
}

// harmed lists what is not as it was.
func (b *bystanders) harmed(ctx context.Context) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	in, err := b.cli.ContainerInspect(ctx, b.running)
	if err != nil || !in.State.Running || in.State.Pid != b.pid {
		add("the running container: %v", err)
	}
	if in, err = b.cli.ContainerInspect(ctx, b.created); err != nil || in.State.Status != "created" {
		add("the created container: %v", err)
	}
	if i, err := b.cli.ImageInspect(ctx, "hallmark-im01:pinned"); err != nil || i.ID != b.image {
		add("the image's name: %v, %v", i.ID, err)
	}
	if body, err := os.ReadFile(filepath.Join(b.folder, "p1", "keep")); err != nil || string(body) != "mine" {
		add("the file: %q, %v", body, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.mount, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		add("the mount: %v", err)
	}
	for _, dir := range b.cgroups {
		if _, err := os.Stat(dir); err != nil {
			add("the cgroup: %v", err)
		}
	}
	if err := b.sleeper.Process.Signal(syscall.Signal(0)); err != nil {
		add("the process: %v", err)
	}
	return out
}

// Cases that make containers, move the names of images, kill the worker and break in every way leave
// alone what others have on the same engine and host; what they made themselves is gone.
func TestARunTouchesNothingElse(t *testing.T) {
	l := ownLab(t)
	workloads, err := loadWorkloads(t.Context(), l, []string{"busybox"})
	if err != nil {
		t.Fatal(err)
	}
	b := plantBystanders(t, l, workloads[0].ConfigDigest)
	if harm := b.harmed(t.Context()); len(harm) > 0 {
		t.Fatalf("the bystanders are not as planted: %q", harm)
	}
	before := left(t, l, "/nonexistent")
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	file, err := ReadCohortFile(filepath.Join(repo, "ci/cohorts/runsc.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"FS-02": "pass ", "IM-01": "pass ", "LC-07": "pass ", "PR-05": "pass ",
		"ZZ-01": "fail judged", "ZZ-02": "error timeout", "ZZ-03": "error panic", "ZZ-04": "error goexit",
	}
	p := Params{Suite: spoiltSuite(), File: file, Lab: l, Binaries: programs(t), Workloads: workloads, Tier: conformance.Full, Out: t.TempDir()}
	for id := range want {
		p.CaseIDs = append(p.CaseIDs, id)
	}
	res, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for id, status := range want {
		c, _ := res.Report.Case(id)
		if got := string(c.Status) + " " + c.Reason; got != status {
			t.Errorf("%s is %s (%s), want %s", id, got, c.Text, status)
		}
		if c.Status == conformance.Pass || len(c.Workloads) == 0 {
			continue
		}
		var names []string
		for _, a := range c.Workloads[0].Artifacts {
			names = append(names, a.Name)
		}
		if text := strings.Join(names, " "); !strings.Contains(text, "capture-1-inspect.jsonl") || !strings.Contains(text, "capture-2-cgroups.txt") ||
			!strings.Contains(text, "capture-3-processes.txt") || !strings.Contains(text, "capture-6-tape.jsonl") {
			t.Errorf("%s did not pass, and kept is %q only", id, names)
		}
	}
	for _, fault := range res.Faults {
		t.Errorf("the run: %s", fault)
	}
	for _, harm := range b.harmed(t.Context()) {
		t.Errorf("a bystander was harmed: %s", harm)
	}
	if after := left(t, l, "/nonexistent"); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("there is now %q, and was %q", after, before)
	}
	if t.Failed() {
		if log, err := os.ReadFile(filepath.Join(p.Out, "raw", "child.log")); err == nil {
			t.Logf("%s", log)
		}
	}
}

// The program itself, worker included, needs no network: in a namespace of its own without an
// interface a run goes as ever, and the kernel counts no attempt to reach anything.
func TestARunOnTheLabNeedsNoNetwork(t *testing.T) {
	l := ownLab(t)
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	counters := filepath.Join(t.TempDir(), "counters")
	cmd := exec.Command("sh", "-c", `"$@"; status=$?; cat /proc/self/net/snmp /proc/self/net/snmp6 >"$COUNTERS"; exit $status`, "sh",
		filepath.Join(programs(t), "hallmark"), "run", "--cohort", filepath.Join(repo, "ci/cohorts/runsc.yaml"), "--case", "FS-02,KE-06",
		"--procs", "1", "--out", t.TempDir()) // several processes talk to each other by loopback, which is down here
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "CI=true", "HALLMARK_CACHE="+l.Cache, "COUNTERS="+counters)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, line := range []string{"PASS FS-02", "PASS KE-06"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the output lacks %q:\n%s", line, text)
		}
	}
	body, err := os.ReadFile(counters)
	if err != nil {
		t.Fatal(err)
	}
	if n := noRoutes(t, string(body)); n != 0 {
		t.Errorf("%d attempts to reach something outside", n)
	}
}

// noRoutes adds up OutNoRoutes of IPv4 and IPv6 (RFC 4293).
func noRoutes(t *testing.T, text string) (sum int64) {
	t.Helper()
	counts := 0
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		value := ""
		switch {
		case len(f) == 2 && f[0] == "Ip6OutNoRoutes":
			value = f[1]
		case len(f) > 0 && f[0] == "Ip:" && names == nil:
			names = f
		case len(f) > 0 && f[0] == "Ip:":
			for i, name := range names {
				if name == "OutNoRoutes" {
					value = f[i]
				}
			}
		}
		if value == "" {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
		counts++
	}
	if counts != 2 {
		t.Fatalf("%d counters in %q", counts, text)
	}
	return sum
}
