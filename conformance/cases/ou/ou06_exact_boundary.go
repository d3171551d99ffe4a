// SPDX-License-Identifier: Apache-2.0

package ou

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/emit"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The budget of OU-06 is no multiple of a pipe, a page or a block, and larger than a pipe.
const ou06Budget = 100_003

// OU06 writes as much as fits, and one byte less and more.
var OU06 = conformance.Case{
	ID: "OU-06", Revision: 1, Title: "Exact boundary",
	Requirement: "Output is cut exactly when it is more than the budget of both streams together; each stream says whether it was cut, and the dropped bytes are counted to the byte.",
	Threat:      "A byte that is lost at the bound in silence, or an answer that is called cut and is whole.",
	Attack:      "One byte less than the budget, the budget and one more, on stdout alone, on stderr alone, split over both, and with a budget of one byte; no output at all.",
	Witness:     "Commands that ended by themselves after the last byte was written (all).",
	Oracle:      "Lengths, bytes, flags and counts of the reply, compared with a random file that the host made and the lengths that it asked for.",
	Precedent:   "inspect_ai#4778",
	Tier:        conformance.Full, Control: true, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles},
	Oracles:  []conformance.Oracle{conformance.OracleReply},
	Kills:    []conformance.Kill{{Mutant: "m09", Reason: "bytes-unaccounted"}, {Mutant: "m85", Reason: "output-missing"}, {Mutant: "m89", Reason: "bytes-differ"}},
	Run:      runOU06,
}

func runOU06(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	content := make([]byte, 8191)
	rand.Read(content)
	if err := emit.Place(ctx, sb, content); err != nil {
		return err
	}
	const half, block = ou06Budget / 2, 4001
	rows := []struct {
		name           string
		budget         int64
		stdout, stderr int64
	}{
		{"stdout one less", ou06Budget, ou06Budget - 1, 0},
		{"stdout whole", ou06Budget, ou06Budget, 0},
		{"stdout one more", ou06Budget, ou06Budget + 1, 0},
		{"stderr whole", ou06Budget, 0, ou06Budget},
		{"stderr one more", ou06Budget, 0, ou06Budget + 1},
		{"split, one less", ou06Budget, half, ou06Budget - half - 1},
		{"split, whole", ou06Budget, half, ou06Budget - half},
		{"split, one more", ou06Budget, half, ou06Budget - half + 1},
		{"one byte of one", 1, 1, 0},
		{"two bytes of one", 1, 1, 1},
		{"nothing", 1, 0, 0},
	}
	t.NeedWitness("ended-after-the-last-byte", int64(len(rows)))
	for _, row := range rows {
		// Attack.
		s := emit.Script{Content: content, Steps: []emit.Step{{FD: 1, Length: row.stdout, Block: block}, {FD: 2, From: row.stdout, Length: row.stderr, Block: block}}}
		o := attack.Run(ctx, sb, target.Command{Argv: s.Argv(program), MaxOutput: row.budget, Timeout: 20 * time.Second})
		if err := o.Trouble(); err != nil {
			return err
		}

		// Witness: the program exits 0 only when all was written.
		if o.Err == nil && o.Result.ExitCode == 0 {
			t.Witness("ended-after-the-last-byte", 1)
		}
		t.Observe(row.name, map[string]any{"code": o.Code, "exitCode": o.Result.ExitCode, "stdout": len(o.Result.Stdout), "stderr": len(o.Result.Stderr), "dropped": o.Result.DroppedBytes})

		// Verdict.
		if o.Err != nil || o.Result.ExitCode != 0 {
			t.Fail("boundary-ended-the-exec", "%s: exit code %d, error %v", row.name, o.Result.ExitCode, o.Err)
			continue
		}
		for _, f := range s.Differences(o.Result, row.budget) {
			t.Fail(f.Reason, "%s: %s", row.name, f.Text)
		}
	}
	return nil
}
