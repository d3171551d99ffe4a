// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

func (s *shares) inUse() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func eventually(t *testing.T, otherwise string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise)
		}
	}
}

func TestShares(t *testing.T) {
	s := newShares("things", 4, 3)
	var held []func()
	for _, tt := range []struct {
		workspace string
		n         int64
		want      api.Code
	}{
		{"a", 4, api.Unavailable}, // more than its share
		{"a", 2, ""}, {"a", 1, ""}, {"a", 1, api.Unavailable},
		{"b", 2, api.Unavailable}, // more than is left
		{"b", 1, ""}, {"b", 1, api.Unavailable}, {"c", 0, ""},
	} {
		give, err := s.take(tt.workspace, tt.n)
		if tt.want != "" {
			codeIs(t, err, tt.want)
			continue
		}
		if err != nil {
			t.Errorf("%d of %s: %v", tt.n, tt.workspace, err)
			continue
		}
		held = append(held, give)
	}
	for _, give := range held {
		give()
	}
	if s.used != 0 || len(s.by) != 0 {
		t.Errorf("%d are in use, by %v", s.used, s.by)
	}
}

// TestOutputShares: under every valid configuration a sandbox can run all its commands and be told of one that was
// cancelled, and whatever one workspace leaves unread, the others can run all commands that may run.
func TestOutputShares(t *testing.T) {
	valid := 0
	for _, execs := range []int64{0, 1, 2, 4, 8, 16, 32, 64, 1024} {
		for _, perSandbox := range []int64{0, 1, 2, 4, 8} {
			l := Limits{Execs: execs, ExecsPerSandbox: perSandbox}
			if l.validate() != nil {
				continue
			}
			valid++
			eff := Config{Limits: &l}.EffectiveLimits()
			s := outputShares(eff)
			if s.each < (eff.ExecsPerSandbox+1)*api.MaxOutputBytes || s.most-s.each < eff.Execs*api.MaxOutputBytes {
				t.Errorf("%d commands, %d in a sandbox: room for %d bytes, %d for one", eff.Execs, eff.ExecsPerSandbox, s.most, s.each)
			}
		}
	}
	if valid < 20 {
		t.Errorf("%d configurations", valid)
	}
}

// TestPanicKeepsNoPlace: whatever of a file operation panics, it is answered and its place is free again.
func TestPanicKeepsNoPlace(t *testing.T) {
	for name, open := range map[string]OpenFiles{
		"open": func(context.Context, string, string) (context.Context, Files, func(), error) { panic("open") },
		"operation": func(ctx context.Context, _, _ string) (context.Context, Files, func(), error) {
			return ctx, nil, func() {}, nil // of which every method panics
		},
		"release": func(ctx context.Context, _, _ string) (context.Context, Files, func(), error) {
			return ctx, &fake{files: map[string][]byte{"a": []byte("b")}}, func() { panic("release") }, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{})
			r.server.o.OpenFiles = open
			for _, req := range []client.RawRequest{
				{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("b")},
				{Op: api.OpRead, Method: "GET", Target: "/v1/sandboxes/sb/files?path=a", WorkspaceID: "ws", SandboxID: "sb"},
				{Op: api.OpFS, Method: "POST", Target: "/v1/sandboxes/sb/fs", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(`{"op":"stat","path":"a"}`)},
			} {
				_, _ = r.client.Raw(t.Context(), req) // cut, when its answer has begun
				eventually(t, string(req.Op)+" keeps its place", func() bool { return r.server.fileOps.inUse() == 0 })
				if !strings.Contains(r.log.String(), "handler panicked") {
					t.Errorf("%s: nothing panicked", req.Op)
				}
				r.log.reset()
			}
		})
	}
}

// TestFileOperationsAreBounded: uploads whose callers let them wait take the share of their
// workspace. One more operation of any kind is refused before the workspace is opened; another
// workspace is served; and what has ended gives its place back.
func TestFileOperationsAreBounded(t *testing.T) {
	r := newRig(t, tweak{})
	entered, leave := make(chan struct{}), make(chan struct{})
	var filling atomic.Bool
	r.fake.onWrite = func(io.Reader) error {
		if filling.Load() {
			entered <- struct{}{}
			<-leave
		}
		return io.ErrUnexpectedEOF
	}
	of := func(ws string) map[string]client.RawRequest {
		return map[string]client.RawRequest{
			"write": {Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: ws, SandboxID: "sb", Body: []byte("b")},
			"read":  {Op: api.OpRead, Method: "GET", Target: "/v1/sandboxes/sb/files?path=a", WorkspaceID: ws, SandboxID: "sb"},
			"fs":    {Op: api.OpFS, Method: "POST", Target: "/v1/sandboxes/sb/fs", WorkspaceID: ws, SandboxID: "sb", Body: []byte(`{"op":"stat","path":"a"}`)},
		}
	}
	r.fake.files["a"] = []byte("a")
	var wg sync.WaitGroup
	fill := func(ws string) {
		filling.Store(true)
		defer filling.Store(false)
		for range maxFileOpsPerWorkspace {
			wg.Go(func() { r.raw(of(ws)["write"]) })
			<-entered
		}
	}
	refused := func(ws string) {
		t.Helper()
		before := r.fake.count()
		for name, req := range of(ws) {
			if res := r.raw(req); res.Code != api.Unavailable {
				t.Errorf("%s of %s: got %d %s", name, ws, res.Status, res.Code)
			}
		}
		if n := r.fake.count() - before; n != 0 {
			t.Errorf("refused operations made %d calls", n)
		}
	}
	served := func(ws string) {
		t.Helper()
		for _, name := range []string{"read", "fs"} {
			if res := r.raw(of(ws)[name]); res.Status != http.StatusOK {
				t.Errorf("%s of %s: got %d %s", name, ws, res.Status, res.Code)
			}
		}
	}
	fill("ws0")
	refused("ws0")
	served("ws1")
	for i := 1; i*maxFileOpsPerWorkspace < maxFileOps; i++ {
		fill(fmt.Sprint("ws", i))
	}
	refused("another")
	close(leave)
	wg.Wait()
	served("ws0")
	eventually(t, "places are not given back", func() bool { return r.server.fileOps.inUse() == 0 })
}

