// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/held"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// The numbers of LC-09. A death is noticed within a second on a machine that does nothing else; here an
// engine beside it has the same news to carry, so the bound counts from when the engine itself says that
// the container has ended, or, where it never does, from the death.
const (
	lc09Notice = 5 * time.Second
	lc09Engine = 20 * time.Second
	lc09Gone   = 30 * time.Second
	lc09Quiet  = 20 * oracle.BeatPeriod
)

// LC09 ends what a sandbox lives by, one part after another.
var LC09 = conformance.Case{
	ID: "LC-09", Revision: 1, Title: "Sentry or supervisor dies",
	Requirement: "When the sentry, the gofer or the shim of a sandbox dies, or the root processes in it do, the runtime notices in time, says so by name to whoever waits and whoever comes later, never calls the sandbox ready, and removes everything.",
	Threat:      "A caller waits for ever for a sandbox that is dead, or is told that it lives; what is left of it stays on the host.",
	Attack:      "SIGKILL on the host: of the sandbox's process, while nothing runs; of its shim and of every other process that the shim started, each while a command runs. In a fourth sandbox a root process kills all the others, the supervisor's among them, while a command runs.",
	Witness:     "Parts that were killed (at least 3), and beats of the commands that the host saw before (at least 2 for each).",
	Oracle:      "The time from the death to the answer, beside the engine's own word; the state and the next command's code; the command's heartbeat; container and cgroup afterwards.",
	Precedent:   "daytona#5140; gvisor#11942; sbx-releases#353",
	Tier:        conformance.Full, Timeout: 110 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartEngine, conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleCgroup, conformance.OracleEngine, conformance.OracleHeartbeat, conformance.OracleProcess},
	Kills:    []conformance.Kill{{Mutant: "m37", Reason: "death-unnoticed"}},
	Run:      runLC09,
}

func runLC09(ctx context.Context, t *conformance.T) error {
	engine, err := attack.Engine(t)
	if err != nil {
		return err
	}
	t.NeedWitness("parts-killed", 3)
	t.NeedWitness("beats", 6)
	for _, d := range []struct {
		name    string
		running bool
		kill    func(ctx context.Context, sb target.Sandbox, c target.Container) (int64, error)
	}{
		{"sentry", false, func(_ context.Context, _ target.Sandbox, c target.Container) (int64, error) {
			return kill(c, func(p, _ oracle.Process) bool { return p.Pid == c.Pid })
		}},
		{"gofer", true, func(_ context.Context, _ target.Sandbox, c target.Container) (int64, error) {
			return kill(c, func(p, shim oracle.Process) bool { return p.Pid != c.Pid && p.Parent == shim.Pid })
		}},
		{"shim", true, func(_ context.Context, _ target.Sandbox, c target.Container) (int64, error) {
			return kill(c, func(p, shim oracle.Process) bool { return p.Pid == shim.Pid })
		}},
		{"supervisor", true, func(ctx context.Context, sb target.Sandbox, c target.Container) (int64, error) {
			// Its answer is lost with what carries it, and an engine may wait for it longer than the sandbox
			// lives: what it did is in the workspace.
			ctx, cancel := context.WithTimeout(ctx, lc09Engine)
			foothold := make(chan struct{})
			go func() {
				defer close(foothold)
				attack.Foothold(ctx, t, sb, "kill-root")
			}()
			t.Cleanup(func(context.Context) error { cancel(); <-foothold; return nil })
			var killed int64
			_, err := attack.Eventually(ctx, lc09Engine/2, func() (bool, error) {
				if r, err := report.ReadProgress(filepath.Join(c.Workspace, "kill.progress")); err == nil {
					killed = r.Counts["killed"]
				}
				return killed > 0, nil
			})
			return killed, err
		}},
	} {
		// Arrange.
		sb := t.Sandbox(ctx, target.Spec{})
		program := t.Tenant(ctx, sb)
		c, err := attack.Container(ctx, t, sb)
		if err != nil {
			return err
		}
		group := oracle.Cgroup{Dirs: c.Cgroups}
		beat := filepath.Join(c.Workspace, "beat")
		ended := make(chan attack.Outcome, 1)
		if d.running {
			go func() {
				ended <- attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "beat", "-life", "60s"), Timeout: 70 * time.Second})
			}()
			if err := oracle.WaitBeating(ctx, beat, 2, 20*time.Second); err != nil {
				return err
			}
			t.Witness("beats", 2)
		}

		// Attack.
		died := time.Now()
		n, err := d.kill(ctx, sb, c)
		if err != nil {
			return err
		}
		if n == 0 { // a runtime without this part
			t.Observe("no "+d.name, true)
			if err := sb.Dispose(ctx); err != nil {
				return err
			}
			if d.running {
				<-ended
			}
			continue
		}
		t.Witness("parts-killed", 1)

		// Verdict: the engine's word, and the runtime's.
		said, noticed, state, err := notices(ctx, engine, sb, c.ID, died)
		if err != nil {
			return err
		}
		t.Observe("noticed "+d.name, map[string]any{"engineMs": said.Milliseconds(), "runtimeMs": noticed.Milliseconds(), "state": state, "killed": n})
		if state == "ready" {
			t.Fail("death-unnoticed", "%s after the %s died the sandbox is %q; the engine said that it had ended after %s", noticed, d.name, state, said)
		}
		if d.running {
			select {
			case o := <-ended:
				t.Observe("command "+d.name, map[string]any{"code": o.Code, "kind": o.Kind, "wallMs": o.Wall.Milliseconds()})
				if err := o.Trouble(); err != nil {
					return err
				}
				if o.Kind != target.KindDied {
					t.Fail("death-not-named", "the command that ran when the %s died ended in %q of kind %q, exit code %d", d.name, o.Code, o.Kind, o.Result.ExitCode)
				}
			case <-time.After(lc09Notice):
				t.Fail("death-unnoticed", "%s after the state the command that ran when the %s died has no answer", lc09Notice, d.name)
			}
			still, err := oracle.WatchStill(ctx, beat, lc09Quiet, lc09Engine)
			if err != nil {
				return err
			}
			if !still.Still && !still.Gone {
				t.Fail("survivor-heartbeat", "the command still beats, %s after the %s died", still.After, d.name)
			}
		}
		for name, later := range map[string]func() error{
			"command":   func() error { return attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "noop")}).Err },
			"file read": func() error { _, err := sb.Files().Read(ctx, conformance.TenantProgram); return err },
		} {
			if kind := target.KindOf(later()); kind != target.KindDied && state != "ready" {
				t.Fail("death-not-named", "a %s after the %s died ends in kind %q", name, d.name, kind)
			}
		}
		clean, err := held.Gone(ctx, t, sb, group, lc09Gone)
		if err != nil {
			return err
		}
		if !clean {
			t.Fail("leftover", "the container or its cgroup is still there, %s after the %s died", lc09Gone, d.name)
		}
	}
	return nil
}

