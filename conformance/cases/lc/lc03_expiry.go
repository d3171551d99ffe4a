// SPDX-License-Identifier: Apache-2.0

package lc

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of LC-03. What has expired is removed at once; a busy host may need a while for it.
const (
	lc03Hard   = 12 * time.Second
	lc03Within = 15 * time.Second
	lc03Clock  = 50 * time.Millisecond // the lease runs by another clock than the one that its end is told in
)

// LC03 lets leases end while they are used.
var LC03 = conformance.Case{
	ID: "LC-03", Revision: 1, Title: "Expiry during exec",
	Requirement: "A lease ends at its hard expiry, whatever runs and however often it is renewed: who waits is told by name, everything is removed, nothing that comes later revives it, and it does not end before.",
	Threat:      "A command, or a caller that renews again and again, keeps a sandbox for as long as it likes; or a lease ends early and takes work with it.",
	Attack:      "Three sandboxes with a lease of 12 s. In the first a command that would run for a minute. In the second short commands one after another, over the end. The third is renewed every 20 ms, over the end.",
	Witness:     "Beats of the long command that the host saw (at least 20); commands that ended well in the last second before the expiry (at least 1) and those that were asked for in the second after it (at least 3); renewals before (at least 10) and after (at least 3).",
	Oracle:      "The engine's own word on each container, before the expiry and after; the cgroup; the codes of the answers; the expiry that the runtime tells, against the suite's own clock, and those that renewals promise against it.",
	Precedent:   "OpenSandbox#1200; E2B#1381",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartEngine, conformance.PartCgroup, conformance.PartWorkspacePath, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleEngine, conformance.OracleCgroup, conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m38", Reason: "outlived"}, {Mutant: "m39", Reason: "lease-beyond-hard"}},
	Run:      runLC03,
}

// leased is a sandbox of LC-03.
type leased struct {
	target.Sandbox
	t       *conformance.T
	engine  *oracle.Engine
	c       target.Container
	program string
	hard    time.Time // as the runtime says, and the suite has checked
}

