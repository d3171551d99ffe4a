// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// binaries are the programs under test, built once, as a release builds them.
var binaries = sync.OnceValues(func() (string, error) {
	repo, err := lab.RepoDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hallmark-worker-test-")
	if err != nil {
		return "", err
	}
	return dir, build.All(context.Background(), build.Options{Source: repo, Out: dir, Only: []string{"hallmark-worker", "hallmark-supervisor", "hallmark-quota"}})
})

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == sealedArgument {
		os.Exit(sealedProcess())
	}
	code := m.Run()
	if dir, _ := binaries(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// site is one worker's configuration on the running lab. Without a lab the test fails.
type site struct {
	*testing.T
	lab    *lab.Lab
	bin    string
	cfg    worker.Config
	image  image.Built
	caller client.Config
	client *client.Client
	under  []string // a program that starts the worker, and its arguments
}

func newSite(t *testing.T) *site {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this test needs the lab: %v", err)
	}
	bin, err := binaries()
	must(err)
	dir, err := os.MkdirTemp(l.WorkDir, "worker-test-")
	must(err)
	sockets, err := os.MkdirTemp("", "hw-") // sockaddr_un(7): 108 bytes
	must(err)
	t.Cleanup(func() { os.RemoveAll(dir); os.RemoveAll(sockets) })
	s := &site{T: t, lab: l, bin: bin}
	s.image, err = l.BuildImage(t.Context(), image.Busybox)
	must(err)
	capPublic, capKey, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	workerPublic, workerKey, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	der, err := x509.MarshalPKCS8PrivateKey(workerKey)
	must(err)
	keyFile := filepath.Join(dir, "key.pem")
	must(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	var id [8]byte
	rand.Read(id[:])
	rt := l.Runtimes[lab.RuntimeRunsc]
	s.cfg = worker.Config{
		WorkerID: "test-" + hex.EncodeToString(id[:]), Mode: api.Qualification, Listen: filepath.Join(sockets, "w.sock"), StateDir: filepath.Join(dir, "state"),
		Engine:        worker.Engine{Socket: l.Socket, Runtime: rt.Name, CgroupParent: l.CgroupParent},
		Helpers:       worker.Helpers{Supervisor: filepath.Join(bin, "hallmark-supervisor"), Quota: filepath.Join(bin, "hallmark-quota")},
		SandboxBinary: worker.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		Workspaces:    worker.Workspaces{Dir: filepath.Join(dir, "workspaces"), ReserveBytes: 1 << 20, ReserveInodes: 100},
		Authority:     worker.Authority{Issuer: "test", Keys: []worker.AuthorityKey{{KID: "k1", PublicKey: capPublic}}},
		SigningKey:    keyFile,
		Ceilings:      api.Resources{CPUs: 1000, MemoryBytes: 256 << 20, PIDs: 256, WorkspaceBytes: 64 << 20, WorkspaceInodes: 4096},
		Candidates: &worker.Candidates{
			Images:   []worker.Candidate{{ConfigDigest: s.image.ConfigDigest, ManifestDigest: s.image.ManifestDigest}},
			CohortID: api.Digest([]byte("cohort under test")),
		},
		Log: worker.Log{Path: filepath.Join(dir, "worker.log")},
	}
	s.caller = client.Config{
		Socket: s.cfg.Listen, WorkerID: s.cfg.WorkerID, WorkerKey: workerPublic, Issuer: "test", KeyID: "k1", Key: capKey, AllowQualification: true,
	}
	s.client, err = client.New(s.caller)
	must(err)
	return s
}

// process is one started worker.
type process struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	done   chan error
}

func (s *site) spawn() *process {
	s.Helper()
	text, err := json.Marshal(s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	path := filepath.Join(s.TempDir(), "worker.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		s.Fatal(err)
	}
	argv := append(slices.Clone(s.under), filepath.Join(s.bin, "hallmark-worker"), "serve", "--config", path)
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), stderr: &bytes.Buffer{}, done: make(chan error, 1)}
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	s.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	})
	return p
}

