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
// request is refused at once and the others go on.
func TestBodiesInProgressAreBounded(t *testing.T) {
	r := newRig(t, tweak{})
	body := make([]byte, api.MaxRequestBytes)
	req := client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: body}
	var slow []net.Conn
	for range maxHeldBytes / api.MaxRequestBytes {
		slow = append(slow, r.send(req, len(body), "{"))
	}
	// All of them are in when nothing is left to give.
	for deadline := time.Now().Add(20 * time.Second); r.server.held.TryAcquire(1); time.Sleep(time.Millisecond) {
		r.server.held.Release(1)
		if time.Now().After(deadline) {
			t.Fatal("the bodies in progress are not counted")
		}
	}
	one := client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte("{}")}
	if res := r.raw(one); res.Code != api.Unavailable {
		t.Errorf("one more: got %d %s", res.Status, res.Code)
	}
	if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil {
		t.Errorf("a request without a body: %v", err)
	}
	for _, c := range slow {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); !r.server.held.TryAcquire(maxHeldBytes); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what ended bodies held is not given back")
		}
	}
	r.server.held.Release(maxHeldBytes)
	if res := r.raw(one); res.Code != api.RequestInvalid {
		t.Errorf("afterwards: got %d %s", res.Status, res.Code)
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