// TestOutputIsHeldUntilItIsTaken: an answer that is not read keeps the room of its output, whatever
// has become of the outcome meanwhile, and gives it back at its end.
func TestOutputIsHeldUntilItIsTaken(t *testing.T) {
	r := newRig(t, tweak{})
	large := api.ExecResult{InvocationID: "i", Signal: "SIGKILL", Stdout: make([]byte, api.MaxOutputBytes)}
	r.fake.onExec = func(context.Context, api.ExecRequest) (api.ExecResult, error) { return large, nil }
	r.fake.onCancel = func(context.Context, string) (api.CancelResponse, error) {
		return api.CancelResponse{Result: &large}, nil
	}
	body := fmt.Sprintf(`{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":60000,"maxOutputBytes":%d}`, api.MaxOutputBytes)
	for name, req := range map[string]client.RawRequest{
		"exec":   {Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(body)},
		"cancel": {Op: api.OpCancel, Method: "DELETE", Target: execTarget + "/i", WorkspaceID: "ws", SandboxID: "sb"},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.send(req, len(req.Body), string(req.Body))
			res, err := http.ReadResponse(bufio.NewReader(c), nil) // the rest is more than a socket holds
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatal(res, err)
			}
			if n := r.server.outputs.inUse(); n != api.MaxOutputBytes {
				t.Errorf("%d bytes of output count while an answer waits for its caller", n)
			}
			if n, err := io.Copy(io.Discard, res.Body); err != nil || n != res.ContentLength {
				t.Errorf("%d bytes of %d came, %v", n, res.ContentLength, err)
			}
			eventually(t, "the room is not given back", func() bool { return r.server.outputs.inUse() == 0 })
		})
	}
	if len(large.Stdout) != api.MaxOutputBytes {
		t.Error("an answer emptied the outcome that is kept")
	}
}

// TestNoRoomForOutput: nothing is claimed by what is refused, and other workspaces go on.
func TestNoRoomForOutput(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.onStart = func(ctx context.Context, req api.ExecRequest) (Execution, error) {
		p := newPlay(ctx, req.InvocationID)
		p.finish(nil)
		return p, nil
	}
	r.fake.onCancel = func(context.Context, string) (api.CancelResponse, error) {
		return api.CancelResponse{Result: &api.ExecResult{InvocationID: "i", Signal: "SIGKILL", Stderr: []byte("e")}}, nil
	}
	give, err := r.server.outputs.take("ws", r.server.outputs.each)
	if err != nil {
		t.Fatal(err)
	}
	of := func(ws string) map[string]client.RawRequest {
		return map[string]client.RawRequest{
			"exec":   {Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: ws, SandboxID: "sb", Body: []byte(execBody)},
			"stream": {Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: ws, SandboxID: "sb", Body: []byte(execBody), Header: http.Header{"Accept": {api.TypeNDJSON}}},
			"cancel": {Op: api.OpCancel, Method: "DELETE", Target: execTarget + "/i", WorkspaceID: ws, SandboxID: "sb"},
		}
	}
	for name, req := range of("ws") {
		before := r.fake.count()
		if res := r.raw(req); res.Code != api.Unavailable {
			t.Errorf("%s: got %d %s", name, res.Status, res.Code)
		}
		if n := r.fake.count() - before; n != 0 && name != "cancel" { // whose outcome says how much it is
			t.Errorf("%s made %d calls", name, n)
		}
	}
	for name, req := range of("other") {
		if res := r.raw(req); res.Status != http.StatusOK {
			t.Errorf("%s of another workspace: got %d %s", name, res.Status, res.Code)
		}
	}
	give()
	for name, req := range of("ws") {
		if res := r.raw(req); res.Status != http.StatusOK {
			t.Errorf("%s afterwards: got %d %s", name, res.Status, res.Code)
		}
	}
}
