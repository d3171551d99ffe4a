// SPDX-License-Identifier: Apache-2.0

// Package attack runs the tenant program in a sandbox and reads what it reports. It owns the
// command lines; it returns facts and never judges. A report is a witness, whoever wrote it.
package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// allow lets the tenant program attack in sandboxes that have no supervisor mount.
const allow = "--allow-outside-sandbox"

// Outcome is how the runtime ended an attack, and what the attack said of itself.
type Outcome struct {
	Result target.Result
	Report report.Report
	Code   string        // the runtime's code when the exec ended in a typed error, else ""
	Kind   target.Kind   // what that code means in words that every runtime shares, or ""
	Err    error         // the exec's error, typed or not
	Wall   time.Duration // as the client saw it
}

// Typed says whether the invocation came to an end that the runtime names: a result or a code.
func (o Outcome) Typed() bool { return o.Err == nil || o.Code != "" }

// Trouble is the exec's error when it carries no code of the runtime: the connection, the host or the
// suite is at fault then, and nothing can be judged.
func (o Outcome) Trouble() error {
	if o.Typed() {
		return nil
	}
	return o.Err
}

// Command is the argv of one attack.
func Command(program string, args ...string) []string {
	return append([]string{program, allow}, args...)
}

// Run executes one attack as the tenant. The report is empty when the attack printed none.
func Run(ctx context.Context, sb target.Sandbox, cmd target.Command) Outcome {
	start := time.Now()
	res, err := sb.Exec(ctx, cmd)
	o := Outcome{Result: res, Err: err, Code: target.CodeOf(err), Kind: target.KindOf(err), Wall: time.Since(start)}
	if r, perr := report.Parse(res.Stdout); perr == nil {
		o.Report = r
	}
	return o
}

// Must executes one attack that has to end by itself with a report; anything else is an error of
// the arrangement, with what the attack wrote.
func Must(ctx context.Context, sb target.Sandbox, cmd target.Command) (Outcome, error) {
	o := Run(ctx, sb, cmd)
	if o.Err != nil {
		return o, fmt.Errorf("attack %v: %w", cmd.Argv[1:], o.Err)
	}
	if o.Result.ExitCode != 0 || o.Report.Attack == "" {
		return o, fmt.Errorf("attack %v ended with exit code %d %s: %.300s %.300s", cmd.Argv[1:], o.Result.ExitCode, o.Result.Signal, o.Result.Stdout, o.Result.Stderr)
	}
	return o, nil
}

// Foothold executes one attack as root in the sandbox, past the runtime.
func Foothold(ctx context.Context, t *conformance.T, sb target.Sandbox, args ...string) (report.Report, error) {
	if t.Target().Controller == nil {
		return report.Report{}, target.ErrUnavailable
	}
	res, err := t.Target().Controller.Foothold(ctx, sb.ID(), Command("/workspace/"+conformance.TenantProgram, args...), nil)
	if err != nil {
		return report.Report{}, fmt.Errorf("foothold %v: %w", args, err)
	}
	r, err := report.Parse(res.Stdout)
	if err != nil || res.ExitCode != 0 {
		return r, fmt.Errorf("foothold %v ended with exit code %d: %.300s %.300s", args, res.ExitCode, res.Stdout, res.Stderr)
	}
	return r, nil
}

// Container asks the observer for the sandbox's container.
func Container(ctx context.Context, t *conformance.T, sb target.Sandbox) (target.Container, error) {
	if t.Target().Observer == nil {
		return target.Container{}, target.ErrUnavailable
	}
	return t.Target().Observer.Container(ctx, sb.ID())
}

// Engine opens the engine's own socket, past the tape.
func Engine(t *conformance.T) (*oracle.Engine, error) {
	socket, err := t.Target().Observer.EngineSocket()
	if err != nil {
		return nil, err
	}
	return oracle.OpenEngine(socket, t)
}

// Parent is the cgroup parent of the target's containers, for what the suite plants on the engine
// beside them: what lies there is known for this process's. "" leaves it to the engine.
func Parent(t *conformance.T) (string, error) {
	if t.Target().Observer == nil {
		return "", nil
	}
	parent, err := t.Target().Observer.CgroupParent()
	if errors.Is(err, target.ErrUnavailable) {
		return "", nil
	}
	return parent, err
}

