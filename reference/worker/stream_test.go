// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// play is an execution whose output and end the test gives. It ends with EXEC_ABORTED when its
// context does, as the session's do.
type play struct {
	ctx    context.Context
	chunks chan string // "1..." is stdout, "2..." stderr, "!" panics
	ended  chan struct{}
	closed chan struct{}
	once   sync.Once
	over   sync.Once
	result api.ExecResult
	err    error
}

func newPlay(ctx context.Context, id string) *play {
	zero := 0
	p := &play{ctx: ctx, chunks: make(chan string), ended: make(chan struct{}), closed: make(chan struct{}),
		result: api.ExecResult{InvocationID: id, Stdout: []byte("kept"), ExitCode: &zero, CleanupProven: true}}
	context.AfterFunc(ctx, func() { p.finish(api.E(api.ExecAborted, ctx.Err())) })
	return p
}

// finish ends the execution; the first end counts.
func (p *play) finish(err error) {
	p.over.Do(func() {
		p.err = err
		close(p.ended)
	})
}

func (p *play) Next(ctx context.Context) (bool, []byte, error) {
	select {
	case c := <-p.chunks:
		if c == "!" {
			panic("secret of the worker")
		}
		return c[0] == '2', []byte(c[1:]), nil
	case <-p.ended:
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (p *play) Ended() <-chan struct{} { return p.ended }
func (p *play) Close()                 { p.once.Do(func() { close(p.closed) }) }
func (p *play) Outcome() (api.ExecResult, error) {
	<-p.ended
	if p.err != nil {
		return api.ExecResult{}, p.err
	}
	return p.result, nil
}

// streaming makes r's lifecycle give plays, and returns where they come out.
func (r *rig) streaming() <-chan *play {
	plays := make(chan *play, 1)
	r.fake.onStart = func(ctx context.Context, req api.ExecRequest) (Execution, error) {
		p := newPlay(ctx, req.InvocationID)
		plays <- p
		return p, nil
	}
	return plays
}

const execBody = `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":60000,"maxOutputBytes":1}`

// tail is the answer of a stream that is read line by line.
type tail struct {
	t    *testing.T
	conn net.Conn
	res  *http.Response
	body *bufio.Reader
}

// open sends one exec that asks for a stream, on a connection of its own.
func (r *rig) open() *tail {
	r.t.Helper()
	c := r.sendHead(client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)},
		"Accept: application/x-ndjson\r\n", len(execBody), execBody)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return &tail{t: r.t, conn: c, res: res, body: bufio.NewReader(res.Body)}
}

func (l *tail) next() api.ExecEvent {
	l.t.Helper()
	line, err := l.body.ReadBytes('\n')
	if err != nil {
		l.t.Fatalf("line %q: %v", line, err)
	}
	var ev api.ExecEvent
	if err := strictjson.Unmarshal(line, &ev, strictjson.Limits{Bytes: 1 << 20, Depth: 8, StringBytes: 1 << 20}); err != nil {
		l.t.Fatalf("line %q: %v", line, err)
	}
	return ev
}

func (l *tail) want(typ, data string) api.ExecEvent {
	l.t.Helper()
	ev := l.next()
	if ev.Type != typ || string(ev.Data) != data {
		l.t.Fatalf("line %+v, want %s %q", ev, typ, data)
	}
	return ev
}

// end asserts that the answer is whole: its last chunk came, and nothing behind the last line.
func (l *tail) end() {
	l.t.Helper()
	if rest, err := io.ReadAll(l.body); err != nil || len(rest) != 0 {
		l.t.Errorf("behind the last line: %q, %v", rest, err)
	}
}

// TestStreamLinesLeaveAtOnce: every line is read before the next thing happens.
func TestStreamLinesLeaveAtOnce(t *testing.T) {
	r := newRig(t, tweak{heartbeat: 100 * time.Millisecond})
	plays := r.streaming()
	l := r.open()
	if l.res.StatusCode != http.StatusOK || l.res.Header.Get("Content-Type") != api.TypeNDJSON {
		t.Errorf("status %d, type %q", l.res.StatusCode, l.res.Header.Get("Content-Type"))
	}
	if ev := l.want(api.ExecStarted, ""); ev.InvocationID != "i" {
		t.Errorf("started %+v", ev)
	}
	p := <-plays
	l.want(api.ExecHeartbeat, "")
	for _, c := range []string{"1a", "2\xff\n", "1" + strings.Repeat("b", 32<<10)} {
		p.chunks <- c
		kind := map[byte]string{'1': api.ExecStdout, '2': api.ExecStderr}[c[0]]
		ev := l.next()
		for ev.Type == api.ExecHeartbeat { // one may have been on its way
			ev = l.next()
		}
		if ev.Type != kind || string(ev.Data) != c[1:] {
			t.Errorf("line of %s with %d bytes, want %s with %d", ev.Type, len(ev.Data), kind, len(c)-1)
		}
	}
	p.finish(nil)
	ev := l.next()
	for ev.Type == api.ExecHeartbeat {
		ev = l.next()
	}
	if ev.Type != api.ExecEnded || ev.Result == nil || ev.Result.InvocationID != "i" || len(ev.Result.Stdout) != 0 || len(ev.Result.Stderr) != 0 || *ev.Result.ExitCode != 0 {
		t.Errorf("last line %+v", ev)
	}
	l.end()
	<-p.closed
}

