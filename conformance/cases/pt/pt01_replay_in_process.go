// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT01 sends signed requests again, and signed for something else.
var PT01 = conformance.Case{
	ID: "PT-01", Revision: 1, Title: "Replay in process",
	Requirement: "A capability is good for one request, once: the second use is refused whatever became of the first, and so is every use for another method, target or body.",
	Threat:      "Who reads one request, in a log or on the way, repeats its effect or turns it into another one.",
	Attack:      "One signed exec over 50 connections at once, released together. Signed writes and removals sent again after a success that something later has superseded, after a failure of the effect, and after a body that was not the signed one. Used capabilities with headers in another order, repeated and added. Unused capabilities with another method, path, query, sandbox, coding or body.",
	Witness:     "Connections that were open with a whole signed request before the first was released (50); used capabilities sent again (9); unused ones sent with something else (9).",
	Oracle:      "The host's view of the workspace: a file that each run of the command makes one byte longer, and files that a repeated effect would change or remove. Status and code of every answer.",
	Precedent:   "nucleus#2375, percolator#2476",
	Tier:        conformance.Full, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTreeHash},
	Kills: []conformance.Kill{
		{Mutant: "m47", Reason: "replay-accepted"}, {Mutant: "m48", Reason: "body-unbound"}, {Mutant: "m49", Reason: "target-unbound"},
	},
	Run: runPT01,
}

const together = 50 // connections of the parallel replay

// replays is one run of PT-01.
type replays struct {
	t         *conformance.T
	sb        target.Sandbox
	workspace string // on the host
}

func runPT01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	r := replays{t, sb, c.Workspace}
	t.NeedWitness("released-together", together)
	t.NeedWitness("sent-again", 9)
	t.NeedWitness("sent-otherwise", 9)

	// Attack and verdict, step by step.
	argv := attack.Command(program, "effect", "-append", "-file", "pt01-count")
	if err := r.parallel(ctx, wire.Exec(sb, "pt01-parallel", argv...)); err != nil {
		return err
	}
	if err := r.superseded(ctx); err != nil {
		return err
	}
	if err := r.failed(ctx); err != nil {
		return err
	}
	return r.otherwise(ctx, argv)
}

