// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/api/wiretest"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/state"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

func contract(t *testing.T) *wiretest.Contract {
	t.Helper()
	c, err := wiretest.Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// checked makes r's client hold every exchange against the document.
func (r *rig) checked(to wiretest.Reporter) *wiretest.Transport {
	r.t.Helper()
	var seen *wiretest.Transport
	r.cfg.Wrap = func(next http.RoundTripper) http.RoundTripper {
		seen = contract(r.t).Transport(to, next)
		return seen
	}
	var err error
	if r.client, err = client.New(r.cfg); err != nil {
		r.t.Fatal(err)
	}
	return seen
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// requests is one well-formed request for each operation.
func (r *rig) requests() map[api.Op]client.RawRequest {
	on := func(op api.Op, method, tail, body string) client.RawRequest {
		return client.RawRequest{Op: op, Method: method, Target: "/v1/sandboxes/sb" + tail, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(body)}
	}
	return map[api.Op]client.RawRequest{
		api.OpHealth:  {Op: api.OpHealth, Method: "GET", Target: "/v1/health"},
		api.OpCreate:  r.createRaw("ws", string(asJSON(r.t, r.createRequest("ws")))),
		api.OpGet:     on(api.OpGet, "GET", "", ""),
		api.OpExec:    on(api.OpExec, "POST", "/exec", execBody),
		api.OpCancel:  on(api.OpCancel, "DELETE", "/exec/i", ""),
		api.OpFS:      on(api.OpFS, "POST", "/fs", `{"op":"stat","path":"a"}`),
		api.OpRead:    on(api.OpRead, "GET", "/files?path=a", ""),
		api.OpWrite:   on(api.OpWrite, "PUT", "/files?mode=replace&path=a", "body"),
		api.OpEvents:  on(api.OpEvents, "GET", "/events", ""),
		api.OpRenew:   on(api.OpRenew, "POST", "/renew", ""),
		api.OpDispose: on(api.OpDispose, "DELETE", "", ""),
		api.OpPurge:   {Op: api.OpPurge, Method: "DELETE", Target: "/v1/workspaces/ws", WorkspaceID: "ws"},
	}
}

// TestEveryAnswerIsInTheContract sends every operation to a running worker, to success and to each
// code that the document declares for it, and holds both sides of each exchange against it.
func TestEveryAnswerIsInTheContract(t *testing.T) {
	r := newRig(t, tweak{})
	seen := r.checked(t)
	r.fake.files["a"] = []byte("hello")
	if _, err := r.client.Raw(t.Context(), client.RawRequest{Method: "GET", Target: "/healthz", NoToken: true}); err != nil {
		t.Error(err)
	}
	for op, req := range r.requests() {
		if op == api.OpEvents { // has no end of itself: see watch
			continue
		}
		if res := r.raw(req); res.Status >= 400 {
			t.Errorf("%s: %s", op, res.Code)
		}
	}
	for _, body := range []string{`{"op":"list"}`, `{"op":"mkdir","path":"a"}`, `{"op":"remove","path":"a"}`, `{"op":"rename","path":"a","toBytes":"/w=="}`, `{"op":"readlink","path":"a"}`} {
		req := r.requests()[api.OpFS]
		req.Body = []byte(body)
		if res := r.raw(req); res.Status != http.StatusOK {
			t.Errorf("%s: %s", body, res.Code)
		}
	}
	appended := r.requests()[api.OpWrite]
	appended.Target = "/v1/sandboxes/sb/files?mode=append&path=a&expectedSize=4"
	if res := r.raw(appended); res.Status != http.StatusOK {
		t.Errorf("append: %s", res.Code)
	}
	r.watch()
	r.everyCode()
	have := seen.Seen()
	for _, item := range contract(t).Doc.Paths.Map() {
		for _, o := range item.Operations() {
			want := slices.DeleteFunc(slices.Sorted(maps.Keys(o.Responses.Map())), func(s string) bool { return s >= "400" })
			for _, c := range o.Extensions["x-codes"].([]any) {
				want = append(want, fmt.Sprintf("REMOTE_WORKER_%v", c))
			}
			for _, w := range want {
				if have[o.OperationID+" "+w] == 0 {
					t.Errorf("%s was not seen to answer %s", o.OperationID, w)
				}
			}
		}
	}
}

// watch takes a stream of one change from its begin to the end of its sandbox.
func (r *rig) watch() {
	t, f := r.t, &r.fake.changes
	f.next, f.fail, f.released = make(chan api.ChangeEvent), make(chan error), make(chan struct{}, 16)
	e, err := r.client.Events(t.Context(), "ws", "sb")
	if err != nil {
		t.Fatal(err)
	}
	all := []api.ChangeEvent{
		{Type: api.ChangeCreated, Path: "a", Kind: "file"}, {Type: api.ChangeModified, PathBytes: []byte{0xff}}, {Type: api.ChangeMoved, Path: "b", From: "a"}, {Type: api.ChangeOverflow},
	}
	go func() {
		for _, c := range all {
			f.next <- c
		}
		f.finish(api.SandboxExpired)
	}()
	n := 0
	for _, err = range e.All() {
		if err == nil {
			n++
		}
	}
	if codeIs(t, err, api.SandboxExpired); n != len(all) {
		t.Errorf("%d changes", n)
	}
}

// everyCode makes the lifecycle fail with each code that an operation declares. Health has no
// lifecycle behind it: its codes are forced by what it checks itself.
func (r *rig) everyCode() {
	t := r.t
	for op, req := range r.requests() {
		if op == api.OpHealth {
			continue
		}
		o, _ := contract(t).Operation(req.Method, req.Target)
		for _, name := range o.Extensions["x-codes"].([]any) {
			code := api.Code(fmt.Sprintf("REMOTE_WORKER_%v", name))
			r.fake.mu.Lock()
			r.fake.fail = api.E(code, errors.New("forced"))
			r.fake.mu.Unlock()
			if res := r.raw(req); res.Code != code {
				t.Errorf("%s: forced %s, got %d %s", op, code, res.Status, res.Code)
			}
		}
	}
	r.fake.mu.Lock()
	r.fake.fail = nil
	r.fake.mu.Unlock()
	health := func(want api.Code, req client.RawRequest) {
		t.Helper()
		if res := r.raw(req); res.Code != want {
			t.Errorf("health: got %s, want %s", res.Code, want)
		}
	}
	req := r.requests()[api.OpHealth]
	token, err := r.client.Mint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	again := req
	again.Token = token
	health("", again)
	health(api.CapabilityReplay, again)
	again.Token = token + "A"
	health(api.Unauthenticated, again)
	body := req
	body.Body = []byte("x")
	health(api.RequestInvalid, body)
	for code, err := range map[api.Code]error{
		api.CapabilityExpired: state.ErrExpired, api.NonceStoreExhausted: state.ErrExhausted, api.Unavailable: errors.New("disk"),
	} {
		r.server.o.Nonces = refusing{err} // no request is in progress
		health(code, req)
	}
	r.server.o.Nonces = r.store
}

// refusing is a store of nonces that takes none.
type refusing struct{ err error }

func (s refusing) ConsumeNonce(context.Context, string, string, int64) error { return s.err }

// TestStreamsAreInTheContract: lines of a streamed exec, its heartbeats, and each end.
func TestStreamsAreInTheContract(t *testing.T) {
	r := newRig(t, tweak{heartbeat: 20 * time.Millisecond})
	seen := r.checked(t)
	plays := r.streaming()
	ask := func(drive func(*play)) error {
		beats := make(chan struct{})
		var once sync.Once
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := <-plays
			<-beats // one at least came
			drive(p)
		}()
		_, err := r.client.ExecStream(t.Context(), "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 100},
			func(e api.ExecEvent) error {
				if e.Type == api.ExecHeartbeat {
					once.Do(func() { close(beats) })
				}
				return nil
			})
		<-done
		return err
	}
	if err := ask(func(p *play) { p.chunks <- "1out"; p.chunks <- "2err"; p.finish(nil) }); err != nil {
		t.Error(err)
	}
	for _, code := range []api.Code{api.ExecAborted, api.SandboxOOM, api.SandboxDied, api.Timeout, api.OutcomeUnknown} {
		codeIs(t, ask(func(p *play) { p.finish(api.E(code, errors.New("forced"))) }), code)
	}
	for _, want := range []string{"started", "stdout", "stderr", "heartbeat", "result", "error"} {
		if seen.Seen()["exec line "+want] == 0 {
			t.Errorf("no line %s was seen", want)
		}
	}
	r.fake.onCancel = func(context.Context, string) (api.CancelResponse, error) {
		d := api.ExecAborted.Body("r").Error
		return api.CancelResponse{Error: &d}, nil
	}
	_, err := r.client.Cancel(t.Context(), "ws", "sb", "i")
	codeIs(t, err, api.ExecAborted)
}

type findings struct {
	mu    sync.Mutex
	found []string
}

func (f *findings) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = append(f.found, fmt.Sprintf(format, args...))
}