// notices waits for the engine and the runtime to notice a death: how long each took, and the last
// state that the runtime told, "ready" when it did not notice in time.
func notices(ctx context.Context, engine *oracle.Engine, sb target.Sandbox, container string, died time.Time) (said, noticed time.Duration, state string, err error) {
	_, err = attack.Eventually(ctx, lc09Engine+lc09Notice, func() (bool, error) {
		if said == 0 {
			f, found, err := engine.Inspect(ctx, container)
			if err != nil {
				return false, err
			}
			if !found || !f.Running {
				said = time.Since(died)
			}
		}
		if state, err = sb.State(ctx); err != nil && target.CodeOf(err) == "" {
			return false, err
		}
		noticed = time.Since(died)
		return state != "ready" || said != 0 && noticed-said > lc09Notice || said == 0 && noticed > lc09Engine, nil
	})
	return said, noticed, state, err
}

// kill sends SIGKILL to the processes of a container that match; shim is the parent of its main
// process. Each is held by a descriptor and looked at again before.
func kill(c target.Container, match func(p, shim oracle.Process) bool) (n int64, err error) {
	main, err := oracle.ReadProcess(c.Pid)
	if err != nil {
		return 0, err
	}
	shim, err := oracle.ReadProcess(main.Parent)
	if err != nil {
		return 0, err
	}
	if shim.Pid == 1 || !strings.Contains(shim.Command, c.ID) {
		return 0, fmt.Errorf("process %d, %q, is no shim of container %s", shim.Pid, shim.Name, c.ID)
	}
	table, err := oracle.Processes()
	if err != nil {
		return 0, err
	}
	for pid, p := range table {
		if !match(p, shim) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return n, err
		}
		defer unix.Close(fd)
		if again, err := oracle.ReadProcess(pid); err != nil || again.Start != p.Start {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return n, err
		}
		n++
	}
	return n, nil
}
