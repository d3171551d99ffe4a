// SPDX-License-Identifier: Apache-2.0

// Package docker drives a plain container engine, with any runtime and no worker: what a careful
// program around `docker run -d` and `docker exec` does, and no more.
//
// A sandbox is one container: an image by its config digest, no network, a read-only root, no
// capability, no new privileges, an unprivileged user, limits of memory (swap included), CPU and
// tasks, a bounded tmpfs at /tmp, the workspace bind-mounted at /workspace. PID 1 is a program that
// waits, mounted read-only, so that images without a shell can be used; it ends by itself at the
// sandbox's hard time-out. A command is an engine exec as the same user.
//
// What the engine cannot do, this driver does not do either, and the suite shows it: the engine has
// no kill for an exec, so at a time-out the driver kills the exec's host process (Pid of the exec's
// inspect answer) and nothing else. With runc that is the command's leader; its descendants stay
// until the sandbox ends. With runsc it is a client of the sandbox, and the command itself stays
// too. Nor does the driver end what a command leaves behind. An engine folds a signal into an exit
// code above 128. A bind mount has no bound: WorkspaceBytes and WorkspaceInodes are ignored, and the
// feature quota is not claimed.
//
// It owns the containers that carry its random run label, their cgroup parent where the engine's
// driver is cgroupfs with what cases plant there, and its folder. It removes nothing else. It has no state that outlives it: a
// later [Open] beside its folder removes what a killed one left.
package docker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/system"
	engine "github.com/docker/docker/client"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/internal/leftover"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Config is a target file for this driver.
type Config struct {
	Socket  string `json:"socket"`  // the engine's, a path without a scheme
	Runtime string `json:"runtime"` // as the engine has it registered, for example "runc"
	// CgroupParent is where the driver makes its own parent cgroup, on an engine whose cgroup driver
	// is cgroupfs; "" is "/docker". With systemd's driver it must be a slice, is used as it is, and
	// is not offered to the suite: others may be in it.
	CgroupParent string `json:"cgroupParent,omitempty"`
	Hold         Hold   `json:"hold"`
	// NetworkNamespace is a path for setns(2) in which the engine's networks live, and Network the
	// engine's network that arming probes may use: both or none.
	NetworkNamespace string         `json:"networkNamespace,omitempty"`
	Network          string         `json:"network,omitempty"`
	SandboxBinary    *SandboxBinary `json:"sandboxBinary,omitempty"` // that must be running as a sandbox
	User             string         `json:"user,omitempty"`          // numeric "uid:gid"; "" is "65532:65532"
	// Claims replaces the features exec, files and no-network. The suite checks what is claimed.
	Claims []string `json:"claims,omitempty"`
}

// Hold is PID 1 of every container: a static program that waits. It gets no environment of its own.
type Hold struct {
	Binary string `json:"binary"` // absolute path on the host
	// Argv are its arguments. One of them is "{seconds}", which is replaced by the sandbox's hard
	// time-out: that is how the driver honours it, whatever becomes of the driver.
	Argv []string `json:"argv"`
}

// SandboxBinary is the runtime binary that must be running, by path and sha256.
type SandboxBinary struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

const secondsArg = "{seconds}"

