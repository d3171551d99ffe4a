// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/hallmark-sandbox/hallmark/ci/build"
	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/reference/admission"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
	"github.com/hallmark-sandbox/hallmark/reference/quota"
	"github.com/hallmark-sandbox/hallmark/reference/session"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

var bounds = api.Resources{CPUs: 1000, MemoryBytes: 256 << 20, PIDs: 256, WorkspaceBytes: 32 << 20, WorkspaceInodes: 1024}

// helpers are the two binaries under test, built once.
var helpers = sync.OnceValues(func() (string, error) {
	repo, err := lab.RepoDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "hallmark-session-test-")
	if err != nil {
		return "", err
	}
	return dir, build.All(context.Background(), build.Options{Source: repo, Out: dir, Only: []string{"hallmark-supervisor", "hallmark-quota"}})
})

func TestMain(m *testing.M) {
	code := m.Run()
	session.EndSleepers()
	if dir, _ := helpers(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// site is one worker's worth of parts on a running lab. boot makes a manager as a new
// process would; crash leaves everything as kill -9 does.
type site struct {
	*testing.T
	lab     *lab.Lab
	dir     string
	worker  string
	image   image.Built
	engine  *engine.Engine
	quota   *quota.Loop
	store   *state.Store
	m       *session.Manager
	resolve func() *credential.Resolver // if set, boot asks it
	secrets *credential.Resolver
	crashed []*session.Manager
}

func newSite(t *testing.T) *site {
	t.Helper()
	l, err := lab.Find()
	if err != nil {
		t.Fatalf("this test needs the lab: %v", err)
	}
	bin, err := helpers()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(l.WorkDir, "session-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{T: t, lab: l, dir: dir, worker: "test-" + token()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	if s.image, err = l.BuildImage(t.Context(), image.Busybox); err != nil {
		t.Fatal(err)
	}
	if s.engine, err = engine.New(t.Context(), engine.Config{
		Socket: l.Socket, Runtime: l.Runtimes[lab.RuntimeRunsc].Name, CgroupParent: l.CgroupParent, Ceilings: bounds, Log: log,
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.engine.Close() })
	if s.quota, err = quota.NewLoop(quota.LoopConfig{
		Dir: filepath.Join(dir, "ws"), Helper: filepath.Join(bin, "hallmark-quota"), HelperDigest: sumFile(t, filepath.Join(bin, "hallmark-quota")),
		ReserveBytes: 1 << 20, ReserveInodes: 100, EngineMountinfo: s.engine.Mountinfo, Log: log,
	}); err != nil {
		t.Fatal(err)
	}
	s.boot()
	t.Cleanup(s.empty)
	return s
}

func (s *site) boot() {
	s.Helper()
	bin, _ := helpers()
	var err error
	if s.store, err = state.Open(filepath.Join(s.dir, "state"), state.Options{Mode: api.Qualification}); err != nil {
		s.Fatal(err)
	}
	supervisor := filepath.Join(bin, "hallmark-supervisor")
	id := session.Identity{
		WorkerID: s.worker, Mode: api.Qualification, BootEpoch: s.store.Epoch(), WorkerDigest: sumFile(s.T, supervisor),
		SupervisorDigest: sumFile(s.T, supervisor), SupervisorPath: supervisor,
		QuotaDigest: sumFile(s.T, filepath.Join(bin, "hallmark-quota")), SandboxBinaryDigest: s.lab.Runtimes[lab.RuntimeRunsc].Digest,
	}
	gate, err := admission.NewCandidates(admission.CandidatesConfig{
		Images: map[string]string{s.image.ConfigDigest: s.image.ManifestDigest}, CohortID: sum([]byte("cohort")),
		SupervisorDigest: id.SupervisorDigest, QuotaDigest: id.QuotaDigest, SandboxBinaryDigest: id.SandboxBinaryDigest,
	})
	if err != nil {
		s.Fatal(err)
	}
	profile, err := engine.NewProfileRecorder(filepath.Join(s.dir, "launch-profile.json"))
	if err != nil {
		s.Fatal(err)
	}
	if s.resolve != nil {
		s.secrets = s.resolve()
	}
	s.m, err = session.New(session.Config{
		Identity: id, Ceilings: bounds, Store: s.store, Engine: s.engine, Quota: s.quota, Gate: gate,
		Profile: profile.Observe, Credentials: s.secrets, Log: slog.New(slog.NewTextHandler(s.Output(), nil)),
	})
	if err != nil {
		s.Fatal(err)
	}
	if err := s.m.Reconcile(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// crash ends the process's part without any clean-up: what the old manager still tries
// fails on the closed store.
func (s *site) crash() {
	s.crashed = append(s.crashed, s.m)
	if err := s.store.Close(); err != nil {
		s.Fatal(err)
	}
}

// empty shuts down and proves that nothing is left: container, mount or loop device.
func (s *site) empty() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.m.Shutdown(ctx); err != nil {
		s.Error(err)
	}
	if err := s.store.Check(ctx); err != nil {
		s.Error(err)
	}
	s.crash()
	for _, old := range s.crashed { // only to end its goroutines
		now, done := context.WithCancel(ctx)
		done()
		old.Shutdown(now)
	}
	if left, err := s.engine.List(ctx, s.worker); err != nil || len(left) > 0 {
		s.Errorf("containers left: %+v, %v", left, err)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(table, []byte(s.dir)) {
		s.Errorf("mounts left under %s (%v)", s.dir, err)
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		s.Error(err)
	}
	for _, f := range backing {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), s.dir) {
			s.Errorf("loop device left: %s", text)
		}
	}
	ids, err := s.quota.List(ctx)
	if err != nil {
		s.Error(err)
	}
	for _, id := range ids {
		if err := s.quota.Purge(ctx, id); err != nil {
			s.Errorf("purge %s: %v", id, err)
		}
	}
}

func (s *site) request() api.CreateRequest {
	gate := s.gate()
	return api.CreateRequest{
		ProtocolVersion: api.ProtocolVersion, WorkspaceID: "ws-" + token(), SessionID: "session", ClientLeaseID: "lease-" + token(),
		IdleTimeoutMs: 60_000, HardTimeoutMs: 600_000, Image: s.image.ConfigDigest, Expected: gate, Resources: bounds,
	}
}

func (s *site) gate() api.Expected {
	bin, _ := helpers()
	g, err := admission.NewCandidates(admission.CandidatesConfig{
		Images: map[string]string{s.image.ConfigDigest: s.image.ManifestDigest}, CohortID: sum([]byte("cohort")),
		SupervisorDigest: sumFile(s.T, filepath.Join(bin, "hallmark-supervisor")), QuotaDigest: sumFile(s.T, filepath.Join(bin, "hallmark-quota")),
		SandboxBinaryDigest: s.lab.Runtimes[lab.RuntimeRunsc].Digest,
	})
	if err != nil {
		s.Fatal(err)
	}
	return api.Expected{CohortID: g.CohortID(), PinsDigest: g.PinsDigest()}
}

func (s *site) create(req api.CreateRequest) api.Receipt {
	s.Helper()
	r, err := s.m.Create(s.Context(), req, digest(req))
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func (s *site) sh(r api.Receipt, script string) (api.ExecResult, error) {
	req := shell(script)
	return s.m.Exec(s.Context(), r.WorkspaceID, r.SandboxID, req, digest(req))
}

func shell(script string) api.ExecRequest {
	return api.ExecRequest{InvocationID: "i-" + token(), Argv: []string{"sh", "-c", script}, TimeoutMs: 20_000, MaxOutputBytes: 1 << 20}
}

func token() string {
	var raw [16]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

func sumFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sum(b)
}

func digest(v any) string { return sum(fmt.Appendf(nil, "%+v", v)) }

func wantCode(t *testing.T, err error, want api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestWholeLifeOnRunsc(t *testing.T) {
	s := newSite(t)
	began := time.Now()
	r := s.create(s.request())
	made := time.Since(began)
	out, err := s.sh(r, "id -u; echo hello >file; stat -f -c %b /workspace")
	if err != nil || !strings.HasPrefix(string(out.Stdout), "65532\n") || !out.CleanupProven || out.ExitCode == nil || *out.ExitCode != 0 {
		t.Fatalf("exec gave %+v, %v", out, err)
	}
	var took []time.Duration
	for range 10 {
		b := time.Now()
		if _, err := s.sh(r, ":"); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(b))
	}
	_, tree, release, err := s.m.Tree(s.Context(), r.WorkspaceID, r.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	body, _, err := tree.Read(t.Context(), []byte("file"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil || string(text) != "hello\n" {
		t.Errorf("file is %q, %v", text, err)
	}
	release()
	st, err := s.m.Get(t.Context(), r.WorkspaceID, r.SandboxID)
	if err != nil || st.State != "ready" || st.Usage.Inodes < 1 || st.Usage.InodesLimit <= 0 || st.Usage.BytesLimit <= 0 {
		t.Errorf("get gave %+v, %v", st, err)
	}
	b := time.Now()
	if err := s.m.Dispose(t.Context(), r.WorkspaceID, r.SandboxID); err != nil {
		t.Fatal(err)
	}
	t.Logf("create %v, exec %v, dispose %v", made, took, time.Since(b))
	if err := s.m.Dispose(t.Context(), r.WorkspaceID, r.SandboxID); err != nil {
		t.Errorf("second dispose: %v", err)
	}
	_, err = s.sh(r, ":")
	wantCode(t, err, api.SandboxDisposed)
	if st, err = s.m.Get(t.Context(), r.WorkspaceID, r.SandboxID); err != nil || st.State != "gone" {
		t.Errorf("get after dispose gave %+v, %v", st, err)
	}

	// The workspace outlives its sandbox.
	again := s.request()
	again.WorkspaceID = r.WorkspaceID
	r2 := s.create(again)
	if out, err = s.sh(r2, "cat file"); err != nil || string(out.Stdout) != "hello\n" {
		t.Errorf("the workspace lost its file: %q, %v", out.Stdout, err)
	}
	wantCode(t, s.m.Purge(t.Context(), r.WorkspaceID), api.IncompleteCleanup)
	if err := errors.Join(s.m.Dispose(t.Context(), r2.WorkspaceID, r2.SandboxID), s.m.Purge(t.Context(), r.WorkspaceID)); err != nil {
		t.Fatal(err)
	}
	if ids, err := s.quota.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("workspaces left after purge: %q, %v", ids, err)
	}
}

func TestRestartRemovesOnlyWhatIsRecorded(t *testing.T) {
	s := newSite(t)
	r := s.create(s.request())
	cli, err := s.lab.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	forged, err := cli.ContainerCreate(t.Context(), &container.Config{
		Image: s.image.ConfigDigest, Cmd: []string{"sleep", "60"},
		Labels: map[string]string{engine.LabelWorker: s.worker, engine.LabelSandbox: r.SandboxID, engine.LabelEpoch: r.BootEpoch},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, "hallmark-"+token())
	if err != nil {
		t.Fatal(err)
	}
	remove := sync.OnceFunc(func() {
		if err := cli.ContainerRemove(context.Background(), forged.ID, container.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	defer remove()
	running := shell("echo started >mark; sleep 60")
	go s.m.Exec(t.Context(), r.WorkspaceID, r.SandboxID, running, digest(running))
	s.waitFile(r, "mark")
	s.crash()
	s.boot()
	left, err := s.engine.List(t.Context(), s.worker)
	if err != nil || len(left) != 1 || left[0].ID != forged.ID {
		t.Errorf("after the restart there are %+v, %v; want the forged one only", left, err)
	}
	_, err = s.m.Exec(t.Context(), r.WorkspaceID, r.SandboxID, running, digest(running))
	wantCode(t, err, api.OutcomeUnknown)
	_, err = s.sh(r, ":")
	wantCode(t, err, api.SandboxDisposed)
	remove()
}

// waitFile polls the workspace on the host until the tenant has made name.
func (s *site) waitFile(r api.Receipt, name string) {
	s.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, tree, release, err := s.m.Tree(s.Context(), r.WorkspaceID, r.SandboxID)
		if err != nil {
			s.Fatal(err)
		}
		_, err = tree.Stat(s.Context(), []byte(name))
		release()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s never appeared: %v", name, err)
		}
	}
}

func TestDeathsAreTyped(t *testing.T) {
	s := newSite(t)
	for _, tt := range []struct {
		name, script string
		kill         bool
		want         api.Code
	}{
		{"killed", "echo 1 >mark; sleep 60", true, api.SandboxDied},
		{"out of memory", "dd if=/dev/zero of=/dev/null bs=400M count=1", false, api.SandboxOOM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := s.create(s.request())
			type end struct {
				err error
				at  time.Time
			}
			ended := make(chan end, 1)
			go func() {
				_, err := s.sh(r, tt.script)
				ended <- end{err, time.Now()}
			}()
			killed := time.Now()
			if tt.kill {
				s.waitFile(r, "mark")
				killed = time.Now()
				if err := syscall.Kill(s.pid(r), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			got := <-ended
			wantCode(t, got.err, tt.want)
			t.Logf("typed after %v", got.at.Sub(killed))
			if tt.kill && got.at.Sub(killed) > 1500*time.Millisecond {
				t.Errorf("typed after %v", got.at.Sub(killed))
			}
			if err := s.m.Dispose(t.Context(), r.WorkspaceID, r.SandboxID); err != nil {
				t.Error(err)
			}
			_, err := s.sh(r, ":")
			wantCode(t, err, tt.want)
		})
	}
}

func (s *site) pid(r api.Receipt) int {
	s.Helper()
	left, err := s.engine.List(s.Context(), s.worker)
	if err != nil {
		s.Fatal(err)
	}
	cli, err := s.lab.Client()
	if err != nil {
		s.Fatal(err)
	}
	defer cli.Close()
	for _, l := range left {
		if l.SandboxID == r.SandboxID {
			got, err := cli.ContainerInspect(s.Context(), l.ID)
			if err != nil {
				s.Fatal(err)
			}
			return got.State.Pid
		}
	}
	s.Fatalf("no container of %s", r.SandboxID)
	return 0
}

func TestLeaseEnds(t *testing.T) {
	s := newSite(t)
	req := s.request()
	req.IdleTimeoutMs = 1000
	r := s.create(req)
	if out, err := s.sh(r, "sleep 2; echo still here"); err != nil || string(out.Stdout) != "still here\n" {
		t.Errorf("a busy sandbox was taken for idle: %q, %v", out.Stdout, err)
	}
	s.waitGone(r)
	_, err := s.sh(r, ":")
	wantCode(t, err, api.SandboxExpired)

	req = s.request()
	req.HardTimeoutMs = 3000
	r = s.create(req)
	_, err = s.sh(r, "sleep 20")
	wantCode(t, err, api.SandboxExpired)
	s.waitGone(r)
}

func (s *site) waitGone(r api.Receipt) {
	s.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		st, err := s.m.Get(s.Context(), r.WorkspaceID, r.SandboxID)
		if err != nil {
			s.Fatal(err)
		}
		if st.State == "gone" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("never gone: %+v", st)
		}
	}
}

func TestForeignImageMakesNothing(t *testing.T) {
	s := newSite(t)
	other, err := s.lab.BuildImage(t.Context(), image.Static)
	if err != nil {
		t.Fatal(err)
	}
	req := s.request()
	req.Image = other.ConfigDigest
	_, err = s.m.Create(t.Context(), req, digest(req))
	wantCode(t, err, api.Unqualified)
	if left, err := s.engine.List(t.Context(), s.worker); err != nil || len(left) > 0 {
		t.Errorf("a container exists: %+v, %v", left, err)
	}
	if ids, err := s.quota.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("a workspace exists: %q, %v", ids, err)
	}
}

func TestRecordedTemporariesAreSwept(t *testing.T) {
	s := newSite(t)
	req := s.request()
	r := s.create(req)
	recorded, lookalike := ".hallmark-"+token(), ".hallmark-"+token()
	if out, err := s.sh(r, "echo 1 >"+recorded+"; echo 2 >"+lookalike); err != nil || *out.ExitCode != 0 {
		t.Fatalf("exec gave %+v, %v", out, err)
	}
	// As a crash in the middle of a file write leaves it.
	row := r.WorkspaceID + "/" + hex.EncodeToString([]byte(recorded))
	if err := s.store.Put(t.Context(), "temporaries", row, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.m.Dispose(t.Context(), r.WorkspaceID, r.SandboxID); err != nil {
		t.Fatal(err)
	}
	again := s.request()
	again.WorkspaceID = r.WorkspaceID
	out, err := s.sh(s.create(again), "ls -A | grep hallmark")
	if err != nil || string(out.Stdout) != lookalike+"\n" {
		t.Errorf("left are %q, %v; want %q, which only looks like one", out.Stdout, err, lookalike)
	}
	if _, err := s.store.Get(t.Context(), "temporaries", row); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("the record is still there: %v", err)
	}
}
