// SPDX-License-Identifier: Apache-2.0

package arming

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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

// slowestNeighbour is a quiet median beyond which a probe says nothing about a neighbour: the bounds of cases
// that follow from it would be those of a standstill.
const slowestNeighbour = 750 * time.Millisecond

// Neighbour stops a planted neighbour sandbox for a time, as a host that has no time for it would:
// the probe must see a stall, and a longer one as an error.
func Neighbour(ctx context.Context, t *conformance.T) error {
	op, quiet, sb, err := attack.NeighbourIn(ctx, t)
	if err != nil {
		return err
	}
	// What is planted stands out from how this target and host are when they are quiet.
	var (
		stall = max(300*time.Millisecond, 4*quiet.P50)
		hang  = 3 * stall
		limit = stall * 4 / 3 // of one operation, when the hang is looked for
	)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	// A runtime that starts everything anew for each command has no process while none runs.
	if c.Pid == 1 || c.Pid == 0 && len(c.Cgroups) == 0 {
		return fmt.Errorf("the neighbour's process is %d, and its cgroup unknown", c.Pid)
	}
	measure := func(limit, stopped time.Duration) (oracle.Latencies, error) {
		stop := oracle.Probe(ctx, 20*time.Millisecond, limit, op)
		err := freeze(ctx, c, stopped)
		if err == nil {
			err = attack.Pause(ctx, stall)
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
	if quiet.P50 > slowestNeighbour {
		t.Fail("false-positive", "the median of a quiet neighbour is %s", quiet.P50)
	}
	t.Witness("operations", stalled.N+hung.N)
	return nil
}

// freeze stops a sandbox of the suite's own for d: its first process, and whatever enters its cgroup
// from outside meanwhile, as the processes of a command do where no sentry and no supervisor starts
// them. All of them go on, whatever happens.
func freeze(ctx context.Context, c target.Container, d time.Duration) (err error) {
	stopped := map[int]int{} // pid to pidfd
	defer func() {
		for _, fd := range stopped {
			if cerr := unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0); cerr != nil && !errors.Is(cerr, unix.ESRCH) {
				err = errors.Join(err, fmt.Errorf("let the neighbour go on: %w", cerr))
			}
			unix.Close(fd)
		}
	}()
	group := oracle.Cgroup{Dirs: c.Cgroups}
	for end := time.Now().Add(d); time.Now().Before(end); {
		pids, err := entered(group, c.Pid)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if _, ok := stopped[pid]; ok {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // it ended
			}
			// The number is held now: a process of somebody else's is not in the group.
			if again, err := entered(group, c.Pid); err != nil || !slices.Contains(again, pid) {
				unix.Close(fd)
				continue
			}
			stopped[pid] = fd
			if err := unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("stop the neighbour: %w", err)
			}
		}
		if err := attack.Pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// entered are the processes of a group whose parents are outside of it, with first. A sentry's own
// are left alone: they stand still when it does.
func entered(group oracle.Cgroup, first int) ([]int, error) {
	all, err := group.Procs()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, pid := range all {
		p, err := oracle.ReadProcess(pid)
		if pid == first || err == nil && !slices.Contains(all, p.Parent) {
			out = append(out, pid)
		}
	}
	return out, nil
}
