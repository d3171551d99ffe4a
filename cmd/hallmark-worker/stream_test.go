// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// stream is a streamed exec that is read line by line.
type stream struct {
	*site
	body  io.Closer
	lines *bufio.Reader
	beats int
}

// stream begins one; its connection ends with ctx, or by close.
func (s *site) stream(ctx context.Context, ws, sb string, req api.ExecRequest) *stream {
	s.Helper()
	body, err := strictjson.Marshal(req)
	if err != nil {
		s.Fatal(err)
	}
	raw := client.RawRequest{Op: api.OpExec, Method: http.MethodPost, Target: "/v1/sandboxes/" + sb + "/exec", WorkspaceID: ws, SandboxID: sb, Body: body}
	token, err := s.client.Mint(ctx, raw)
	if err != nil {
		s.Fatal(err)
	}
	hr := (&http.Request{
		Method: raw.Method, URL: &url.URL{Scheme: "http", Host: "worker", Opaque: raw.Target}, Host: "worker", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Authorization": {"Bearer " + token}, "Accept": {api.TypeNDJSON}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}).WithContext(ctx)
	var d net.Dialer
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", s.cfg.Listen)
	}}
	res, err := tr.RoundTrip(hr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { res.Body.Close() })
	st := &stream{site: s, body: res.Body, lines: bufio.NewReaderSize(res.Body, 64<<10)}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != api.TypeNDJSON {
		text, _ := io.ReadAll(res.Body)
		s.Fatalf("stream answered %d %s", res.StatusCode, text)
	}
	if ev := st.next(); ev.Type != api.ExecStarted || ev.InvocationID != req.InvocationID {
		s.Fatalf("first line %+v", ev)
	}
	return st
}

// next returns the next line that is no heartbeat.
func (st *stream) next() api.ExecEvent {
	st.Helper()
	for {
		line, err := st.lines.ReadBytes('\n')
		if err != nil {
			st.Fatalf("line %.200q: %v", line, err)
		}
		var ev api.ExecEvent
		if err := strictjson.Unmarshal(line, &ev, strictjson.Limits{Bytes: 1 << 20, Depth: 8, StringBytes: 1 << 20}); err != nil {
			st.Fatalf("line %.200q: %v", line, err)
		}
		if ev.Type != api.ExecHeartbeat {
			return ev
		}
		st.beats++
	}
}

// rest reads to the last line, and proves that the answer is whole.
func (st *stream) rest() (stdout, stderr []byte, last api.ExecEvent) {
	st.Helper()
	for {
		switch ev := st.next(); ev.Type {
		case api.ExecStdout:
			stdout = append(stdout, ev.Data...)
		case api.ExecStderr:
			stderr = append(stderr, ev.Data...)
		default:
			if more, err := io.ReadAll(st.lines); err != nil || len(more) > 0 {
				st.Errorf("behind the last line: %q, %v", more, err)
			}
			return stdout, stderr, ev
		}
	}
}

func shell(id, script string) api.ExecRequest {
	return api.ExecRequest{InvocationID: id, Argv: []string{"sh", "-c", script}, TimeoutMs: 120_000, MaxOutputBytes: api.MaxOutputBytes}
}

func (s *site) cancel(ws, sb, id string) (client.RawResponse, api.CancelResponse) {
	s.Helper()
	res, err := s.client.Raw(s.Context(), client.RawRequest{Op: api.OpCancel, Method: http.MethodDelete, Target: "/v1/sandboxes/" + sb + "/exec/" + id, WorkspaceID: ws, SandboxID: sb})
	if err != nil {
		s.Fatal(err)
	}
	var can api.CancelResponse
	if res.Status == http.StatusOK {
		if err := api.DecodeAnswer(res.Body, &can); err != nil {
			s.Fatal(err)
		}
	}
	return res, can
}

