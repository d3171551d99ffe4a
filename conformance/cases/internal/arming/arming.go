// SPDX-License-Identifier: Apache-2.0

// Package arming shows, in the run that it serves, that each oracle detects a planted positive:
// a change, a beat, a load, a leaked packet, a recorded call. It is judged like a case: what was
// planted and not found is a failure, and the oracle's cases are then inconclusive. It never
// judges the target: a weak target must not disarm the oracle that is to find it out.
package arming

import (
	"context"
	"os"

	"github.com/hallmark-sandbox/hallmark/conformance"
)

// All lists the armings, those that need no sandbox first.
func All() []conformance.Arming {
	return []conformance.Arming{
		{Oracle: conformance.OracleTreeHash, Arm: native(treeHash)},
		{Oracle: conformance.OracleSearch, Arm: native(search)},
		{Oracle: conformance.OracleAccess, Arm: native(access)},
		{Oracle: conformance.OracleProcess, Arm: native(process)},
		{Oracle: conformance.OracleMemory, Arm: native(memory)},
		{Oracle: conformance.OracleCPU, Arm: native(cpu)},
		{Oracle: conformance.OracleReply, Arm: native(reply)},
		{Oracle: conformance.OracleHostSocket, Arm: native(hostSocket)},
		{Oracle: conformance.OracleDescriptors, Arm: Descriptors},
		{Oracle: conformance.OracleHeartbeat, Arm: Heartbeat},
		{Oracle: conformance.OracleNeighbour, Arm: Neighbour},
		{Oracle: conformance.OracleUsage, Arm: Usage},
		{Oracle: conformance.OracleCgroup, Arm: Cgroup},
		{Oracle: conformance.OracleTape, Arm: Tape},
		{Oracle: conformance.OracleWire, Arm: Wire},
		{Oracle: conformance.OracleEngine, Arm: Engine},
		{Oracle: conformance.OracleEngineLog, Arm: EngineLog},
		{Oracle: conformance.OracleControl, Arm: Control},
		{Oracle: conformance.OracleNetwork, Arm: Network},
	}
}

// finding is what a native check came to.
type finding struct {
	missed  []string         // planted and not found
	alarms  []string         // found and not planted
	witness map[string]int64 // what was planted and found
}

// native turns a check that needs only a folder on the host into an arming.
func native(check func(ctx context.Context, dir string) (finding, error)) func(context.Context, *conformance.T) error {
	return func(ctx context.Context, t *conformance.T) error {
		dir, err := os.MkdirTemp("", "hallmark-arming-")
		if err != nil {
			return err
		}
		t.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
		f, err := check(ctx, dir)
		if err != nil {
			return err
		}
		for _, m := range f.missed {
			t.Fail("planted-missed", "%s", m)
		}
		for _, a := range f.alarms {
			t.Fail("false-positive", "%s", a)
		}
		for name, n := range f.witness {
			t.Witness(name, n)
		}
		return nil
	}
}
