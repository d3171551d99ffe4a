// SPDX-License-Identifier: Apache-2.0

package pr

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The numbers of PR-11. A worker sees at once that a caller has left, or a moment later; then the grace, the
// sweep and a loaded machine.
const (
	pr11Budget = 3 * time.Second // from the end of the connection to the last beat
	pr11Quiet  = 10 * oracle.BeatPeriod
	pr11Beats  = 2
	pr11Output = 128 << 10 // bytes of an answer that are read before the middle is reached
	pr11Life   = 60        // seconds that a command goes on when nobody ends it
	pr11Crowd  = 12
)

// PR11 leaves while a command runs, in every way.
var PR11 = conformance.Case{
	ID: "PR-11", Revision: 1, Title: "Client disconnect and cancel",
	Requirement: "A command whose caller leaves, or that is cancelled, ends with everything that it started; its place is free again; it has one outcome, which every later question gets; and it never runs a second time.",
	Threat:      "Commands of callers that are gone go on with nobody to answer for them, hold the places of others, or run twice when a caller asks again.",
	Attack:      "The connection ends at once after the request; a few and some more milliseconds later; while the command runs and nothing was answered; after the first byte of a streamed answer; in the middle of its output. Another streamed command is cancelled twice at the same time, and once more. Under the last one the bridge into the sandbox is killed. Every command has a daemon, and every one is asked for again under its invocation id.",
	Witness:     "Connections that ended while the host saw command and daemon beat (at least 3), one of them behind 128 KiB of output; cancels that were sent while they beat (2); bridges that were lost meanwhile (1).",
	Oracle:      "The heartbeats of command and daemon and the file that each run of a command appends to, on the host; status, code and lines on the wire; the number of commands that the sandbox runs at once, before and after.",
	Precedent:   "moby#35703",
	Tier:        conformance.Full, Timeout: 3 * time.Minute,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureSupervisor},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWire, conformance.PartWorkspacePath, conformance.PartConcurrent, conformance.PartFoothold},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleHeartbeat},
	Kills:    []conformance.Kill{{Mutant: "m82", Reason: "survivor-heartbeat"}, {Mutant: "m83", Reason: "ran-twice"}},
	Run:      runPR11,
}

// pr11 is one run.
type pr11 struct {
	t       *conformance.T
	sb      target.Sandbox
	program string
	host    string // the workspace
}