func (r replays) read(name string) string {
	b, err := os.ReadFile(filepath.Join(r.workspace, name))
	if errors.Is(err, iofs.ErrNotExist) {
		return "(absent)"
	}
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (r replays) send(ctx context.Context, q wire.Request) (wire.Answer, error) {
	return wire.Send(ctx, r.t.Target().Authority.Dial, q)
}

// must sends a request that has to succeed, and returns its bytes.
func (r replays) must(ctx context.Context, what string, req target.RawRequest) (wire.Request, error) {
	q, err := wire.Sign(ctx, r.t.Target().Authority, req)
	if err != nil {
		return q, err
	}
	a, err := r.send(ctx, q)
	if err == nil && a.Status >= 300 {
		err = fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	if err != nil {
		return q, fmt.Errorf("%s: %w", what, err)
	}
	return q, nil
}

// again sends a used capability once more and judges the answer.
func (r replays) again(ctx context.Context, what string, q wire.Request) error {
	a, err := r.send(ctx, q)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.t.Witness("sent-again", 1)
	if code, err := wire.Refusal(a); err != nil || code != wire.Replay {
		r.t.Fail("replay-accepted", "%s: status %d, code %q (%v)", what, a.Status, code, err)
	}
	return nil
}

// parallel releases one signed request over many connections.
func (r replays) parallel(ctx context.Context, req target.RawRequest) error {
	q, err := wire.Sign(ctx, r.t.Target().Authority, req)
	if err != nil {
		return err
	}
	all := make([]wire.Request, together)
	for i := range all {
		all[i] = q
	}
	answers, err := wire.Together(ctx, r.t.Target().Authority.Dial, all)
	if err != nil {
		return err
	}
	r.t.Witness("released-together", int64(len(answers)))
	passed := 0
	for _, a := range answers {
		if a.Status == 200 {
			passed++
		} else if code, err := wire.Refusal(a); err != nil || code != wire.Replay {
			r.t.Fail("replay-accepted", "in parallel: status %d, code %q (%v)", a.Status, code, err)
		}
	}
	if effects := len(r.read("pt01-count")); passed != 1 || effects != 1 {
		r.t.Fail("replay-accepted", "of %d equal requests %d passed, and the command ran %d times", together, passed, effects)
	}
	if err := r.again(ctx, "the exec, later", q); err != nil {
		return err
	}
	if effects := len(r.read("pt01-count")); effects != 1 {
		r.t.Fail("effect-repeated", "the command ran %d times", effects)
	}
	return nil
}

// superseded repeats requests that succeeded and whose effect something later has undone, so that
// no idempotency hides a second effect.
func (r replays) superseded(ctx context.Context) error {
	const name = "pt01-file"
	first, err := r.must(ctx, "write", wire.Write(r.sb, name, []byte("first")))
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "write", wire.Write(r.sb, name, []byte("second"))); err != nil {
		return err
	}
	// The same capability under every dress that leaves it a bearer token of this request.
	token := first.Header[0]
	for _, dress := range []struct {
		what   string
		header []string
	}{
		{"a write, as it was", first.Header},
		{"a write, headers in another order", []string{"Connection: close", "X-Request: 1", token}},
		{"a write, names in another case", []string{strings.Replace(token, "Authorization", "aUTHORIZATION", 1), "connection: close"}},
		{"a write, another header twice", []string{"X-A: 1", token, "X-A: 1", "Connection: close"}},
	} {
		q := first
		q.Header = dress.header
		if err := r.again(ctx, dress.what, q); err != nil {
			return err
		}
	}
	twice := first
	twice.Header = []string{token, token, "Connection: close"}
	a, err := r.send(ctx, twice)
	if err != nil {
		return err
	}
	r.t.Witness("sent-again", 1)
	if code, err := wire.Refusal(a); err != nil || code != wire.Replay && code != wire.Unauthenticated && code != wire.RequestInvalid {
		r.t.Fail("replay-accepted", "a write, the capability twice: status %d, code %q (%v)", a.Status, code, err)
	}
	if now := r.read(name); now != "second" {
		r.t.Fail("effect-repeated", "a repeated write is back: %.40q", now)
	}
	removal, err := r.must(ctx, "remove", wire.FS(r.sb, "remove", name))
	if err != nil {
		return err
	}
	if _, err := r.must(ctx, "write", wire.Write(r.sb, name, []byte("third"))); err != nil {
		return err
	}
	if err := r.again(ctx, "a removal", removal); err != nil {
		return err
	}
	if now := r.read(name); now != "third" {
		r.t.Fail("effect-repeated", "a repeated removal took the later file: %.40q", now)
	}
	return nil
}

// failed repeats requests whose first use came to nothing, when now they would come to something.
func (r replays) failed(ctx context.Context) error {
	const name = "pt01-late"
	q, err := wire.Sign(ctx, r.t.Target().Authority, wire.FS(r.sb, "remove", name))
	if err != nil {
		return err
	}
	a, err := r.send(ctx, q)
	if err != nil {
		return err
	}
	if code, err := wire.Refusal(a); code != wire.PathNotFound {
		return fmt.Errorf("removal of an absent file: status %d, code %q (%v)", a.Status, code, err)
	}
	if _, err := r.must(ctx, "write", wire.Write(r.sb, name, []byte("late"))); err != nil {
		return err
	}
	if err := r.again(ctx, "a removal that had failed", q); err != nil {
		return err
	}
	if now := r.read(name); now != "late" {
		r.t.Fail("effect-repeated", "a removal that had failed was made later: %.40q", now)
	}
	// A capability is used up before the body is read, so that nobody tries bodies until one fits.
	remove := wire.FS(r.sb, "remove", name)
	if q, err = wire.Sign(ctx, r.t.Target().Authority, remove); err != nil {
		return err
	}
	q.Body = wire.FS(r.sb, "mkdir", name+"-folder").Body
	if a, err = r.send(ctx, q); err != nil {
		return err
	}
	if code, err := wire.Refusal(a); err != nil || code != wire.Unauthenticated {
		r.t.Fail("body-unbound", "a body that is not the signed one: status %d, code %q (%v)", a.Status, code, err)
	}
	q.Body = remove.Body
	if err := r.again(ctx, "a removal whose first body was another", q); err != nil {
		return err
	}
	if now := r.read(name); now != "late" {
		r.t.Fail("effect-repeated", "a removal was made after its capability was used up: %.40q", now)
	}
	return nil
}

// otherwise uses fresh capabilities for what they were not signed for.
func (r replays) otherwise(ctx context.Context, argv []string) error {
	const kept, other = "pt01-kept", "pt01-other"
	if _, err := r.must(ctx, "write", wire.Write(r.sb, kept, []byte("kept"))); err != nil {
		return err
	}
	second := r.t.Sandbox(ctx, target.Spec{})
	write, read, exec := wire.Write(r.sb, kept, []byte("changed")), wire.File(r.sb, kept), wire.Exec(r.sb, "pt01-bound", argv...)
	flipped := append([]byte{}, exec.Body...)
	copy(flipped[strings.Index(string(flipped), "pt01-bound"):], "pt01-b0und")
	for _, o := range []struct {
		what, reason   string
		signed         target.RawRequest
		method, target string
		body           []byte
		header         string
	}{
		{"body with one byte changed", "body-unbound", exec, "", "", flipped, ""},
		{"body with a blank behind it", "body-unbound", exec, "", "", append(append([]byte{}, exec.Body...), ' '), ""},
		{"another file body of the same size", "body-unbound", write, "", "", []byte("CHANGED"), ""},
		{"content coding", "coding-accepted", exec, "", "", exec.Body, "Content-Encoding: gzip"},
		{"another method", "target-unbound", read, "PUT", read.Target + "&mode=replace", nil, ""},
		{"another path in the query", "target-unbound", write, "", wire.Write(r.sb, other, nil).Target, write.Body, ""},
		{"another order of the query", "target-unbound", write, "", "/v1/sandboxes/" + r.sb.ID() + "/files?mode=replace&path=" + kept, write.Body, ""},
		{"another operation", "target-unbound", exec, "", "/v1/sandboxes/" + r.sb.ID() + "/fs", []byte(`{"op":"remove","path":"` + kept + `"}`), ""},
		{"another sandbox", "target-unbound", wire.Write(r.sb, other, []byte("x")), "", wire.Write(second, other, nil).Target, []byte("x"), ""},
	} {
		q, err := wire.Sign(ctx, r.t.Target().Authority, o.signed)
		if err != nil {
			return err
		}
		q.Body = o.body
		if o.method != "" {
			q.Method = o.method
		}
		if o.target != "" {
			q.Target = o.target
		}
		if o.header != "" {
			q.Header = append(q.Header, o.header)
		}
		a, err := r.send(ctx, q)
		if err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
		r.t.Witness("sent-otherwise", 1)
		want := wire.Unauthenticated
		if o.header != "" {
			want = wire.RequestInvalid
		}
		if code, err := wire.Refusal(a); err != nil || code != want {
			r.t.Fail(o.reason, "%s: status %d, code %q (%v)", o.what, a.Status, code, err)
		}
	}
	if runs, file, made := len(r.read("pt01-count")), r.read(kept), r.read(other); runs != 1 || file != "kept" || made != "(absent)" {
		r.t.Fail("effect-of-refused", "after refused requests: %d runs of the command, %.40q in the file, %.40q in another", runs, file, made)
	}
	c, err := attack.Container(ctx, r.t, second)
	if err != nil {
		return err
	}
	if made := (replays{workspace: c.Workspace}).read(other); made != "(absent)" {
		r.t.Fail("effect-of-refused", "a refused write reached the other sandbox: %.40q", made)
	}
	// What was refused for its target consumed nothing: the capability itself was good.
	_, err = r.must(ctx, "the exec as it was signed", wire.Exec(r.sb, "pt01-bound", argv...))
	return err
}
