// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Environment of a second process of this test binary.
const (
	childDir    = "QUOTA_TEST_DIR"
	childHelper = "QUOTA_TEST_HELPER"
)

// child is a second worker: it takes dir, says so, and then runs a helper that has to wait for
// the lock of workspace "w".
func child(dir string) int {
	helper := os.Getenv(childHelper)
	b, err := os.ReadFile(helper)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	sum := sha256.Sum256(b)
	l, err := NewLoop(LoopConfig{Dir: dir, Helper: helper, HelperDigest: "sha256:" + hex.EncodeToString(sum[:]), EngineMountinfo: selfMountinfo})
	if errors.Is(err, ErrLocked) {
		fmt.Println("locked")
		return 0
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("taken")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(l.Release(ctx, "w"))
	return 0
}

// second starts a second process on dir and returns its first line.
func second(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), childDir+"="+dir, childHelper+"="+helperPath)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(c) })
	line := make([]byte, 0, 64)
	for b := make([]byte, 1); len(line) < cap(line); {
		if _, err := io.ReadFull(out, b); err != nil || b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return c, string(line)
}

func TestDirectoryHasOneProcess(t *testing.T) {
	l := newLoop(t, nil)
	if _, line := second(t, l.cfg.Dir); line != "locked" {
		t.Errorf("a second process on the directory said %q", line)
	}
	if _, err := NewLoop(l.cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("a second one in this process: %v", err)
	}
	prepare(t, l, "w", 4*mib, 16) // its helper is not shut out
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := NewLoop(l.cfg)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	l.lock = again.lock // for the end of the test
}

// TestHelperEndsWithItsWorker kills a process whose helper waits, without a chance to clean up.
func TestHelperEndsWithItsWorker(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := base + "/ws"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(dir+"/records", 0o700)); err != nil {
		t.Fatal(err)
	}
	name := sha256.Sum256([]byte("w"))
	lock, err := os.OpenFile(dir+"/records/"+hex.EncodeToString(name[:16])+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c, line := second(t, dir)
	if line != "taken" {
		t.Fatalf("the second process said %q", line)
	}
	helpers := 0
	within(t, "its helper does not start", func() bool { helpers = len(children(t, c.Process.Pid)); return helpers == 1 })
	pid := children(t, c.Process.Pid)[0]
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	within(t, "the helper outlives its worker", func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return err != nil || !strings.Contains(string(b), dir)
	})
}

func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// children are the processes of ppid that run a release.
func children(t *testing.T, ppid int) (out []int) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(ppid) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for f := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			if args, err := os.ReadFile("/proc/" + f + "/cmdline"); err == nil && strings.Contains(string(args), "\x00release\x00") {
				out = append(out, pid)
			}
		}
	}
	return out
}

// TestKnownMeansComplete: a half-made image is not one that could hold data.
func TestKnownMeansComplete(t *testing.T) {
	l := newLoop(t, nil)
	known := func(want bool, when string) {
		t.Helper()
		if got, err := l.Known(t.Context(), "w"); err != nil || got != want {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	known(false, "before")
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := l.Prepare(ctx, Spec{WorkspaceID: "w", Bytes: 1024 * mib, Inodes: 65536})
		stopped <- err
	}()
	within(t, "no half-made image", func() bool {
		half, _ := filepath.Glob(l.cfg.Dir + "/images/*.tmp")
		return len(half) == 1
	})
	cancel()
	if err := <-stopped; err == nil {
		t.Fatal("the prepare was not stopped")
	}
	known(false, "half made")
	prepare(t, l, "w", 4*mib, 16)
	known(true, "prepared")
	release(t, l, "w")
	known(true, "released")
	if err := l.Purge(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
	known(false, "purged")
	if _, err := l.Known(t.Context(), "../w"); err == nil {
		t.Error("an id that is none was looked up")
	}
}

// TestLockedOutTenantIsLetInAgain: a tenant may take its own rights to its root away.
func TestLockedOutTenantIsLetInAgain(t *testing.T) {
	l := newLoop(t, nil)
	for _, tt := range []struct{ set, want uint32 }{{0, 0o700}, {0o1077, 0o1777}, {0o2555, 0o2755}, {0o711, 0o711}} {
		m := prepare(t, l, "w", 4*mib, 16)
		if err := unix.Chmod(m.Path, tt.set); err != nil {
			t.Fatal(err)
		}
		release(t, l, "w")
		m = prepare(t, l, "w", 4*mib, 16)
		var st unix.Stat_t
		if err := unix.Stat(m.Path, &st); err != nil || st.Mode&0o7777 != tt.want || st.Uid != 65532 {
			t.Errorf("chmod %#o: mode %#o, uid %d, %v; want %#o", tt.set, st.Mode&0o7777, st.Uid, err, tt.want)
		}
	}
}
