// SPDX-License-Identifier: Apache-2.0

package runcmd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases"
	target "github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/evidence/signing"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// standing is a worker in qualification mode that somebody else has started, and what a target
// file has to know of it.
type standing struct {
	cmd    *exec.Cmd
	attach target.Attach
	engine target.Engine
	image  Workload
}

// startStanding starts a worker on l by hand.
func startStanding(t *testing.T, l *lab.Lab, bin string) *standing {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	images, err := loadWorkloads(t.Context(), l, []string{"busybox"})
	must(err)
	repo, err := lab.RepoDir()
	must(err)
	cohort, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	must(err)
	dir := filepath.Join(l.WorkDir, "standing")
	for _, d := range []string{"state", "workspaces"} {
		must(os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	key := func(name string) (string, ed25519.PublicKey) {
		public, private, err := ed25519.GenerateKey(nil)
		must(err)
		der, err := x509.MarshalPKCS8PrivateKey(private)
		must(err)
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
		return path, public
	}
	workerKey, workerPublic := key("worker.key")
	capabilityKey, capabilityPublic := key("capability.key")
	rt := l.Runtimes[lab.RuntimeRunsc]
	c := worker.Config{
		WorkerID: "standing", Mode: api.Qualification, Listen: filepath.Join(l.RunDir, "standing.sock"), StateDir: filepath.Join(dir, "state"),
		Engine:        worker.Engine{Socket: l.Socket, Runtime: rt.Name, CgroupParent: l.CgroupParent, PidFile: filepath.Join(l.RunDir, "dockerd.pid")},
		Helpers:       worker.Helpers{Supervisor: filepath.Join(bin, "hallmark-supervisor"), Quota: filepath.Join(bin, "hallmark-quota")},
		SandboxBinary: worker.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		Workspaces:    worker.Workspaces{Dir: filepath.Join(dir, "workspaces"), ReserveBytes: target.ReserveBytes, ReserveInodes: target.ReserveInodes},
		Authority:     worker.Authority{Issuer: "standing-test", Keys: []worker.AuthorityKey{{KID: capability.KeyID(capabilityPublic), PublicKey: capabilityPublic}}},
		SigningKey:    workerKey, Ceilings: target.Ceilings, Log: worker.Log{Path: filepath.Join(dir, "worker.log")},
		Candidates: &worker.Candidates{CohortID: cohort.ID, Images: []worker.Candidate{{ConfigDigest: images[0].ConfigDigest, ManifestDigest: images[0].ManifestDigest}}},
	}
	text, err := strictjson.Marshal(c)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "worker.json"), text, 0o600))
	s := &standing{image: images[0], cmd: exec.Command(filepath.Join(bin, "hallmark-worker"), "serve", "--config", filepath.Join(dir, "worker.json"))}
	var stderr bytes.Buffer
	s.cmd.Stderr = &stderr
	must(s.cmd.Start())
	t.Cleanup(func() {
		s.cmd.Process.Signal(syscall.SIGTERM)
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("the worker ended with %v: %s", err, stderr.String())
		}
	})
	s.attach = target.Attach{
		Socket: c.Listen, WorkerID: c.WorkerID, WorkerKey: workerPublic, Issuer: c.Authority.Issuer, KeyID: capability.KeyID(capabilityPublic),
		KeyFile: capabilityKey, WorkerPid: s.cmd.Process.Pid, LogFile: c.Log.Path,
	}
	s.engine = target.Engine{
		Socket: l.Socket, Runtime: rt.Name, CgroupParent: l.CgroupParent, NetworkNamespace: l.NetNS, Network: l.Network,
		SandboxBinary: target.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
	}
	s.ready(t)
	return s
}