// TestStreamsOnRunsc: output leaves while the command runs; cancel and a caller that leaves end it.
func TestStreamsOnRunsc(t *testing.T) {
	s := newSite(t)
	p := s.start()
	ctx := t.Context()
	sb := s.create("ws").SandboxID

	req := shell("talk", "echo one; while ! [ -e go ]; do sleep 0.05; done; echo two >&2; exit 3")
	st := s.stream(ctx, "ws", sb, req)
	if ev := st.next(); ev.Type != api.ExecStdout || string(ev.Data) != "one\n" {
		t.Errorf("line %+v", ev)
	}
	// The command waits for this file, so the line was read while it ran.
	if _, err := s.client.Write(ctx, "ws", sb, "go", nil, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, last := st.rest()
	if len(stdout) != 0 || string(stderr) != "two\n" || last.Type != api.ExecEnded || *last.Result.ExitCode != 3 || !last.Result.CleanupProven || len(last.Result.Stdout) != 0 {
		t.Errorf("then %q, %q, %+v", stdout, stderr, last)
	}
	buffered, err := s.client.Exec(ctx, "ws", sb, req)
	if err != nil || string(buffered.Stdout) != "one\n" || string(buffered.Stderr) != "two\n" || *buffered.ExitCode != 3 {
		t.Errorf("buffered repetition %+v, %v", buffered, err)
	}
	stdout, stderr, last = s.stream(ctx, "ws", sb, req).rest()
	if string(stdout) != "one\n" || string(stderr) != "two\n" || last.Type != api.ExecEnded || *last.Result.ExitCode != 3 {
		t.Errorf("streamed repetition %q, %q, %+v", stdout, stderr, last)
	}
	if _, can := s.cancel("ws", sb, "talk"); can.Result == nil || *can.Result.ExitCode != 3 || string(can.Result.Stdout) != "one\n" {
		t.Errorf("cancel of an ended one: %+v", can)
	}

	st = s.stream(ctx, "ws", sb, shell("slow", "trap '' TERM; echo up; (setsid sleep 300 &); sleep 300"))
	if ev := st.next(); string(ev.Data) != "up\n" {
		t.Errorf("line %+v", ev)
	}
	for range 2 {
		if _, can := s.cancel("ws", sb, "slow"); can.Error == nil || can.Error.Code != api.ExecAborted {
			t.Errorf("cancel: %+v", can)
		}
	}
	if _, _, last := st.rest(); last.Type != api.ExecFailed || last.Error.Code != api.ExecAborted {
		t.Errorf("last line of a cancelled one %+v", last)
	}
	if res, _ := s.cancel("ws", sb, "never"); res.Code != api.OutcomeUnknown {
		t.Errorf("cancel of nothing: %d %s", res.Status, res.Code)
	}

	leaving, leave := context.WithCancel(ctx)
	gone := shell("left", "echo up; sleep 300")
	st = s.stream(leaving, "ws", sb, gone)
	if ev := st.next(); string(ev.Data) != "up\n" {
		t.Errorf("line %+v", ev)
	}
	leave()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err = s.client.Exec(ctx, "ws", sb, gone)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.ExecInProgress {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the command outlives its caller")
		}
	}
	codeIs(t, err, api.ExecAborted)

	left, err := s.client.Exec(ctx, "ws", sb, shell("look", "ps | grep -c '[s]leep 300'"))
	if err != nil || strings.TrimSpace(string(left.Stdout)) != "0" {
		t.Errorf("still running: %q %q, %v", left.Stdout, left.Stderr, err)
	}

	// The end of the worker reaches a stream as its last line.
	st = s.stream(ctx, "ws", sb, shell("last", "echo up; sleep 300"))
	if ev := st.next(); string(ev.Data) != "up\n" {
		t.Errorf("line %+v", ev)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stop(p)
	}()
	if _, _, last := st.rest(); last.Type != api.ExecFailed || last.Error.Code != api.ExecAborted {
		t.Errorf("last line in a drain %+v", last)
	}
	<-ended
	if st.beats == 0 {
		t.Error("no heartbeat in ten silent seconds")
	}
}

// peak resets the process's peak of resident memory, proc(5), and returns how to read its growth in bytes.
func (s *site) peak(p *process) (growth func() int64) {
	s.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	if err := os.WriteFile(dir+"clear_refs", []byte("5"), 0); err != nil {
		s.Fatal(err)
	}
	hwm := func() int64 {
		text, err := os.ReadFile(dir + "status")
		if err != nil {
			s.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "VmHWM:")
		kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			s.Fatal(err)
		}
		return kib << 10
	}
	before := hwm()
	return func() int64 { return hwm() - before }
}

