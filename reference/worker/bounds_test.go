// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// TestBodiesInProgressAreBounded: what is announced counts, not what has come; beyond the bound a
// request is refused at once, first of the workspace that has its share, and the others go on.
func TestBodiesInProgressAreBounded(t *testing.T) {
	r := newRig(t, tweak{})
	bodyOf := func(ws string, b []byte) client.RawRequest {
		return client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: ws, SandboxID: "sb", Body: b}
	}
	var slow []net.Conn
	begin := func(ws string) {
		t.Helper()
		largest := bodyOf(ws, make([]byte, api.MaxRequestBytes))
		for range maxBodyBytesPerWorkspace / api.MaxRequestBytes {
			slow = append(slow, r.send(largest, len(largest.Body), "{"))
		}
		want := int64(len(slow)) * api.MaxRequestBytes
		eventually(t, "the bodies in progress are not counted", func() bool { return r.server.bodies.inUse() == want })
	}
	begin("ws0")
	if res := r.raw(bodyOf("ws0", []byte("{}"))); res.Code != api.Unavailable {
		t.Errorf("one more of the same workspace: got %d %s", res.Status, res.Code)
	}
	if res := r.raw(bodyOf("ws1", []byte("{}"))); res.Code != api.RequestInvalid {
		t.Errorf("one of another: got %d %s", res.Status, res.Code)
	}
	for _, ws := range []string{"ws1", "ws2", "ws3"} {
		begin(ws)
	}
	if res := r.raw(bodyOf("ws4", []byte("{}"))); res.Code != api.Unavailable {
		t.Errorf("one more: got %d %s", res.Status, res.Code)
	}
	if _, err := r.client.Get(t.Context(), "ws0", "sb"); err != nil {
		t.Errorf("a request without a body: %v", err)
	}
	// Of unknown length, as it could have one.
	get := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws0", SandboxID: "sb"}
	c := r.dial()
	say(t, c, "GET "+get.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+r.mint(get)+"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	if res := answer(t, c); res.StatusCode != http.StatusOK {
		t.Errorf("an operation without a body, in chunks: %s", res.Status)
	}
	for _, c := range slow {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "what ended bodies held is not given back", func() bool { return r.server.bodies.inUse() == 0 })
	if res := r.raw(bodyOf("ws0", []byte("{}"))); res.Code != api.RequestInvalid {
		t.Errorf("afterwards: got %d %s", res.Status, res.Code)
	}
}

// TestBodyOfUnknownLength counts as it comes, with no byte that was not counted before; without room
// it is refused, and gives back what it had.
func TestBodyOfUnknownLength(t *testing.T) {
	s := newShares("bytes", 3*api.MaxRequestBytes, 3*api.MaxRequestBytes)
	c := counted{shares: s, workspace: "ws", give: func() {}}
	if err := c.grow(-1); err != nil || s.inUse() != 0 {
		t.Fatalf("before the first byte %d are counted, %v", s.inUse(), err)
	}
	piece := make([]byte, 4<<10)
	for len(c.bytes) < api.MaxRequestBytes {
		if _, err := c.Write(piece); err != nil {
			t.Fatal(err)
		}
		if n := s.inUse(); n != int64(cap(c.bytes)) || n > max(2*int64(len(c.bytes)), firstGrowth) || n > api.MaxRequestBytes {
			t.Fatalf("%d bytes of %d are counted as %d", len(c.bytes), cap(c.bytes), n)
		}
	}
	full, err := s.take("ws", 2*api.MaxRequestBytes)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Write(piece)
	codeIs(t, err, api.Unavailable)
	c.give()
	full()
	if n := s.inUse(); n != 0 {
		t.Errorf("%d bytes are not given back", n)
	}
}

// TestBodyIsHeldWhileItIsRead: a long command does not keep the room of its request.
func TestBodyIsHeldWhileItIsRead(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
		if n := r.server.bodies.inUse(); n != 0 {
			t.Errorf("%d bytes of requests are held by a command", n)
		}
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	if res := r.raw(client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)}); res.Status != http.StatusOK {
		t.Errorf("got %d %s", res.Status, res.Code)
	}
}

