// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// client is the tenant's client.
type client struct{ *driver }

func (r client) Describe(ctx context.Context) (target.Description, error) {
	a, err := r.ask(ctx, r.conn.bounds.answer)
	if err != nil {
		return target.Description{}, err
	}
	return target.Description{
		Driver: "exec", Version: a.Name + " " + a.Version, WorkerID: a.Name, Claims: a.Claims, Digests: map[string]string{},
	}, nil
}

func (r client) Create(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	spec = spec.WithDefaults()
	if spec.WorkspaceID == "" {
		spec.WorkspaceID = "ws-" + strings.ToLower(rand.Text())
	}
	var a createAnswer
	err := r.conn.call(ctx, "create", r.conn.bounds.create, &createRequest{
		Workspace: spec.WorkspaceID, Image: spec.Image, CPUMillis: spec.CPUs, MemoryBytes: spec.MemoryBytes, PIDs: spec.PIDs,
		WorkspaceBytes: spec.WorkspaceBytes, WorkspaceInodes: spec.WorkspaceInodes, HardTimeoutMs: spec.HardTimeout.Milliseconds(),
	}, &a)
	if err != nil {
		return nil, err
	}
	if a.Sandbox == "" {
		return nil, violation("create answers without an id")
	}
	return sandbox{r.driver, a.Sandbox, spec.WorkspaceID}, nil
}

func (r client) Purge(ctx context.Context, ws string) error {
	return r.conn.call(ctx, "purge", r.conn.bounds.answer, &workspaceRequest{Workspace: ws}, &nothing{})
}

type sandbox struct {
	*driver
	id, ws string
}

func (s sandbox) ID() string          { return s.id }
func (s sandbox) WorkspaceID() string { return s.ws }

func (s sandbox) Exec(ctx context.Context, cmd target.Command) (target.Result, error) {
	if cmd.ID == "" {
		cmd.ID = "i" + strings.ToLower(rand.Text())
	}
	if cmd.Timeout == 0 {
		cmd.Timeout = 30 * time.Second
	}
	if cmd.MaxOutput == 0 {
		cmd.MaxOutput = 1 << 20
	}
	var a execAnswer
	err := s.conn.call(ctx, "exec", cmd.Timeout+s.conn.bounds.margin, &execRequest{
		Sandbox: s.id, Invocation: cmd.ID, Argv: asBytes(cmd.Argv), Cwd: []byte(cmd.Cwd), Stdin: cmd.Stdin,
		TimeoutMs: cmd.Timeout.Milliseconds(), MaxOutputBytes: cmd.MaxOutput,
	}, &a)
	return a.result(), err
}

func asBytes(argv []string) [][]byte {
	out := make([][]byte, len(argv))
	for i, a := range argv {
		out[i] = []byte(a)
	}
	return out
}

var states = []string{"creating", "ready", "retiring", "gone"}

func (s sandbox) State(ctx context.Context) (string, error) {
	var a stateAnswer
	err := s.conn.call(ctx, "state", s.conn.bounds.answer, &sandboxRequest{Sandbox: s.id}, &a)
	switch {
	case target.KindOf(err) == target.KindGone:
		return "gone", nil
	case err == nil && !slices.Contains(states, a.State):
		return "", violation("state answers %q, it is one of %s", a.State, strings.Join(states, ", "))
	}
	return a.State, err
}

func (s sandbox) Dispose(ctx context.Context) error {
	err := s.conn.call(ctx, "dispose", s.conn.bounds.answer, &sandboxRequest{Sandbox: s.id}, &nothing{})
	if target.KindOf(err) == target.KindGone {
		return nil
	}
	return err
}

func (s sandbox) Files() target.Files { return files{s} }

// files is the workspace API of one sandbox.
type files struct{ sandbox }

func (f files) path(path string) *pathRequest {
	return &pathRequest{Sandbox: f.id, Path: []byte(path)}
}

func (f files) Read(ctx context.Context, path string) ([]byte, error) {
	var a readAnswer
	err := f.conn.call(ctx, "read", f.conn.bounds.answer, f.path(path), &a)
	return a.Body, err
}

func (f files) Write(ctx context.Context, path string, body []byte) error {
	return f.conn.call(ctx, "write", f.conn.bounds.answer, &writeRequest{Sandbox: f.id, Path: []byte(path), Body: body}, &nothing{})
}

func (f files) Stat(ctx context.Context, path string) (target.Entry, error) {
	var a statAnswer
	err := f.conn.call(ctx, "stat", f.conn.bounds.answer, f.path(path), &a)
	return target.Entry{Name: string(a.Name), Kind: a.Kind, Size: a.Size}, err
}

func (f files) Remove(ctx context.Context, path string) error {
	return f.conn.call(ctx, "remove", f.conn.bounds.answer, f.path(path), &nothing{})
}

// controller disturbs the runtime through the program.
type controller struct{ *driver }

// footholdBound is the longest that a foothold may run; its context mostly ends before.
const footholdBound = 5 * time.Minute

func (c controller) Foothold(ctx context.Context, sandboxID string, argv []string, stdin []byte) (target.Result, error) {
	if !c.has("controller.foothold") {
		return target.Result{}, target.ErrUnavailable
	}
	var a execAnswer
	err := c.conn.call(ctx, "foothold", footholdBound, &footholdRequest{Sandbox: sandboxID, Argv: asBytes(argv), Stdin: stdin}, &a)
	return a.result(), err
}

func (c controller) Kill(ctx context.Context) error { return c.restart(ctx, "kill") }

// Start asks again who the runtime is: its daemon has another pid.
func (c controller) Start(ctx context.Context) error {
	if err := c.restart(ctx, "start"); err != nil {
		return err
	}
	a, err := c.ask(ctx, c.conn.bounds.answer)
	if err == nil {
		err = check(a)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(a.Parts, c.about.Parts) || a.Serial != c.about.Serial {
		return violation("describe: after a start the program has other parts than before")
	}
	c.about = a
	return nil
}

func (c controller) restart(ctx context.Context, op string) error {
	if !c.has("controller.restart") {
		return target.ErrUnavailable
	}
	return c.conn.call(ctx, op, c.conn.bounds.create, &plainRequest{}, &nothing{})
}

func (c controller) Inject(target.TapeRule) error { return target.ErrUnavailable }
func (c controller) Calm() error                  { return target.ErrUnavailable }

func (c controller) Terminate(context.Context, func()) (int, error) {
	return 0, target.ErrUnavailable
}

var errNoEngine = errors.New("the engine does not answer")
