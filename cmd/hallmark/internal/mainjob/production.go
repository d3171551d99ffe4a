// SPDX-License-Identifier: Apache-2.0

package mainjob

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hallmark-sandbox/hallmark/ci/lab"
	"github.com/hallmark-sandbox/hallmark/cmd/hallmark/internal/exit"
	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	target "github.com/hallmark-sandbox/hallmark/conformance/target/api"
	"github.com/hallmark-sandbox/hallmark/evidence/gate"
	"github.com/hallmark-sandbox/hallmark/fixtures/image"
	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// Bounds of the production check.
const (
	productionReady = 60 * time.Second // start-up: evidence, cohort, reconcile
	productionDrain = 60 * time.Second // SIGTERM to exit
)

// production closes the loop: a worker in production mode starts on this run's pins, runs one
// command in the first image, and refuses an image with another digest although the engine has
// it; the tape shows that no container was asked for.
func (j *job) production(ctx context.Context) (err error) {
	j.step("production worker on these pins")
	stranger, err := j.strangerImage(ctx)
	if err != nil {
		return err
	}
	p, err := j.startProduction(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	lease, err := p.client.Create(ctx, p.create(j.workloads[0].ConfigDigest))
	if err != nil {
		return p.unexpected("create", err)
	}
	ws := lease.Receipt.WorkspaceID
	word := rand.Text()
	got, err := p.client.Exec(ctx, ws, lease.SandboxID, api.ExecRequest{
		InvocationID: "first", Argv: []string{"/bin/echo", word}, TimeoutMs: 30_000, MaxOutputBytes: 4096,
	})
	if err != nil {
		return p.unexpected("exec", err)
	}
	if want := word + "\n"; string(got.Stdout) != want || got.ExitCode == nil || *got.ExitCode != 0 {
		return p.unexpected("exec", fmt.Errorf("printed %q, want %q", got.Stdout, want))
	}
	if err := p.client.Dispose(ctx, ws, lease.SandboxID); err != nil {
		return p.unexpected("dispose", err)
	}
	if err := p.client.Purge(ctx, ws); err != nil {
		return p.unexpected("purge", err)
	}
	_, mark, err := p.tape.Since(0)
	if err != nil {
		return p.unexpected("tape", err)
	}
	_, err = p.client.Create(ctx, p.create(stranger))
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.Unqualified {
		return p.unexpected("refusal of an unpinned image", fmt.Errorf("want %s, got %v", api.Unqualified, err))
	}
	calls, _, err := p.tape.Since(mark)
	if err != nil {
		return p.unexpected("tape", err)
	}
	for _, c := range calls {
		if c.Method == "POST" && strings.Contains(c.Path, "/containers/") {
			return p.unexpected("refusal of an unpinned image", fmt.Errorf("the engine was asked %s %s", c.Method, c.Path))
		}
	}
	j.step("production: %q ran; image %s was refused with %s before any container", "echo", stranger[:19], refused.Code)
	return nil
}

// strangerImage loads an image that differs from the first workload by one label.
func (j *job) strangerImage(ctx context.Context) (string, error) {
	b, err := j.lab.BuildImage(ctx, image.Busybox)
	if err != nil {
		return "", failed("a workload image cannot be built", err)
	}
	img, err := tarball.ImageFromPath(b.TarPath, nil)
	if err != nil {
		return "", failed("a workload image cannot be read", err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return "", failed("a workload image cannot be read", err)
	}
	cf = cf.DeepCopy()
	cf.Config.Labels = map[string]string{"org.example.stranger": rand.Text()}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		return "", failed("an image cannot be changed", err)
	}
	path := filepath.Join(j.lab.WorkDir, "stranger-"+rand.Text()+".tar")
	defer os.Remove(path)
	if err := tarball.WriteToFile(path, nil, img); err != nil {
		return "", failed("an image cannot be written", err)
	}
	id, err := j.lab.LoadImage(ctx, path)
	if err != nil {
		return "", failed("an image cannot be loaded", err)
	}
	return id, nil
}

// production is the worker under check.
type production struct {
	dir, sockets string
	cmd          *exec.Cmd
	done         chan error
	client       *client.Client
	tape         *tape.Proxy
	cohort, pins string
}

func (j *job) startProduction(ctx context.Context) (_ *production, err error) {
	p := &production{dir: filepath.Join(j.lab.WorkDir, "production-"+rand.Text())}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, d := range []string{"state", "admission", "workspaces", "payloads"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o700); err != nil {
			return nil, failed("a folder cannot be made", err)
		}
	}
	// In the lab's run folder, whose path is short (sockaddr_un(7) has 108 bytes) and which the lab
	// removes, should this process be killed.
	if p.sockets, err = os.MkdirTemp(j.lab.RunDir, "hlp-"); err != nil {
		return nil, failed("a folder cannot be made", err)
	}
	taped, listen := filepath.Join(p.sockets, "engine.sock"), filepath.Join(p.sockets, "worker.sock")
	if p.tape, err = tape.Listen(taped, j.lab.Socket); err != nil {
		return nil, failed("the tape cannot listen", err)
	}
	workerPublic, workerKey, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	authorityPublic, authorityKey, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	bin, err := os.Executable()
	if err != nil {
		return nil, failed("the own folder cannot be found", err)
	}
	bin = filepath.Dir(bin)
	rt := j.lab.Runtimes[lab.RuntimeRunsc]
	id := "production-" + rand.Text()
	cfg := worker.Config{
		WorkerID: id, Mode: api.Production, Listen: listen, StateDir: filepath.Join(p.dir, "state"),
		Engine: worker.Engine{Socket: taped, Runtime: rt.Name, CgroupParent: j.lab.CgroupParent,
			PidFile: filepath.Join(j.lab.RunDir, "dockerd.pid")},
		Helpers:       worker.Helpers{Supervisor: filepath.Join(bin, "hallmark-supervisor"), Quota: filepath.Join(bin, "hallmark-quota")},
		SandboxBinary: worker.SandboxBinary{Path: rt.Path, Digest: rt.Digest},
		Workspaces:    worker.Workspaces{Dir: filepath.Join(p.dir, "workspaces"), ReserveBytes: target.ReserveBytes, ReserveInodes: target.ReserveInodes},
		Authority:     worker.Authority{Issuer: "main-job", Keys: []worker.AuthorityKey{{KID: capability.KeyID(authorityPublic), PublicKey: authorityPublic}}},
		SigningKey:    filepath.Join(p.dir, "worker.key"), Ceilings: target.Ceilings,
		Admission: &worker.Admission{
			Root: filepath.Join(j.out, gate.RootPublicFile), Trust: filepath.Join(j.out, gate.TrustFile), Pins: filepath.Join(j.out, gate.PinsFile),
			Bundles: []string{filepath.Join(j.out, "bundle")}, StateDir: filepath.Join(p.dir, "admission"),
		},
		// The evidence is of a worker that delivers secrets, so this one has to as well.
		Credentials: &credential.Config{
			Providers: []credential.ProviderConfig{{ProviderID: "files", Kind: credential.KindFile, Dir: filepath.Join(p.dir, "payloads")}},
			Bindings:  []credential.Binding{{BindingID: "none", ProviderID: "files", Category: "service", Kind: "token", Fields: []string{"token"}}},
		},
		Log: worker.Log{Path: filepath.Join(p.dir, "worker.log")},
	}
	if err := p.write(cfg, workerKey); err != nil {
		return nil, failed("the worker's configuration cannot be written", err)
	}
	p.client, err = client.New(client.Config{
		Socket: listen, WorkerID: id, WorkerKey: workerPublic, Issuer: cfg.Authority.Issuer, KeyID: capability.KeyID(authorityPublic), Key: authorityKey,
	})
	if err != nil {
		return nil, failed("the client cannot be made", err)
	}
	if err := p.start(filepath.Join(bin, "hallmark-worker")); err != nil {
		return nil, failed("the production worker cannot be started", err)
	}
	return p, p.ready(ctx)
}

