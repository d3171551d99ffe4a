// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
)

// bent is a target that breaks a promise wherever a function is set.
type bent struct {
	target.Runtime
	dir      string // the toy's folder
	dead     bool   // killed
	describe func(*target.Description)
	create   func(target.Sandbox) target.Sandbox
	purge    func(next func(string) error, ws string) error
	exec     func(next func(context.Context, target.Command) (target.Result, error), ctx context.Context, cmd target.Command) (target.Result, error)
	dispose  func(sb target.Sandbox) error
	state    func(string, error) (string, error)
	read     func([]byte, error) ([]byte, error)
	write    func(next func(string, []byte) error, path string, body []byte) error
	stat     func(string, target.Entry, error) (target.Entry, error)
	remove   func(next func(string) error, path string) error
}

func (b *bent) Describe(ctx context.Context) (target.Description, error) {
	d, err := b.Runtime.Describe(ctx)
	if b.dead {
		err = errors.New("killed")
	}
	if b.describe != nil {
		b.describe(&d)
	}
	return d, err
}

func (b *bent) Create(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	sb, err := b.Runtime.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	var out target.Sandbox = bentSandbox{sb, b}
	if b.create != nil {
		out = b.create(out)
	}
	return out, nil
}

func (b *bent) Purge(ctx context.Context, ws string) error {
	next := func(ws string) error { return b.Runtime.Purge(ctx, ws) }
	if b.purge != nil {
		return b.purge(next, ws)
	}
	return next(ws)
}

type bentSandbox struct {
	target.Sandbox
	b *bent
}

func (s bentSandbox) Exec(ctx context.Context, cmd target.Command) (target.Result, error) {
	if s.b.exec != nil {
		return s.b.exec(s.Sandbox.Exec, ctx, cmd)
	}
	return s.Sandbox.Exec(ctx, cmd)
}

func (s bentSandbox) Dispose(ctx context.Context) error {
	if s.b.dispose != nil {
		return s.b.dispose(s.Sandbox)
	}
	return s.Sandbox.Dispose(ctx)
}

func (s bentSandbox) State(ctx context.Context) (string, error) {
	state, err := s.Sandbox.State(ctx)
	if s.b.state != nil {
		return s.b.state(state, err)
	}
	return state, err
}

func (s bentSandbox) Files() target.Files { return bentFiles{s.Sandbox.Files(), s.b} }

type bentFiles struct {
	target.Files
	b *bent
}

func (f bentFiles) Read(ctx context.Context, path string) ([]byte, error) {
	body, err := f.Files.Read(ctx, path)
	if f.b.read != nil {
		return f.b.read(body, err)
	}
	return body, err
}

func (f bentFiles) Write(ctx context.Context, path string, body []byte) error {
	next := func(path string, body []byte) error { return f.Files.Write(ctx, path, body) }
	if f.b.write != nil {
		return f.b.write(next, path, body)
	}
	return next(path, body)
}

func (f bentFiles) Stat(ctx context.Context, path string) (target.Entry, error) {
	e, err := f.Files.Stat(ctx, path)
	if f.b.stat != nil {
		return f.b.stat(path, e, err)
	}
	return e, err
}

func (f bentFiles) Remove(ctx context.Context, path string) error {
	next := func(path string) error { return f.Files.Remove(ctx, path) }
	if f.b.remove != nil {
		return f.b.remove(next, path)
	}
	return next(path)
}

// result bends what an exec came to.
func result(bend func(*target.Result)) func(*bent) {
	return func(b *bent) {
		b.exec = func(next func(context.Context, target.Command) (target.Result, error), ctx context.Context, cmd target.Command) (target.Result, error) {
			res, err := next(ctx, cmd)
			bend(&res)
			return res, err
		}
	}
}

// command bends what an exec is asked for.
func command(bend func(*target.Command)) func(*bent) {
	return func(b *bent) {
		b.exec = func(next func(context.Context, target.Command) (target.Result, error), ctx context.Context, cmd target.Command) (target.Result, error) {
			bend(&cmd)
			return next(ctx, cmd)
		}
	}
}

