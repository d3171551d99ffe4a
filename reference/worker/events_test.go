// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/workspace"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// fakeChanges is a workspace whose changes the test gives.
type fakeChanges struct {
	mu       sync.Mutex
	refuse   error
	end      context.CancelCauseFunc // of the sandbox of the last stream
	next     chan api.ChangeEvent
	fail     chan error
	released chan struct{}
}

func (f *fakeChanges) Next(ctx context.Context) (api.ChangeEvent, error) {
	select {
	case ev := <-f.next:
		return ev, nil
	case err := <-f.fail:
		return api.ChangeEvent{}, err
	case <-ctx.Done():
		return api.ChangeEvent{}, ctx.Err()
	}
}

func (r *rig) openChanges(ctx context.Context, _, _ string) (context.Context, Changes, func(), error) {
	f := &r.fake.changes
	if err := r.fake.enter("watch"); err != nil {
		return nil, nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, nil, nil, f.refuse
	}
	life, cancel := context.WithCancelCause(ctx)
	f.end = cancel
	return life, f, func() { cancel(nil); f.released <- struct{}{} }, nil
}

func (f *fakeChanges) finish(code api.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(api.E(code, errors.New("secret of the worker")))
}

var watchRequest = client.RawRequest{Op: api.OpEvents, Method: "GET", Target: "/v1/sandboxes/sb/events", WorkspaceID: "ws", SandboxID: "sb"}

// sse is an open stream of changes.
type sse struct {
	t    *testing.T
	conn net.Conn
	res  *http.Response
	body *bufio.Reader
}

func (r *rig) watchChanges() *sse {
	r.t.Helper()
	f := &r.fake.changes
	f.mu.Lock()
	if f.next == nil {
		f.next, f.fail, f.released = make(chan api.ChangeEvent), make(chan error), make(chan struct{}, 16)
	}
	f.mu.Unlock()
	c := r.send(watchRequest, 0, "")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &sse{t: r.t, conn: c, res: res, body: bufio.NewReader(res.Body)}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != api.TypeEvents || res.Header.Get("Cache-Control") != "no-store" {
		b, _ := io.ReadAll(res.Body)
		r.t.Fatalf("got %s, %v, %s", res.Status, res.Header, b)
	}
	s.want(": ready")
	return s
}

// block returns the lines of one event, or of one comment.
func (s *sse) block() string {
	s.t.Helper()
	var lines []string
	for {
		line, err := s.body.ReadString('\n')
		if err != nil {
			s.t.Fatalf("after %q: %v", lines, err)
		}
		if line == "\n" {
			return strings.Join(lines, "\n")
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
}

func (s *sse) want(text string) {
	s.t.Helper()
	if got := s.block(); got != text {
		s.t.Fatalf("got %q, want %q", got, text)
	}
}

// ended asserts that the stream says why it ends, in full.
func (s *sse) ended(code api.Code) {
	s.t.Helper()
	data, ok := strings.CutPrefix(s.block(), "event: end\ndata: ")
	var e api.ErrorDetail
	if err := strictjson.Unmarshal([]byte(data), &e, strictjson.Limits{Bytes: 1 << 16, Depth: 4, StringBytes: 1 << 10}); !ok || err != nil {
		s.t.Fatalf("got %q, %v", data, err)
	}
	if e.Code != code || e.Message != code.Message() || e.Retryable != code.Retryable() || !api.ValidID(e.RequestID) {
		s.t.Errorf("the stream ended with %+v, want %s", e, code)
	}
	if rest, err := io.ReadAll(s.body); err != nil || len(rest) != 0 {
		s.t.Errorf("behind the end: %q, %v", rest, err)
	}
}

func (r *rig) waitReleased() {
	r.t.Helper()
	select {
	case <-r.fake.changes.released:
	case <-time.After(10 * time.Second):
		r.t.Fatal("the workspace is still held")
	}
}

// TestEventsFormat: each block is read before the next thing happens.
func TestEventsFormat(t *testing.T) {
	r := newRig(t, tweak{heartbeat: 100 * time.Millisecond})
	s := r.watchChanges()
	s.want(": heartbeat")
	s.want(": heartbeat")
	for _, tt := range []struct {
		ev   api.ChangeEvent
		data string
	}{
		{api.ChangeEvent{Type: api.ChangeCreated, Path: "a\nb", Kind: "file"}, `{"type":"created","path":"a\nb","kind":"file"}`},
		{api.ChangeEvent{Type: api.ChangeMoved, PathBytes: []byte{0xff}, From: "a"}, `{"type":"moved","pathBytes":"/w==","from":"a"}`},
		{api.ChangeEvent{Type: api.ChangeOverflow}, `{"type":"overflow"}`},
	} {
		r.fake.changes.next <- tt.ev
		for {
			got := s.block()
			if got == ": heartbeat" { // at any time
				continue
			}
			if got != "event: change\ndata: "+tt.data {
				t.Errorf("got %q", got)
			}
			break
		}
	}
	if got := strings.Join(r.fake.calls, " "); got != "watch" {
		t.Errorf("calls are %q: a stream is no use of the sandbox", got)
	}
}

func TestEventsEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(r *rig)
		code api.Code
	}{
		{"expired", func(r *rig) { r.fake.changes.finish(api.SandboxExpired) }, api.SandboxExpired},
		{"died", func(r *rig) { r.fake.changes.finish(api.SandboxDied) }, api.SandboxDied},
		{"watcher failed", func(r *rig) { r.fake.changes.fail <- errors.New("secret of the worker") }, api.Unavailable},
		{"drain", func(r *rig) { r.stop() }, api.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tweak{drain: time.Minute})
			s := r.watchChanges()
			tt.end(r)
			s.ended(tt.code)
			r.waitReleased()
		})
	}
}

