// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/ci/vm/link"
)

// realEnv asks for the tests that boot guests, one at a time. They need root, 3 GiB of memory and, once, the network
// and a minute or two for the image.
const realEnv = "HALLMARK_VM"

func realOptions(t *testing.T) (Options, Image) {
	t.Helper()
	if os.Getenv(realEnv) == "" {
		t.Skip("boots guests: " + realEnv + "=1 runs it")
	}
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Cache: cache, Repo: repo, Out: t.Output()}
	img, err := Prepare(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return o, img
}

func folder(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestARealGuest(t *testing.T) {
	o, img := realOptions(t)
	before := folder(t, o.dir())
	digest, err := lab.FileDigest(img.Root)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		m, err := Start(t.Context(), o, img, Config{Console: filepath.Join(t.TempDir(), "console.log")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if m.Greeting.Kernel != img.Record.Release {
			t.Errorf("kernel %s, the image has %s", m.Greeting.Kernel, img.Record.Release)
		}
		sh := func(script string) string {
			t.Helper()
			var out bytes.Buffer
			res, err := m.Run(t.Context(), link.Command{Argv: []string{"sh", "-ec", script}, Dir: "/"}, 2*time.Minute, &out, &out)
			if err != nil || res.Code != 0 {
				t.Fatalf("%s: %v %+v %s", script, err, res, out.String())
			}
			return strings.TrimSpace(out.String())
		}
		if got := sh("cat /sys/fs/cgroup/cgroup.subtree_control"); !strings.Contains(got, "memory") || !strings.Contains(got, "pids") || !strings.Contains(got, "cpu") {
			t.Errorf("controllers: %s", got)
		}
		if got := sh("ls /sys/class/net"); got != "lo" {
			t.Errorf("network devices: %s", got)
		}
		// What an earlier guest wrote is not there: on the root, nor on a quota disk.
		for _, dir := range []string{"/root", "/quota/ext4", "/quota/xfs"} {
			if got := sh("cd " + dir + "; test ! -e mark && echo clean; echo x >mark; sync"); got != "clean" {
				t.Errorf("round %d: %s: %s", round, dir, got)
			}
		}
		// Quota of a project is enforced for one who is not root, on both.
		for dir, command := range map[string]string{
			"/quota/ext4": "chattr -p 77 +P /quota/ext4/p; setquota -P 77 0 1024 0 0 /quota/ext4",
			"/quota/xfs":  "xfs_quota -x -c 'project -s -p /quota/xfs/p 77' -c 'limit -p bhard=1m 77' /quota/xfs >/dev/null",
		} {
			got := sh("cd " + dir + "; mkdir p; chown 65532 p; " + command + "; setpriv --reuid 65532 --clear-groups dd if=/dev/zero of=p/f bs=64k count=64 2>&1 || true")
			if !strings.Contains(got, "No space left") && !strings.Contains(got, "quota exceeded") {
				t.Errorf("%s: %s", dir, got)
			}
		}
		res, err := m.Run(t.Context(), link.Command{Argv: []string{"sh", "-c", "sleep 600 & sleep 600"}}, time.Second, io.Discard, io.Discard)
		if err != nil || !res.TimedOut || res.Signal != "killed" {
			t.Errorf("time-out: %v %+v", err, res)
		}
		if got := sh("pgrep -c sleep || true"); got != "0" {
			t.Errorf("%s commands outlive their time-out", got)
		}
		if res, err := m.Run(t.Context(), link.Command{Argv: []string{"/no/such"}}, time.Second, io.Discard, io.Discard); err != nil || res.Error == "" {
			t.Errorf("a program that is not there: %v %+v", err, res)
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		from, to := filepath.Join(t.TempDir(), "data"), t.TempDir()
		if err := os.WriteFile(from, data, 0o640); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := errors.Join(m.Put(t.Context(), "/in", File{From: from, As: "a/b"}), m.Get(t.Context(), to, 1<<30, "/in/a")); err != nil {
			t.Fatal(err)
		}
		t.Logf("4 MiB there and back in %s; answering %d ms after the kernel's start", time.Since(begin), m.Greeting.Uptime)
		if back, err := os.ReadFile(filepath.Join(to, "a", "b")); err != nil || !bytes.Equal(back, data) {
			t.Errorf("%d bytes came back: %v", len(back), err)
		}
		if err := m.Get(t.Context(), to, 1<<30, "/no/such"); err == nil || !strings.Contains(err.Error(), "the guest: ") {
			t.Errorf("a file that is not there: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(m.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the emulator %d is there: %v", m.Pid, err)
		}
	}
	if after := folder(t, o.dir()); !slices.Equal(before, after) {
		t.Errorf("left in the cache: %v, before %v", after, before)
	}
	if now, err := lab.FileDigest(img.Root); err != nil || now != digest {
		t.Errorf("the image changed: %s %v", now, err)
	}
}

// A guest whose init hangs, one whose emulator is stopped, and one whose kernel panics end within their bounds, say
// what happened and leave nothing.
func TestARealGuestThatHangs(t *testing.T) {
	o, img := realOptions(t)
	before := folder(t, o.dir())
	m, err := Start(t.Context(), o, img, Config{KernelArguments: []string{"hallmark.hang"}, Boot: 2 * time.Minute})
	if !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "hangs as it was told") {
		t.Errorf("init that hangs: %v", err)
	}
	if m != nil {
		t.Fatal("a machine all the same")
	}
	for name, tt := range map[string]struct {
		do   func(m *Machine) error
		want error
	}{
		"stopped emulator": {func(m *Machine) error { return syscall.Kill(m.Pid, syscall.SIGSTOP) }, ErrSilent},
		"panic": {func(m *Machine) error {
			_, err := m.Run(t.Context(), link.Command{Argv: []string{"sh", "-c", "echo c >/proc/sysrq-trigger"}}, time.Minute, io.Discard, io.Discard)
			if err == nil {
				return errors.New("the command came back")
			}
			return nil
		}, ErrEnded},
	} {
		m, err := Start(t.Context(), o, img, Config{Silence: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := tt.do(m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		_, err = m.Run(ctx, link.Command{Argv: []string{"true"}}, time.Second, io.Discard, io.Discard)
		cancel()
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		t.Logf("%s: %v", name, err)
		if err := m.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := syscall.Kill(m.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: the emulator %d is there: %v", name, m.Pid, err)
		}
	}
	if after := folder(t, o.dir()); !slices.Equal(before, after) {
		t.Errorf("left in the cache: %v, before %v", after, before)
	}
}
