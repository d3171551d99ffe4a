// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/quota/loopimage"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
)

const mib = 1 << 20

var helperPath string // built once per run

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if dir := os.Getenv(childDir); dir != "" {
		return child(dir)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests need root and loop devices; run them as root")
		return 1
	}
	dir, err := os.MkdirTemp("", "quota-helper")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	helperPath = dir + "/hallmark-quota"
	build := exec.Command("go", "build", "-trimpath", "-o", helperPath, "github.com/hallmark-sandbox/hallmark/cmd/hallmark-quota")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build helper: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func fileDigest(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

func selfMountinfo() (string, error) { return "/proc/self/mountinfo", nil }

// newLoop returns a backend on a fresh directory and proves at the end of the test that
// nothing is left of it: mounts, loop devices, files.
func newLoop(t testing.TB, change func(*LoopConfig)) *Loop {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := LoopConfig{
		Dir: base + "/ws", Helper: helperPath, HelperDigest: fileDigest(t, helperPath),
		EngineMountinfo: selfMountinfo, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	l, err := NewLoop(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ids, err := l.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := errors.Join(l.Release(ctx, id), l.Purge(ctx, id)); err != nil {
				t.Error(err)
			}
		}
		if left := leftovers(t, cfg.Dir); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// leftovers lists what names dir among mounts, loop devices and files, its skeleton aside.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			out = append(out, "mount "+line)
		}
	}
	devs, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		if b, err := os.ReadFile(d); err == nil && strings.HasPrefix(string(b), dir+"/") {
			out = append(out, "device "+d)
		}
	}
	for _, sub := range []string{"records", "images", "mnt"} {
		entries, err := os.ReadDir(dir + "/" + sub)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, "file "+sub+"/"+e.Name())
		}
	}
	return out
}

func prepare(t testing.TB, l *Loop, id string, bytes, inodes int64) Mount {
	t.Helper()
	m, err := l.Prepare(context.Background(), Spec{WorkspaceID: id, Bytes: bytes, Inodes: inodes})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func usage(t testing.TB, l *Loop, id string) Usage {
	t.Helper()
	u, err := l.Usage(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func release(t testing.TB, l *Loop, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Release(ctx, id); err != nil {
		t.Fatal(err)
	}
}

// tenantDD runs dd as the tenant with the workspace as descriptor 3 and returns its output.
func tenantDD(t testing.TB, path string, args ...string) string {
	t.Helper()
	d, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := exec.Command("dd", args...)
	c.ExtraFiles = []*os.File{d}
	c.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: loopimage.Tenant, Gid: loopimage.Tenant}}
	out, _ := c.CombinedOutput() // ends in an error when the workspace is full: the point
	return string(out)
}

// elsewhere starts a process in a mount namespace of its own, with the mounts of now. It lets go of
// loop devices that are not below keep: whoever else works on this host at the time needs them back.
func elsewhere(t testing.TB, keep string) *exec.Cmd {
	t.Helper()
	c := exec.Command("sh", "-c", `
		while read -r _ _ number _ place _; do
			case "$number $place" in "7:"*" $0"/*) ;; "7:"*) umount -l "$place" ;; esac
		done </proc/self/mountinfo
		echo; exec sleep 120 >&-`, keep)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: 0}
	said, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(c) })
	if _, err := io.ReadAll(said); err != nil {
		t.Fatal(err)
	}
	return c
}

func stop(c *exec.Cmd) {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

func openTree(t testing.TB, m Mount) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
