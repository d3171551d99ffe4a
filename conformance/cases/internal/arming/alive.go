// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// Heartbeat plants a writer in a sandbox that ends by itself, and watches it through the host's path.
func Heartbeat(ctx context.Context, t *conformance.T) error {
	const life = 3 * time.Second // longer than the beats and the look at a living writer take
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Workspace, "armed.beat")
	absent, err := oracle.WatchStill(ctx, path, oracle.BeatPeriod, 2*oracle.BeatPeriod)
	if err != nil {
		return err
	}
	beats, err := oracle.WatchBeats(ctx, path)
	if err != nil {
		return err
	}
	ended := make(chan attack.Outcome, 1)
	go func() {
		ended <- attack.Run(ctx, sb, target.Command{Argv: attack.Command(program, "stage-beat", "armed.beat", life.String()), Timeout: 4 * life})
	}()
	if err := oracle.WaitBeating(ctx, path, 2, 10*time.Second); err != nil {
		return errors.Join(err, (<-ended).Err)
	}
	alive, err := oracle.WatchStill(ctx, path, 10*oracle.BeatPeriod, 15*oracle.BeatPeriod)
	if err != nil {
		return err
	}
	o := <-ended
	seen := beats()
	if o.Err != nil || o.Result.ExitCode != 0 {
		return fmt.Errorf("the planted writer ended with exit code %d: %w", o.Result.ExitCode, o.Err)
	}
	dead, err := oracle.WatchStill(ctx, path, 10*oracle.BeatPeriod, 20*oracle.BeatPeriod)
	if err != nil {
		return err
	}
	if alive.Still || alive.Beats == 0 {
		t.Fail("planted-missed", "a living writer in a sandbox is called dead")
	}
	if seen < 20 {
		t.Fail("planted-missed", "a writer of %s is seen to beat %d times before its end", life, seen)
	}
	if !dead.Still {
		t.Fail("false-positive", "a dead writer is called alive")
	}
	if absent.Still || !absent.Gone {
		t.Fail("planted-missed", "a file that is not there is called still")
	}
	t.Witness("beats", seen)
	return nil
}

// Neighbour stops the processes of a planted neighbour sandbox for a time, as a host that has no time
// for it would: the probe must see a stall, and a longer one as an error. What is stopped is the
// sandbox's own process, or everything that comes into its cgroup where it has none of its own.
func Neighbour(ctx context.Context, t *conformance.T) error {
	const (
		stall = 300 * time.Millisecond
		hang  = 900 * time.Millisecond
		limit = 400 * time.Millisecond // of one operation, when the hang is looked for
	)
	op, quiet, sb, err := attack.NeighbourIn(ctx, t)
	if err != nil {
		return err
	}
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	pids := func() ([]int, error) { return []int{c.Pid}, nil }
	if c.Pid == 0 {
		pids = oracle.Cgroup{Dirs: c.Cgroups}.Procs
	} else if c.Pid == 1 {
		return errors.New("the neighbour's process is the host's init")
	}
	measure := func(limit, stopped time.Duration) (oracle.Latencies, error) {
		stop := oracle.Probe(ctx, 20*time.Millisecond, limit, op)
		err := freeze(ctx, pids, stopped)
		if err == nil {
			err = rest(ctx, stall)
		}
		return stop(), err
	}
	stalled, err := measure(5*time.Second, stall)
	if err != nil {
		return err
	}
	hung, err := measure(limit, hang)
	if err != nil {
		return err
	}
	attack.ObserveLatencies(t, "quiet", quiet)
	attack.ObserveLatencies(t, "stalled", stalled)
	attack.ObserveLatencies(t, "hung", hung)
	// The operation that met the stall had begun before, or begins in the middle of it.
	if stalled.Errors > 0 || stalled.Max < stall*3/4 {
		t.Fail("planted-missed", "a neighbour stopped for %s is seen as at most %s and %d errors", stall, stalled.Max, stalled.Errors)
	}
	if hung.Errors == 0 {
		t.Fail("planted-missed", "a neighbour stopped for %s gives no error with a limit of %s", hang, limit)
	}
	if quiet.P50 > stall/2 {
		t.Fail("false-positive", "the median of a quiet neighbour is %s", quiet.P50)
	}
	t.Witness("operations", stalled.N+hung.N)
	return nil
}

// freeze stops the suite's own sandbox for d: every process that it has, and that it gets meanwhile.
// All go on whatever happens.
func freeze(ctx context.Context, pids func() ([]int, error), d time.Duration) (err error) {
	stopped := map[int]bool{}
	defer func() {
		for pid := range stopped {
			if cerr := unix.Kill(pid, unix.SIGCONT); cerr != nil && !errors.Is(cerr, unix.ESRCH) {
				err = errors.Join(err, fmt.Errorf("let the neighbour go on: %w", cerr))
			}
		}
	}()
	for end := time.Now().Add(d); time.Now().Before(end); {
		now, err := pids()
		if err != nil {
			return fmt.Errorf("find the neighbour: %w", err)
		}
		for _, pid := range now {
			if stopped[pid] {
				continue
			}
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("stop the neighbour: %w", err)
			}
			stopped[pid] = true
		}
		if err := rest(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
