// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of OU-05. The leader needs some 300 ms; the reply may take grace longer. The
// command's own time-out lies well beyond, so that waiting for the pipe shows.
const (
	ou05Grace   = 4 * time.Second
	ou05Timeout = 9 * time.Second
	ou05Quiet   = 10 * oracle.BeatPeriod
	ou05Beats   = 2 // that the host must have seen before the reply
)

// OU05 leaves a child that keeps stdout open.
var OU05 = conformance.Case{
	ID: "OU-05", Revision: 2, Title: "Pipe held open",
	Requirement: "The reply comes when the leader exits, not when the last holder of its pipe closes it; the holder is ended.",
	Threat:      "A background child makes every command hang until its time-out.",
	Attack:      "A child inherits stdout and stderr and lives for a minute; the parent exits 0. Once in the same session, once in its own.",
	Witness:     "Holders that the host saw beat before the reply (2), each with its leader's own stdout, and no file, by the leader's word (2).",
	Oracle:      "The time of the reply, seen by the client; growth of the holder's file, seen on the host.",
	Precedent:   "daytona#4147; prime#305; qntx/bux#163",
	Tier:        conformance.Smoke, Control: true, PerImage: true, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Needs:    []conformance.Part{conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m06", Reason: "holder-survived"}, {Mutant: "m07", Reason: "reply-late"}},
	Run:      runOU05,
}

func runOU05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	t.NeedWitness("holders", 2)
	t.NeedWitness("holders-beating", 2)
	for _, session := range []string{"same", "own"} {
		// Attack.
		argv := attack.Command(program, "hold-pipe", "-file", "holder-"+session, "-life", "60s")
		if session == "own" {
			argv = append(argv, "-setsid")
		}
		file := filepath.Join(c.Workspace, "holder-"+session)
		beats, err := oracle.WatchBeats(ctx, file)
		if err != nil {
			return err
		}
		o := attack.Run(ctx, sb, target.Command{Argv: argv, Timeout: ou05Timeout})

		// Witness.
		if beats() >= ou05Beats {
			t.Witness("holders-beating", 1)
		}
		if err := o.Trouble(); err != nil {
			return err
		}
		t.Witness("holders", o.Report.Counts["holding-a-pipe"])
		t.Observe("reply "+session, map[string]any{"code": o.Code, "wallMs": o.Wall.Milliseconds(), "exitCode": o.Result.ExitCode, "timedOut": o.Result.TimedOut})

		// Verdict.
		if o.Wall > ou05Grace || o.Result.TimedOut {
			t.Fail("reply-late", "session %s: the reply took %s, timed out %v", session, o.Wall.Round(time.Millisecond), o.Result.TimedOut)
		}
		if o.Err != nil || (o.Result.ExitCode != 0 && !o.Result.TimedOut) {
			t.Fail("exit-code-lost", "session %s: exit code %d, error %v", session, o.Result.ExitCode, o.Err)
		}
		if o.Report.Attack == "" {
			t.Fail("output-lost", "session %s: the leader's line is not in the output", session)
		}
		s, err := oracle.WatchStill(ctx, file, ou05Quiet, 2*time.Second+ou05Quiet)
		if err != nil {
			return err
		}
		if s.Gone {
			return fmt.Errorf("session %s: the holder's file is missing", session)
		}
		if !s.Still {
			t.Fail("holder-survived", "session %s: the holder still beats", session)
		}
	}
	return nil
}