// TestAnswersBesideTheContractAreFound: the check fails for a worker that answers something else.
func TestAnswersBesideTheContractAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		op    api.Op
		spoil func(*rig)
		finds string
	}{
		"undeclared code": {api.OpRenew, func(r *rig) { r.fake.fail = api.E(api.PathNotFound, nil) }, "does not declare"},
		"impossible state": {api.OpExec, func(r *rig) {
			r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
				zero := 0
				return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero, DurationMs: -1}, nil
			}
		}, "durationMs"},
		"unsigned fields": {api.OpCreate, func(r *rig) { r.fake.alter = func(rc *api.Receipt) { rc.Generation = 0 } }, "generation"},
		"a path as an id": {api.OpCancel, func(r *rig) {
			r.fake.onCancel = func(context.Context, string) (api.CancelResponse, error) {
				zero := 0
				return api.CancelResponse{Result: &api.ExecResult{InvocationID: "../i", ExitCode: &zero}}, nil
			}
		}, "invocationId"},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := newRig(t, tweak{}), &findings{}
			r.checked(f)
			r.raw(r.requests()[tt.op])
			if len(f.found) != 0 {
				t.Fatalf("before: %q", f.found)
			}
			if tt.spoil(r); tt.op == api.OpCreate {
				r.fake.byLease = map[string]api.Receipt{}
			}
			r.raw(r.requests()[tt.op])
			if !strings.Contains(strings.Join(f.found, "\n"), tt.finds) {
				t.Errorf("found %q, want %q", f.found, tt.finds)
			}
		})
	}
}
