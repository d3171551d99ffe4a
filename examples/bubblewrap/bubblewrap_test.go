// SPDX-License-Identifier: Apache-2.0

// Package bubblewrap_test holds the example to what it shows: the contract of targets, its results
// in the catalogue, and a clean end when the suite dies. bwrap comes out of the lab.
package bubblewrap_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/execdriver"
	"github.com/hallmark-sandbox/hallmark/conformance/target/targettest"
)

func suite() conformance.Suite {
	return conformance.Suite{Cases: cases.All(), Arming: cases.Arming(), Probes: cases.Probes(), Drivers: map[string]conformance.Open{"exec": execdriver.Open}}
}

func TestMain(m *testing.M) {
	if conformance.IsChild() {
		conformance.ChildMain(suite())
		return
	}
	os.Exit(m.Run())
}

// command starts the example with the lab's bwrap.
func command(t *testing.T) execdriver.Config {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("no lab runs (`hallmark lab up`): %v", err)
	}
	if l.Bubblewrap.Path == "" {
		t.Fatalf("the lab has no bubblewrap: %s", l.Missing[lab.Bubblewrap])
	}
	c := execdriver.Config{Command: []string{"python3", "bubblewrap.py", l.Bubblewrap.Path}}
	if libraries := l.Bubblewrap.Libraries; len(libraries) > 0 {
		c.Env = map[string]string{"LD_LIBRARY_PATH": strings.Join(libraries, ":")}
	}
	return c
}

func config(t *testing.T) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(command(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// folder is one that the tenant can walk through.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-bubblewrap-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestContract(t *testing.T) {
	work := filepath.Join(folder(t), "work")
	targettest.Run(t, func(t *testing.T) *target.Target {
		tg, err := execdriver.Open(t.Context(), config(t), work)
		if err != nil {
			t.Fatal(err)
		}
		return tg
	}, targettest.Options{Dir: work})
}

// What the catalogue says of the example, by the cases that need no quiet machine; all of them are in
// ci/cohorts/bubblewrap.yaml.
func TestCatalogue(t *testing.T) {
	expected := map[string]string{
		"FS-02": "pass", "OU-05": "pass", "QT-02": "pass", "KE-04": "pass",
		"PR-05": "fail descendants-not-flagged", "KE-06": "fail host-kernel-visible", "IM-05": "not-applicable feature-not-claimed", "IP-01": "not-applicable feature-not-claimed",
	}
	dir := folder(t)
	tenant := filepath.Join(dir, "tenant")
	build := exec.Command("go", "build", "-o", tenant, "github.com/hallmark-sandbox/hallmark/fixtures/tenant")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build attack program: %v\n%s", err, out)
	}
	image, err := execdriver.Workload(t.Context(), config(t))
	if err != nil {
		t.Fatal(err)
	}
	o := conformance.Options{
		Suite: suite(), Driver: "exec", Target: config(t), Workloads: []string{image}, Tier: conformance.Full, Profiles: []string{conformance.ProfileBaseline, conformance.ProfileQuota},
		Out: filepath.Join(dir, "out"), Work: filepath.Join(dir, "work"), Tenant: tenant,
	}
	for id := range expected {
		o.CaseIDs = append(o.CaseIDs, id)
	}
	out, err := conformance.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range expected {
		c, _ := out.Report.Case(id)
		if got := strings.TrimSpace(string(c.Status) + " " + c.Reason); got != want {
			t.Errorf("%s is %s (%s), want %s", id, got, c.Text, want)
		}
	}
	for _, f := range out.Report.Reasons {
		if strings.Contains(f, "claim") {
			t.Errorf("a claim is not seen: %s", f)
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(o.Out, "raw", "child.log"))
		t.Logf("%s", log)
	}
}