var (
	userForm   = regexp.MustCompile(`^([0-9]{1,9}):([0-9]{1,9})$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// check completes c and returns every fault.
func (c *Config) check() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if c.User == "" {
		c.User = "65532:65532"
	}
	if c.Claims == nil {
		c.Claims = []string{"exec", "files", "no-network"}
	}
	need(filepath.IsAbs(c.Socket), "socket %q is not an absolute path", c.Socket)
	need(c.Runtime != "", "runtime is missing")
	need(c.CgroupParent == "" || c.CgroupParent == filepath.Clean(c.CgroupParent) && c.CgroupParent != "/", "cgroupParent %q is not a clean path", c.CgroupParent)
	need(userForm.MatchString(c.User), "user %q is not a numeric uid:gid", c.User)
	need(!strings.HasPrefix(c.User, "0:"), "user %q is root", c.User)
	need((c.NetworkNamespace == "") == (c.Network == ""), "networkNamespace and network are both needed, or none")
	need(c.SandboxBinary == nil || c.SandboxBinary.Path != "" && digestForm.MatchString(c.SandboxBinary.Digest), "sandboxBinary needs path and digest (sha256:<hex>)")
	st, err := os.Stat(c.Hold.Binary)
	need(filepath.IsAbs(c.Hold.Binary) && err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0, "hold.binary %q is not an executable file with an absolute path", c.Hold.Binary)
	count := 0
	for _, a := range c.Hold.Argv {
		if a == secondsArg {
			count++
		}
	}
	need(count == 1, "hold.argv needs one argument %s, or nothing ends a sandbox at its hard time-out", secondsArg)
	return errors.Join(errs...)
}

// driver is one open target.
type driver struct {
	cfg      Config
	uid, gid int
	engine   *engine.Client
	id       string // random: the run label's value
	dir      string // record and workspaces
	record   leftover.Record
	version  string // of the engine
	daemon   int    // the engine's host pid, 0 when it cannot be told
	parent   string // given to the engine as the containers' cgroup parent; "" leaves it the choice

	mu   sync.Mutex
	live map[string]*sandbox // by sandbox id
}

// labels of every container. They are what the driver finds its own by.
const (
	labelRun     = leftover.LabelRun
	labelSandbox = "hallmark-docker.sandbox"
)

// Open reads config (strict JSON of [Config]) and returns the target. dir is an empty or absent
// folder; the folders of other runs lie beside that which it lies in, and killed ones are swept first.
func Open(ctx context.Context, config json.RawMessage, dir string) (_ *target.Target, err error) {
	var cfg Config
	if err := strictjson.Unmarshal(config, &cfg, strictjson.Default); err != nil {
		return nil, fmt.Errorf("target file: %w", err)
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("target file: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	if err := leftover.Sweep(ctx, filepath.Dir(filepath.Dir(dir))); err != nil {
		return nil, fmt.Errorf("sweep what a killed run left: %w", err)
	}
	d := &driver{cfg: cfg, id: random(), dir: dir, live: map[string]*sandbox{}}
	ids := userForm.FindStringSubmatch(cfg.User)
	d.uid, _ = strconv.Atoi(ids[1])
	d.gid, _ = strconv.Atoi(ids[2])
	if d.engine, err = engine.NewClientWithOpts(engine.WithHost("unix://"+cfg.Socket), engine.WithAPIVersionNegotiation()); err != nil {
		return nil, fmt.Errorf("engine client: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.engine.Close())
		}
	}()
	info, err := d.engine.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask engine: %w", engineError(err))
	}
	if err := d.able(info); err != nil {
		return nil, err
	}
	if d.daemon, err = listener(cfg.Socket); err != nil {
		return nil, fmt.Errorf("find engine: %w", err)
	}
	if err := os.MkdirAll(d.workspaces(), 0o700); err != nil {
		return nil, fmt.Errorf("make work folder: %w", err)
	}
	owner, err := leftover.Find(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("own start time: %w", err)
	}
	d.record = leftover.Record{Owner: owner, Engine: cfg.Socket, Label: labelRun + "=" + d.id}
	if info.CgroupDriver == "cgroupfs" {
		d.record.Cgroup = d.parent
	}
	if err := d.record.Write(dir); err != nil {
		return nil, err
	}
	return d.target(), nil
}

// able says whether this engine can honour what every sandbox asks of it, and settles the cgroup
// parent.
func (d *driver) able(info system.Info) error {
	var errs []error
	for what, ok := range map[string]bool{"memory": info.MemoryLimit, "swap": info.SwapLimit, "tasks": info.PidsLimit, "CPU": info.CPUCfsQuota} {
		if !ok {
			errs = append(errs, refusal(CodeUnsupported, target.KindUnsupported, fmt.Errorf("the engine cannot limit %s", what)))
		}
	}
	if _, ok := info.Runtimes[d.cfg.Runtime]; !ok {
		errs = append(errs, refusal(CodeUnsupported, target.KindUnsupported, fmt.Errorf("the engine has no runtime %q", d.cfg.Runtime)))
	}
	d.version = info.ServerVersion
	switch d.parent = d.cfg.CgroupParent; info.CgroupDriver {
	case "cgroupfs":
		if d.parent == "" {
			d.parent = "/docker"
		}
		d.parent = filepath.Join(d.parent, leftover.CgroupName(d.id))
	case "systemd":
		if d.parent != "" && !strings.HasSuffix(d.parent, ".slice") {
			errs = append(errs, fmt.Errorf("cgroupParent %q is not a slice, and the engine's cgroup driver is systemd", d.parent))
		}
	default:
		errs = append(errs, refusal(CodeUnsupported, target.KindUnsupported, fmt.Errorf("the engine's cgroup driver is %q", info.CgroupDriver)))
	}
	return errors.Join(errs...)
}

// target lists the parts that this configuration gives.
func (d *driver) target() *target.Target {
	t := &target.Target{
		Runtime: runtime{d}, Observer: observer{d}, Controller: controller{d}, Documents: d.documents, Close: d.close,
		Parts: []string{"observer.engine", "observer.workspace-path", "observer.cgroup", "controller.foothold", "runtime.concurrent"},
	}
	if d.cfg.Network != "" {
		t.Parts = append(t.Parts, "observer.network")
	}
	if d.daemon != 0 {
		t.Parts = append(t.Parts, "observer.worker-process")
	}
	return t
}

func (d *driver) workspaces() string { return filepath.Join(d.dir, "workspaces") }

// closeBound is for the removal of everything that is left when the target is closed.
const closeBound = 2 * time.Minute

// close removes what is left, and reports it: the suite disposes and purges what it made.
func (d *driver) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	entries, err := os.ReadDir(d.workspaces())
	errs := []error{err}
	if len(entries) > 0 {
		errs = append(errs, fmt.Errorf("left behind: %d workspaces were not purged", len(entries)))
	}
	left, err := d.record.Remove(ctx, d.engine, d.dir)
	errs = append(errs, err)
	d.mu.Lock()
	for _, s := range d.live {
		s.stopWait()
	}
	d.mu.Unlock()
	for _, what := range left {
		errs = append(errs, errors.New("left behind: "+what))
	}
	return errors.Join(append(errs, d.engine.Close())...)
}

// documents are the configuration and what every container is made from, without what is random
// about it: the targets of a run's processes have the same.
func (d *driver) documents() (map[string][]byte, error) {
	config, host := d.profile(target.Spec{Image: "<image>"}.WithDefaults(), "<sandbox>", "<workspace>")
	config.Labels[labelRun] = "<run>"
	if host.CgroupParent != "" {
		host.CgroupParent = "<cgroup-parent>"
	}
	profile, err := json.MarshalIndent(map[string]any{"config": config, "hostConfig": host, "engine": d.version}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode launch profile: %w", err)
	}
	cfg, err := json.MarshalIndent(d.cfg, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return map[string][]byte{"launch-profile.json": profile, "worker-config.json": cfg}, nil
}

// random is 128 random bits in hex.
func random() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b[:])
}