func runLC03(ctx context.Context, t *conformance.T) error {
	t.NeedWitness("beats", 20)
	t.NeedWitness("commands-before", 1)
	t.NeedWitness("commands-after", 3)
	t.NeedWitness("renewals-before", 10)
	t.NeedWitness("renewals-after", 3)
	for _, step := range []func(*leased, context.Context) error{(*leased).long, (*leased).short, (*leased).renewed} {
		l, err := lease(ctx, t)
		if err != nil {
			return err
		}
		if err := step(l, ctx); err != nil {
			return err
		}
		if err := l.removed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lease makes a sandbox with a short lease, and its attack program.
func lease(ctx context.Context, t *conformance.T) (*leased, error) {
	l := &leased{t: t}
	var err error
	if l.engine, err = attack.Engine(t); err != nil {
		return nil, err
	}
	asked := time.Now()
	l.Sandbox = t.Sandbox(ctx, target.Spec{HardTimeout: lc03Hard})
	made := time.Now()
	l.program = t.Tenant(ctx, l)
	if l.c, err = attack.Container(ctx, t, l); err != nil {
		return nil, err
	}
	if l.hard, err = l.expiry(ctx, wire.On(l, "get", "GET", "", nil)); err != nil {
		return nil, err
	}
	// The suite's own clock says in which span the lease can end.
	if l.hard.Before(asked.Add(lc03Hard-lc03Clock)) || l.hard.After(made.Add(lc03Hard+lc03Clock)) {
		t.FailNow("lease-differs", "a lease of %s, asked for at %s and made by %s, ends at %s", lc03Hard, asked, made, l.hard)
	}
	return l, nil
}

// expiry is what an answer says of the lease's end.
func (l *leased) expiry(ctx context.Context, req target.RawRequest) (time.Time, error) {
	res, err := l.t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return time.Time{}, err
	}
	if res.Status >= 300 {
		return time.Time{}, &target.Error{Code: res.Code}
	}
	var body struct {
		ExpiresAt time.Time `json:"expiresAt"`
	}
	if err := json.Unmarshal(res.Body, &body); err != nil || body.ExpiresAt.IsZero() {
		return time.Time{}, fmt.Errorf("an answer without an expiry: %.200s", res.Body)
	}
	return body.ExpiresAt, nil
}

// there judges that the sandbox has not ended early.
func (l *leased) there(ctx context.Context) error {
	f, found, err := l.engine.Inspect(ctx, l.c.ID)
	if err != nil {
		return err
	}
	if left := time.Until(l.hard); left > lc03Clock && (!found || !f.Running) {
		l.t.Fail("ended-early", "the container does not run any more %s before the expiry", left.Round(time.Millisecond))
	}
	return nil
}

// removed judges that everything ends at the expiry.
func (l *leased) removed(ctx context.Context) error {
	group := oracle.Cgroup{Dirs: l.c.Cgroups}
	none, err := attack.Eventually(ctx, time.Until(l.hard)+lc03Within, func() (bool, error) {
		_, found, err := l.engine.Inspect(ctx, l.c.ID)
		return !found && !group.Exists(), err
	})
	if err != nil {
		return err
	}
	late := time.Since(l.hard)
	l.t.Observe("removed after ms", late.Milliseconds())
	if !none {
		l.t.Fail("outlived", "%s after the expiry the sandbox is still there", late.Round(time.Millisecond))
		return l.Dispose(ctx)
	}
	return nil
}

// long runs a command that outlasts the lease.
func (l *leased) long(ctx context.Context) error {
	beat := filepath.Join(l.c.Workspace, "beat")
	type end struct {
		attack.Outcome
		at time.Time
	}
	done := make(chan end, 1)
	go func() {
		o := attack.Run(ctx, l, target.Command{Argv: attack.Command(l.program, "beat", "-life", "1m"), Timeout: time.Minute})
		done <- end{o, time.Now()}
	}()
	if err := oracle.WaitBeating(ctx, beat, 1, lc03Hard); err != nil {
		return err
	}
	beats, err := oracle.WatchBeats(ctx, beat)
	if err != nil {
		return err
	}
	defer beats()
	if err := attack.Pause(ctx, time.Until(l.hard)-500*time.Millisecond); err != nil {
		return err
	}
	l.t.Witness("beats", beats())
	if err := l.there(ctx); err != nil {
		return err
	}
	select {
	case o := <-done:
		early := l.hard.Sub(o.at)
		if err := o.Trouble(); err != nil {
			return err
		}
		if early > lc03Clock {
			l.t.Fail("ended-early", "a command over the expiry ended %s before it", early.Round(time.Millisecond))
		}
		if o.Code != wire.SandboxExpired {
			l.t.Fail("code-differs", "a command over the expiry ended with code %q, exit code %d %s, %s before the expiry", o.Code, o.Result.ExitCode, o.Result.Signal, early.Round(time.Millisecond))
		}
	case <-time.After(time.Until(l.hard) + lc03Within):
		l.t.Fail("outlived", "%s after the expiry the command still runs", lc03Within)
		if err := l.Dispose(ctx); err != nil {
			return err
		}
		<-done
	}
	return nil
}

// short runs one small command after another, until a second after the expiry.
func (l *leased) short(ctx context.Context) error {
	if err := attack.Pause(ctx, time.Until(l.hard)-2*time.Second); err != nil {
		return err
	}
	if err := l.there(ctx); err != nil {
		return err
	}
	ended := false
	for time.Now().Before(l.hard.Add(time.Second)) {
		asked := time.Now()
		o := attack.Run(ctx, l, target.Command{Argv: attack.Command(l.program, "noop")})
		if err := o.Trouble(); err != nil {
			return err
		}
		switch {
		case o.Code == "" && o.Result.ExitCode != 0:
			return fmt.Errorf("a small command ended with exit code %d %s", o.Result.ExitCode, o.Result.Signal)
		case o.Code == "":
			if asked.After(l.hard.Add(lc03Clock)) {
				l.t.Fail("outlived", "a command that was asked for %s after the expiry ran", asked.Sub(l.hard).Round(time.Millisecond))
			}
			if ended {
				l.t.Fail("revived", "a command ran after another one was told of the expiry")
			}
			if time.Now().After(l.hard.Add(-time.Second)) && time.Now().Before(l.hard) {
				l.t.Witness("commands-before", 1)
			}
		case o.Code != wire.SandboxExpired:
			l.t.Fail("code-differs", "a command at the expiry ended with code %q", o.Code)
		default:
			if early := time.Until(l.hard); early > lc03Clock {
				l.t.Fail("ended-early", "a command was told of the expiry %s before it", early.Round(time.Millisecond))
			}
			ended = true
		}
		if asked.After(l.hard) {
			l.t.Witness("commands-after", 1)
			if err := attack.Pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// renewed renews the lease over and over, until a second after the expiry.
func (l *leased) renewed(ctx context.Context) error {
	ended, looked := false, false
	for time.Now().Before(l.hard.Add(time.Second)) {
		if !looked && time.Until(l.hard) < time.Second {
			looked = true
			if err := l.there(ctx); err != nil {
				return err
			}
		}
		asked := time.Now()
		at, err := l.expiry(ctx, wire.On(l, "renew", "POST", "/renew", nil))
		switch code := target.CodeOf(err); {
		case err == nil:
			if at.After(l.hard.Add(lc03Clock)) {
				l.t.Fail("lease-beyond-hard", "a renewal promises %s more than the create did", at.Sub(l.hard).Round(time.Millisecond))
				return nil
			}
			if ended || asked.After(l.hard.Add(lc03Clock)) {
				l.t.Fail("revived", "a renewal %s after the expiry was accepted", asked.Sub(l.hard).Round(time.Millisecond))
			}
			if time.Now().Before(l.hard) {
				l.t.Witness("renewals-before", 1)
			}
		case code == "":
			return err
		case code != wire.SandboxExpired:
			l.t.Fail("code-differs", "a renewal at the expiry ended with code %q", code)
		default:
			ended = true
			if early := time.Until(l.hard); early > lc03Clock {
				l.t.Fail("ended-early", "a renewal was told of the expiry %s before it", early.Round(time.Millisecond))
			}
		}
		if asked.After(l.hard) {
			l.t.Witness("renewals-after", 1)
		}
		if err := attack.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