// TestAnswerThatIsNotRead: the connection of a caller that does not take its answer ends, and only
// that one.
func TestAnswerThatIsNotRead(t *testing.T) {
	r := newRig(t, tweak{patience: 300 * time.Millisecond})
	r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero, Stdout: make([]byte, api.MaxOutputBytes)}, nil
	}
	req := client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)}
	c := r.send(req, len(execBody), execBody)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(r.log.String(), "write answer"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the answer is still being written")
		}
	}
	n, err := io.Copy(io.Discard, c)
	if n >= api.MaxOutputBytes || err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("%d bytes came, %v", n, err)
	}
	if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil {
		t.Error(err)
	}
}

// TestUnsignedFlood: what carries no valid capability reaches no nonce store and no session, and
// leaves nothing in memory.
func TestUnsignedFlood(t *testing.T) {
	r := newRig(t, tweak{forgetful: true, logged: "nothing"})
	if _, err := r.client.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	var consumed atomic.Int64
	r.nonces.set(func() error { consumed.Add(1); return nil })
	good := r.mint(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	flood := func(n int) {
		for i := range n {
			token := [...]string{"", "a.b.c", good[:len(good)-6] + fmt.Sprintf("%06d", i), good}[i%4]
			target := "/v1/sandboxes/sb"
			if i%4 == 3 {
				target = fmt.Sprintf("/v1/sandboxes/sb%d", i) // signed, for another request
			}
			c := r.dial()
			say(t, c, "GET "+target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+token+"\r\n\r\n")
			refusal(t, c, api.Unauthenticated)
			_ = c.Close()
		}
	}
	flood(100)
	before := heap()
	flood(2000)
	if after := heap(); after > before+8<<20 {
		t.Errorf("the heap grew by %d KiB", (after-before)>>10)
	}
	if n := consumed.Load(); n != 0 || r.fake.count() != 0 {
		t.Errorf("%d nonces, %d calls", n, r.fake.count())
	}
	if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil || consumed.Load() != 1 {
		t.Errorf("a signed request: %v, %d nonces", err, consumed.Load())
	}
}

// betweenNonces runs hooks around the store.
type betweenNonces struct {
	Nonces
	before, after func()
}

func (n *betweenNonces) ConsumeNonce(ctx context.Context, jti, ws string, exp int64) error {
	n.before()
	err := n.Nonces.ConsumeNonce(ctx, jti, ws, exp)
	n.after()
	return err
}

// TestCallerLeavesDuringTheCommit: whenever the caller leaves, its capability is good for one effect
// in all, and none at all once the store has said so.
func TestCallerLeavesDuringTheCommit(t *testing.T) {
	for name, before := range map[string]bool{"before the commit": true, "after the commit": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{})
			if _, err := r.client.Health(t.Context()); err != nil {
				t.Fatal(err)
			}
			here, gone := make(chan struct{}), make(chan struct{})
			hook := sync.OnceFunc(func() { here <- struct{}{}; <-gone })
			n := &betweenNonces{Nonces: r.server.o.Nonces, before: func() {}, after: func() {}}
			if before {
				n.before = hook
			} else {
				n.after = hook
			}
			r.server.o.Nonces = n
			req := client.RawRequest{Op: api.OpDispose, Method: "DELETE", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
			req.Token = r.mint(req)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := r.client.Raw(ctx, req); done <- err }()
			<-here
			cancel()
			if err := <-done; err == nil {
				t.Fatal("answered")
			}
			gone <- struct{}{}
			// The same capability again: used up, or, when the commit was given up, good once.
			res := r.raw(req)
			switch {
			case res.Code == api.CapabilityReplay:
			case before && res.Status == http.StatusNoContent:
			default:
				t.Errorf("again: %d %s", res.Status, res.Code)
			}
			if res := r.raw(req); res.Code != api.CapabilityReplay {
				t.Errorf("a third time: %d %s", res.Status, res.Code)
			}
			if n := r.fake.count(); n > 1 {
				t.Errorf("%d effects of one capability", n)
			}
		})
	}
}
