// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

func outside() []Check {
	return []Check{
		{"observer", "The observer finds a living sandbox where it is: its workspace on the host holds what was written, its cgroups exist; of a sandbox that never was it finds nothing.", checkObserver},
		{"parts", "A part that is named answers; one that is not named says that it is unavailable.", checkParts},
		{"foothold", "The foothold runs a program in the sandbox as another user than the tenant's.", checkFoothold},
		{"restart", "A daemon that was killed is started again on the same state.", checkRestart},
	}
}

func checkObserver(ctx context.Context, s *subject) error {
	if !s.has("observer.workspace-path") && !s.has("observer.cgroup") && !s.has("observer.engine") {
		return notOffered("the target names no part that looks at a sandbox")
	}
	var f faults
	if s.tg.Observer == nil {
		f.add("parts of the observer are named and there is none")
		return f.join()
	}
	a, err := s.box(ctx)
	if err != nil {
		return err
	}
	b, err := s.create(ctx, target.Spec{})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, sb := range []target.Sandbox{a, b} {
		c, err := s.tg.Observer.Container(ctx, sb.ID())
		if err != nil {
			f.add("a living sandbox: %w", err)
			continue
		}
		if s.has("observer.workspace-path") {
			f.path(ctx, sb, c.Workspace)
			if seen[c.Workspace] {
				f.add("two sandboxes have the workspace %s", c.Workspace)
			}
			seen[c.Workspace] = true
		}
		if s.has("observer.cgroup") {
			if len(c.Cgroups) == 0 {
				f.add("no cgroup is named")
			}
			for controller, dir := range c.Cgroups {
				if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
					f.add("cgroup of controller %q: %w", controller, err)
				}
				// Beside v1 controllers the unified tree may be the engine's own: the engine stays.
				if controller != "" || len(c.Cgroups) == 1 {
					s.places = append(s.places, dir)
				}
			}
		}
	}
	if _, err := s.tg.Observer.Container(ctx, "never-"+rand.Text()); !errors.Is(err, target.ErrNoContainer) {
		f.add("a sandbox that never was: %v", err)
	}
	return f.join()
}

// path looks for a file with random contents on the host.
func (f *faults) path(ctx context.Context, sb target.Sandbox, dir string) {
	name, body := "seen-"+rand.Text(), rand.Text()
	if err := sb.Files().Write(ctx, name, []byte(body)); err != nil {
		f.add("write: %w", err)
		return
	}
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(got) != body {
		f.add("what was written into the workspace is not in %s: %q, %v", dir, got, err)
	}
	if err := sb.Files().Remove(ctx, name); err != nil {
		f.add("remove: %w", err)
	}
}

func checkParts(ctx context.Context, s *subject) error {
	var f faults
	sb, err := s.box(ctx)
	if err != nil {
		return err
	}
	o := s.tg.Observer
	if o == nil {
		o = absentObserver{}
	}
	ctl := s.tg.Controller
	if ctl == nil {
		ctl = absentController{}
	}
	c, err := o.Container(ctx, sb.ID())
	looks := map[string]bool{
		"observer.workspace-path": err == nil && c.Workspace != "",
		"observer.cgroup":         err == nil && len(c.Cgroups) > 0,
	}
	for part, answers := range looks {
		if s.has(part) && !answers {
			f.add("%s is named, and the observer says nothing of it: %v", part, err)
		}
	}
	if !s.has("observer.workspace-path") && !s.has("observer.cgroup") && !s.has("observer.engine") && !errors.Is(err, target.ErrUnavailable) {
		f.add("no part looks at a sandbox, and Container answers %v", err)
	}
	agree := func(part, method string, err error) {
		switch {
		case s.has(part) && err != nil:
			f.add("%s is named, and %s answers %w", part, method, err)
		case !s.has(part) && !errors.Is(err, target.ErrUnavailable):
			f.add("%s is not named, and %s answers %v", part, method, err)
		}
	}
	_, err = o.EngineSocket()
	agree("observer.engine", "EngineSocket", err)
	if _, err = o.CgroupParent(); (s.has("observer.cgroup") || s.has("observer.engine")) && err != nil {
		f.add("observer.cgroup or observer.engine is named, and CgroupParent answers %w", err)
	}
	_, err = o.WorkerPid()
	agree("observer.worker-process", "WorkerPid", err)
	_, err = o.NetworkNamespace()
	agree("observer.network", "NetworkNamespace", err)
	_, err = o.LabNetwork()
	agree("observer.network", "LabNetwork", err)
	_, _, err = o.Tape(0)
	agree("observer.tape", "Tape", err)
	if !s.has("controller.foothold") {
		_, err = ctl.Foothold(ctx, sb.ID(), []string{"/workspace/" + program}, nil)
		agree("controller.foothold", "Foothold", err)
	}
	if !s.has("controller.restart") {
		agree("controller.restart", "Kill", ctl.Kill(ctx))
		agree("controller.restart", "Start", ctl.Start(ctx))
	}
	if !s.has("controller.terminate") {
		_, err = ctl.Terminate(ctx, nil)
		agree("controller.terminate", "Terminate", err)
	}
	if !s.has("observer.tape") {
		agree("observer.tape", "Inject", ctl.Inject(target.TapeRule{Method: "GET", Match: "^/never$", Nth: 1, Status: 500}))
		agree("observer.tape", "Calm", ctl.Calm())
	}
	if s.has("runtime.wire") != (s.tg.Wire != nil) {
		f.add("runtime.wire and Target.Wire come together")
	}
	if s.has("runtime.authority") != (s.tg.Authority != nil) || s.has("controller.peers") != (s.tg.Peers != nil) {
		f.add("runtime.authority and Target.Authority come together, and so do controller.peers and Target.Peers")
	}
	return f.join()
}