// Witness records a report as raw evidence.
func Witness(t *conformance.T, name string, r report.Report) {
	if line, err := r.Encode(); err == nil {
		t.Artifact(name+".json", line)
	}
}

// Progress keeps reading an attack's progress file on the host until stop is called, and returns
// the last report that was whole. It outlives the sandbox that wrote it.
func Progress(ctx context.Context, workspace, name string) (stop func() report.Report) {
	var last report.Report
	end := oracle.Probe(ctx, 50*time.Millisecond, time.Second, func(context.Context) error {
		r, err := report.ReadProgress(filepath.Join(workspace, name))
		if err == nil {
			last = r
		}
		return nil
	})
	return func() report.Report {
		end()
		if r, err := report.ReadProgress(filepath.Join(workspace, name)); err == nil {
			return r
		}
		return last
	}
}

// Neighbour makes a quiet second sandbox and a probe that runs a small command in it. The probe's
// baseline is measured before it returns.
func Neighbour(ctx context.Context, t *conformance.T) (op func(context.Context) error, base oracle.Latencies, err error) {
	op, base, _, err = NeighbourIn(ctx, t)
	return op, base, err
}

// NeighbourIn is [Neighbour] and names the sandbox too.
func NeighbourIn(ctx context.Context, t *conformance.T) (op func(context.Context) error, base oracle.Latencies, sb target.Sandbox, err error) {
	sb = t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	op = func(ctx context.Context) error {
		_, err := Must(ctx, sb, target.Command{Argv: Command(program, "noop"), Timeout: 10 * time.Second})
		return err
	}
	for range 3 {
		if err := op(ctx); err != nil {
			return nil, base, sb, fmt.Errorf("neighbour: %w", err)
		}
	}
	stop := oracle.Probe(ctx, 10*time.Millisecond, 10*time.Second, op)
	timer := time.NewTimer(400 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	base = stop()
	if base.Errors > 0 || base.N == 0 {
		return nil, base, sb, fmt.Errorf("neighbour: %d of %d quiet probes failed: %s", base.Errors, base.N, base.FirstError)
	}
	return op, base, sb, nil
}

// Bound is what a probe's p99 may reach under attack: ten times its quiet median, at least floor.
// Two cores are shared by the suite, the attack, the worker and the engine.
func Bound(base oracle.Latencies, floor time.Duration) time.Duration {
	return max(10*base.P50, floor)
}

// ObserveLatencies records a probe's figures in milliseconds.
func ObserveLatencies(t *conformance.T, name string, l oracle.Latencies) {
	t.Observe(name, map[string]int64{"n": l.N, "errors": l.Errors, "p50Ms": l.P50.Milliseconds(), "p99Ms": l.P99.Milliseconds(), "maxMs": l.Max.Milliseconds()})
}

// Pause waits for d, or for the context's end.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Eventually polls f every 50 ms until it is true, at most within.
func Eventually(ctx context.Context, within time.Duration, f func() (bool, error)) (bool, error) {
	end := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := f()
		if ok || err != nil {
			return ok, err
		}
		if time.Now().After(end) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
	}
}

// DisposeRaw disposes the sandbox of a raw create that was accepted against all expectation, so
// that its workspace can be purged.
func DisposeRaw(ctx context.Context, t *conformance.T, workspace string, createAnswer []byte) error {
	var made struct {
		SandboxID string `json:"sandboxId"`
	}
	if err := json.Unmarshal(createAnswer, &made); err != nil || made.SandboxID == "" {
		return fmt.Errorf("accepted create has no sandbox id: %w", err)
	}
	res, err := t.Target().Wire.Raw(ctx, target.RawRequest{Op: "dispose", Method: "DELETE", Target: "/v1/sandboxes/" + made.SandboxID, WorkspaceID: workspace, SandboxID: made.SandboxID})
	if err != nil {
		return err
	}
	if res.Status >= 300 {
		return fmt.Errorf("dispose of the accepted create: status %d, code %s", res.Status, res.Code)
	}
	return nil
}