func (s *site) start() *process {
	s.Helper()
	p := s.spawn()
	s.client.Forget()
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := s.client.Health(s.Context())
		if err == nil {
			return p
		}
		select {
		case werr := <-p.done:
			s.Fatalf("worker ended: %v\n%s", werr, p.stderr)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.Fatalf("worker does not answer: %v", err)
		}
	}
}

// wait returns the exit status.
func (s *site) wait(p *process) int {
	s.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		s.Fatalf("worker does not end\n%s", p.stderr)
		return -1
	}
}

func (s *site) stop(p *process) {
	s.Helper()
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		s.Fatal(err)
	}
	if code := s.wait(p); code != 0 {
		log, _ := os.ReadFile(s.cfg.Log.Path)
		s.Errorf("exit status %d\n%s\n%s", code, p.stderr, log)
	}
}

// request asks for the site's image.
func (s *site) request(ws string) api.CreateRequest {
	s.Helper()
	req, err := s.client.FillExpected(s.Context(), api.CreateRequest{
		WorkspaceID: ws, SessionID: "s", ClientLeaseID: "l-" + ws, IdleTimeoutMs: 600_000, HardTimeoutMs: 600_000, Image: s.image.ConfigDigest,
		Resources: api.Resources{CPUs: 500, MemoryBytes: 128 << 20, PIDs: 128, WorkspaceBytes: 16 << 20, WorkspaceInodes: 512},
	})
	if err != nil {
		s.Fatal(err)
	}
	return req
}

func (s *site) create(ws string) client.Lease {
	s.Helper()
	lease, err := s.client.Create(s.Context(), s.request(ws))
	if err != nil {
		log, _ := os.ReadFile(s.cfg.Log.Path)
		s.Fatalf("create: %v\n%s", err, log)
	}
	return lease
}

func (s *site) containers() []string {
	s.Helper()
	cli, err := s.lab.Client()
	if err != nil {
		s.Fatal(err)
	}
	defer cli.Close()
	all, err := cli.ContainerList(s.Context(), listAll(s.cfg.WorkerID))
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for _, c := range all {
		out = append(out, c.Names...)
	}
	return out
}

func codeIs(t *testing.T, err error, want api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestArguments(t *testing.T) {
	for name, args := range map[string][]string{
		"none": nil, "unknown": {"start"}, "no config": {"serve"}, "unknown flag": {"serve", "--debug"},
		"too many": {"serve", "--config", "x", "y"}, "absent file": {"serve", "--config", filepath.Join(t.TempDir(), "absent")}, "version with more": {"version", "-v"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, stderr bytes.Buffer
			if code := report(&stderr, run(t.Context(), args, &out)); code != exitFailed || strings.Count(stderr.String(), "\n") < 2 || out.Len() != 0 {
				t.Errorf("exit status %d, %q, %q", code, &stderr, &out)
			}
		})
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"version"}, &out); err != nil || !strings.HasPrefix(out.String(), "hallmark-worker ") {
		t.Errorf("%q, %v", &out, err)
	}
}