type renamed struct {
	target.Sandbox
	id, ws string
}

func (r renamed) ID() string          { return r.id }
func (r renamed) WorkspaceID() string { return r.ws }

type lyingObserver struct {
	target.Observer
	path  string // instead of the workspace
	found bool   // whatever is asked for
}

func (o lyingObserver) Container(ctx context.Context, id string) (target.Container, error) {
	c, err := o.Observer.Container(ctx, id)
	if err != nil && o.found {
		return target.Container{Workspace: o.path}, nil
	}
	if o.path != "" {
		c.Workspace = o.path
	}
	return c, err
}

type strangerObserver struct{ absentObserver }

func (strangerObserver) WorkerPid() (int, error) { return os.Getpid(), nil }

// host is a controller of the toy: its sandboxes are folders of the host.
type host struct {
	absentController
	tg       *target.Target
	asTenant bool // the foothold is none
	immortal bool // Kill does nothing
	lost     bool // Start does nothing
}

func (h host) Foothold(ctx context.Context, id string, argv []string, stdin []byte) (target.Result, error) {
	c, err := h.tg.Observer.Container(ctx, id)
	if err != nil {
		return target.Result{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.Workspace, filepath.Base(argv[0])), argv[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	if h.asTenant {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tenantUser, Gid: tenantUser}}
		cmd.Dir = c.Workspace
	}
	out, err := cmd.Output()
	return target.Result{Stdout: out}, err
}

func (h host) Kill(context.Context) error {
	h.tg.Runtime.(*bent).dead = !h.immortal
	return nil
}

func (h host) Start(context.Context) error {
	h.tg.Runtime.(*bent).dead = h.lost
	return nil
}

// controlled gives the toy a controller, for the checks that need one.
func controlled(h host) func(*target.Target) {
	return func(tg *target.Target) {
		h.tg = tg
		tg.Controller = h
		tg.Parts = append([]string{"controller.foothold", "controller.restart"}, tg.Parts...)
	}
}

