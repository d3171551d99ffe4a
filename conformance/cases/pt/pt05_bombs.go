// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT05 sends small requests that are large, or slow, once somebody reads them.
var PT05 = conformance.Case{
	ID: "PT-05", Revision: 1, Title: "Numeric and depth bombs",
	Requirement: "A request costs the worker no more memory, CPU or time than its bounds allow, whatever numbers, nesting, size or coding it claims, and is refused with a code of its own; a slow one holds nobody up.",
	Threat:      "One caller with a valid capability makes the worker allocate, compute or wait until it serves nobody.",
	Attack:      "Signed requests, eight of each at once: numbers beyond every range, with fractions, exponents and a million digits, minus zero; 100,000 nested arrays and objects; half a million empty strings; a string of escapes; a body that is declared as 1 GiB and one that has no end; a gzip bomb. Meanwhile eight requests that never end their headers and eight that never end their bodies are held open.",
	Witness:     "Requests that reached the decoder or the bound of the body (all); slow requests that were open when the last bomb was answered (16); commands that the neighbour ran meanwhile (5).",
	Oracle:      "Status and code of every answer; bytes that the worker took of an endless body; VmHWM and CPU time of the worker's process, from the host; the errors of the neighbour's probe; the end of the slow connections.",
	Precedent:   "moby AuthZ oversize body CVE-2026-34040",
	Tier:        conformance.Full, Timeout: 90 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWorkerProcess},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleMemory, conformance.OracleCPU},
	Kills:    []conformance.Kill{{Mutant: "m53", Reason: "body-taken"}, {Mutant: "m54", Reason: "bomb-accepted"}},
	Run:      runPT05,
}

// Bounds of PT-05. Eight requests of 2 MiB at once may each become 24 times as much, in lists of
// small strings and before the collector has been; unpacked or unbounded bodies are far beyond.
const (
	pt05Copies   = 8
	pt05Memory   = 384 << 20 // growth of the worker's peak, bytes
	pt05CPU      = 10 * time.Second
	pt05Most     = 64 << 20 // of one body, as far as the suite sends it
	pt05Taken    = 8 << 20  // of one body, as far as the worker may take it: its bound and the sockets' buffers
	pt05Headers  = 10 * time.Second
	pt05Slack    = 5 * time.Second
	pt05Commands = 5
)

// bomb is one body, or an endless one.
type bomb struct {
	name    string
	req     target.RawRequest
	header  string
	endless bool
	chunked bool
}