// TestEventsRefused before a stream is there is an ordinary answer.
func TestEventsRefused(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.changes.refuse = api.E(api.ExecConcurrencyExhausted, errors.New("four"))
	refused := func(req client.RawRequest, want api.Code) {
		t.Helper()
		res := r.raw(req)
		if e := api.DecodeError(res.Status, res.Body); e.Code != want {
			t.Errorf("got %d %s, want %s", res.Status, res.Body, want)
		}
	}
	refused(watchRequest, api.ExecConcurrencyExhausted)
	calls := r.fake.count()
	body := watchRequest
	body.Body = []byte("{}")
	refused(body, api.RequestInvalid)
	query := watchRequest
	query.Target += "?path=a"
	refused(query, api.RequestInvalid)
	if r.fake.count() != calls {
		t.Error("a refused request reached the session")
	}
}

// TestEventsReaderThatLeaves lets go of the workspace; one that takes nothing does after its time.
func TestEventsReaderThatLeaves(t *testing.T) {
	r := newRig(t, tweak{patience: 300 * time.Millisecond})
	s := r.watchChanges()
	if err := s.conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.waitReleased()
	r.watchChanges()
	big := api.ChangeEvent{Type: api.ChangeCreated, Path: strings.Repeat("x", 4096)}
	for taken := 0; ; taken++ {
		select {
		case r.fake.changes.next <- big:
			if taken > 10_000 {
				t.Fatal("the worker takes without end")
			}
			continue
		case <-r.fake.changes.released:
		case <-time.After(10 * time.Second):
			t.Fatal("a reader that takes nothing holds the workspace")
		}
		break
	}
}

// TestEventsRetireUnderAStuckReader: what is being written does not hold the workspace for the
// reader's whole time.
func TestEventsRetireUnderAStuckReader(t *testing.T) {
	r := newRig(t, tweak{}) // patience is 30 s
	r.watchChanges()
	big := api.ChangeEvent{Type: api.ChangeCreated, Path: strings.Repeat("x", 4096)}
	for stuck := false; !stuck; {
		select {
		case r.fake.changes.next <- big:
		case <-time.After(500 * time.Millisecond): // nobody takes it: the handler writes
			stuck = true
		}
	}
	r.fake.changes.finish(api.SandboxDisposed)
	r.waitReleased()
}

// TestEventsOverHTTP2: a quiet stream outlives every deadline of what was written before.
func TestEventsOverHTTP2(t *testing.T) {
	r := newRig(t, tweak{heartbeat: 400 * time.Millisecond, patience: 900 * time.Millisecond, stall: 300 * time.Millisecond})
	r.fake.changes.next, r.fake.changes.fail, r.fake.changes.released = make(chan api.ChangeEvent), make(chan error), make(chan struct{}, 1)
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.cfg.Socket)
	}}
	defer tr.CloseIdleConnections()
	hr, err := http.NewRequestWithContext(t.Context(), "GET", "http://w"+watchRequest.Target, nil)
	if err != nil {
		t.Fatal(err)
	}
	hr.Header.Set("Authorization", "Bearer "+r.mint(watchRequest))
	res, err := tr.RoundTrip(hr)
	if err != nil {
		t.Fatal(err)
	}
	s := &sse{t: t, res: res, body: bufio.NewReader(res.Body)}
	s.want(": ready")
	for range 3 {
		s.want(": heartbeat")
	}
	r.fake.changes.finish(api.SandboxExpired)
	s.ended(api.SandboxExpired)
	r.waitReleased()
}

// TestEventsOfARealTree: the shape that a workspace's changes have on the wire.
func TestEventsOfARealTree(t *testing.T) {
	dir := tenantDir(t)
	tree, err := workspace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := os.Mkdir(filepath.Join(dir, "d\xff"), 0o755); err != nil { // known before it moves
		t.Fatal(err)
	}
	life, end := context.WithCancelCause(t.Context())
	released := 0
	changes, release, err := WatchTree(life, tree, func() { released++ })
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []error{
		os.Rename(filepath.Join(dir, "d\xff"), filepath.Join(dir, "d")), os.Mkdir(filepath.Join(dir, "e\xff"), 0o755),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for _, want := range []string{`{"type":"moved","path":"d","fromBytes":"ZP8=","kind":"dir"}`, `{"type":"created","pathBytes":"Zf8=","kind":"dir"}`} {
		ev, err := changes.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := strictjson.Marshal(ev); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	end(api.E(api.SandboxDisposed, nil))
	if _, err := changes.Next(t.Context()); err == nil {
		t.Error("there was another change")
	}
	release()
	if _, _, err := WatchTree(life, tree, func() { released++ }); codeOf(err) != api.SandboxDisposed {
		t.Errorf("watching after the end: %v", err)
	}
	if released != 2 {
		t.Errorf("released %d times", released)
	}
}

// tenantDir is a directory that belongs to the tenant and that its uid can reach.
func tenantDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, workspace.Tenant, workspace.Tenant); err != nil {
		t.Fatal(err)
	}
	return dir
}