// examineOne runs one check against a toy that is as it should be, or broken.
func examineOne(t *testing.T, tenant, name string, bend func(*bent), whole func(*target.Target)) Finding {
	t.Helper()
	dir, err := os.MkdirTemp("", "hallmark-broken-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "toy")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	tg, err := toy.Open(t.Context(), nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	b := &bent{Runtime: tg.Runtime, dir: dir}
	tg.Runtime = b
	s := &subject{tg: tg, o: Options{Tenant: tenant, Dir: dir}}
	if name == "close" {
		if _, err := s.box(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if bend != nil {
		bend(b)
	}
	if whole != nil {
		whole(tg)
	}
	for _, c := range Checks() {
		if c.Name == name {
			return s.examine(t.Context(), c)
		}
	}
	t.Fatalf("there is no check %q", name)
	return Finding{}
}

// Each check fails for the fault that it is there for, and passes without it.
func TestEachCheckCanFail(t *testing.T) {
	tenant := build(t)
	typeless := errors.New("no code")
	shown := map[string]bool{}
	for _, tt := range []struct {
		check, fault string
		want         string // in the finding
		bend         func(*bent)
		whole        func(*target.Target) // bends the target beyond its runtime
		sound        func(*target.Target) // what the sound target needs for this check
	}{
		{check: "describe", fault: "unknown claim", want: "claim", bend: func(b *bent) { b.describe = func(d *target.Description) { d.Claims = append(d.Claims, "magic") } }},
		{check: "describe", fault: "no files", want: "files is not claimed", bend: func(b *bent) { b.describe = func(d *target.Description) { d.Claims = []string{"exec"} } }},
		{check: "describe", fault: "no driver", want: "no driver", bend: func(b *bent) { b.describe = func(d *target.Description) { d.Driver = "" } }},
		{check: "describe", fault: "unknown part", want: "part", whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "observer.crystal-ball") }},
		{check: "ids", fault: "one id for all", want: "not new", bend: func(b *bent) {
			b.create = func(sb target.Sandbox) target.Sandbox { return renamed{sb, "same", sb.WorkspaceID()} }
		}},
		{check: "ids", fault: "another workspace", want: "asked for", bend: func(b *bent) {
			b.create = func(sb target.Sandbox) target.Sandbox { return renamed{sb, sb.ID(), "other"} }
		}},
		{check: "ids", fault: "never ready", want: "state", bend: func(b *bent) { b.state = func(string, error) (string, error) { return "creating", nil } }},
		{check: "argv", fault: "a shell", want: "", bend: command(func(c *target.Command) {
			c.Argv = []string{"sh", "-c", strings.Join(c.Argv, " ")}
		})},
		{check: "argv", fault: "empty arguments dropped", want: "arrived", bend: command(func(c *target.Command) {
			var kept []string
			for _, a := range c.Argv {
				if a != "" {
					kept = append(kept, a)
				}
			}
			c.Argv = kept
		})},
		{check: "user", fault: "root", want: "user 0", bend: result(func(r *target.Result) {
			r.Stdout = bytes.Replace(r.Stdout, []byte(`"uid":65532`), []byte(`"uid":0`), 1)
		})},
		{check: "exit-code", fault: "always 0", want: "exit status 1", bend: result(func(r *target.Result) { r.ExitCode = 0 })},
		{check: "signal", fault: "an exit", want: "signal 9", bend: result(func(r *target.Result) { r.ExitCode, r.Signal = 1, "" })},
		{check: "stdin", fault: "dropped", want: "arrive", bend: command(func(c *target.Command) { c.Stdin = nil })},
		{check: "cwd", fault: "ignored", want: "", bend: command(func(c *target.Command) { c.Cwd = "" })},
		{check: "timeout", fault: "not said", want: "time-out", bend: result(func(r *target.Result) { r.TimedOut = false })},
		{check: "timeout", fault: "too early", want: "after", bend: command(func(c *target.Command) { c.Timeout /= 4 })},
		{check: "output-bound", fault: "no bound", want: "come back", bend: command(func(c *target.Command) { c.MaxOutput = 8 << 20 })},
		{check: "output-bound", fault: "drops not counted", want: "dropped", bend: result(func(r *target.Result) { r.DroppedBytes /= 2 })},
		{check: "output-bound", fault: "cut in silence", want: "truncated", bend: result(func(r *target.Result) { r.TruncatedStdout = false })},
		{check: "output-bound", fault: "the end instead of the beginning", want: "beginning", bend: result(func(r *target.Result) {
			if len(r.Stdout) > 1 {
				r.Stdout[0] = 'z'
			}
		})},
		{check: "output-exact", fault: "cut before the bound", want: "bound of", bend: command(func(c *target.Command) { c.MaxOutput-- })},
		{check: "output-exact", fault: "flagged whole", want: "bound of", bend: result(func(r *target.Result) { r.TruncatedStdout = true })},
		{check: "cancel", fault: "context ignored", want: "has ended", bend: func(b *bent) {
			b.exec = func(next func(context.Context, target.Command) (target.Result, error), ctx context.Context, cmd target.Command) (target.Result, error) {
				return next(context.WithoutCancel(ctx), cmd)
			}
		}},
		{check: "concurrent", fault: "one at a time", want: "wait for others", bend: func(b *bent) {
			turn := make(chan struct{}, 1)
			b.exec = func(next func(context.Context, target.Command) (target.Result, error), ctx context.Context, cmd target.Command) (target.Result, error) {
				turn <- struct{}{}
				defer func() { <-turn }()
				cmd.Timeout = min(cmd.Timeout, 2*time.Second)
				return next(ctx, cmd)
			}
		}},
		{check: "files", fault: "a byte lost", want: "read back", bend: func(b *bent) {
			b.read = func(body []byte, err error) ([]byte, error) { return body[:max(0, len(body)-1)], err }
		}},
		{check: "files", fault: "not replaced", want: "read back", bend: func(b *bent) {
			first := true
			b.write = func(next func(string, []byte) error, path string, body []byte) error {
				if path == "file" && !first {
					return nil
				}
				first = path != "file" && first
				return next(path, body)
			}
		}},
		{check: "files", fault: "size in KiB", want: "stat of", bend: func(b *bent) {
			b.stat = func(_ string, e target.Entry, err error) (target.Entry, error) { e.Size /= 1024; return e, err }
		}},
		{check: "files", fault: "removal in name only", want: "removed file succeeds", bend: func(b *bent) { b.remove = func(func(string) error, string) error { return nil } }},
		{check: "file-names", fault: "names trimmed", want: "write", bend: func(b *bent) {
			b.write = func(next func(string, []byte) error, path string, body []byte) error {
				return next(strings.TrimSpace(path), body)
			}
		}},
		{check: "file-names", fault: "names repaired", want: "stat", bend: func(b *bent) {
			b.stat = func(_ string, e target.Entry, err error) (target.Entry, error) {
				e.Name = strings.ToValidUTF8(e.Name, "?")
				return e, err
			}
		}},
		{check: "file-refusals", fault: "untyped", want: "no code", bend: func(b *bent) {
			b.read = func(body []byte, err error) ([]byte, error) {
				if err != nil {
					err = typeless
				}
				return body, err
			}
		}},
		{check: "file-refusals", fault: "wrong kind", want: "kind", bend: func(b *bent) {
			b.read = func(body []byte, err error) ([]byte, error) {
				return nil, &target.Error{Code: "X", Kind: target.KindOOM}
			}
		}},
		{check: "file-refusals", fault: "paths repaired", want: "../up", bend: func(b *bent) {
			b.write = func(next func(string, []byte) error, path string, body []byte) error {
				return next(filepath.Base(path), body)
			}
		}},
		{check: "observer", fault: "another folder", want: "is not in", whole: func(tg *target.Target) { tg.Observer = lyingObserver{Observer: tg.Observer, path: "/tmp"} }},
		{check: "observer", fault: "everything exists", want: "never was", whole: func(tg *target.Target) { tg.Observer = lyingObserver{Observer: tg.Observer, found: true} }},
		{check: "parts", fault: "named and absent", want: "observer.cgroup", whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "observer.cgroup") }},
		{check: "parts", fault: "there and not named", want: "WorkerPid", whole: func(tg *target.Target) { tg.Parts, tg.Observer = []string{"runtime.concurrent"}, strangerObserver{} }},
		{check: "parts", fault: "wire in name only", want: "wire", whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "runtime.wire") }},
		{check: "foothold", fault: "as the tenant", want: "tenant's user", sound: controlled(host{}), whole: controlled(host{asTenant: true})},
		{check: "foothold", fault: "in name only", want: "no controller", sound: controlled(host{}), whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "controller.foothold") }},
		{check: "restart", fault: "not killed", want: "describes itself", sound: controlled(host{}), whole: controlled(host{immortal: true})},
		{check: "restart", fault: "not started", want: "after the start", sound: controlled(host{}), whole: controlled(host{lost: true})},
		{check: "dispose", fault: "not gone", want: "state of a disposed", bend: func(b *bent) { b.state = func(string, error) (string, error) { return "ready", nil } }},
		{check: "dispose", fault: "once only", want: "dispose:", bend: func(b *bent) {
			gone := map[string]bool{}
			b.dispose = func(sb target.Sandbox) error {
				if gone[sb.ID()] {
					return &target.Error{Code: "X_GONE", Kind: target.KindGone}
				}
				gone[sb.ID()] = true
				return sb.Dispose(context.Background())
			}
		}},
		{check: "disposed", fault: "lives on", want: "succeeds", bend: func(b *bent) {
			b.dispose = func(target.Sandbox) error { return nil }
		}},
		{check: "authority", fault: "in name only", want: "no authority", sound: signs(broken{}, "runtime.authority"), whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "runtime.authority") }},
		{check: "authority", fault: "any lifetime", want: "a lifetime of 0s is minted", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{anyLifetime: true}, "runtime.authority")},
		{check: "authority", fault: "not bound to its request", want: "for another request: status 200", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{unbound: true}, "runtime.authority")},
		{check: "authority", fault: "good for ever", want: "for the second time: status 200", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{reusable: true}, "runtime.authority")},
		{check: "authority", fault: "good for nothing", want: "a fresh capability: status 401", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{refusing: true}, "runtime.authority")},
		{check: "authority", fault: "deaf", want: "liveness", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{deaf: true}, "runtime.authority")},
		{check: "authority", fault: "no bounds", want: "holds 0", sound: signs(broken{}, "runtime.authority"), whole: signs(broken{boundless: true}, "runtime.authority")},
		{check: "peers", fault: "in name only", want: "no peers", sound: signs(broken{}, "controller.peers"), whole: func(tg *target.Target) { tg.Parts = append(tg.Parts, "controller.peers") }},
		{check: "peers", fault: "other bounds", want: "the peer has 100 and 10", sound: signs(broken{}, "controller.peers"), whole: signs(broken{ignoresBounds: true}, "controller.peers")},
		{check: "peers", fault: "lives on", want: "a closed peer takes", sound: signs(broken{}, "controller.peers"), whole: signs(broken{lingers: true}, "controller.peers")},
		{check: "peers", fault: "closes once", want: "closed before", sound: signs(broken{}, "controller.peers"), whole: signs(broken{unclosable: true}, "controller.peers")},
		{check: "peers", fault: "two on one state", want: "on the same state answers", sound: signs(broken{}, "controller.peers"), whole: signs(broken{sharesState: true}, "controller.peers")},
		{check: "peers", fault: "a refusal without a code", want: "has no code", sound: signs(broken{}, "controller.peers"), whole: signs(broken{typelessRefusal: true}, "controller.peers")},
		{check: "purge", fault: "data stay", want: "still has its data", bend: func(b *bent) { b.purge = func(func(string) error, string) error { return nil } }},
		{check: "purge", fault: "absent is an error", want: "never was", bend: func(b *bent) {
			b.purge = func(next func(string) error, ws string) error {
				if strings.Contains(ws, "never") {
					return typeless
				}
				return next(ws)
			}
		}},
		{check: "close", fault: "leaves its folder", want: "close", bend: func(b *bent) { b.purge = func(func(string) error, string) error { return nil } }},
		{check: "close", fault: "a file more", want: "entries", whole: func(tg *target.Target) {
			inner, b := tg.Close, tg.Runtime.(*bent)
			tg.Close = func() error {
				return errors.Join(inner(), os.WriteFile(filepath.Join(b.dir, "left"), nil, 0o600))
			}
		}},
	} {
		t.Run(tt.check+"/"+tt.fault, func(t *testing.T) {
			t.Parallel()
			if f := examineOne(t, tenant, tt.check, nil, tt.sound); f.Err != nil || f.NotOffered != "" {
				t.Errorf("the toy as it is: %v %s", f.Err, f.NotOffered)
			}
			f := examineOne(t, tenant, tt.check, tt.bend, tt.whole)
			switch {
			case f.Err == nil:
				t.Errorf("the fault is not found %s", f.NotOffered)
			case !strings.Contains(f.Err.Error(), tt.want):
				t.Errorf("the fault is found as %v, want %q in it", f.Err, tt.want)
			}
		})
		shown[tt.check] = true
	}
	for _, c := range Checks() {
		if !shown[c.Name] {
			t.Errorf("nothing shows that the check %q can fail", c.Name)
		}
	}
}
