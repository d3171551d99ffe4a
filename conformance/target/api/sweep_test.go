// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// plant makes what a worker leaves when it is killed: a mounted loop image and an immutable
// mount point, under a launch record of the given owner.
func plant(t *testing.T, parent string, owner processID) string {
	t.Helper()
	dir := filepath.Join(parent, fmt.Sprintf("run-%d-%s", owner.Pid, owner.Start))
	point := filepath.Join(dir, "workspaces", "mnt")
	if err := os.MkdirAll(point, 0o700); err != nil {
		t.Fatal(err)
	}
	sockets, err := os.MkdirTemp("", "hlk-")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(ownership{Owner: owner, WorkerID: "suite-test", Engine: "/nonexistent", Sockets: sockets})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(point)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutableFlag); err != nil {
		t.Fatalf("make mount point immutable: %v", err)
	}
	f.Close()
	image := filepath.Join(dir, "workspaces", "image")
	for _, argv := range [][]string{{"truncate", "-s", "8M", image}, {"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, point}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		l := &launched{dir: dir, sockets: sockets}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := l.remove(ctx, nil); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestSweepRemovesWhatADeadRunLeftAndNothingElse(t *testing.T) {
	parent := t.TempDir()
	dead := exec.Command("sleep", "0.2")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := startTicks(dead.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dead.Wait()
	own, err := startTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	stale := plant(t, parent, processID{dead.Process.Pid, start})
	living := plant(t, parent, processID{os.Getpid(), own})
	foreign := filepath.Join(parent, "somebody")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := SweepStale(ctx, parent); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead run's folder is there: %v", err)
	}
	if n := mountsBelow(t, stale); n != 0 {
		t.Errorf("%d mounts of the dead run are left", n)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a folder without a record was touched: %v", err)
	}
	if n := mountsBelow(t, living); n != 1 {
		t.Errorf("the living run has %d mounts, want 1", n)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loops {
		if b, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(b), stale+"/") {
			t.Errorf("%s is still attached", p)
		}
	}
}

func mountsBelow(t *testing.T, dir string) int {
	t.Helper()
	m, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	return len(m)
}

func TestProcessEndsCleanlyOrIsKilled(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	polite, err := startProcess("/bin/sh", []string{"-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"}, log)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { b, _ := os.ReadFile(log); return strings.Contains(string(b), "up") })
	if err := polite.terminate(10 * time.Second); err != nil {
		t.Errorf("clean end: %v", err)
	}
	if polite.terminate(time.Second) == nil {
		t.Error("ending an ended process is no error")
	}
	deaf, err := startProcess("/bin/sh", []string{"-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"}, log)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { b, _ := os.ReadFile(log); return strings.Contains(string(b), "deaf") })
	if deaf.terminate(200*time.Millisecond) == nil || deaf.alive() {
		t.Error("a process that ignores SIGTERM is not reported, or not killed")
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("condition not reached")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestCgroupsOfThisProcessExist(t *testing.T) {
	got, err := cgroupsOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		t.Fatal("no cgroup found")
	}
	for controller, path := range got {
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			t.Errorf("controller %q: %v", controller, err)
			continue
		}
		if len(b) == 0 {
			t.Errorf("controller %q: %s holds no process", controller, path)
		}
	}
}

func TestTargetFileIsStrict(t *testing.T) {
	for name, text := range map[string]string{
		"neither": `{}`,
		"unknown": `{"launch":{},"extra":1}`,
		"twice":   `{"engine":null,"engine":null}`,
		"no engine": `{"launch":{"worker":"w","supervisor":"s","quota":"q","images":[],"cohortId":"c","ceilings":
			{"cpus":1,"memoryBytes":1,"pids":1,"workspaceBytes":1,"workspaceInodes":1},"reserveBytes":0,"reserveInodes":0}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Open(context.Background(), json.RawMessage(text), t.TempDir()); err == nil {
				t.Error("accepted")
			}
		})
	}
}