// When the suite dies the program gets SIGTERM and leaves nothing: no command, no mount, no cgroup.
func TestCleansUpOnSIGTERM(t *testing.T) {
	state := filepath.Join(folder(t), "state")
	c := command(t)
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Env = append(os.Environ(), "HALLMARK_EXEC_STATE="+state)
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(out)
	ask := func(into any, format string, args ...any) {
		t.Helper()
		fmt.Fprintf(in, format+"\n", args...)
		if !answers.Scan() {
			t.Fatal("the program says nothing more")
		}
		if err := json.Unmarshal(answers.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	var about struct{ OK struct{ CgroupParent string } }
	ask(&about, `{"id":1,"op":"describe","protocol":"hallmark-exec/1"}`)
	var made struct{ OK struct{ Sandbox string } }
	ask(&made, `{"id":2,"op":"create","workspace":"w","image":"","cpuMillis":1000,"memoryBytes":67108864,"pids":32,"workspaceBytes":1048576,"workspaceInodes":64,"hardTimeoutMs":60000}`)
	var seen struct {
		OK struct{ Cgroups map[string]string }
	}
	ask(&seen, `{"id":3,"op":"observe","sandbox":%q}`, made.OK.Sandbox)
	fmt.Fprintf(in, `{"id":4,"op":"exec","sandbox":%q,"invocation":"i","argv":["L3Vzci9iaW4vc2xlZXA=","NjA="],"cwd":"","stdin":"","timeoutMs":60000,"maxOutputBytes":1000}`+"\n", made.OK.Sandbox)
	running := func() bool {
		for _, dir := range seen.OK.Cgroups {
			if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err == nil && len(strings.Fields(string(b))) >= 3 {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(10 * time.Second); !running(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the command does not run")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		t.Fatal("the program does not end")
	}
	if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(state)); err != nil || len(mounts) > 0 {
		t.Errorf("%d mounts are left, %v", len(mounts), err)
	}
	for _, dir := range seen.OK.Cgroups {
		if _, err := os.Lstat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", filepath.Dir(dir), err)
		}
	}
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("%d things are left in the folder, %v", len(left), err)
	}
	if about.OK.CgroupParent == "" || len(seen.OK.Cgroups) == 0 {
		t.Error("the program names no cgroups, so nothing was looked for")
	}
}

// A sandbox that is disposed of while a command starts goes at once: whatever bwrap had made by then
// ends, although nobody can be told of it yet.
func TestDisposeWhileACommandStarts(t *testing.T) {
	tg, err := execdriver.Open(t.Context(), config(t), filepath.Join(folder(t), "work"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		sb, err := tg.Runtime.Create(t.Context(), target.Spec{WorkspaceID: "w"})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			sb.Exec(t.Context(), target.Command{Argv: []string{"/usr/bin/sleep", "60"}})
		}()
		time.Sleep(time.Duration(i) * time.Millisecond) // from before the first process to after the last
		begin := time.Now()
		if err := sb.Dispose(t.Context()); err != nil {
			t.Errorf("%d ms after the start: %v", i, err)
		}
		select {
		case <-done:
		case <-time.After(3 * time.Second):
			t.Errorf("%d ms after the start: the command is not answered %s after the end", i, time.Since(begin).Round(time.Millisecond))
		}
	}
	if err := errors.Join(tg.Runtime.Purge(t.Context(), "w"), tg.Close()); err != nil {
		t.Error(err)
	}
}

// One thing that cannot be removed keeps nothing else, and what was made when the program is told to
// end goes, at whatever moment that is.
func TestEndsWhateverStaysAndWhenever(t *testing.T) {
	tests := map[string]string{
		// A workspace that is in use, and one after it.
		"a workspace in use": `
boxes.start("/bin/true")
for w in "ab":
    boxes.create({"workspace": w, "cpuMillis": 1000, "memoryBytes": 1 << 26, "pids": 32, "workspaceBytes": 1 << 20, "workspaceInodes": 64})
os.chdir(boxes.workspaces["a"])
try:
    boxes.close()
    failed = False
except b.Refusal as e:
    failed = "umount" in str(e)
assert failed, "the workspace that stays is not told"
assert list(boxes.workspaces) == ["a"], boxes.workspaces
assert os.path.exists(boxes.record)
os.chdir("/")
boxes.close()`,
		"a create that failed half-way": `
boxes.start("/bin/true")
try:
    boxes.create({"workspace": "w", "cpuMillis": 1000, "memoryBytes": "much", "pids": 32, "workspaceBytes": 1 << 20, "workspaceInodes": 64})
    assert False
except OSError:
    boxes.close()`,
		// SIGTERM comes while the first cgroups are made.
		"early": `
os.mkdir, mkdir = lambda *a: (mkdir(*a), "hallmark-bwrap" in a[0] and os.kill(os.getpid(), signal.SIGTERM)), os.mkdir
b.Sandboxes = lambda: boxes
sys.argv = ["bubblewrap.py", "/bin/true"]
try:
    b.main()
except SystemExit:
    pass`,
		// A number in cgroup.procs that is no member's any more: nobody is killed.
		"a number that was given again": `
boxes.start("/bin/true")
bystander = subprocess.Popen(["/usr/bin/sleep", "60"])
looks = [{bystander.pid}, set()]
b.members = lambda d: looks.pop(0)
b.kill_all("/nonexistent")
assert not looks and bystander.poll() is None
time.sleep(0.1)
assert bystander.poll() is None, "the bystander was killed"
bystander.kill()
boxes.close()`,
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			state := filepath.Join(folder(t), "state")
			t.Cleanup(func() {
				mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(state))
				for _, m := range mounts {
					t.Errorf("%s is left", m.Mountpoint)
					syscall.Unmount(m.Mountpoint, syscall.MNT_DETACH)
				}
			})
			cmd := exec.Command("python3", "-B", "-c", "import os, signal, subprocess, sys, time\nimport bubblewrap as b\nboxes = b.Sandboxes()\n"+
				"print(*boxes.groups.tops.values(), flush=True)\n"+strings.Replace(script, `"/bin/true"`, fmt.Sprintf("%q", fakeBwrap(t)), 1))
			cmd.Env = append(os.Environ(), "HALLMARK_EXEC_STATE="+state)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			tops, err := cmd.Output()
			if err != nil {
				t.Errorf("%v\n%s", err, stderr.String())
			}
			for _, top := range strings.Fields(string(tops)) {
				if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", top, err)
				}
			}
			if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
				t.Errorf("%d things are left in the folder, %v", len(left), err)
			}
		})
	}
}

// fakeBwrap is a program that says its version: no command runs here.
func fakeBwrap(t *testing.T) string {
	t.Helper()
	path := filepath.Join(folder(t), "bwrap")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho bubblewrap 0.8.0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
