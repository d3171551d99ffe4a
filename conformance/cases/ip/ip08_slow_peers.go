// SPDX-License-Identifier: Apache-2.0

package ip

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of IP-08. What a peer may hold a connection with is bounded at 40 s: four times the longest
// deadline of the reference, since replies that nobody reads have to fill a socket's buffers first, and
// machines are loaded. Where deadlines hold, the attack ends with the last of them.
const (
	ip08Hold  = 40 * time.Second
	ip08Floor = 4 * time.Second
)

// ip08Kinds are the ways of holding a connection, as the attack names them.
var ip08Kinds = []string{"cut", "silent", "header", "drip", "proven-half", "unread"}

// IP08 holds connections with frames that do not end.
var IP08 = conformance.Case{
	ID: "IP-08", Revision: 1, Title: "Slow-loris and half frames",
	Requirement: "A connection that does not say a whole request, or does not read its replies, ends by a deadline of its own, and nobody else waits for it.",
	Threat:      "A peer holds every place at the control socket, or the supervisor itself, with a frame that never ends.",
	Attack:      "Seventeen root peers at once, put into the sandbox by the suite, since no other peer is heard: silence after the challenge, a header alone, one byte twice a second, half a frame and the end of the direction, half a frame after a good request, and requests whose replies nobody reads. Each holds on for at most 40 s.",
	Witness:     "Connections that were greeted and then held in each of the six ways (at least one each); commands that the worker ran meanwhile (at least 5).",
	Oracle:      "The attack's clock says which connections the supervisor ended within 40 s. Commands through the worker meanwhile, against the quiet median of the same command; afterwards a new root peer is answered; no file of a half request appears on the host.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 3 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartWorkspacePath, conformance.PartFoothold, conformance.PartConcurrent},
	Oracles:  []conformance.Oracle{conformance.OracleControl},
	Kills:    []conformance.Kill{{Mutant: "m12", Reason: "slot-held"}},
	Run:      runIP08,
}

func runIP08(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	before, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		return err
	}
	op, base, err := quiet(ctx, sb, program)
	if err != nil {
		return err
	}

	// Attack.
	stop := oracle.Probe(ctx, 100*time.Millisecond, 20*time.Second, op)
	slow, err := attack.Foothold(ctx, t, sb, "control-slow", "-hold", ip08Hold.String())
	during := stop()
	if err != nil {
		return err
	}

	// Witness.
	attack.Witness(t, "slow", slow)
	for _, kind := range ip08Kinds {
		t.NeedWitness("held."+kind, 1)
		t.Witness("held."+kind, slow.Counts["held."+kind])
	}
	t.NeedWitness("calls-meanwhile", 5)
	t.Witness("calls-meanwhile", during.N-during.Errors)
	attack.ObserveLatencies(t, "quiet", base)
	attack.ObserveLatencies(t, "meanwhile", during)

	// Verdict.
	for _, kind := range ip08Kinds {
		if held, ended := slow.Counts["held."+kind], slow.Counts["ended."+kind]; ended < held {
			t.Fail("slot-held", "%d of %d connections of the kind %q were held for %v and not ended", held-ended, held, kind, ip08Hold)
		}
	}
	judgeCalls(t, base, during, ip08Floor)
	after, err := attack.Foothold(ctx, t, sb, "control-root", "-mode", "stats")
	if err != nil {
		t.Fail("socket-unusable", "a new root peer afterwards: %v", err)
		return nil
	}
	t.Observe("counters", counted(before, after))
	if _, err := os.Lstat(filepath.Join(c.Workspace, "never")); err == nil {
		t.Fail("half-request-executed", "a request that was never whole left its file")
	}
	return nil
}

// quiet measures a small command through the worker while nothing attacks.
func quiet(ctx context.Context, sb target.Sandbox, program string) (op func(context.Context) error, base oracle.Latencies, err error) {
	op = func(ctx context.Context) error {
		_, err := attack.Must(ctx, sb, target.Command{Argv: attack.Command(program, "noop"), Timeout: 20 * time.Second})
		return err
	}
	if err := op(ctx); err != nil { // pays for what is paid once
		return nil, base, err
	}
	stop := oracle.Probe(ctx, 10*time.Millisecond, 20*time.Second, op)
	timer := time.NewTimer(600 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	base = stop()
	if base.Errors > 0 {
		return nil, base, fmt.Errorf("%d of %d quiet commands failed: %s", base.Errors, base.N, base.FirstError)
	}
	return op, base, nil
}

// judgeCalls compares commands under attack with quiet ones.
func judgeCalls(t *conformance.T, base, during oracle.Latencies, floor time.Duration) {
	if during.Errors > 0 {
		t.Fail("call-failed", "%d of %d commands failed meanwhile: %s", during.Errors, during.N, during.FirstError)
	}
	if bound := attack.Bound(base, floor); during.P99 > bound {
		t.Fail("call-slowed", "the p99 of a command is %v meanwhile, bound %v, quiet median %v", during.P99, bound, base.P50)
	}
}
