// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/evidence"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Config is a target file's "config" for this driver.
type Config struct {
	Command        []string          `json:"command"`                 // argv; the program may be found by PATH
	Dir            string            `json:"dir,omitzero"`            // working folder; "" is this process's
	Env            map[string]string `json:"env,omitzero"`            // added to this process's environment
	StartTimeoutMs int64             `json:"startTimeoutMs,omitzero"` // for the answer to describe; 0 means 30 s
}

// grantable are the parts that a program can give.
var grantable = []string{
	"observer.workspace-path", "observer.cgroup", "observer.engine", "observer.worker-process", "observer.network", "controller.foothold", "controller.restart",
}

// concurrent is the part of every program that is not serial.
const concurrent = "runtime.concurrent"

// driver is one open target.
type driver struct {
	conn  *conn
	dir   string // log and state; the program's own files are below state
	state string

	mu      sync.Mutex
	about   describeAnswer
	checked map[string]bool // sandboxes whose workspace path was seen to be theirs
}

// Open starts the program of config (strict JSON of [Config]) and asks what it is. Its log and its
// folder, which every user may walk through, are below dir.
func Open(ctx context.Context, config json.RawMessage, dir string) (_ *target.Target, err error) {
	d, err := open(ctx, config, dir, published)
	if err != nil {
		return nil, err
	}
	return d.target(), nil
}

func (d *driver) target() *target.Target {
	a := d.about
	t := &target.Target{
		Parts: slices.Clone(a.Parts), Runtime: client{d}, Observer: observer{d}, Controller: controller{d}, Documents: d.documents, Close: d.close,
	}
	if !a.Serial {
		t.Parts = append(t.Parts, concurrent)
	}
	return t
}

func open(ctx context.Context, config json.RawMessage, dir string, b bounds) (_ *driver, err error) {
	var c Config
	if err := strictjson.Unmarshal(config, &c, strictjson.Default); err != nil {
		return nil, fmt.Errorf("target file: %w", err)
	}
	if len(c.Command) == 0 || c.Command[0] == "" {
		return nil, errors.New("target file: command is empty")
	}
	bound := 30 * time.Second
	if c.StartTimeoutMs > 0 {
		bound = time.Duration(c.StartTimeoutMs) * time.Millisecond
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	d := &driver{dir: dir, state: filepath.Join(dir, "state"), checked: map[string]bool{}}
	// A runtime that drops privileges must be able to walk to the workspaces below.
	if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711), os.Mkdir(d.state, 0o711)); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	p, err := start(c, d.state, filepath.Join(dir, logName))
	if err != nil {
		return nil, errors.Join(err, d.removeFolders())
	}
	d.conn = newConn(p, b)
	a, err := d.ask(ctx, bound)
	if err == nil {
		err = check(a)
	}
	if err != nil {
		return nil, errors.Join(err, d.end())
	}
	d.about = a
	if a.Serial {
		d.conn.serial()
	}
	return d, nil
}

// logName is the program's standard error, in the driver's folder.
const logName = "stderr.log"

func (d *driver) ask(ctx context.Context, bound time.Duration) (describeAnswer, error) {
	var a describeAnswer
	return a, d.conn.call(ctx, "describe", bound, &describeRequest{Protocol: Protocol}, &a)
}

// check refuses a description that contradicts itself.
func check(a describeAnswer) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, violation("describe: "+format, args...)) }
	if a.Protocol != Protocol {
		add("the program speaks %q, this driver %s", a.Protocol, Protocol)
	}
	if a.Name == "" || a.Version == "" {
		add("name or version is empty")
	}
	seen := map[string]bool{}
	for _, p := range a.Parts {
		if !slices.Contains(grantable, p) || seen[p] {
			add("part %q cannot be given through this protocol, or is there twice; there are %s", p, strings.Join(grantable, ", "))
		}
		seen[p] = true
	}
	with := func(part, member string, given bool) {
		if seen[part] != given {
			add("the part %s and the member %s come together", part, member)
		}
	}
	with("observer.worker-process", "workerPid", a.WorkerPid != 0)
	with("observer.engine", "engine", a.Engine != "")
	with("observer.network", "network", a.Network != nil)
	if needs := seen["observer.cgroup"] || seen["observer.engine"]; needs != (a.CgroupParent != "") {
		add("the part observer.cgroup or observer.engine and the member cgroupParent come together")
	}
	if p := a.CgroupParent; p != "" && (!filepath.IsAbs(p) || p != filepath.Clean(p) || p == "/") {
		add("cgroupParent %q is not a clean absolute path below the root", p)
	}
	if !a.Images && a.Root == "" {
		add("without images, root must say what a sandbox's file system is made of")
	}
	return errors.Join(errs...)
}

// Workload starts the program of config for a moment and returns what stands for an image where
// the runtime has none: the digest of what the program says a sandbox's file system is made of.
func Workload(ctx context.Context, config json.RawMessage) (digest string, err error) {
	dir, err := os.MkdirTemp("", "hallmark-exec-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	d, err := open(ctx, config, filepath.Join(dir, "work"), published)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.close(), os.Remove(filepath.Join(dir, "work"))) }()
	if d.about.Images {
		return "", errors.New("the runtime starts images: name their config digests as workloads")
	}
	return evidence.Digest([]byte(d.about.Root)), nil
}

// documents are the program's log and its description.
func (d *driver) documents() (map[string][]byte, error) {
	log, err := os.ReadFile(filepath.Join(d.dir, logName))
	if err != nil {
		return nil, fmt.Errorf("program's log: %w", err)
	}
	about, err := strictjson.Marshal(d.about)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"exec-stderr.log": log, "exec-describe.json": about}, nil
}
