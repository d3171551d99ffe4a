// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
)

// The kills of TestSuiteKilledAtRandomMoments are spread over the first part of a run: one in each
// tenth of it.
const (
	kills      = 10
	killWithin = 20 * time.Second
)

// A suite that is killed with SIGKILL leaves nothing after the next start: no container, image,
// mount, loop device, cgroup or process, and no file below /run or in the folder for temporary
// files. Every second time its parent alone is killed, and the rest has to notice.
func TestSuiteKilledAtRandomMoments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("the moments are drawn from seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := ownLab(t)
	bin := ownPrograms(t)
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	start := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "hallmark"), append([]string{"run", "--cohort", filepath.Join(repo, "ci/cohorts/runsc.yaml"), "--procs", "2"}, args...)...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "CI=true", "HALLMARK_CACHE="+l.Cache, "TMPDIR="+temp)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	short := func() {
		t.Helper()
		cmd := start("--case", "PT-04", "--out", t.TempDir())
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Fatalf("a short run: exit %d, want 2 (narrowed, so incomplete)", code)
		}
	}
	short() // the engine keeps the images, and folders and a cgroup of its own
	before := everything(t, l, bin, temp)
	swept := 0
	for i := range kills {
		moment := time.Duration((float64(i) + r.Float64()) * float64(killWithin) / kills)
		out := t.TempDir()
		cmd := start("--tier", "smoke", "--out", out)
		time.Sleep(moment)
		all := i%2 == 0
		if err := cmd.Process.Kill(); err != nil {
			t.Fatalf("the run ended before %s: %v", moment, err)
		}
		cmd.Wait()
		if all {
			killBelow(t, bin)
		} else {
			awaitEnd(t, bin)
		}
		if _, err := os.Stat(filepath.Join(out, "bundle")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a killed run has a bundle: %v", err)
		}
		n := len(beyond(everything(t, l, bin, temp), before))
		swept += n
		t.Logf("killed after %s, everything %v: %d things were left", moment.Round(time.Millisecond), all, n)
	}
	if swept == 0 {
		t.Error("no kill left anything: that shows nothing of the sweep")
	}
	short()
	var more []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if more = beyond(everything(t, l, bin, temp), before); len(more) == 0 {
			return
		}
	}
	t.Errorf("left after the next start: %q", more)
}

// killBelow kills the programs' processes by their ids until none is left.
func killBelow(t *testing.T, bin string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		living := processesBelow(t, bin)
		if len(living) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes do not end: %v", living)
		}
		for pid := range living {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
	}
}

// awaitEnd waits until the programs' processes have ended by themselves.
func awaitEnd(t *testing.T, bin string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		living := processesBelow(t, bin)
		if len(living) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes outlive their parent: %v", living)
		}
	}
}

// everything lists what the host and the engine hold of the lab and of the programs in bin.
func everything(t *testing.T, l *lab.Lab, bin, temp string) []string {
	t.Helper()
	out, err := lab.Leftovers(l.Cache) // processes, mounts, loop devices, the cgroup parent
	if err != nil {
		t.Fatal(err)
	}
	cli, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	containers, err := cli.ContainerList(t.Context(), container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		out = append(out, "container "+c.ID)
	}
	images, err := cli.ImageList(t.Context(), image.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range images {
		out = append(out, fmt.Sprintf("image %s %v", m.ID, m.RepoTags))
	}
	for pid, name := range processesBelow(t, bin) {
		out = append(out, fmt.Sprintf("process %d %s", pid, name))
	}
	groups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", l.CgroupParent))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(groups, filepath.Join("/sys/fs/cgroup", l.CgroupParent), l.WorkDir, l.RunDir, temp) {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			switch {
			case err != nil || path == dir:
			case strings.HasPrefix(path, "/sys/") && !d.IsDir():
			case strings.HasPrefix(path, filepath.Join(l.RunDir, "netns")+"/"):
				// A namespace is a mount, and listed as one. The engine unlinks the files of those that
				// have ended once a minute.
			default:
				out = append(out, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// beyond is what now has and before had not.
func beyond(now, before []string) (more []string) {
	for _, what := range now {
		if !slices.Contains(before, what) {
			more = append(more, what)
		}
	}
	slices.Sort(more)
	return more
}