// client is one of somebody else's, which has nothing to do with a run.
func (s *standing) client(t *testing.T) *client.Client {
	t.Helper()
	text, err := os.ReadFile(s.attach.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := capability.ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{
		Socket: s.attach.Socket, WorkerID: s.attach.WorkerID, WorkerKey: s.attach.WorkerKey, Issuer: s.attach.Issuer, KeyID: s.attach.KeyID,
		Key: key, AllowQualification: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *standing) ready(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := s.client(t).Health(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the worker does not answer: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// A run against a worker that runs already judges it, leaves it running, and leaves alone what
// others have there.
func TestAttachedWorkerSurvivesARun(t *testing.T) {
	l := ownLab(t)
	bin := programs(t)
	s := startStanding(t, l, bin)
	// Somebody else's sandbox on the same worker.
	c := s.client(t)
	request, err := c.FillExpected(t.Context(), api.CreateRequest{
		WorkspaceID: "ws-bystander", SessionID: "s-bystander", ClientLeaseID: "l-bystander", IdleTimeoutMs: 600_000, HardTimeoutMs: 600_000,
		Image: s.image.ConfigDigest, Resources: api.Resources{CPUs: 500, MemoryBytes: 128 << 20, PIDs: 128, WorkspaceBytes: 16 << 20, WorkspaceInodes: 1024},
	})
	if err != nil {
		t.Fatal(err)
	}
	bystander, err := c.Create(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	config, err := strictjson.Marshal(target.Config{Attach: &s.attach, Engine: &s.engine})
	if err != nil {
		t.Fatal(err)
	}
	file, err := strictjson.Marshal(TargetFile{Driver: "api", Workloads: []string{s.image.ConfigDigest}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, out := filepath.Join(dir, "target.json"), filepath.Join(dir, "out")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	// LC-07 asks for a restart, which nobody but the starter can do.
	run := exec.Command(filepath.Join(bin, "hallmark"), "run", "--target", path, "--case", "FS-02,OU-05,PT-04,KE-04,LC-07", "--out", out)
	run.Env = append(os.Environ(), "CI=true")
	text, err := run.CombinedOutput()
	t.Logf("%s", text)
	if run.ProcessState == nil || run.ProcessState.ExitCode() != 2 {
		t.Errorf("a narrowed run ended with %v, want status 2", err)
	}
	body, err := os.ReadFile(filepath.Join(out, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report conformance.Report
	if err := json.Unmarshal(body, &report); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]conformance.Status{
		"FS-02": conformance.Pass, "OU-05": conformance.Pass, "PT-04": conformance.Pass, "KE-04": conformance.Pass, "LC-07": conformance.NotRun,
	} {
		if c, _ := report.Case(id); c.Status != want {
			t.Errorf("%s came to %s %s: %s", id, c.Status, c.Reason, c.Text)
		}
	}
	if report.Target == nil || report.Target.WorkerID != "standing" {
		t.Errorf("the report is of %+v", report.Target)
	}
	res, err := c.Exec(t.Context(), "ws-bystander", bystander.SandboxID, api.ExecRequest{
		InvocationID: "after", Argv: []string{"/bin/echo", "there"}, TimeoutMs: 10_000, MaxOutputBytes: 4096,
	})
	if err != nil || string(res.Stdout) != "there\n" {
		t.Errorf("the bystander's sandbox answers %q after the run, %v", res.Stdout, err)
	}
	if s.cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("the worker did not survive the run")
	}
}

// `hallmark run --mutation` puts the signed matrix into the bundle, as it was signed; a matrix of
// another cohort is refused before the run.
func TestRunCarriesMutationEvidence(t *testing.T) {
	l := ownLab(t)
	bin := programs(t)
	repo, err := lab.RepoDir()
	if err != nil {
		t.Fatal(err)
	}
	cohort, err := l.Cohort(t.Context(), lab.RuntimeRunsc, repo)
	if err != nil {
		t.Fatal(err)
	}
	suite, err := fileDigest(filepath.Join(bin, "hallmark"))
	if err != nil {
		t.Fatal(err)
	}
	catalogue, err := conformance.Suite{Cases: cases.All(), Arming: cases.Arming()}.CatalogueDigest()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, err := signing.Generate(filepath.Join(dir, "ci.key"), filepath.Join(dir, "ci.pub"), evidence.Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	run := func(cohortID string) (matrix []byte, out, text string, status int) {
		t.Helper()
		matrix, err := evidence.SealMutation(evidence.MutationResults{
			SuiteDigest: suite, CatalogueDigest: catalogue, PatchesDigest: suite, CohortID: cohortID,
			Rows: []evidence.MutationRow{{Mutant: "m01", Case: "FS-02", Expected: "target-read", Observed: "target-read"}},
		}, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "mutation.json"), matrix, 0o600); err != nil {
			t.Fatal(err)
		}
		out = filepath.Join(t.TempDir(), "out")
		cmd := exec.Command(filepath.Join(bin, "hallmark"), "run", "--cohort", filepath.Join(repo, "ci/cohorts/runsc.yaml"), "--tier", "smoke", "--workload", "static",
			"--key", filepath.Join(dir, "ci.key"), "--mutation", filepath.Join(dir, "mutation.json"), "--out", out)
		cmd.Dir, cmd.Env = repo, append(os.Environ(), "CI=true", "HALLMARK_CACHE="+l.Cache)
		printed, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return matrix, out, string(printed), cmd.ProcessState.ExitCode()
	}
	matrix, out, text, status := run(cohort.ID)
	if status != 2 {
		t.Errorf("a run of the smoke tier ended with status %d: %s", status, text)
	}
	b, err := evidence.ReadBundle(filepath.Join(out, "bundle"), evidence.AuditDepth)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if body, ok := b.File("blobs/sha256/" + strings.TrimPrefix(evidence.Digest(matrix), "sha256:")); !ok || !bytes.Equal(body, matrix) {
		t.Error("the bundle does not hold the signed matrix")
	}
	if _, out, text, status = run(suite); status != 3 || !strings.Contains(text, "the mutation evidence is of the cohort") {
		t.Errorf("a matrix of another cohort: status %d: %s", status, text)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused run wrote: %v", err)
	}
}