func (p *production) write(cfg worker.Config, key ed25519.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(cfg.SigningKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dir, "worker.json"), b, 0o600)
}

func (p *production) start(binary string) error {
	var stderr bytes.Buffer
	cmd := exec.Command(binary, "serve", "--config", filepath.Join(p.dir, "worker.json"))
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	p.done = make(chan error, 1)
	go func() {
		// Pdeathsig follows the starting thread: keep it until the worker has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			err = cmd.Wait()
			if stderr.Len() > 0 {
				err = errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
			}
			p.done <- err
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd = cmd
	return nil
}

// ready waits for the first signed health answer: the worker listens only after it has verified
// policy, pins, evidence, cohort and its own executable.
func (p *production) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, productionReady)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		h, err := p.client.Health(ctx)
		if err == nil {
			if h.Mode != api.Production {
				return p.unexpected("health", fmt.Errorf("mode %q", h.Mode))
			}
			p.cohort, p.pins = h.CohortID, h.PinsDigest
			return nil
		}
		select {
		case werr := <-p.done:
			p.done <- werr
			return p.unexpected("start", fmt.Errorf("it ended: %w", werr))
		case <-ctx.Done():
			return p.unexpected("start", err)
		case <-tick.C:
		}
	}
}

func (p *production) create(configDigest string) api.CreateRequest {
	return api.CreateRequest{
		ProtocolVersion: api.ProtocolVersion, WorkspaceID: "ws-" + rand.Text(), SessionID: "s-" + rand.Text(), ClientLeaseID: "l-" + rand.Text(),
		IdleTimeoutMs: 60_000, HardTimeoutMs: 300_000, Image: configDigest,
		Expected:  api.Expected{CohortID: p.cohort, PinsDigest: p.pins},
		Resources: api.Resources{CPUs: 1000, MemoryBytes: 256 << 20, PIDs: 256, WorkspaceBytes: 16 << 20, WorkspaceInodes: 1024},
	}
}

// unexpected is a broken promise of the production worker, with the end of its log.
func (p *production) unexpected(what string, err error) error {
	log, _ := os.ReadFile(filepath.Join(p.dir, "worker.log"))
	return &exit.Error{Status: exit.Negative, Sentence: "the production worker broke its promise at " + what,
		Cause: fmt.Errorf("%w\n%s", err, log[max(0, len(log)-2000):]), Remedy: "this is a defect: the evidence is good and the worker is not"}
}

// close ends the worker and removes what it was given.
func (p *production) close() error {
	var errs []error
	if p.cmd != nil {
		errs = append(errs, p.cmd.Process.Signal(syscall.SIGTERM))
		timer := time.NewTimer(productionDrain)
		defer timer.Stop()
		select {
		case err := <-p.done:
			if err != nil {
				errs = append(errs, fmt.Errorf("the production worker ended badly: %w", err))
			}
		case <-timer.C:
			errs = append(errs, errors.New("the production worker did not end within its drain time"), p.cmd.Process.Kill())
			<-p.done
		}
	}
	if p.tape != nil {
		errs = append(errs, p.tape.Close())
	}
	if p.sockets != "" {
		errs = append(errs, os.RemoveAll(p.sockets))
	}
	errs = append(errs, os.RemoveAll(p.dir))
	if err := errors.Join(errs...); err != nil {
		return &exit.Error{Status: exit.Negative, Sentence: "the production worker was not ended cleanly", Cause: err, Remedy: "`hallmark lab down` sweeps what is left"}
	}
	return nil
}
