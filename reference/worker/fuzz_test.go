// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

// FuzzRoute: a target that is routed can be written again from what was read of it, byte for byte,
// so that no two spellings mean one thing.
func FuzzRoute(f *testing.F) {
	f.Fuzz(func(t *testing.T, method, target string) {
		c, err := route(&http.Request{Method: method, RequestURI: target})
		if err != nil {
			if codeOf(err) != api.RequestInvalid {
				t.Errorf("refused with %v", err)
			}
			return
		}
		if c.op.OnSandbox() != (c.sandbox != "") {
			t.Errorf("%s with sandbox %q", c.op, c.sandbox)
		}
		sb := "/v1/sandboxes/" + c.sandbox
		want := map[api.Op]string{
			api.OpHealth: "GET /v1/health", api.OpCreate: "POST /v1/sandboxes", api.OpPurge: "DELETE /v1/workspaces/" + c.workspace,
			api.OpGet: "GET " + sb, api.OpDispose: "DELETE " + sb, api.OpExec: "POST " + sb + "/exec", api.OpCancel: "DELETE " + sb + "/exec/" + c.invocation,
			api.OpFS: "POST " + sb + "/fs", api.OpRead: "GET " + sb + "/files?" + c.query, api.OpWrite: "PUT " + sb + "/files?" + c.query,
			api.OpEvents: "GET " + sb + "/events", api.OpRenew: "POST " + sb + "/renew",
		}[c.op]
		if method+" "+target != want {
			t.Errorf("%q is read as %q", method+" "+target, want)
		}
		for _, id := range []string{c.sandbox, c.workspace, c.invocation} {
			if id != "" && !api.ValidID(id) {
				t.Errorf("id %q", id)
			}
		}
	})
}

// FuzzWire: whatever bytes come, a worker that was given no capability answers with liveness, or with
// a code of the union, and calls nobody. Frames of HTTP/2 are only read, not judged.
func FuzzWire(f *testing.F) {
	l := &queue{conns: make(chan net.Conn)}
	s, err := New(Options{
		Health:   api.Health{ProtocolVersion: api.ProtocolVersion, WorkerID: "w", BootEpoch: "e", Mode: api.Production, CohortID: hexOf("c"), PinsDigest: hexOf("d"), Limits: DefaultLimits(ceilings)},
		Verifier: nobody{f}, Signer: &capability.Signer{}, Nonces: nobody{f}, Sessions: &fake{failing: func() error { panic("called") }},
		OpenFiles:   func(context.Context, string, string) (context.Context, Files, func(), error) { panic("called") },
		OpenChanges: func(context.Context, string, string) (context.Context, Changes, func(), error) { panic("called") },
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, time.Second, l) }()
	f.Cleanup(func() { cancel(); <-done })
	f.Fuzz(func(t *testing.T, data []byte) {
		c := l.connect(t)
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = c.Write(data) // the worker may have enough of it earlier
			_ = c.CloseWrite()
		}()
		out, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection stands")
		}
		if bytes.HasPrefix(data, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) || bytes.Contains(data, []byte("HEAD ")) {
			return // frames; or an answer whose length belongs to a body that is not sent
		}
		for r := bufio.NewReader(bytes.NewReader(out)); ; {
			if _, err := r.Peek(1); err != nil {
				return
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("answered %q: %v", out, err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatalf("answered %q: %v", out, err)
			}
			switch {
			case res.StatusCode == http.StatusNoContent && len(body) == 0, res.StatusCode == http.StatusContinue:
			case api.DecodeError(res.StatusCode, body).Code == api.ResponseInvalid:
				t.Fatalf("answered %q", out)
			}
		}
	})
}

// nobody grants nothing.
type nobody struct{ f *testing.F }

func (nobody) Verify(string, capability.Want) (capability.Claims, error) {
	return capability.Claims{}, api.E(api.Unauthenticated, errors.New("nobody"))
}

func (n nobody) ConsumeNonce(context.Context, string, string, int64) error {
	panic("a nonce was consumed")
}

// queue is a listener that a test connects to by hand.
type queue struct{ conns chan net.Conn }

func (q *queue) Accept() (net.Conn, error) {
	c, ok := <-q.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (q *queue) Close() error   { close(q.conns); return nil }
func (q *queue) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "queue"} }

func (q *queue) connect(t *testing.T) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(file)
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		ends[i] = c
	}
	q.conns <- ends[0]
	return ends[1].(*net.UnixConn)
}