func runPR11(ctx context.Context, t *conformance.T) error {
	// Arrange.
	r := pr11{t: t, sb: t.Sandbox(ctx, target.Spec{PIDs: 512})}
	r.program = t.Tenant(ctx, r.sb)
	c, err := attack.Container(ctx, t, r.sb)
	if err != nil {
		return err
	}
	r.host = c.Workspace
	t.NeedWitness("left-while-running", 3)
	t.NeedWitness("left-mid-output", 1)
	t.NeedWitness("cancels", 2)
	t.NeedWitness("bridges-lost", 1)
	before, err := r.places(ctx, "before")
	if err != nil {
		return err
	}

	// Attack and verdict, step by step.
	for _, d := range []departure{
		{name: "at-once"},
		{name: "while-claimed", after: 5 * time.Millisecond},
		{name: "while-starting", after: 40 * time.Millisecond},
		{name: "before-answer", running: true},
		{name: "first-byte", stream: true, running: true, read: 1},
		{name: "mid-output", stream: true, running: true, read: pr11Output},
	} {
		if err := r.leave(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	if err := r.cancelled(ctx); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	after, err := r.places(ctx, "after")
	if err != nil {
		return err
	}
	t.Observe("places", map[string]int{"before": before, "after": after})
	if after < before {
		t.Fail("place-kept", "%d commands ran at once before, and %d do after", before, after)
	}
	return r.bridge(ctx)
}

// places counts the commands that the sandbox runs at once.
func (r pr11) places(ctx context.Context, name string) (int, error) {
	crowd, err := attack.Gather(ctx, r.sb, r.program, r.host, name, pr11Crowd, 1)
	if err != nil {
		return 0, err
	}
	ends, err := crowd.Let(ctx)
	for _, o := range ends {
		err = errors.Join(err, o.Err)
	}
	return len(crowd.Running), err
}

// request is the command of one step: files and invocation are named after it.
func (r pr11) request(name string, stream bool) target.RawRequest {
	body, _ := json.Marshal(map[string]any{ // of strings and numbers
		"invocationId": "pr11-" + name, "cwd": "", "timeoutMs": (pr11Life + 20) * 1000, "maxOutputBytes": 4 << 20,
		"argv": attack.Command(r.program, "steady", "-mark", name+".ran", "-daemon", name+".daemon", "-file", name+".beat",
			"-until", name+".stop", "-life", fmt.Sprintf("%ds", pr11Life), "-chunk", "16384"),
	})
	req := wire.On(r.sb, "exec", "POST", "/exec", body)
	if stream {
		req.Header = map[string]string{"Accept": "application/x-ndjson"}
	}
	return req
}

// ask makes one exchange.
func (r pr11) ask(ctx context.Context, req target.RawRequest) (wire.Answer, error) {
	q, err := wire.Sign(ctx, r.t.Target().Authority, req)
	if err != nil {
		return wire.Answer{}, err
	}
	return wire.Send(ctx, r.t.Target().Authority.Dial, q)
}

// begin sends a request and keeps its connection.
func (r pr11) begin(ctx context.Context, req target.RawRequest) (net.Conn, error) {
	q, err := wire.Sign(ctx, r.t.Target().Authority, req)
	if err != nil {
		return nil, err
	}
	c, err := r.t.Target().Authority.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(wire.ExchangeTimeout)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if _, err := c.Write(append(q.Head(), q.Body...)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (r pr11) path(name string) string { return filepath.Join(r.host, name) }

// beating waits until the host sees command and daemon.
func (r pr11) beating(ctx context.Context, name string) error {
	return errors.Join(oracle.WaitBeating(ctx, r.path(name+".beat"), pr11Beats, attack.CrowdPatience),
		oracle.WaitBeating(ctx, r.path(name+".daemon"), pr11Beats, attack.CrowdPatience))
}

// quiet judges that neither of the two beats any more. Without a mark of a run there is nothing to end.
func (r pr11) quiet(ctx context.Context, name string, orGone bool) error {
	for _, kind := range []string{".beat", ".daemon"} {
		s, err := oracle.WatchStill(ctx, r.path(name+kind), pr11Quiet, pr11Budget+pr11Quiet)
		if err != nil {
			return err
		}
		r.t.Observe("end "+name+kind, map[string]any{"beats": s.Beats, "lastBeatMs": s.After.Milliseconds(), "gone": s.Gone})
		switch {
		case s.Gone && !orGone:
			return fmt.Errorf("heartbeat file %s%s is missing", name, kind)
		case !s.Gone && !s.Still:
			r.t.Fail("survivor-heartbeat", "%s: %s still beats %s after its caller has left", name, kind[1:], s.After.Round(time.Millisecond))
		}
	}
	return nil
}

func (r pr11) runs(name string) (int64, error) { return oracle.FileSize(r.path(name + ".ran")) }

// departure is one way of leaving.
type departure struct {
	name    string
	stream  bool
	running bool // wait until the host sees the command
	after   time.Duration
	read    int // bytes of the answer before
}

func (r pr11) leave(ctx context.Context, d departure) error {
	c, err := r.begin(ctx, r.request(d.name, d.stream))
	if err != nil {
		return err
	}
	defer c.Close()
	if d.running {
		if err := r.beating(ctx, d.name); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, d.read)); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		if err := r.beating(ctx, d.name); err != nil {
			return err
		}
	}
	if err := sleep(ctx, d.after); err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	if d.running {
		r.t.Witness("left-while-running", 1)
		if d.read == pr11Output {
			r.t.Witness("left-mid-output", 1)
		}
	} else if err := sleep(ctx, time.Second); err != nil { // what was begun is there by then
		return err
	}
	ran, err := r.runs(d.name)
	if err != nil {
		return err
	}
	if ran > 0 {
		if err := r.quiet(ctx, d.name, !d.running); err != nil {
			return err
		}
	}
	return r.again(ctx, d.name, ran)
}

// again asks for the outcome, for the command, and for the outcome once more. Where the command has not run,
// it may be that nothing is known of it; then the repetition is the first run, and ends by itself.
func (r pr11) again(ctx context.Context, name string, ran int64) error {
	if err := os.WriteFile(r.path(name+".stop"), nil, 0o644); err != nil {
		return err
	}
	var said []string
	for _, ask := range []func() (string, error){
		func() (string, error) { return r.cancel(ctx, name) },
		func() (string, error) {
			a, err := r.ask(ctx, r.request(name, false))
			if err != nil {
				return "", err
			}
			return outcome(a)
		},
		func() (string, error) { return r.cancel(ctx, name) },
	} {
		text, err := ask()
		if err != nil {
			return err
		}
		said = append(said, text)
	}
	r.t.Observe("outcomes "+name, said)
	runs, err := r.runs(name)
	if err != nil {
		return err
	}
	if runs > 1 {
		r.t.Fail("ran-twice", "%s: the command of one invocation has run %d times; the answers were %q", name, runs, said)
	}
	never := ran == 0 && said[0] == wire.OutcomeUnknown // the id was free: the repetition counts
	if never {
		said = said[1:]
	}
	if slices.Contains(said, wire.ExecInProgress) {
		r.t.Fail("no-outcome", "%s: the invocation has no outcome: %q", name, said)
	} else if slices.ContainsFunc(said, func(s string) bool { return s != said[0] }) {
		r.t.Fail("outcome-differs", "%s: one invocation has the outcomes %q", name, said)
	}
	if !never && said[0] != wire.ExecAborted {
		r.t.Fail("outcome-untyped", "%s: an invocation whose caller has left is said to be %s", name, said[0])
	}
	return nil
}

// cancel asks for the terminal outcome.
func (r pr11) cancel(ctx context.Context, name string) (string, error) {
	a, err := r.ask(ctx, wire.On(r.sb, "cancel", "DELETE", "/exec/pr11-"+name, nil))
	if err != nil {
		return "", err
	}
	return outcome(a)
}

// outcome is what an answer of exec or cancel says that an invocation came to: a code, or its result.
func outcome(a wire.Answer) (string, error) {
	if a.Status >= 400 {
		return wire.Refusal(a)
	}
	var body struct {
		ExitCode *int `json:"exitCode"` // exec
		Signal   string
		Result   *struct {
			ExitCode *int `json:"exitCode"`
			Signal   string
		}
		Error *struct{ Code string }
	}
	if err := json.Unmarshal(a.Body, &body); err != nil {
		return "", fmt.Errorf("an outcome that is none: %w: %.200q", err, a.Body)
	}
	code, signal := body.ExitCode, body.Signal
	switch {
	case body.Error != nil:
		return body.Error.Code, nil
	case body.Result != nil:
		code, signal = body.Result.ExitCode, body.Result.Signal
	}
	if code != nil {
		return fmt.Sprintf("exit %d", *code), nil
	}
	return "signal " + signal, nil
}

// cancelled cancels a streamed command, twice at once and then once more.
func (r pr11) cancelled(ctx context.Context) error {
	const name = "cancelled"
	c, err := r.begin(ctx, r.request(name, true))
	if err != nil {
		return err
	}
	defer c.Close()
	type read struct {
		a   wire.Answer
		err error
	}
	streamed := make(chan read, 1)
	go func() {
		a, err := wire.Read(c)
		streamed <- read{a, err}
	}()
	if err := r.beating(ctx, name); err != nil {
		return err
	}
	var twice []wire.Request
	for range 2 {
		q, err := wire.Sign(ctx, r.t.Target().Authority, wire.On(r.sb, "cancel", "DELETE", "/exec/pr11-"+name, nil))
		if err != nil {
			return err
		}
		twice = append(twice, q)
	}
	answers, err := wire.Together(ctx, r.t.Target().Authority.Dial, twice)
	if err != nil {
		return err
	}
	r.t.Witness("cancels", int64(len(answers)))
	if err := r.quiet(ctx, name, false); err != nil {
		return err
	}
	for _, a := range answers {
		if text, err := outcome(a); err != nil || text != wire.ExecAborted {
			r.t.Fail("outcome-differs", "a cancel is answered with %q, %v", text, err)
		}
	}
	stream := <-streamed
	if stream.err != nil {
		return fmt.Errorf("read the stream: %w", stream.err)
	}
	if ends := terminal(stream.a.Body); len(ends) != 1 || ends[0] != wire.ExecAborted {
		r.t.Fail("outcome-differs", "the stream of a cancelled command ends with %q", ends)
	}
	return r.again(ctx, name, 1)
}

// terminal are the outcomes that a stream tells, by lines that may only be the last; "" is one that is
// followed by another line.
func terminal(body []byte) (ends []string) {
	lines := bytes.Split(bytes.TrimSpace(body), []byte("\n"))
	for i, line := range lines {
		var event struct {
			Type  string
			Error struct{ Code string }
		}
		if json.Unmarshal(line, &event) != nil {
			return append(ends, "no event")
		}
		switch {
		case event.Type != "error" && event.Type != "result":
		case i < len(lines)-1:
			ends = append(ends, "")
		case event.Type == "error":
			ends = append(ends, event.Error.Code)
		default:
			ends = append(ends, "result")
		}
	}
	return ends
}

// bridge ends the transport between worker and sandbox, and nothing else. The sandbox goes with it.
func (r pr11) bridge(ctx context.Context) error {
	const name = "bridge"
	c, err := r.begin(ctx, r.request(name, false))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := r.beating(ctx, name); err != nil {
		return err
	}
	// The worker removes the sandbox as soon as it sees the loss, so the answer of the deed may be lost.
	_, deed := attack.Foothold(ctx, r.t, r.sb, "slay", "-role", "bridge")
	a, err := wire.Read(c)
	if err != nil {
		return fmt.Errorf("the answer of a command whose bridge was lost (%v): %w", deed, err)
	}
	said, err := outcome(a)
	if err != nil {
		r.t.Fail("outcome-untyped", "a command whose bridge was lost is answered with %v", err)
	}
	if a.Status >= 400 {
		r.t.Witness("bridges-lost", 1)
	}
	if err := r.quiet(ctx, name, true); err != nil {
		return err
	}
	again, err := r.ask(ctx, r.request(name, false))
	if err != nil {
		return err
	}
	repeated, err := outcome(again)
	r.t.Observe("outcomes "+name, []string{said, repeated})
	if err != nil || again.Status < 400 {
		r.t.Fail("ran-twice", "a command whose bridge was lost, asked for again: status %d %s, %v", again.Status, repeated, err)
	}
	return nil
}
