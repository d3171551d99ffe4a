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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// plant makes what a worker leaves when it is killed: a mounted loop image, an immutable mount
// point, and cgroups below a parent of its own, under a launch record of the given owner.
func plant(t *testing.T, parent string, owner processID) (dir, cgroup string) {
	t.Helper()
	dir = filepath.Join(parent, fmt.Sprintf("run-%d-%s", owner.Pid, owner.Start), "p1")
	point := filepath.Join(dir, "workspaces", "mnt")
	if err := os.MkdirAll(point, 0o700); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%032x", owner.Pid<<32+os.Getpid())
	id = id[16:] + id[:16]
	sockets := filepath.Join(t.TempDir(), socketFolder+id[:16])
	if err := os.Mkdir(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	cgroup = fmt.Sprintf("/hallmark-sweep-test-%d/%s", os.Getpid(), id[:16])
	for _, root := range roots(t) {
		if err := os.MkdirAll(filepath.Join(root, cgroup, "sandbox"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, dir := range []string{filepath.Join(cgroup, "sandbox"), cgroup, filepath.Dir(cgroup)} {
				os.Remove(filepath.Join(root, dir))
			}
		})
	}
	b, err := json.Marshal(ownership{Format: format, Owner: owner, WorkerID: "suite-" + id, Engine: "/nonexistent", Sockets: sockets, Cgroup: cgroup})
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
	return dir, cgroup
}

// roots are two hierarchies on cgroup v1, the one on v2.
func roots(t *testing.T) (dirs []string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		options := strings.Split(m.VFSOptions, ",")
		if m.Root == "/" && (m.FSType == "cgroup2" || slices.Contains(options, "pids") || slices.Contains(options, "freezer")) {
			dirs = append(dirs, m.Mountpoint)
		}
	}
	if len(dirs) == 0 {
		t.Fatal("no cgroup hierarchy is mounted")
	}
	return dirs
}

func exists(t *testing.T, cgroup string) (n int) {
	t.Helper()
	for _, root := range roots(t) {
		if _, err := os.Stat(filepath.Join(root, cgroup)); err == nil {
			n++
		}
	}
	return n
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
	stale, staleGroup := plant(t, parent, processID{dead.Process.Pid, start})
	living, livingGroup := plant(t, parent, processID{os.Getpid(), own})
	// The record of a living process would be believed, and so would this one, were it not for its user.
	planted, plantedGroup := plant(t, parent, processID{1 << 30, "1"})
	if err := os.Chown(filepath.Join(planted, recordFile), 65532, 65532); err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{stale, living, planted, filepath.Join(parent, "run-empty", "p1")} {
		if err := os.MkdirAll(run, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := target.LockRun(filepath.Dir(run))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := os.MkdirAll(filepath.Join(parent, "run-starts", "p1"), 0o700); err != nil {
		t.Fatal(err)
	}
	starts, err := target.LockRun(filepath.Join(parent, "run-starts"))
	if err != nil {
		t.Fatal(err)
	}
	defer starts.Close()
	foreign := filepath.Join(parent, "somebody")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := SweepStale(ctx, parent); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(stale), filepath.Join(parent, "run-empty")} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the dead run's folder %s is there: %v", dir, err)
		}
	}
	if _, err := os.Stat(filepath.Join(parent, "run-starts", "p1")); err != nil {
		t.Errorf("the folder of a run that is about to start: %v", err)
	}
	if n := exists(t, staleGroup); n != 0 {
		t.Errorf("cgroups of the dead run are left in %d hierarchies", n)
	}
	for what, cgroup := range map[string]string{"living run": livingGroup, "other user's record": plantedGroup} {
		if n := exists(t, cgroup); n != len(roots(t)) {
			t.Errorf("the cgroups of the %s are in %d hierarchies", what, n)
		}
	}
	if n := mountsBelow(t, planted); n != 1 {
		t.Errorf("the folder of another user's record has %d mounts, want 1", n)
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
	m, err := target.MountsBelow(dir)
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

func TestOnlyAWorkersOwnCgroupsAreRemoved(t *testing.T) {
	for _, parent := range []string{"/", "/lab", "lab/own", "/lab/../x", "/lab/own/"} {
		if err := removeCgroup(context.Background(), parent); err == nil {
			t.Errorf("%q was taken for a worker's own", parent)
		}
	}
}

// Whoever sweeps may be killed too: the record is there as long as anything else is.
func TestRecordGoesLast(t *testing.T) {
	dir := t.TempDir()
	l := &launched{dir: dir, cgroup: "/nobody's"}
	for _, name := range []string{recordFile, "worker.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.remove(context.Background(), nil); err == nil {
		t.Fatal("a cgroup that is nobody's own is no error")
	}
	if _, err := os.Stat(filepath.Join(dir, recordFile)); err != nil {
		t.Errorf("the record of what could not be removed is gone: %v", err)
	}
	l.cgroup = ""
	if _, err := l.remove(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// What is mounted below is not the suite's to clear: it stays with its record when it cannot be unmounted.
func TestNothingIsClearedUnderAMount(t *testing.T) {
	dir, cgroup := plant(t, t.TempDir(), processID{1 << 30, "1"})
	point := filepath.Join(dir, "workspaces", "mnt")
	file := filepath.Join(point, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link") // the guard must see through it
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	unmount = func(string, int) error { return unix.EPERM }
	defer func() { unmount = unix.Unmount }()
	for _, way := range []string{dir, link} {
		l := &launched{dir: way, cgroup: cgroup}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a loop device would be waited for
		if _, err := l.remove(ctx, nil); !errors.Is(err, unix.EPERM) {
			t.Errorf("remove: %v", err)
		}
		cancel()
		for _, path := range []string{file, filepath.Join(dir, recordFile)} {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		}
	}
}

// A file of the record's name may be anybody's: only what is a record to the letter is believed.
func TestAFileOfTheSameNameIsNoLaunchRecord(t *testing.T) {
	id := strings.Repeat("0a", 16)
	good := ownership{Format: format, Owner: processID{1 << 30, "1"}, WorkerID: "suite-" + id, Engine: "/s", Sockets: "/tmp/" + socketFolder + id[:16], Cgroup: "/lab/" + id[:16]}
	encode := func(change func(*ownership)) string {
		o := good
		change(&o)
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, tt := range map[string]struct {
		text       string
		ours, fail bool
	}{
		"whole":         {encode(func(*ownership) {}), true, false},
		"another's":     {`{"name":"alice"}`, false, false},
		"no JSON":       {`{`, false, false},
		"other format":  {encode(func(o *ownership) { o.Format = "" }), false, false},
		"more":          {strings.Replace(encode(func(*ownership) {}), "{", `{"name":"alice",`, 1), false, true},
		"no process":    {encode(func(o *ownership) { o.Owner.Pid = 0 }), false, true},
		"no start":      {encode(func(o *ownership) { o.Owner.Start = "" }), false, true},
		"half a worker": {encode(func(o *ownership) { o.Worker.Pid = 7 }), false, true},
		"other worker":  {encode(func(o *ownership) { o.WorkerID = "worker-" + id }), false, true},
		"no engine":     {encode(func(o *ownership) { o.Engine = "" }), false, true},
		"other sockets": {encode(func(o *ownership) { o.Sockets = "/tmp/hlk-x" }), false, true},
		"shared group":  {encode(func(o *ownership) { o.Cgroup = "/lab/own" }), false, true},
	} {
		o, err := parse([]byte(tt.text))
		if (o != nil) != tt.ours || (err != nil) != tt.fail {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}