// TestStreamFailures: before the first line a failure is an ordinary answer, from it on the last line.
func TestStreamFailures(t *testing.T) {
	r := newRig(t, tweak{})
	t.Run("refused", func(t *testing.T) {
		r.fake.onStart = func(context.Context, api.ExecRequest) (Execution, error) {
			return nil, api.E(api.ExecInProgress, nil)
		}
		res := r.raw(client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb",
			Body: []byte(execBody), Header: http.Header{"Accept": {api.TypeNDJSON}}})
		if res.Code != api.ExecInProgress || res.Header.Get("Content-Type") != api.TypeJSON {
			t.Errorf("got %d %s as %s", res.Status, res.Body, res.Header.Get("Content-Type"))
		}
	})
	for _, tt := range []struct {
		name string
		end  func(p *play)
		want api.Code
	}{
		{"outcome", func(p *play) { p.finish(api.E(api.SandboxOOM, errors.New("secret cause"))) }, api.SandboxOOM},
		{"unknown failure", func(p *play) { p.finish(errors.New("secret cause")) }, api.Unavailable},
		{"panic", func(p *play) { p.chunks <- "!" }, api.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plays := r.streaming()
			l := r.open()
			l.t = t
			l.want(api.ExecStarted, "")
			p := <-plays
			tt.end(p)
			ev := l.want(api.ExecFailed, "")
			if ev.Error == nil || ev.Error.Code != tt.want || ev.Error.Message != tt.want.Message() || ev.Error.RequestID == "" || ev.Result != nil {
				t.Errorf("last line %+v", ev.Error)
			}
			l.end()
			<-p.closed
			if !strings.Contains(r.log.String(), ev.Error.RequestID) {
				t.Error("the log does not know the request")
			}
		})
	}
}

// TestStreamCallerLeaves: with the connection, or its sending half, the invocation ends.
func TestStreamCallerLeaves(t *testing.T) {
	r := newRig(t, tweak{})
	for _, tt := range []struct {
		name  string
		leave func(c net.Conn) error
		told  bool // the caller still reads
	}{
		{"closed", func(c net.Conn) error { return c.Close() }, false},
		{"half closed", func(c net.Conn) error { return c.(*net.UnixConn).CloseWrite() }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plays := r.streaming()
			l := r.open()
			l.t = t
			l.want(api.ExecStarted, "")
			p := <-plays
			if err := tt.leave(l.conn); err != nil {
				t.Fatal(err)
			}
			for what, ended := range map[string]<-chan struct{}{"the context": p.ctx.Done(), "the hold": p.closed} {
				select {
				case <-ended:
				case <-time.After(10 * time.Second):
					t.Fatalf("%s outlived the connection", what)
				}
			}
			if tt.told {
				if ev := l.want(api.ExecFailed, ""); ev.Error.Code != api.ExecAborted {
					t.Errorf("last line %+v", ev.Error)
				}
				l.end()
			}
		})
	}
}

// TestStreamReaderThatTakesNothing ends its connection and its invocation, and nobody else's.
func TestStreamReaderThatTakesNothing(t *testing.T) {
	r := newRig(t, tweak{patience: 300 * time.Millisecond})
	plays := r.streaming()
	r.open().want(api.ExecStarted, "")
	p := <-plays
	chunk := "1" + strings.Repeat("x", 32<<10)
	for taken := 0; ; taken++ {
		select {
		case p.chunks <- chunk:
			if taken > 1000 {
				t.Fatal("the worker takes without end")
			}
			continue
		case <-p.closed:
		case <-time.After(10 * time.Second):
			t.Fatal("a reader that takes nothing holds its invocation")
		}
		break
	}
	other := r.open()
	other.want(api.ExecStarted, "")
	(<-plays).finish(nil)
	if ev := other.next(); ev.Type != api.ExecEnded {
		t.Errorf("last line %+v", ev)
	}
}

// TestStreamEndsInADrain: a command that does not end by itself is ended, and its caller told.
func TestStreamEndsInADrain(t *testing.T) {
	r := newRig(t, tweak{drain: 2 * time.Second})
	plays := r.streaming()
	l := r.open()
	l.want(api.ExecStarted, "")
	p := <-plays
	buffered := make(chan error, 1)
	entered := make(chan struct{})
	r.fake.onExec = func(ctx context.Context, _ api.ExecRequest) (api.ExecResult, error) {
		close(entered)
		<-ctx.Done()
		return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
	}
	go func() {
		_, err := r.client.Exec(context.Background(), "ws", "sb", api.ExecRequest{InvocationID: "j", Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1})
		buffered <- err
	}()
	<-entered
	r.stop()
	if ev := l.want(api.ExecFailed, ""); ev.Error.Code != api.ExecAborted {
		t.Errorf("last line %+v", ev.Error)
	}
	l.end()
	<-p.closed
	codeIs(t, <-buffered, api.ExecAborted)
	if err := <-r.finished; err != nil {
		t.Errorf("something was cut off: %v", err)
	}
	r.finished <- nil // shutdown closes the store
}

// TestStreamsLeaveNothing: after streams of every end, the worker runs what it ran before.
func TestStreamsLeaveNothing(t *testing.T) {
	r := newRig(t, tweak{patience: 300 * time.Millisecond})
	plays := r.streaming()
	once := func() {
		l := r.open()
		l.want(api.ExecStarted, "")
		(<-plays).finish(nil)
		if ev := l.next(); ev.Type != api.ExecEnded {
			t.Errorf("last line %+v", ev)
		}
		l.conn.Close()

		l = r.open()
		l.want(api.ExecStarted, "")
		p := <-plays
		l.conn.Close()
		<-p.closed

		l = r.open() // and takes nothing
		p = <-plays
		for chunk, open := "1"+strings.Repeat("x", 32<<10), true; open; {
			select {
			case p.chunks <- chunk:
			case <-p.closed:
				open = false
			}
		}
		l.conn.Close()
	}
	once()
	before := gleak.Goroutines()
	for range 5 {
		once()
	}
	gomega.NewWithT(t).Eventually(gleak.Goroutines, 10*time.Second).ShouldNot(gleak.HaveLeaked(before))
}