// TestFloodOnAStream writes 1 GiB with a budget of 4 MiB: the counts are exact, and what the worker
// needs at its peak is some copies of the budget, whether the reader keeps up or takes nothing until
// the command has ended. The flood of the second is smaller: it has to end before the reader that
// takes nothing has left by the worker's lights, 30 s.
func TestFloodOnAStream(t *testing.T) {
	const (
		keep  = api.MaxOutputBytes
		bound = 32 << 20 // the output, what the collector has not yet freed, and the lines
	)
	s := newSite(t)
	p := s.start()
	ctx := t.Context()
	sb := s.create("ws").SandboxID
	if _, err := s.client.Exec(ctx, "ws", sb, shell("warm", "head -c 4194304 /dev/zero")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		id   string
		mib  int64
		idle bool
	}{{"reader-keeps-up", 1024, false}, {"reader-is-idle", 64, true}} {
		req := shell(tt.id, fmt.Sprintf("dd if=/dev/zero bs=1048576 count=%d 2>/dev/null; echo end >&2", tt.mib))
		req.TimeoutMs = 600_000
		growth := s.peak(p)
		began := time.Now()
		st := s.stream(ctx, "ws", sb, req)
		for tt.idle { // a repetition is refused until the command has ended, which it does by itself
			_, err := s.client.Exec(ctx, "ws", sb, req)
			var e *api.Error
			if errors.As(err, &e) && e.Code == api.ExecInProgress {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			if err != nil {
				t.Errorf("%s changed the outcome: %v", tt.id, err)
			}
			break
		}
		stdout, stderr, last := st.rest()
		got := growth()
		t.Logf("%s: %d MiB in %v, growth of the peak %d KiB", tt.id, tt.mib, time.Since(began).Round(time.Millisecond), got>>10)
		if last.Type != api.ExecEnded {
			t.Fatalf("%s: last line %+v", tt.id, last)
		}
		r := last.Result
		if r.ExitCode == nil || *r.ExitCode != 0 || r.TimedOut {
			t.Errorf("%s: %+v", tt.id, r)
		}
		// "end" comes when the budget is used up by stdout.
		if len(stdout) != keep || len(stderr) != 0 || !r.Truncated.Stdout || !r.Truncated.Stderr || r.Truncated.DroppedBytes != tt.mib<<20+int64(len("end\n"))-keep {
			t.Errorf("%s: %d + %d bytes, %+v", tt.id, len(stdout), len(stderr), r.Truncated)
		}
		if len(bytes.TrimLeft(stdout, "\x00")) != 0 {
			t.Errorf("%s: other bytes than the command wrote", tt.id)
		}
		if got > bound {
			t.Errorf("%s: the peak grew by %d bytes, bound %d", tt.id, got, bound)
		}
	}
	s.stop(p)
}

// TestFiftyCreatesOnTheEngine: through the wire, on the real engine: one container, one lease.
func TestFiftyCreatesOnTheEngine(t *testing.T) {
	s := newSite(t)
	p := s.start()
	req := s.request("ws")
	var wg sync.WaitGroup
	leases := make([]client.Lease, 50)
	for i := range leases {
		wg.Go(func() {
			var err error
			if leases[i], err = s.client.Create(t.Context(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, l := range leases {
		if l.SandboxID != leases[0].SandboxID || l.Receipt != leases[0].Receipt {
			t.Fatalf("leases %+v and %+v", leases[0], l)
		}
	}
	if all := s.containers(); len(all) != 1 {
		t.Errorf("containers %v", all)
	}
	other := req
	other.IdleTimeoutMs--
	_, err := s.client.Create(t.Context(), other)
	codeIs(t, err, api.IdempotencyConflict)

	// A lost reply: the caller's connection ends before the answer.
	lost := s.request("lost")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.client.Create(ctx, lost); err == nil {
		t.Fatal("the reply was not lost")
	}
	lease, err := s.client.Create(t.Context(), lost)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.client.Create(t.Context(), lost)
	if err != nil || again.SandboxID != lease.SandboxID {
		t.Errorf("%+v, %v", again, err)
	}
	if all := s.containers(); len(all) != 2 {
		t.Errorf("containers %v", all)
	}
	for ws, sb := range map[string]string{"ws": leases[0].SandboxID, "lost": lease.SandboxID} {
		if err := errors.Join(s.client.Dispose(t.Context(), ws, sb), s.client.Purge(t.Context(), ws)); err != nil {
			t.Error(err)
		}
	}
	if all := s.containers(); len(all) != 0 {
		t.Errorf("containers %v", all)
	}
	s.stop(p)
}