func checkFoothold(ctx context.Context, s *subject) error {
	if !s.has("controller.foothold") {
		return notOffered("the target names no foothold")
	}
	var f faults
	if s.tg.Controller == nil {
		f.add("the foothold is named and there is no controller")
		return f.join()
	}
	sb, err := s.create(ctx, target.Spec{}) // what the foothold leaves ends with it
	if err != nil {
		return err
	}
	cmd := argv("-stdin")
	cmd[0] = "/workspace/" + program
	res, err := s.tg.Controller.Foothold(ctx, sb.ID(), cmd, []byte("in"))
	if err != nil {
		return err
	}
	r, err := report.Parse(res.Stdout)
	if err != nil || res.ExitCode != 0 || r.Counts["stdin"] != 2 {
		f.add("the program ended as %s, %d bytes of input, stderr %.200q", describe(res), r.Counts["stdin"], res.Stderr)
	} else if r.Counts["uid"] == tenantUser {
		f.add("the program runs as the tenant's user")
	}
	return f.join()
}

func checkRestart(ctx context.Context, s *subject) error {
	if !s.has("controller.restart") {
		return notOffered("the target's daemon cannot be restarted")
	}
	var f faults
	if s.tg.Controller == nil {
		f.add("the restart is named and there is no controller")
		return f.join()
	}
	if err := s.tg.Controller.Kill(ctx); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	_, err := s.tg.Runtime.Describe(short)
	cancel()
	if err == nil {
		f.add("a killed daemon describes itself")
	}
	if s.has("controller.terminate") {
		if err := s.tg.Controller.Start(ctx); err != nil {
			return err
		}
		if status, err := s.tg.Controller.Terminate(ctx, nil); err != nil || status != 0 {
			f.add("a daemon that has nothing to do ends at SIGTERM with status %d, %v", status, err)
		}
	}
	if err := s.tg.Controller.Start(ctx); err != nil {
		return err
	}
	if _, err := s.tg.Runtime.Describe(ctx); err != nil {
		f.add("after the start: %w", err)
	}
	s.shared = nil // whether sandboxes outlive the daemon is the runtime's own affair
	return f.join()
}

// absentObserver and absentController answer for parts that are nil.
type absentObserver struct{}

func (absentObserver) Container(context.Context, string) (target.Container, error) {
	return target.Container{}, target.ErrUnavailable
}
func (absentObserver) EngineSocket() (string, error)          { return "", target.ErrUnavailable }
func (absentObserver) CgroupParent() (string, error)          { return "", target.ErrUnavailable }
func (absentObserver) WorkerPid() (int, error)                { return 0, target.ErrUnavailable }
func (absentObserver) NetworkNamespace() (string, error)      { return "", target.ErrUnavailable }
func (absentObserver) LabNetwork() (string, error)            { return "", target.ErrUnavailable }
func (absentObserver) SandboxBinary() (string, string, error) { return "", "", target.ErrUnavailable }
func (absentObserver) Logs() ([]string, error)                { return nil, target.ErrUnavailable }
func (absentObserver) Tape(int64) ([]target.TapeCall, int64, error) {
	return nil, 0, target.ErrUnavailable
}

type absentController struct{}

func (absentController) Foothold(context.Context, string, []string, []byte) (target.Result, error) {
	return target.Result{}, target.ErrUnavailable
}
func (absentController) Kill(context.Context) error   { return target.ErrUnavailable }
func (absentController) Start(context.Context) error  { return target.ErrUnavailable }
func (absentController) Inject(target.TapeRule) error { return target.ErrUnavailable }
func (absentController) Calm() error                  { return target.ErrUnavailable }
func (absentController) Terminate(context.Context, func()) (int, error) {
	return 0, target.ErrUnavailable
}
