// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// programs returns the folder of the built commands: that of the checker, or one built here.
func programs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("HALLMARK_BIN"); dir != "" {
		return dir
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := build.All(t.Context(), build.Options{Source: repo, Out: dir}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// left lists what a run could leave on the host: containers of the engine, mounts, loop devices
// and folders below the lab's work folder, and processes of the programs under test.
func left(t *testing.T, l *lab.Lab, bin string) []string {
	t.Helper()
	var out []string
	cli, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	list, err := cli.ContainerList(t.Context(), container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		out = append(out, "container "+c.ID)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(l.WorkDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		out = append(out, "mount "+m.Mountpoint)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range loops {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), l.WorkDir) {
			out = append(out, "loop "+strings.TrimSpace(string(b)))
		}
	}
	for _, pattern := range []string{filepath.Join(l.WorkDir, "*"), filepath.Join(l.RunDir, "hl[kp]-*"), filepath.Join(os.TempDir(), "hl[kp]-*")} {
		folders, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			out = append(out, "folder "+f)
		}
	}
	for pid, name := range processesBelow(t, bin) {
		out = append(out, fmt.Sprintf("process %d %s", pid, name))
	}
	slices.Sort(out)
	return out
}

// processesBelow finds the living processes whose program lies in dir.
func processesBelow(t *testing.T, dir string) map[int]string {
	t.Helper()
	out := map[int]string{}
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(exe, dir+"/") {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		out[pid] = filepath.Base(exe)
	}
	return out
}

// ownPrograms are copies, so that their processes are told from those of other tests.
func ownPrograms(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.CopyFS(bin, os.DirFS(programs(t))); err != nil {
		t.Fatal(err)
	}
	for _, name := range build.Commands {
		if err := os.Chmod(filepath.Join(bin, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// ownLab starts a lab for this test alone, since a run judges everything that appears on its
// engine. It shares the packages and runtimes of the common cache.
func ownLab(t *testing.T) *lab.Lab {
	t.Helper()
	common, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	for _, name := range []string{"packages", "runtimes", "runsc"} {
		dir := filepath.Join(common, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, filepath.Join(cache, name)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := lab.Up(t.Context(), lab.Options{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// A run that is interrupted, killed, or loses its worker in the middle of the cases signs
// nothing that could be admitted and leaves nothing, at once or after the next start.
func TestEndsOfARunLeaveNothing(t *testing.T) {
	l := ownLab(t)
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := ownPrograms(t)
	run := func(t *testing.T, out string, more ...string) (*exec.Cmd, *bufio.Scanner) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "hallmark"), append([]string{"run", "--cohort", filepath.Join(repo, "ci/cohorts/runsc.yaml"),
			"--case", "FS-02,PR-05,OU-05,QT-01,CR-01", "--out", out}, more...)...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "CI=true", "HALLMARK_CACHE="+l.Cache)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, bufio.NewScanner(stderr)
	}
	// firstCase waits until one case has ended, which is in the middle of the next.
	firstCase := func(t *testing.T, lines *bufio.Scanner) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "PASS ") {
				return
			}
			if strings.HasPrefix(lines.Text(), "FAIL ") || strings.HasPrefix(lines.Text(), "ERROR ") {
				t.Fatal(lines.Text())
			}
		}
		t.Fatal("the run ended before its first case")
	}
	exitOf := func(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner) int {
		t.Helper()
		for lines.Scan() {
			t.Log(lines.Text())
		}
		err := cmd.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode()
	}
	nothing := func(t *testing.T) {
		t.Helper()
		var have []string
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if have = left(t, l, bin); len(have) == 0 {
				return
			}
		}
		t.Errorf("left: %q", have)
	}
	for procs, sig := range map[string]syscall.Signal{"1": syscall.SIGINT, "2": syscall.SIGTERM} {
		t.Run(sig.String()+" of "+procs, func(t *testing.T) {
			out := t.TempDir()
			cmd, lines := run(t, out, "--procs", procs)
			firstCase(t, lines)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := exitOf(t, cmd, lines); code != 2 {
				t.Errorf("exit %d, want 2 (incomplete)", code)
			}
			if _, err := os.Stat(filepath.Join(out, "bundle")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an interrupted run has a bundle: %v", err)
			}
			if now := left(t, l, bin); len(now) > 0 {
				t.Errorf("left at once: %q", now)
			}
		})
	}
	t.Run("the worker is killed", func(t *testing.T) {
		cmd, lines := run(t, t.TempDir())
		firstCase(t, lines)
		killed := 0
		for pid, name := range processesBelow(t, bin) {
			if name == "hallmark-worker" {
				killed++
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		if killed != DefaultProcs() {
			t.Fatalf("%d workers ran, want one for each of %d processes", killed, DefaultProcs())
		}
		if code := exitOf(t, cmd, lines); code == 0 || code == 3 {
			t.Errorf("exit %d, want a run that proves nothing", code)
		}
		nothing(t)
	})
	t.Run("everything is killed", func(t *testing.T) {
		cmd, lines := run(t, t.TempDir())
		firstCase(t, lines)
		for pid := range processesBelow(t, bin) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		exitOf(t, cmd, lines)
		if now := left(t, l, bin); len(now) == 0 {
			t.Error("nothing was left to sweep: the kill came too late to show anything")
		}
		next, lines := run(t, t.TempDir())
		exitOf(t, next, lines)
		nothing(t)
	})
}