func TestWholeSessionOnRunsc(t *testing.T) {
	s := newSite(t)
	p := s.start()
	ctx := t.Context()
	lease := s.create("ws")
	r := lease.Receipt
	own, err := worker.FileDigest(filepath.Join(s.bin, "hallmark-worker"))
	if err != nil || r.WorkerDigest != own || r.SandboxBinary != s.cfg.SandboxBinary.Digest || r.Mode != api.Qualification {
		t.Errorf("receipt %+v; worker %s, %v", r, own, err)
	}
	sb := lease.SandboxID
	script := []byte("#!/bin/sh\nprintf 'uid %s in %s\\n' \"$(id -u)\" \"$PWD\"\ncat \"$1\"\nexit 7\n")
	if _, err := s.client.Write(ctx, "ws", sb, "run.sh", script, client.WriteOptions{Executable: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Write(ctx, "ws", sb, "data", []byte("from outside\n"), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := s.client.Exec(ctx, "ws", sb, api.ExecRequest{InvocationID: "i1", Argv: []string{"./run.sh", "data"}, TimeoutMs: 20_000, MaxOutputBytes: 1000})
	if err != nil || res.ExitCode == nil || *res.ExitCode != 7 || string(res.Stdout) != "uid 65532 in /workspace\nfrom outside\n" || !res.CleanupProven {
		t.Errorf("exec: %+v, stdout %q, stderr %q, %v", res, res.Stdout, res.Stderr, err)
	}
	if again, err := s.client.Exec(ctx, "ws", sb, api.ExecRequest{InvocationID: "i1", Argv: []string{"./run.sh", "data"}, TimeoutMs: 20_000, MaxOutputBytes: 1000}); err != nil || !bytes.Equal(again.Stdout, res.Stdout) {
		t.Errorf("repeated exec: %+v, %v", again, err)
	}
	page, err := s.client.FS(ctx, "ws", sb, api.FSRequest{Op: api.FSList})
	var names []string
	for _, e := range page.Entries {
		names = append(names, e.Name)
	}
	if err != nil || !strings.Contains(strings.Join(names, " "), "run.sh") {
		t.Errorf("list: %v, %v", names, err)
	}
	if st, err := s.client.Get(ctx, "ws", sb); err != nil || st.State != "ready" || st.Usage.BytesLimit <= 0 || st.Usage.Inodes < 2 {
		t.Errorf("get: %+v, %v", st, err)
	}
	_, err = s.client.Get(ctx, "other", sb)
	codeIs(t, err, api.SandboxWorkspaceMismatch)
	if _, err := s.client.Read(ctx, "ws", sb, "../state"); err == nil {
		t.Error("a path out of the workspace was read")
	}
	if err := s.client.Dispose(ctx, "ws", sb); err != nil {
		t.Error(err)
	}
	if left := s.containers(); len(left) != 0 {
		t.Errorf("after dispose: %v", left)
	}
	_, err = s.client.Exec(ctx, "ws", sb, api.ExecRequest{InvocationID: "i2", Argv: []string{"./run.sh"}, TimeoutMs: 1000, MaxOutputBytes: 10})
	codeIs(t, err, api.SandboxDisposed)
	if err := s.client.Purge(ctx, "ws"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{securityFile, profileFile} {
		if _, err := os.Stat(filepath.Join(s.cfg.StateDir, name)); err != nil {
			t.Error(err)
		}
	}
	s.stop(p)
	if _, err := os.Lstat(s.cfg.Listen); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestUnknownImageIsRefusedBeforeAContainer(t *testing.T) {
	s := newSite(t)
	p := s.start()
	good := s.image.ConfigDigest
	s.image.ConfigDigest = api.Digest([]byte("another image"))
	_, err := s.client.Create(t.Context(), s.request("ws"))
	codeIs(t, err, api.Unqualified)
	if left := s.containers(); len(left) != 0 {
		t.Errorf("containers %v", left)
	}
	s.image.ConfigDigest = good
	s.stop(p)
}

func TestKilledWorkerIsCleanedUpByTheNext(t *testing.T) {
	s := newSite(t)
	p := s.start()
	lease := s.create("ws")
	if len(s.containers()) != 1 {
		t.Fatalf("containers %v", s.containers())
	}
	second := s.spawn()
	if code := s.wait(second); code != exitFailed || !strings.Contains(second.stderr.String(), "in use by another process") {
		t.Errorf("a second worker on the state directory: %d, %s", code, second.stderr)
	}
	state, listen := s.cfg.StateDir, s.cfg.Listen
	s.cfg.StateDir, s.cfg.Listen = state+"-2", listen+"-2"
	second = s.spawn()
	if code := s.wait(second); code != exitFailed || !strings.Contains(second.stderr.String(), "another worker uses the workspace directory") {
		t.Errorf("a second worker with a state directory of its own on the workspace directory: %d, %s", code, second.stderr)
	}
	s.cfg.StateDir, s.cfg.Listen = state, listen
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	p = s.start()
	if left := s.containers(); len(left) != 0 {
		t.Errorf("after the restart: %v", left)
	}
	if st, err := s.client.Get(t.Context(), "ws", lease.SandboxID); err != nil || st.State != "gone" {
		t.Errorf("the old sandbox: %+v, %v", st, err)
	}
	if err := s.client.Purge(t.Context(), "ws"); err != nil {
		t.Error(err)
	}
	s.stop(p)
	s.cfg.Mode, s.cfg.Candidates = api.Production, nil
	s.cfg.Admission = s.absentAdmission()
	other := s.spawn()
	if code := s.wait(other); code != exitFailed || !strings.Contains(other.stderr.String(), "other mode") {
		t.Errorf("the other mode on the state directory: %d, %s", code, other.stderr)
	}
}

// absentAdmission names files that do not exist.
func (s *site) absentAdmission() *worker.Admission {
	dir := s.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	return &worker.Admission{Root: at("root.pub"), Trust: at("trust.json"), Pins: at("pins.json"), Bundles: []string{at("bundle")}, StateDir: at("state")}
}

func TestStartIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		alter  func(*site)
		status int
		says   string
	}{
		"production without evidence": {func(s *site) {
			s.cfg.Mode, s.cfg.Candidates, s.cfg.Admission = api.Production, nil, s.absentAdmission()
		}, exitFailed, "admission cannot be decided"},
		"another sandbox binary": {func(s *site) { s.cfg.SandboxBinary.Digest = api.Digest(nil) }, exitNegative, string(api.Unqualified)},
		"production with another registered binary": {func(s *site) {
			s.cfg.Mode, s.cfg.Candidates, s.cfg.Admission = api.Production, nil, s.absentAdmission()
			other := s.lab.Runtimes[lab.RuntimeRunc]
			s.cfg.SandboxBinary = worker.SandboxBinary{Path: other.Path, Digest: other.Digest}
		}, exitNegative, string(api.Unqualified)},
		"unregistered runtime": {func(s *site) { s.cfg.Engine.Runtime = "absent" }, exitFailed, "the engine cannot be used"},
		"no engine":            {func(s *site) { s.cfg.Engine.Socket += "-absent" }, exitNotReady, "the engine cannot be used"},
		"no helper":            {func(s *site) { s.cfg.Helpers.Quota += "-absent" }, exitFailed, "a helper cannot be copied"},
		"key that others can read": {func(s *site) {
			if err := os.Chmod(s.cfg.SigningKey, 0o644); err != nil {
				s.Fatal(err)
			}
		}, exitFailed, "the signing key cannot be used"},
		"socket path is a file": {func(s *site) {
			if err := os.WriteFile(s.cfg.Listen, nil, 0o600); err != nil {
				s.Fatal(err)
			}
		}, exitFailed, "the socket cannot be used"},
		"negative reserve": {func(s *site) { s.cfg.Workspaces.ReserveBytes = -1 }, exitFailed, "the configuration is not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tt.alter(s)
			p := s.spawn()
			code := s.wait(p)
			if code != tt.status || !strings.Contains(p.stderr.String(), tt.says) {
				t.Errorf("exit status %d, want %d with %q:\n%s", code, tt.status, tt.says, p.stderr)
			}
			if lines := strings.Count(strings.TrimSpace(p.stderr.String()), "\n"); lines < 1 {
				t.Errorf("no remedy: %s", p.stderr)
			}
			if st, err := os.Lstat(s.cfg.Listen); err == nil && st.Mode().Type() == fs.ModeSocket {
				t.Error("it listened")
			}
		})
	}
}
