// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
)

// privateCache makes a cache folder of this test's own, so that its lab can be
// killed, whose packages and runtimes are shared with the real cache: links keep
// the test from building runsc again. Territory is named by the folder's path.
func privateCache(t *testing.T) string {
	t.Helper()
	shared, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	for _, name := range []string{"packages", "runtimes"} {
		dir := filepath.Join(shared, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	return own
}

func up(t *testing.T, cache string) *lab.Lab {
	t.Helper()
	begin := time.Now()
	l, err := lab.Up(t.Context(), lab.Options{Cache: cache, Out: testWriter{t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up took %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := lab.Sweep(ctx, cache); err != nil {
			t.Error(err)
		}
	})
	return l
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func down(t *testing.T, l *lab.Lab) {
	t.Helper()
	begin := time.Now()
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("down took %s", time.Since(begin).Round(time.Millisecond))
	mustBeGone(t, l)
}

func mustBeGone(t *testing.T, l *lab.Lab) {
	t.Helper()
	left, err := lab.Leftovers(l.Cache)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left on the host: %s", strings.Join(left, "; "))
	}
	for _, path := range []string{l.RunDir, l.DataRoot, filepath.Join(l.Cache, "lab.json")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
}

// run starts a container that prints a random word and returns its output and id.
func run(t *testing.T, l *lab.Lab, img, runtime string, script string) (string, string) {
	t.Helper()
	cli, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	c, err := cli.ContainerCreate(t.Context(), &container.Config{Image: img, Entrypoint: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}},
		&container.HostConfig{Runtime: runtime, NetworkMode: "none"}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := cli.ContainerStart(t.Context(), c.ID, container.StartOptions{}); err != nil {
		t.Fatalf("start under %s: %v", runtime, err)
	}
	if strings.Contains(script, "exec sleep") {
		return "", c.ID
	}
	wait, errs := cli.ContainerWait(t.Context(), c.ID, container.WaitConditionNotRunning)
	select {
	case res := <-wait:
		if res.StatusCode != 0 {
			t.Errorf("under %s: exit status %d", runtime, res.StatusCode)
		}
	case err := <-errs:
		t.Fatal(err)
	}
	logs, err := cli.ContainerLogs(t.Context(), c.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var out strings.Builder
	if _, err := stdcopy.StdCopy(&out, &out, logs); err != nil {
		t.Fatal(err)
	}
	return out.String(), c.ID
}

func word(t *testing.T) string {
	t.Helper()
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b)
}

// TestContainerUnderEachRuntime needs the main cache's lab: it fails without one.
func TestContainerUnderEachRuntime(t *testing.T) {
	l, err := lab.Find()
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.BuildImage(t.Context(), image.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	for name := range l.Runtimes {
		t.Run(name, func(t *testing.T) {
			w := word(t)
			begin := time.Now()
			out, _ := run(t, l, b.ConfigDigest, name, "echo "+w+"; uname -r")
			t.Logf("%s took %s: %q", name, time.Since(begin).Round(time.Millisecond), out)
			if !strings.HasPrefix(out, w+"\n") {
				t.Errorf("output %q does not start with %q", out, w)
			}
		})
	}
}

func TestUpAndDownLeaveNothing(t *testing.T) {
	l := up(t, privateCache(t))
	if !l.Fresh {
		t.Error("a new lab is not fresh")
	}
	again, err := lab.Up(t.Context(), lab.Options{Cache: l.Cache})
	if err != nil {
		t.Fatal(err)
	}
	if again.Fresh || again.EnginePid != l.EnginePid {
		t.Errorf("a second up gives fresh=%v engine=%d, want the running engine %d", again.Fresh, again.EnginePid, l.EnginePid)
	}
	down(t, l)
}

// TestCrashIsSwept kills the engine while a sandbox runs and a loop image is
// mounted in the work folder: both ways back, up and down, must leave nothing.
func TestCrashIsSwept(t *testing.T) {
	for _, way := range []string{"up then down", "down"} {
		t.Run(way, func(t *testing.T) {
			cache := privateCache(t)
			l := up(t, cache)
			b, err := l.BuildImage(t.Context(), image.Busybox)
			if err != nil {
				t.Fatal(err)
			}
			for _, rt := range []string{lab.RuntimeRunsc, lab.RuntimeRunc} {
				run(t, l, b.ConfigDigest, rt, "exec sleep 600")
			}
			mountLoop(t, l.WorkDir)
			before, err := lab.Leftovers(cache)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"process", "mount", "loop", "cgroup"} {
				if !strings.Contains(strings.Join(before, "\n"), kind+" ") {
					t.Fatalf("the scan does not see a %s of a running lab: it proves nothing", kind)
				}
			}
			if err := unix.Kill(l.EnginePid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if way == "down" {
				down(t, l)
				return
			}
			second := up(t, cache)
			if !second.Fresh || second.EnginePid == l.EnginePid {
				t.Errorf("up after a crash gives fresh=%v engine=%d", second.Fresh, second.EnginePid)
			}
			out, _ := run(t, second, mustLoad(t, second), lab.RuntimeRunsc, "echo back")
			if out != "back\n" {
				t.Errorf("output %q after a crash", out)
			}
			down(t, second)
		})
	}
}

func mustLoad(t *testing.T, l *lab.Lab) string {
	t.Helper()
	b, err := l.BuildImage(t.Context(), image.Busybox)
	if err != nil {
		t.Fatal(err)
	}
	return b.ConfigDigest
}

// TestLabOfAKilledCommandIsNotHandedOn binds a lab to a process that is gone:
// the test's own record is rewritten, since the test must live on.
func TestLabOfAKilledCommandIsNotHandedOn(t *testing.T) {
	cache := privateCache(t)
	first := up(t, cache)
	if again := up(t, cache); again.Fresh {
		t.Fatal("an unbound lab was not handed on")
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(cache, "lab.json")
	body, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	bound := strings.Replace(string(body), `"ownerPid": 0`, fmt.Sprintf(`"ownerPid": %d`, gone.Process.Pid), 1)
	if bound == string(body) {
		t.Fatal("the record has no owner to replace")
	}
	if err := os.WriteFile(record, []byte(bound), 0o644); err != nil {
		t.Fatal(err)
	}
	second := up(t, cache)
	if !second.Fresh || second.EnginePid == first.EnginePid {
		t.Errorf("the lab of a killed command was handed on: fresh=%v engine=%d", second.Fresh, second.EnginePid)
	}
	down(t, second)
}

// TestCohortIsMeasuredTheSameTwice needs the main cache's lab: it fails without one.
func TestCohortIsMeasuredTheSameTwice(t *testing.T) {
	l, err := lab.Find()
	if err != nil {
		t.Fatal(err)
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	first, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	if err != nil {
		t.Fatal(err)
	}
	control, err := l.Cohort(t.Context(), lab.RuntimeRunc, repo)
	if err != nil {
		t.Fatal(err)
	}
	if first.ID != second.ID {
		t.Errorf("two measurements differ: %s, %s", first.ID, second.ID)
	}
	if first.ID == control.ID {
		t.Error("another runtime has the same cohort id")
	}
	if d := first.Descriptor; d.Runtime.BinaryDigest != l.Runtimes[lab.RuntimeRunsc].Digest || d.Engine.EngineDigest != l.Engine.Digest ||
		d.Engine.ContainerdDigest != l.Containerd.Digest || d.Engine.ShimDigest != l.Shim.Digest {
		t.Errorf("the measured programs are not those of the lab: %+v", d)
	}
	// Plain kernels of this age have openat2; that the probe can say both words shows that it looks.
	if control.Capabilities["sentry.openat2"] != "yes" {
		t.Errorf("under runc the probe says openat2 %q", control.Capabilities["sentry.openat2"])
	}
	for name, c := range map[string]map[string]string{"runsc": first.Capabilities, "runc": control.Capabilities} {
		if c["sentry.subreaper"] != "yes" {
			t.Errorf("under %s the probe says subreaper %q, and the supervisor lives on it there", name, c["sentry.subreaper"])
		}
		if c["sentry.peercred"] != "yes" {
			t.Errorf("under %s the probe says peercred %q, and bridge and supervisor live on it there", name, c["sentry.peercred"])
		}
	}
	// Not so in this runsc, so PID 1 there looks for orphans itself; when that changes, reference/supervisor says too much.
	if kept, control := first.Capabilities["sentry.subreaper_mark_kept"], control.Capabilities["sentry.subreaper_mark_kept"]; kept != "no" || control != "yes" {
		t.Errorf("the probe says that a subreaper keeps the orphans of whoever clears his own mark: %q under runsc, %q under runc", kept, control)
	}
	// What a sentry does not give about peers is said by name, and a plain kernel gives all of it.
	for _, name := range []string{"pidfd_open", "pidfd_send_signal", "peercred", "peercred_exited", "peerpidfd", "peercred_listener", "scm_credentials_checked", "abstract_names", "abstract_names_exclusive"} {
		if got := control.Capabilities["sentry."+name]; got != "yes" {
			t.Errorf("under runc the probe says %s %q", name, got)
		}
		if first.Capabilities["sentry."+name] == "" {
			t.Errorf("under runsc the probe says nothing of %s", name)
		}
	}
	// PID 1 of that build is told that it is a subreaper, and no other process can become one.
	if alt, ok := l.Runtimes[lab.RuntimeAlt]; ok && strings.HasPrefix(alt.Version, "0.0~20221219") {
		old, err := l.Probe(t.Context(), lab.RuntimeAlt, repo)
		if err != nil || old["sentry.subreaper"] != "EINVAL" {
			t.Errorf("under runsc of 2022 the probe says subreaper %q, %v", old["sentry.subreaper"], err)
		}
	}
	// That build tells whoever asks about himself, so no peer check can hold there.
	if alt, ok := l.Runtimes[lab.RuntimeDeb13]; ok {
		old, err := l.Probe(t.Context(), lab.RuntimeDeb13, repo)
		if err != nil || old["sentry.peercred"] != "no" || old["sentry.subreaper"] != "yes" {
			t.Errorf("under runsc %s the probe says peercred %q, subreaper %q, %v", alt.Version, old["sentry.peercred"], old["sentry.subreaper"], err)
		}
	}
	for name := range control.Capabilities {
		t.Logf("%s: runsc %s, runc %s", name, first.Capabilities[name], control.Capabilities[name])
	}
}
