// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

func TestWholeSession(t *testing.T) {
	r := newRig(t, tweak{})
	ctx, c := t.Context(), r.client
	h, err := c.Health(ctx)
	if err != nil || h.BootEpoch != r.store.Epoch() || !slices.Equal(h.Features, Features()) || h.Limits != r.health.Limits {
		t.Fatalf("health %+v, %v", h, err)
	}
	lease, err := c.Create(ctx, r.createRequest("ws"))
	if err != nil {
		t.Fatal(err)
	}
	sb := lease.SandboxID
	if again, err := c.Create(ctx, r.createRequest("ws")); err != nil || again != lease {
		t.Errorf("repeated create: %+v, %v", again, err)
	}
	if st, err := c.Get(ctx, "ws", sb); err != nil || st.State != "ready" || st.SandboxID != sb {
		t.Errorf("get: %+v, %v", st, err)
	}
	bytesIn := []byte{0, 0xff, '\n', 'x'}
	out, err := c.Exec(ctx, "ws", sb, api.ExecRequest{InvocationID: "i1", Argv: []string{"cat"}, Stdin: bytesIn, TimeoutMs: 1000, MaxOutputBytes: 100})
	if err != nil || !bytes.Equal(out.Stdout, bytesIn) || *out.ExitCode != 0 {
		t.Errorf("exec: %+v, %v", out, err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 300_000) // above the bound of a JSON body
	for _, path := range []string{"a b/ü?&=#", "odd\xff"} {
		if _, err := c.Write(ctx, "ws", sb, path, big, client.WriteOptions{Replace: true, Executable: true}); err != nil {
			t.Errorf("write %q: %v", path, err)
		}
		if got, err := c.Read(ctx, "ws", sb, path); err != nil || !bytes.Equal(got, big) {
			t.Errorf("read %q: %d bytes, %v", path, len(got), err)
		}
	}
	if _, err := c.Read(ctx, "ws", sb, "absent"); err == nil {
		t.Error("an absent file was read")
	} else {
		codeIs(t, err, api.PathNotFound)
	}
	for _, op := range []api.FSRequest{
		{Op: "stat", Path: "a"}, {Op: "list"}, {Op: "mkdir", Path: "d"}, {Op: "remove", Path: "d"},
		{Op: "rename", Path: "a", ToBytes: []byte{0xfe}}, {Op: "readlink", Path: "l"},
	} {
		res, err := c.FS(ctx, "ws", sb, op)
		if err != nil {
			t.Errorf("%s: %v", op.Op, err)
		}
		switch op.Op {
		case "list":
			if len(res.Entries) != 1 || !bytes.Equal(res.Entries[0].NameBytes, []byte{0xff}) || res.Cursor != "next" {
				t.Errorf("list: %+v", res)
			}
		case "readlink":
			if string(res.TargetBytes) != "to\xff" {
				t.Errorf("readlink: %+v", res)
			}
		}
	}
	if err := c.Dispose(ctx, "ws", sb); err != nil {
		t.Error(err)
	}
	if err := c.Purge(ctx, "ws"); err != nil {
		t.Error(err)
	}
	want := []string{"create", "create", "get", "exec", "open", "write", "open", "read", "open", "write", "open", "read", "open", "read",
		"open", "stat", "open", "list", "open", "mkdir", "open", "remove", "open", "rename", "open", "readlink", "dispose", "purge"}
	if !slices.Equal(r.fake.calls, want) {
		t.Errorf("calls %v", r.fake.calls)
	}
}

func TestHealthzRevealsNothing(t *testing.T) {
	r := newRig(t, tweak{})
	res, err := r.client.Raw(t.Context(), client.RawRequest{Method: "GET", Target: "/healthz", NoToken: true})
	if err != nil || res.Status != http.StatusNoContent || len(res.Body) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// raw sends one request; the test fails when no whole answer came, or one without a code.
func (r *rig) raw(req client.RawRequest) client.RawResponse {
	r.t.Helper()
	res, err := r.client.Raw(r.t.Context(), req)
	if err != nil {
		r.t.Errorf("no whole answer: %v", err)
	}
	if res.Status >= 400 && !res.Code.Known() {
		r.t.Errorf("status %d without a code of the union: %q", res.Status, res.Body)
	}
	return res
}

func (r *rig) createRaw(ws, body string) client.RawRequest {
	return client.RawRequest{Op: api.OpCreate, Method: "POST", Target: "/v1/sandboxes", WorkspaceID: ws, Body: []byte(body)}
}

func TestPanicAndUnknownFailures(t *testing.T) {
	r := newRig(t, tweak{})
	exec := func() (api.Code, string) {
		body, err := strictjson.Marshal(api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1, MaxOutputBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		res := r.raw(client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: body})
		return res.Code, string(res.Body)
	}
	const secret = "open /var/lib/secret-canary"
	for name, tt := range map[string]struct {
		do   func() error
		code api.Code
	}{
		"panic":               {func() error { panic(secret) }, api.Unavailable},
		"nil map":             {func() error { var m map[string]int; m[secret] = 1; return nil }, api.Unavailable},
		"plain error":         {func() error { return errors.New(secret) }, api.Unavailable},
		"foreign code":        {func() error { return api.E("REMOTE_WORKER_MADE_UP", errors.New(secret)) }, api.Unavailable},
		"code with a cause":   {func() error { return api.E(api.SandboxOOM, errors.New(secret)) }, api.SandboxOOM},
		"wrapped code":        {func() error { return fmt.Errorf("%s: %w", secret, api.E(api.EngineFailed, nil)) }, api.EngineFailed},
		"deadline":            {func() error { return fmt.Errorf("%s: %w", secret, context.DeadlineExceeded) }, api.Timeout},
		"cancelled elsewhere": {func() error { return fmt.Errorf("%s: %w", secret, context.Canceled) }, api.ExecAborted},
	} {
		t.Run(name, func(t *testing.T) {
			r.fake.onExec = func(context.Context, api.ExecRequest) (api.ExecResult, error) { return api.ExecResult{}, tt.do() }
			code, body := exec()
			if code != tt.code {
				t.Errorf("got %s, want %s", code, tt.code)
			}
			if strings.Contains(body, "canary") || strings.Contains(body, ".go:") {
				t.Errorf("the cause is on the wire: %s", body)
			}
			id := body[strings.Index(body, `"requestId":"`)+13:][:24]
			if log := r.log.String(); !strings.Contains(log, id) {
				t.Errorf("the log does not know request %s", id)
			}
		})
	}
	if !strings.Contains(r.log.String(), "secret-canary") {
		t.Error("the log does not hold the cause")
	}
	r.fake.onExec = nil
	if code, _ := exec(); code != "" {
		t.Errorf("after all that: %s", code)
	}
}

func TestReadThatFailsHalfWay(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.onRead = func(context.Context, []byte) (io.ReadCloser, int64, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("a", 1<<20)), errorReader{})), 2 << 20, nil
	}
	_, err := r.client.Read(t.Context(), "ws", "sb", "f")
	codeIs(t, err, api.StreamClosed)
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("disk") }

func TestFiftyParallelCreates(t *testing.T) {
	r := newRig(t, tweak{})
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			lease, err := r.client.Create(context.Background(), r.createRequest("ws"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			seen[lease.SandboxID]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(seen) != 1 || r.fake.count() != 50 {
		t.Errorf("sandboxes %v from %d calls", seen, r.fake.count())
	}
	other := r.createRequest("ws")
	other.Resources.PIDs++
	_, err := r.client.Create(t.Context(), other)
	codeIs(t, err, api.IdempotencyConflict)
}
