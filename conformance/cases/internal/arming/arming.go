// SPDX-License-Identifier: Apache-2.0

// Package arming shows, in the run that it serves, that each oracle detects a planted positive:
// a change, a beat, a load, a leaked packet, a recorded call. It is judged like a case: what was
// planted and not found is a failure, and the oracle's cases are then inconclusive.
package arming

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
)

// All lists the armings, those that need no sandbox first.
func All() []conformance.Arming {
	return []conformance.Arming{
		{Oracle: conformance.OracleTreeHash, Arm: TreeHash},
		{Oracle: conformance.OracleHeartbeat, Arm: Heartbeat},
		{Oracle: conformance.OracleProcess, Arm: Process},
		{Oracle: conformance.OracleMemory, Arm: Memory},
		{Oracle: conformance.OracleNeighbour, Arm: Neighbour},
		{Oracle: conformance.OracleUsage, Arm: Usage},
		{Oracle: conformance.OracleCgroup, Arm: Cgroup},
		{Oracle: conformance.OracleTape, Arm: Tape},
		{Oracle: conformance.OracleWire, Arm: Wire},
		{Oracle: conformance.OracleEngine, Arm: Engine},
		{Oracle: conformance.OracleControl, Arm: Control},
		{Oracle: conformance.OracleNetwork, Arm: Network},
	}
}

// folder is a host folder that ends with t.
func folder(t *conformance.T) (string, error) {
	dir, err := os.MkdirTemp("", "hallmark-arming-")
	if err != nil {
		return "", err
	}
	t.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	return dir, nil
}

// TreeHash plants a changed byte, a changed mode, a new and a missing file.
func TreeHash(_ context.Context, t *conformance.T) error {
	dir, err := folder(t)
	if err != nil {
		return err
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"byte", "mode", "missing", "same"} {
		if err := os.WriteFile(path(name), []byte("planted"), 0o600); err != nil {
			return err
		}
	}
	before, err := oracle.HashTree(dir)
	if err != nil {
		return err
	}
	st, err := os.Stat(path("byte"))
	if err != nil {
		return err
	}
	// The changed byte keeps size and time: only the content can tell.
	if err := errors.Join(os.WriteFile(path("byte"), []byte("Planted"), 0o600), os.Chtimes(path("byte"), st.ModTime(), st.ModTime()),
		os.Chmod(path("mode"), 0o644), os.Remove(path("missing")), os.Symlink("x", path("new"))); err != nil {
		return err
	}
	after, err := oracle.HashTree(dir)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, d := range before.Diff(after) {
		found[d] = true
	}
	for _, want := range []string{"! byte", "! mode", "- missing", "+ new"} {
		if !found[want] {
			t.Fail("planted-missed", "the tree hash does not show %q", want)
			continue
		}
		t.Witness("planted-found", 1)
	}
	if found["! same"] {
		t.Fail("false-positive", "the tree hash shows a change of an unchanged file")
	}
	return nil
}

// Heartbeat plants a writer that lives, and ends it.
func Heartbeat(ctx context.Context, t *conformance.T) error {
	dir, err := folder(t)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "beat")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	stop := oracle.Probe(ctx, oracle.BeatPeriod, time.Second, func(context.Context) error {
		_, err := f.WriteString(".")
		return err
	})
	defer stop()
	if err := oracle.WaitBeating(ctx, path, 2, 3*time.Second); err != nil {
		t.Fail("planted-missed", "a living writer is not seen: %v", err)
		return nil
	}
	if s, err := oracle.WatchStill(ctx, path, 10*oracle.BeatPeriod, 15*oracle.BeatPeriod); err != nil {
		return err
	} else if s.Still {
		t.Fail("planted-missed", "a living writer is called dead")
	}
	stop()
	if s, err := oracle.WatchStill(ctx, path, 10*oracle.BeatPeriod, 20*oracle.BeatPeriod); err != nil {
		return err
	} else if !s.Still {
		t.Fail("false-positive", "a dead writer is called alive")
	}
	t.Witness("beats", 1)
	return nil
}

// Process looks for the suite's own process and hashes what it executes.
func Process(_ context.Context, t *conformance.T) error {
	table, err := oracle.Processes()
	if err != nil {
		return err
	}
	self, ok := table[os.Getpid()]
	if !ok || self.Parent != os.Getppid() {
		t.Fail("planted-missed", "the suite's own process is not in the table as it is")
	}
	running, err := oracle.ExeDigest(os.Getpid())
	if err != nil {
		return err
	}
	name, err := os.Executable()
	if err != nil {
		return err
	}
	onDisk, err := oracle.FileDigest(name)
	if err != nil {
		return err
	}
	if running != onDisk {
		t.Fail("planted-missed", "the suite executes %s and its file is %s", running, onDisk)
	}
	if other, err := oracle.FileDigest("/bin/true"); err == nil && other == running {
		t.Fail("false-positive", "two different programs have one digest")
	}
	if len(oracle.Namespaces([]int{os.Getpid()})) < 5 {
		t.Fail("planted-missed", "the suite's own namespaces are not seen")
	}
	t.Witness("processes", int64(len(table)))
	return nil
}

// Memory plants an allocation that is given back before it is looked for: only a peak shows it.
func Memory(_ context.Context, t *conformance.T) error {
	const size = 48 << 20
	if err := oracle.ResetPeak(os.Getpid()); err != nil {
		return err
	}
	before, _, err := oracle.ResidentMemory(os.Getpid())
	if err != nil {
		return err
	}
	if err := oracle.TouchAndRelease(size); err != nil {
		return err
	}
	now, peak, err := oracle.ResidentMemory(os.Getpid())
	if err != nil {
		return err
	}
	t.Observe("memory", map[string]int64{"before": before, "now": now, "peak": peak})
	if peak-before < size*3/4 {
		t.Fail("planted-missed", "an allocation of %d bytes raised the peak by %d", int64(size), peak-before)
	}
	t.Witness("mib-touched", size>>20)
	return nil
}

// Neighbour plants a stall and an error among quick operations.
func Neighbour(ctx context.Context, t *conformance.T) error {
	n := 0
	stop := oracle.Probe(ctx, 5*time.Millisecond, 150*time.Millisecond, func(ctx context.Context) error {
		n++
		switch n {
		case 5:
			timer := time.NewTimer(100 * time.Millisecond)
			defer timer.Stop()
			<-timer.C
		case 7:
			return fmt.Errorf("planted")
		case 9: // a hang, which the probe's limit cuts off
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	if _, err := attack.Eventually(ctx, 600*time.Millisecond, func() (bool, error) { return false, nil }); err != nil {
		stop()
		return err
	}
	l := stop()
	if l.Max < 100*time.Millisecond {
		t.Fail("planted-missed", "a stall of 100 ms is seen as %s", l.Max)
	}
	if l.Errors != 2 {
		t.Fail("planted-missed", "an error and a hang are seen as %d errors", l.Errors)
	}
	if l.P50 > 50*time.Millisecond {
		t.Fail("false-positive", "the median of quick operations is %s", l.P50)
	}
	t.Witness("operations", l.N)
	return nil
}
