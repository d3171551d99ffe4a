// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// Names of a bomb's files in the workspace.
const (
	bombProgress = "bomb.progress"
	bombBeat     = "bomb.beat"
)

// OnTrial is how many tasks a sample may lie above a limit: the kernel charges a fork before it refuses
// it (pids_try_charge in kernel/cgroup/pids.c), one for each CPU and as many again for those that were
// preempted in between.
func OnTrial() int64 { return int64(2 * runtime.NumCPU()) }

// Blast is where bombs are lit, one after another and each in a sandbox of its own, and what suffers
// beside them.
type Blast struct {
	PIDs          int64         // limit of tasks of each sandbox
	Timeout       time.Duration // of the command that lights a bomb
	Budget, Quiet time.Duration // from the reply to the last beat, and what counts as none
	NeighbourAt   oracle.Latencies
	HostAt        oracle.Latencies // both before the first bomb

	neighbour, host func(context.Context) error
}

// Prepare makes the neighbour and measures it and the host while nothing burns.
func (b *Blast) Prepare(ctx context.Context, t *conformance.T) (err error) {
	if b.neighbour, b.NeighbourAt, err = Neighbour(ctx, t); err != nil {
		return err
	}
	host, done, err := oracle.HostProbe(os.TempDir(), "/bin/true")
	if err != nil {
		return err
	}
	t.Cleanup(func(context.Context) error { return done() })
	b.host = host
	stop := oracle.Probe(ctx, 10*time.Millisecond, 5*time.Second, host)
	timer := time.NewTimer(400 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	b.HostAt = stop()
	ObserveLatencies(t, "neighbour quiet", b.NeighbourAt)
	ObserveLatencies(t, "host quiet", b.HostAt)
	return nil
}

// Burn is what one bomb did and what came of it.
type Burn struct {
	Sandbox         target.Sandbox
	Program         string
	Group           oracle.Cgroup
	Limit, Before   int64 // pids.max, and tasks before the bomb
	Memory          int64 // its limit, bytes
	Peaks           oracle.CgroupPeaks
	Beats           int64 // seen before the reply
	Still           oracle.Stillness
	Outcome         Outcome
	Inside          report.Report
	Neighbour, Host oracle.Latencies
}

// Light burns one bomb of the tenant program to the reply, and watches for its end. args are the
// bomb's, without its files; a bomb that is not known gets them as -progress and -beat.
func (b *Blast) Light(ctx context.Context, t *conformance.T, name string, args ...string) (Burn, error) {
	f := Burn{Sandbox: t.Sandbox(ctx, target.Spec{PIDs: b.PIDs})}
	f.Program = t.Tenant(ctx, f.Sandbox)
	c, err := Container(ctx, t, f.Sandbox)
	if err != nil {
		return f, err
	}
	f.Group = oracle.Cgroup{Dirs: c.Cgroups}
	if f.Limit, err = f.Group.PIDsLimit(); err != nil {
		return f, err
	}
	if f.Before, err = f.Group.PIDs(); err != nil {
		return f, err
	}
	if f.Memory, err = f.Group.MemoryLimit(); err != nil {
		return f, err
	}
	beat := filepath.Join(c.Workspace, bombBeat)
	beats, err := oracle.WatchBeats(ctx, beat)
	if err != nil {
		return f, err
	}
	stopGroup := f.Group.Watch(ctx, 2*time.Millisecond)
	stopNeighbour := oracle.Probe(ctx, 100*time.Millisecond, 10*time.Second, b.neighbour)
	stopHost := oracle.Probe(ctx, 100*time.Millisecond, 5*time.Second, b.host)
	progress := Progress(ctx, c.Workspace, bombProgress)
	f.Outcome = Run(ctx, f.Sandbox, target.Command{Argv: Command(f.Program, append(args, "-progress", bombProgress, "-beat", bombBeat)...), Timeout: b.Timeout})
	f.Beats = beats()
	if err := f.Outcome.Trouble(); err != nil {
		return f, err
	}
	// At once: a bomb that nobody has ended is seen before anything else can end it.
	if f.Still, err = oracle.WatchStill(ctx, beat, b.Quiet, b.Budget+b.Quiet); err != nil {
		return f, err
	}
	f.Inside = progress()
	f.Peaks, f.Neighbour, f.Host = stopGroup(), stopNeighbour(), stopHost()

	o, still := f.Outcome, f.Still
	Witness(t, name, f.Inside)
	t.Observe("inside "+name, f.Inside.Counts)
	t.Observe("pids "+name, map[string]int64{"limit": f.Limit, "before": f.Before, "peak": f.Peaks.PIDs, "refused": f.Peaks.PIDsRefused, "samples": f.Peaks.Samples})
	t.Observe("heartbeat "+name, map[string]any{"beatsBeforeReply": f.Beats, "beatsAfterReply": still.Beats, "lastBeatMs": still.After.Milliseconds(), "still": still.Still, "fileGone": still.Gone})
	t.Observe("end "+name, map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "signal": o.Result.Signal, "descendantsKilled": o.Result.DescendantsKilled, "wallMs": o.Wall.Milliseconds()})
	ObserveLatencies(t, "neighbour "+name, f.Neighbour)
	ObserveLatencies(t, "host "+name, f.Host)
	return f, nil
}

// The two good ends of a sandbox in which a bomb has burnt.
const (
	Usable = "usable"
	Dead   = "reported dead and removed"
)

// End waits for one of the good ends: [Usable], or [Dead], when nothing of it is left on the host,
// neither its container nor its cgroup, hence no process. "" is neither within the time.
func (f Burn) End(ctx context.Context, t *conformance.T, within time.Duration) (end string, err error) {
	_, err = Eventually(ctx, within, func() (bool, error) {
		o := Run(ctx, f.Sandbox, target.Command{Argv: Command(f.Program, "noop"), Timeout: 5 * time.Second})
		if err := o.Trouble(); err != nil {
			return false, err
		}
		_, err := Container(ctx, t, f.Sandbox)
		switch {
		case err == nil && o.Err == nil && o.Result.ExitCode == 0:
			end = Usable
		case errors.Is(err, target.ErrNoContainer) && o.Err != nil && !f.Group.Exists():
			end = Dead
		case err != nil && !errors.Is(err, target.ErrNoContainer):
			return false, err
		}
		return end != "", nil
	})
	return end, err
}
