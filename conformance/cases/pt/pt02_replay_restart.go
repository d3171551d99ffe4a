// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT02 keeps signed requests over the death of the worker, and takes them to another one.
var PT02 = conformance.Case{
	ID: "PT-02", Revision: 1, Title: "Replay across restart and process",
	Requirement: "A signed request dies with the worker process that it was meant for, used or not; the health request, which names no process, stays used over a restart. No second worker shares the first one's state.",
	Threat:      "A restart, or a worker beside the first, forgets which requests were used, and takes them again inside their lifetime.",
	Attack:      "Requests are kept: an exec and a health request that were used, and an exec, a write, a create and a purge that never arrived. They are sent to a second worker with the same keys and its own state; a third is started on the state directory of the first, which runs; then the first is killed and started again, and gets all of them once more.",
	Witness:     "Kept requests that were sent to the other worker (6) and to the restarted one (6), each inside its lifetime; the start on the same state (1).",
	Oracle:      "Status and code on the wire; the second process's exit; the engine calls recorded after the restart; the workspace as the host sees it under the next sandbox.",
	Precedent:   "Truxify#15840",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartPeers, conformance.PartRestart, conformance.PartTape, conformance.PartWire, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleTreeHash},
	Kills: []conformance.Kill{
		{Mutant: "m20", Reason: "used-again"}, {Mutant: "m47", Reason: "used-again"}, {Mutant: "m50", Reason: "old-epoch-accepted"}, {Mutant: "m51", Reason: "other-worker-accepted"},
		{Mutant: "m100", Reason: "second-worker-started"},
	},
	Run: runPT02,
}

// kept is one signed request that somebody holds.
type kept struct {
	what string
	used bool // before the restart
	req  wire.Request
}

const keptFile = "pt02-kept"

func runPT02(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	if err := sb.Files().Write(ctx, keptFile, []byte("kept")); err != nil {
		return err
	}
	minted := time.Now()
	list, other, err := keep(ctx, t, sb, attack.Command(program, "effect", "-append", "-file", "pt02-count"))
	if err != nil {
		return err
	}
	t.NeedWitness("sent-elsewhere", int64(len(list)))
	t.NeedWitness("sent-after-restart", int64(len(list)))
	t.NeedWitness("second-start", 1)

	// Attack: another worker, then one on the same state, then the same one again.
	if err := elsewhere(ctx, t, list); err != nil {
		return err
	}
	peer, err := t.Target().Peers.Start(ctx, target.PeerSpec{SameState: true})
	switch code := target.CodeOf(err); {
	case err == nil:
		t.Fail("second-worker-started", "a second worker serves from the state directory of a running one")
		if err := peer.Close(); err != nil {
			return err
		}
	case code == "":
		return err
	case code == "exit-0":
		t.Fail("second-worker-started", "the second worker's start on a used state directory counts as a success: %v", err)
	default:
		t.Observe("second-start", code)
	}
	t.Witness("second-start", 1)
	if err := t.Target().Controller.Kill(ctx); err != nil {
		return err
	}
	if err := t.Target().Controller.Start(ctx); err != nil {
		return fmt.Errorf("start the worker again: %w", err)
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	for _, k := range list {
		a, err := wire.Send(ctx, t.Target().Authority.Dial, k.req)
		if err != nil {
			return fmt.Errorf("%s after the restart: %w", k.what, err)
		}
		if time.Since(minted) >= wire.Lifetime {
			t.Inconclusive("too-slow", "the kept requests had expired")
		}
		t.Witness("sent-after-restart", 1)
		reason := "old-epoch-accepted"
		if k.used {
			reason = "used-again"
		}
		if code, err := wire.Refusal(a); err != nil || code != wire.Unauthenticated && (!k.used || code != wire.Replay) {
			t.Fail(reason, "%s after the restart: status %d, code %q (%v)", k.what, a.Status, code, err)
		}
		if a.Status == 201 {
			if err := attack.DisposeRaw(ctx, t, other, a.Body); err != nil {
				return err
			}
		}
	}

	// Verdict from outside: nothing was made, nothing was removed.
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if c.Method == "POST" && strings.HasSuffix(c.Path, "/containers/create") {
			t.Fail("old-epoch-accepted", "a create from before the restart reached the engine")
		}
	}
	next := t.Sandbox(ctx, target.Spec{WorkspaceID: sb.WorkspaceID()})
	c, err := attack.Container(ctx, t, next)
	if err != nil {
		return err
	}
	if b, err := os.ReadFile(filepath.Join(c.Workspace, keptFile)); err != nil || string(b) != "kept" {
		t.Fail("effect-of-old", "the workspace is not what it was before the restart: %.40q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(c.Workspace, "pt02-count")); err != nil || len(b) != 1 {
		t.Fail("effect-of-old", "the command that ran once before the restart has left %d marks, %v", len(b), err)
	}
	return nil
}

// keep makes the requests and uses those that count as used. other is the workspace of the create.
func keep(ctx context.Context, t *conformance.T, sb target.Sandbox, argv []string) (list []kept, other string, err error) {
	spec := t.Spec(target.Spec{})
	t.AdoptWorkspace(spec.WorkspaceID)
	create, err := t.Target().Wire.CreateBody(ctx, spec)
	if err != nil {
		return nil, "", err
	}
	for _, k := range []struct {
		what string
		used bool
		req  target.RawRequest
	}{
		{"health, used", true, target.RawRequest{Op: "health", Method: "GET", Target: "/v1/health"}},
		{"exec, used", true, wire.Exec(sb, "pt02-used", argv...)},
		{"exec", false, wire.Exec(sb, "pt02-kept", argv...)},
		{"write", false, wire.Write(sb, keptFile, []byte("changed"))},
		{"create", false, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: create}},
		{"purge", false, target.RawRequest{Op: "purge", Method: "DELETE", Target: "/v1/workspaces/" + sb.WorkspaceID(), WorkspaceID: sb.WorkspaceID()}},
	} {
		q, err := wire.Sign(ctx, t.Target().Authority, k.req)
		if err != nil {
			return nil, "", err
		}
		if k.used {
			a, err := wire.Send(ctx, t.Target().Authority.Dial, q)
			if err != nil || a.Status != 200 {
				return nil, "", fmt.Errorf("%s: status %d: %.200s: %w", k.what, a.Status, a.Body, err)
			}
		}
		list = append(list, kept{k.what, k.used, q})
	}
	return list, spec.WorkspaceID, nil
}

// elsewhere sends everything to a worker with another id and state.
func elsewhere(ctx context.Context, t *conformance.T, list []kept) error {
	peer, err := t.Target().Peers.Start(ctx, target.PeerSpec{})
	if err != nil {
		return err
	}
	for _, k := range list {
		a, err := wire.Send(ctx, peer.Dial, k.req)
		if err != nil {
			return fmt.Errorf("%s to another worker: %w", k.what, err)
		}
		t.Witness("sent-elsewhere", 1)
		if code, err := wire.Refusal(a); err != nil || code != wire.Unauthenticated {
			t.Fail("other-worker-accepted", "%s to another worker: status %d, code %q (%v)", k.what, a.Status, code, err)
		}
	}
	// What is signed for it passes, so that a refusal means something.
	own, err := wire.Sign(ctx, peer, target.RawRequest{Op: "health", Method: "GET", Target: "/v1/health"})
	if err != nil {
		return err
	}
	if a, err := wire.Send(ctx, peer.Dial, own); err != nil || a.Status != 200 {
		return fmt.Errorf("the other worker's own health request: status %d, %w", a.Status, err)
	}
	return peer.Close()
}
