// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// TestDisconnectEndsExec: the context that the session gets ends with the connection.
func TestDisconnectEndsExec(t *testing.T) {
	r := newRig(t, tweak{})
	entered, left := make(chan struct{}), make(chan error, 1)
	r.fake.onExec = func(ctx context.Context, _ api.ExecRequest) (api.ExecResult, error) {
		close(entered)
		<-ctx.Done()
		left <- context.Cause(ctx)
		return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Exec(ctx, "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1})
		done <- err
	}()
	<-entered
	cancel()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the invocation outlived its connection")
	}
	codeIs(t, <-done, api.OutcomeUnknown)
}

// TestDisconnectBehindAByteEndsExec: a byte behind the request hides the end from net/http.
func TestDisconnectBehindAByteEndsExec(t *testing.T) {
	r := newRig(t, tweak{})
	entered, left := make(chan struct{}), make(chan struct{})
	r.fake.onExec = func(ctx context.Context, _ api.ExecRequest) (api.ExecResult, error) {
		close(entered)
		select {
		case <-ctx.Done():
			close(left)
		case <-time.After(10 * time.Second):
		}
		return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
	}
	body := `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":60000,"maxOutputBytes":1}`
	c := r.send(client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(body)}, len(body), body)
	select {
	case <-entered:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was run")
	}
	if _, err := io.WriteString(c, "G"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
		t.Fatal("a byte behind the request ended the invocation")
	case <-time.After(3 * peerInterval):
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
	case <-time.After(5 * time.Second):
		t.Error("the invocation outlived its connection")
	}
}

// TestStalledBody: the deadline holds for a body and for nothing that comes after it.
func TestStalledBody(t *testing.T) {
	const stall = 300 * time.Millisecond
	r := newRig(t, tweak{stall: stall})
	t.Run("a long invocation is not cut off", func(t *testing.T) {
		r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
			zero := 0
			select {
			case <-ctx.Done():
				return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
			case <-time.After(4 * stall): // longer than the deadline of a body
				return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
			}
		}
		req := api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1}
		if _, err := r.client.Exec(t.Context(), "ws", "sb", req); err != nil {
			t.Error(err)
		}
	})
	for name, req := range map[string]client.RawRequest{
		"JSON":          {Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("{}")},
		"file transfer": {Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("{}")},
	} {
		t.Run(name, func(t *testing.T) {
			token, err := r.client.Mint(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("unix", r.cfg.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{", req.Method, req.Target, token); err != nil {
				t.Fatal(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			if e := api.DecodeError(res.StatusCode, b); err != nil || e.Code != api.RequestInvalid {
				t.Errorf("got %d %s, %v", res.StatusCode, b, err)
			}
		})
	}
	if len(r.fake.files) != 0 {
		t.Errorf("stored %q", r.fake.files)
	}
}

func TestListen(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "s")
	l, err := Listen(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := Listen(ctx, path); err == nil {
		t.Error("a live socket was taken over")
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = Listen(ctx, path)
	if err != nil {
		t.Fatalf("a stale socket was not replaced: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(ctx, path); err == nil {
		t.Error("a regular file was replaced")
	}
}
