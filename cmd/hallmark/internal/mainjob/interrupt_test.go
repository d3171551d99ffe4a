// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// processesBelow finds the living processes whose program lies in one of dirs.
func processesBelow(t *testing.T, dirs ...string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err == nil && slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(exe, dir+"/") }) {
			out = append(out, strings.Split(link, "/")[2]+" "+exe)
		}
	}
	return out
}

// A matrix that is interrupted in the middle of a row leaves no lab, worker, build or result; the
// lab is its own, since none ran before.
func TestInterruptedMatrixLeavesNothing(t *testing.T) {
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin") // a copy or a build, so that its processes are told from others
	if from := os.Getenv("HALLMARK_BIN"); from != "" {
		if err := os.CopyFS(bin, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	} else if err := build.All(t.Context(), build.Options{Source: repo, Out: bin}); err != nil {
		t.Fatal(err)
	}
	common, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for _, name := range []string{"packages", "runtimes", "runsc"} {
		if err := os.MkdirAll(filepath.Join(common, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(common, name), filepath.Join(cache, name)); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "hallmark"), "mutants", "m07", "--out", out)
	cmd.Dir, cmd.Stdout, cmd.Stderr = repo, log, log
	cmd.Env = append(os.Environ(), "CI=true", "HALLMARK_CACHE="+cache)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			<-ended
		}
		text, _ := os.ReadFile(log.Name())
		t.Logf("%s", text)
	}()
	// A worker that runs means that a row is under way, and with it the builds.
	worker := func() bool {
		return slices.ContainsFunc(processesBelow(t, bin), func(p string) bool { return strings.HasSuffix(p, "/hallmark-worker") })
	}
	for deadline := time.Now().Add(4 * time.Minute); !worker(); time.Sleep(100 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("ended before a worker ran: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("no worker ran within 4 minutes")
		}
	}
	b, err := os.ReadFile(filepath.Join(cache, "lab.json"))
	var l lab.Lab
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		ended <- err
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("ended with %v, want exit 2 (incomplete)", err)
		}
	case <-time.After(4 * time.Minute):
		t.Fatal("not ended 4 minutes after SIGTERM")
	}
	if left := processesBelow(t, bin, cache); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if err := syscall.Kill(l.EnginePid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the engine, process %d, is left: %v", l.EnginePid, err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, cache) && !strings.HasPrefix(m.Mountpoint, l.RunDir), false
	})
	if err != nil || len(mounts) > 0 {
		t.Errorf("%d mounts are left, %v", len(mounts), err)
	}
	for _, pattern := range []string{filepath.Join(cache, "lab.json"), filepath.Join(cache, "mutants", "build-*"), filepath.Join(out, "*"), l.RunDir,
		filepath.Join("/sys/fs/cgroup/*", l.CgroupParent)} {
		left, err := filepath.Glob(pattern)
		if err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	}
}
