// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/reference/control"
)

// The tests run the shipped program as PID 1 of a real sandbox: on this kernel in fresh pid and
// mount namespaces with the launch profile's capabilities, and in runsc. Both need root, and
// runsc needs the lab; without them the tests fail.

const initEnv = "HALLMARK_TEST_INIT"

// programs are built once: the supervisor and the tenant.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hallmark-supervisor-test-")
	if err != nil {
		return "", err
	}
	for out, pkg := range map[string]string{"supervisor": "../../cmd/hallmark-supervisor", "tenant": "./testdata/tenant"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, out), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w: %s", pkg, err, b)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	if root := os.Getenv(initEnv); root != "" {
		fmt.Fprintln(os.Stderr, "init:", becomeSandbox(root))
		os.Exit(1)
	}
	if pid := os.Getenv(tracerEnv); pid != "" {
		fmt.Fprintln(os.Stderr, "tracer:", trace(pid))
		os.Exit(1)
	}
	if os.Getenv(strayEnv) != "" {
		if err := sweepTraced(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == "invoke" { // a keeper that does not get ready
		time.Sleep(time.Hour)
	}
	code := m.Run()
	if dir, _ := programs(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// sandbox is one running supervisor, seen from outside.
type sandbox struct {
	workspace string                         // on the host
	command   func(argv ...string) *exec.Cmd // as root in the sandbox
	pid       int                            // host pid of PID 1; 0 in runsc
	stderr    *lines
	gone      chan struct{} // closed when PID 1 has ended
	stop      func()
}

// lines collects what PID 1 writes.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// eachSandbox runs f on both kinds.
func eachSandbox(t *testing.T, f func(t *testing.T, s *sandbox)) {
	t.Run("host", func(t *testing.T) { f(t, hostSandbox(t)) })
	t.Run("runsc", func(t *testing.T) { f(t, runscSandbox(t)) })
}

func buildRoot(t testing.TB) (root, workspace string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("these tests need root")
	}
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp("", "hl-sb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	os.Chmod(base, 0o755)
	root, workspace = filepath.Join(base, "root"), filepath.Join(base, "ws")
	for _, d := range []string{"", "bin", "proc", "dev", "run", "tmp", "workspace", ".hallmark"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, filepath.Join(bin, "supervisor"), filepath.Join(root, Binary))
	copyFile(t, filepath.Join(bin, "tenant"), filepath.Join(root, "bin/tenant"))
	os.WriteFile(filepath.Join(root, "bin/noexec"), []byte("#!/bin/tenant\n"), 0o644)
	os.WriteFile(filepath.Join(root, "bin/notype"), []byte("tenant\n"), 0o755)
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(workspace, Tenant, Tenant); err != nil {
		t.Fatal(err)
	}
	return root, workspace
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// hostSandbox starts PID 1 in new namespaces of this kernel.
func hostSandbox(t testing.TB) *sandbox {
	t.Helper()
	root, workspace := buildRoot(t)
	s := &sandbox{workspace: workspace, stderr: new(lines)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{initEnv + "=" + root}
	cmd.Stderr = s.stderr
	// Descriptors of the parent that must not reach the tenant, one of them high.
	var leak *os.File
	if leak, err = os.Open("/"); err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	cmd.ExtraFiles = []*os.File{leak, leak}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	s.command = func(argv ...string) *exec.Cmd {
		return exec.Command("nsenter", append([]string{"-t", fmt.Sprint(s.pid), "-m", "-p", "-r", "-w", "--"}, argv...)...)
	}
	s.watch(cmd)
	s.stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		<-s.gone
	})
	t.Cleanup(s.stop)
	s.await(t)
	return s
}

// becomeSandbox runs as PID 1 of the new namespaces and ends as the supervisor.
func becomeSandbox(root string) error {
	runtime.LockOSThread() // execve keeps the attributes of the thread that calls it
	ws := filepath.Join(filepath.Dir(root), "ws")
	mounts := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{root, root, "", unix.MS_BIND, ""},
		{"proc", root + "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", root + "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755,size=1m"},
		{"tmpfs", root + "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=16m"},
		{"tmpfs", root + "/dev", "tmpfs", unix.MS_NOSUID, "mode=755,size=1m"},
		{ws, root + "/workspace", "", unix.MS_BIND, ""},
		{"", root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := unix.Mknod(root+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return err
	}
	os.Chmod(root+"/dev/null", 0o666)
	if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
		return err
	}
	if err := unix.Dup3(3, 2000, 0); err != nil {
		return err
	}
	for cap := range 41 {
		if cap != unix.CAP_SETUID && cap != unix.CAP_SETGID && cap != unix.CAP_KILL {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(cap), 0, 0, 0); err != nil && err != unix.EINVAL {
				return err
			}
		}
	}
	// The engine leaves inheritable capabilities in some versions: so do we.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	data[0].Inheritable = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return err
	}
	return syscall.Exec(Binary, []string{Binary, "supervisor"}, []string{"CANARY=1"})
}

// runscSandbox starts PID 1 in the lab's runsc, by an OCI bundle with the launch profile's process. processes, if
// given, limits those of each user.
func runscSandbox(t testing.TB, processes ...int) *sandbox {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("find lab: %v", err)
	}
	binary, args := l.Runtimes[lab.RuntimeRunsc].Path, l.Runtimes[lab.RuntimeRunsc].Args
	root, workspace := buildRoot(t)
	base := filepath.Dir(root)
	id := "hlsv-" + strings.ToLower(rand.Text())
	caps := []string{"CAP_SETUID", "CAP_SETGID", "CAP_KILL"}
	type m = map[string]any
	mount := func(dst, typ, src string, opts ...string) m {
		return m{"destination": dst, "type": typ, "source": src, "options": opts}
	}
	rlimits := []m{{"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 1024}}
	for _, n := range processes {
		rlimits = append(rlimits, m{"type": "RLIMIT_NPROC", "hard": n, "soft": n})
	}
	spec := m{
		"ociVersion": "1.0.2",
		"root":       m{"path": root, "readonly": true},
		"process": m{
			"user": m{"uid": 0, "gid": 0}, "cwd": "/", "args": []string{Binary, "supervisor"}, "env": []string{"CANARY=1"},
			"noNewPrivileges": true,
			"capabilities":    m{"bounding": caps, "effective": caps, "permitted": caps, "inheritable": caps},
			"rlimits":         rlimits,
		},
		"mounts": []m{
			mount("/proc", "proc", "proc"),
			mount("/dev", "tmpfs", "tmpfs", "nosuid"),
			mount("/run", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755", "size=1m"),
			mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777", "size=16m"),
			mount("/workspace", "bind", workspace, "bind", "rw", "nosuid", "nodev"),
		},
		"linux": m{"namespaces": []m{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}}},
	}
	body, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "config.json"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	s := &sandbox{workspace: workspace, stderr: new(lines)}
	flags := append([]string{"--root", filepath.Join(base, "state"), "--network=none", "--ignore-cgroups"}, args...)
	runsc := func(rest ...string) *exec.Cmd {
		return exec.Command(binary, append(flags[:len(flags):len(flags)], rest...)...)
	}
	cmd := runsc("run", "-bundle", base, id)
	cmd.Stderr = s.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.watch(cmd)
	s.command = func(argv ...string) *exec.Cmd { return runsc(append([]string{"exec", id}, argv...)...) }
	s.stop = sync.OnceFunc(func() {
		runsc("kill", id, "KILL").Run()
		select {
		case <-s.gone:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill()
			<-s.gone
		}
		runsc("delete", "-force", id).Run()
	})
	t.Cleanup(s.stop)
	s.await(t)
	return s
}

func (s *sandbox) watch(cmd *exec.Cmd) {
	s.gone = make(chan struct{})
	go func() { cmd.Wait(); close(s.gone) }()
}

// await polls until the supervisor answers its own diagnosis.
func (s *sandbox) await(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		out, err := s.command(Binary, "stats").CombinedOutput()
		if err == nil {
			return
		}
		select {
		case <-s.gone:
			deadline = time.Time{}
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("supervisor does not answer: %v: %s; its stderr: %s", err, out, s.stderr)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// pipes joins the two ends of a bridge process.
type pipes struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
}

func (p pipes) Close() error {
	p.WriteCloser.Close()
	p.cmd.Process.Kill()
	return nil
}

// connect starts a bridge and a client on it.
func (s *sandbox) connect(t testing.TB) *control.Client {
	t.Helper()
	cmd := s.command(Binary, "bridge")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe: Wait would close it below the client.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, s.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := control.Connect(ctx, pipes{r, in, cmd})
	if err != nil {
		t.Fatalf("connect: %v; stderr: %s", err, s.stderr)
	}
	t.Cleanup(func() {
		c.Close()
		<-gone
		r.Close()
	})
	return c
}

// spawnOf is a tenant command with room for everything.
func spawnOf(args ...string) control.Spawn {
	return control.Spawn{ID: "test", Argv: append([]string{"tenant"}, args...), Timeout: 60 * time.Second, MaxOutput: 1 << 20}
}

// must runs a command whose outcome has to be proven and without an error.
func must(t testing.TB, c *control.Client, s control.Spawn) control.Outcome {
	t.Helper()
	o, err := c.Exec(t.Context(), s)
	if err != nil {
		t.Fatalf("exec %q: %v", s.Argv, err)
	}
	if !o.CleanupProven {
		t.Fatalf("exec %q: cleanup not proven: %+v", s.Argv, o)
	}
	return o
}

// quiet fails when the file still grows.
func (s *sandbox) quiet(t testing.TB, name string) {
	t.Helper()
	size := func() int64 {
		st, err := os.Stat(filepath.Join(s.workspace, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := size()
	if before == 0 {
		t.Fatalf("%s never beat", name)
	}
	time.Sleep(100 * time.Millisecond) // twenty beats
	if after := size(); after != before {
		t.Fatalf("%s beats on: %d bytes, then %d", name, before, after)
	}
}

func (s *sandbox) stats(t testing.TB, c *control.Client) map[string]uint64 {
	t.Helper()
	m, err := c.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}