func bombs(sb target.Sandbox) ([]bomb, error) {
	base := string(wire.Exec(sb, "pt05", "true").Body)
	exec := func(name, old, new string) bomb {
		return bomb{name: name, req: wire.On(sb, "exec", "POST", "/exec", []byte(strings.Replace(base, old, new, 1)))}
	}
	list := []bomb{
		{name: "minus zero where zero is good", req: wire.On(sb, "fs", "POST", "/fs", []byte(`{"op":"list","limit":-0}`))},
		{name: "one and no fraction", req: wire.On(sb, "fs", "POST", "/fs", []byte(`{"op":"list","limit":1.0}`))},
	}
	const timeout = "20000"
	for _, number := range []string{"1e400", "-1e400", "1e1000000000", "2e4", "0.1", "20000.0", "9223372036854775808", "18446744073709551616", "9007199254740993", "0x10", "01", "+1", "1.", "-", "NaN", "Infinity"} {
		list = append(list, exec("number "+number, timeout, number))
	}
	deep := func(open, shut string) string { return strings.Repeat(open, 100_000) + strings.Repeat(shut, 100_000) }
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for range 256 {
		if _, err := z.Write(make([]byte, 1<<20)); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return append(list,
		exec("a million digits", timeout, strings.Repeat("9", 1_000_000)),
		exec("a million digits behind the point", timeout, "0."+strings.Repeat("1", 1_000_000)),
		exec("nested arrays", `"cwd":""`, `"cwd":`+deep("[", "]")),
		exec("nested objects", `"cwd":""`, `"cwd":`+deep(`{"a":`, "}")[:600_000]),
		exec("arrays that are never closed", base, strings.Repeat("[", 1<<20)),
		exec("half a million strings", `["true"]`, `["true"`+strings.Repeat(`,""`, 500_000)+`]`),
		exec("a string of escapes", `"cwd":""`, `"cwd":"`+strings.Repeat(`\u0041`, 300_000)+`"`),
		bomb{name: "a gzip bomb", req: wire.On(sb, "exec", "POST", "/exec", packed.Bytes()), header: "Content-Encoding: gzip"},
		bomb{name: "1 GiB, declared", req: wire.Exec(sb, "pt05", "true"), endless: true},
		bomb{name: "a body without an end", req: wire.Exec(sb, "pt05", "true"), endless: true, chunked: true},
	), nil
}

func runPT05(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	neighbour, quiet, err := attack.Neighbour(ctx, t)
	if err != nil {
		return err
	}
	list, err := bombs(sb)
	if err != nil {
		return err
	}
	pid, err := t.Target().Observer.WorkerPid()
	if err != nil {
		return err
	}
	if err := oracle.ResetPeak(pid); err != nil {
		return fmt.Errorf("reset the worker's peak: %w", err)
	}
	before, _, err := oracle.ResidentMemory(pid)
	if err != nil {
		return err
	}
	cpu, err := oracle.CPUTime(pid)
	if err != nil {
		return err
	}
	t.NeedWitness("bombs", int64(len(list)*pt05Copies))
	t.NeedWitness("slow-open", 2*pt05Copies)
	t.NeedWitness("neighbour-commands", pt05Commands)

	// Attack.
	slow, err := openSlow(ctx, t, sb)
	if err != nil {
		return err
	}
	defer slow.close()
	stop := oracle.Probe(ctx, 50*time.Millisecond, 10*time.Second, neighbour)
	start := time.Now()
	for _, b := range list {
		if err := b.send(ctx, t); err != nil {
			stop()
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	wall := time.Since(start)
	t.Witness("slow-open", slow.open())
	headers, err := slow.wait(ctx)
	near := stop()
	if err != nil {
		return err
	}
	t.Witness("neighbour-commands", near.N-near.Errors)
	attack.ObserveLatencies(t, "neighbour-quiet", quiet)
	attack.ObserveLatencies(t, "neighbour", near)

	// Verdict.
	_, peak, err := oracle.ResidentMemory(pid)
	if err != nil {
		return fmt.Errorf("the worker's process is not what it was: %w", err)
	}
	now, err := oracle.CPUTime(pid)
	if err != nil {
		return err
	}
	t.Observe("worker", map[string]int64{"growth": peak - before, "cpuMs": (now - cpu).Milliseconds(), "bombsMs": wall.Milliseconds(), "slowHeadersMs": headers.Milliseconds()})
	if grown := peak - before; grown > pt05Memory {
		t.Fail("memory-unbounded", "the worker's memory grew by %d bytes, bound %d", grown, int64(pt05Memory))
	}
	if used := now - cpu; used > pt05CPU {
		t.Fail("cpu-unbounded", "the worker computed for %s, bound %s", used, pt05CPU)
	}
	if near.Errors > 0 {
		t.Fail("neighbour-error", "%d of %d commands of the neighbour failed: %s", near.Errors, near.N, near.FirstError)
	}
	if bound := pt05Headers + pt05Slack; headers > bound {
		t.Fail("slow-headers-kept", "headers without an end are waited for longer than %s", bound)
	}
	return nil
}

// send makes the copies at once, or one after the other when the body has no end.
func (b bomb) send(ctx context.Context, t *conformance.T) error {
	var requests []wire.Request
	for range pt05Copies {
		q, err := wire.Sign(ctx, t.Target().Authority, b.req)
		if err != nil {
			return err
		}
		if b.header != "" {
			q.Header = append(q.Header, b.header)
		}
		requests = append(requests, q)
	}
	var answers []wire.Answer
	var err error
	if !b.endless {
		answers, err = wire.Together(ctx, t.Target().Authority.Dial, requests)
	}
	for _, q := range requests {
		if !b.endless {
			break
		}
		a, taken, err := wire.Endless(ctx, t.Target().Authority.Dial, q, b.chunked, pt05Most)
		if taken > pt05Taken {
			t.Fail("body-taken", "%s: the worker took %d bytes of it", b.name, taken)
			t.Witness("bombs", 1)
			continue
		}
		if err != nil {
			return err
		}
		answers = append(answers, a)
	}
	if err != nil {
		return err
	}
	for _, a := range answers {
		t.Witness("bombs", 1)
		switch code, err := wire.Refusal(a); {
		case a.Status < 300:
			t.Fail("bomb-accepted", "%s was answered with status %d", b.name, a.Status)
		case err != nil || code != wire.RequestInvalid:
			t.Fail("code-differs", "%s was answered with status %d, code %q (%v)", b.name, a.Status, code, err)
		}
	}
	return nil
}

// slowly are connections whose requests never end.
type slowly struct {
	headers, bodies []net.Conn
	since           time.Time
}

func openSlow(ctx context.Context, t *conformance.T, sb target.Sandbox) (*slowly, error) {
	s := &slowly{since: time.Now()}
	for i := range 2 * pt05Copies {
		q, err := wire.Sign(ctx, t.Target().Authority, wire.Exec(sb, "pt05-slow", "true"))
		if err != nil {
			return s, errors.Join(err, s.close())
		}
		c, err := t.Target().Authority.Dial(ctx)
		if err != nil {
			return s, errors.Join(err, s.close())
		}
		text := q.Head()
		if i%2 == 0 {
			s.headers, text = append(s.headers, c), text[:len(text)/2]
		} else {
			s.bodies, text = append(s.bodies, c), append(text, q.Body[0])
		}
		if _, err := c.Write(text); err != nil {
			return s, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// open counts the connections that the worker has not ended.
func (s *slowly) open() (n int64) {
	for _, c := range append(append([]net.Conn{}, s.headers...), s.bodies...) {
		c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			n++
		}
	}
	return n
}

// wait returns after how long the last connection without whole headers was ended, or more than
// the bound when one was not.
func (s *slowly) wait(ctx context.Context) (time.Duration, error) {
	for _, c := range s.headers {
		c.SetReadDeadline(s.since.Add(pt05Headers + pt05Slack))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			return pt05Headers + 2*pt05Slack, ctx.Err()
		}
	}
	return time.Since(s.since), ctx.Err()
}

func (s *slowly) close() error {
	var errs []error
	for _, c := range append(append([]net.Conn{}, s.headers...), s.bodies...) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
