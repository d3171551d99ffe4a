// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// textStream is a stream whose text is there.
func textStream(text []byte, maxLine int) *stream {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &stream{op: api.OpExec, body: io.NopCloser(bytes.NewReader(text)), ctx: ctx, cancel: cancel, within: time.Hour}
	s.alarm = time.AfterFunc(s.within, func() {})
	s.lines = bufio.NewScanner(s.body)
	s.lines.Buffer(nil, maxLine)
	s.lines.Split(wholeLines)
	return s
}

const (
	fuzzOutput = 64 // bytes of output that the request of the fuzzer allows
	fuzzLine   = 4 << 10
)

func readExec(text []byte) (events []api.ExecEvent, res api.ExecResult, err error) {
	in := textStream(text, fuzzLine)
	defer in.close()
	run := invocation{req: api.ExecRequest{InvocationID: "i", MaxOutputBytes: fuzzOutput}, each: func(e api.ExecEvent) error {
		events = append(events, e)
		return nil
	}}
	res, err = run.outcome(in)
	return events, res, err
}

// FuzzExecStream: an outcome comes from a stream that says started first, its outcome last, and ends
// there with a whole line; what comes of it before is within the bound of the request. Every
// beginning of such a stream has no outcome, and what was read can be written and read again.
func FuzzExecStream(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		events, res, err := readExec(text)
		total := 0
		for _, e := range events {
			total += len(e.Data)
		}
		if total > fuzzOutput {
			t.Fatalf("%d bytes of output", total)
		}
		var e *api.Error
		if err != nil && (!errors.As(err, &e) || !e.Code.Known()) {
			t.Fatalf("an error without a code of the union: %v", err)
		}
		if e != nil && (e.Code == api.ResponseInvalid || e.Code == api.OutcomeUnknown) {
			return // no outcome, or one that says so itself
		}
		lines := bytes.Split(text, []byte("\n"))
		if n := len(lines); n < 3 || len(lines[n-1]) != 0 {
			t.Fatalf("an outcome of %q", text)
		}
		lines = lines[:len(lines)-1]
		var again []byte
		for i, line := range lines {
			var ev api.ExecEvent
			if derr := api.DecodeAnswer(line, &ev); derr != nil {
				t.Fatalf("line %d of %q: %v", i, text, derr)
			}
			last := ev.Type == api.ExecEnded || ev.Type == api.ExecFailed
			if (i == 0) != (ev.Type == api.ExecStarted) || (i == len(lines)-1) != last {
				t.Fatalf("line %d of %q is %s", i, text, ev.Type)
			}
			if last && (err == nil) != (ev.Type == api.ExecEnded) {
				t.Fatalf("%q gives %v", text, err)
			}
			b, merr := strictjson.Marshal(ev)
			if merr != nil {
				t.Fatal(merr)
			}
			again = append(append(again, b...), '\n')
		}
		if len(again) <= fuzzLine {
			events2, res2, err2 := readExec(again)
			if !sameEvents(events, events2) || !reflect.DeepEqual(res, res2) || (err == nil) != (err2 == nil) {
				t.Fatalf("%q is read as %+v, then as %+v, %v", text, res, res2, err2)
			}
		}
		if cut = cut % len(text); cut < 0 {
			cut += len(text)
		}
		if _, _, err := readExec(text[:cut]); err == nil || errors.As(err, &e) && e.Code != api.ResponseInvalid && e.Code != api.OutcomeUnknown {
			t.Fatalf("%d bytes of %q have an outcome: %v", cut, text, err)
		}
	})
}

func sameEvents(a, b []api.ExecEvent) bool {
	x, xerr := strictjson.Marshal(a)
	y, yerr := strictjson.Marshal(b)
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

// FuzzChangeStream: every change that is given is one of its type, with a path that a request could
// name; the stream ends with an error of the union and gives nothing after it.
func FuzzChangeStream(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		in := textStream(text, fuzzLine)
		in.op = api.OpEvents
		var last error
		n := 0
		for change, err := range (&Events{in}).All() {
			if last != nil {
				t.Fatal("a pair after the last one")
			}
			if last = err; err != nil {
				continue
			}
			n++
			if cerr := checkChange(change); cerr != nil {
				t.Fatalf("%q gives %+v", text, change)
			}
		}
		var e *api.Error
		if !errors.As(last, &e) || !e.Code.Known() {
			t.Fatalf("ended with %v", last)
		}
		if n > bytes.Count(text, []byte("\n"))/2 {
			t.Fatalf("%d changes in %q", n, text)
		}
	})
}
