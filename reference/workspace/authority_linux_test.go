// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// status returns the named lines of a /proc status file.
func status(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		out[k] = strings.Join(strings.Fields(v), " ")
	}
	return out
}

func TestThreadHasTenantAuthorityAlone(t *testing.T) {
	th, err := newThread()
	if err != nil {
		t.Fatal(err)
	}
	var tid int
	if err := th.do(func() error { tid = unix.Gettid(); return nil }); err != nil {
		t.Fatal(err)
	}
	got := status(t, fmt.Sprintf("/proc/self/task/%d/status", tid))
	const zero = "0000000000000000"
	for k, want := range map[string]string{
		"Uid": "65532 65532 65532 65532", "Gid": "65532 65532 65532 65532", "Groups": "",
		"CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapAmb": zero, "NoNewPrivs": "1",
	} {
		if got[k] != want {
			t.Errorf("%s is %q, want %q", k, got[k], want)
		}
	}
	if tid == os.Getpid() {
		t.Error("the main thread was used")
	}

	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for _, task := range tasks {
		if task.Name() == fmt.Sprint(tid) {
			continue
		}
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // ended meanwhile
		}
		others++
		if !strings.Contains(string(b), "\nUid:\t0\t0\t0\t0\n") || !strings.Contains(string(b), "\nGid:\t0\t0\t0\t0\n") {
			t.Errorf("thread %s is not root's any more", task.Name())
		}
	}
	if others < 2 {
		t.Errorf("looked at %d other threads only", others)
	}

	th.close()
	deadline := time.Now().Add(5 * time.Second)
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the thread outlived its operation")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestThreadsNeverTaintProcess(t *testing.T) {
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	for range 200 {
		if err := asTenant(func() error {
			if unix.Geteuid() != Tenant {
				return fmt.Errorf("uid %d", unix.Geteuid())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// A child forks from whatever thread runs this goroutine; held threads make Go start new ones.
	var held []*thread
	for range 16 {
		th, err := newThread()
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, th)
	}
	for range 20 {
		out, err := exec.Command("/proc/self/exe", "-test.run=^TestChildPrintsUID$", "-test.v").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "uid=0 gid=0") {
			t.Fatalf("a child is not root: %v\n%s", err, out)
		}
	}
	for _, th := range held {
		th.close()
	}
	if got := status(t, "/proc/self/status"); got["Uid"] != "0 0 0 0" || got["NoNewPrivs"] != "0" || got["Umask"] != "0027" {
		t.Errorf("main thread: uid %q, no_new_privs %q, umask %q", got["Uid"], got["NoNewPrivs"], got["Umask"])
	}
}

func TestChildPrintsUID(t *testing.T) {
	t.Logf("uid=%d gid=%d", os.Getuid(), os.Getgid())
	if os.Getuid() != 0 || os.Getgid() != 0 {
		t.Error("these tests need root")
	}
}

func TestTenantCannotOpenRootsFile(t *testing.T) {
	path := t.TempDir() + "/secret"
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := asTenant(func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
	if err != unix.EACCES {
		t.Errorf("got %v, want EACCES", err)
	}
}

func TestProbe(t *testing.T) {
	if err := Probe(); err != nil {
		t.Fatal(err)
	}
}
