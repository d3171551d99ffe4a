// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// held is a rig whose execs last until they are let go.
func held(t *testing.T) (r *rig, entered <-chan string, letGo func()) {
	t.Helper()
	r = newRig(t, tweak{})
	in, out := make(chan string, 8), make(chan struct{})
	r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
		in <- req.InvocationID
		select {
		case <-out:
		case <-ctx.Done():
			t.Errorf("%s was cut off", req.InvocationID)
		}
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	return r, in, func() { close(out) }
}

// draining begins the end and waits until no listener is left.
func (r *rig) draining() {
	r.t.Helper()
	r.stop()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatal("not draining")
		}
		c, err := dialSocket(r.cfg.Socket)
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// TestDrain: what is in progress ends well; what is new is refused, on new connections and on those
// that stand; then all connections are closed, and nothing was cut off.
func TestDrain(t *testing.T) {
	r, entered, letGo := held(t)
	get := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	known := r.send(get, 0, "")
	if res := answer(t, known); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	idle := r.send(get, 0, "")
	if res := answer(t, idle); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	silent := r.dial()
	late := r.dial()
	frames := r.framed()
	frames.prove(r)
	inStream := frames.exec(r, 1)
	<-entered
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Exec(context.Background(), "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1000, MaxOutputBytes: 1})
		done <- err
	}()
	<-entered
	token, other, third := r.mint(get), r.mint(get), r.mint(get)
	r.draining()

	say(t, known, "GET "+get.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+token+"\r\n\r\n")
	refusal(t, known, api.Unavailable)
	say(t, late, "GET "+get.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+other+"\r\n\r\n")
	refusal(t, late, api.Unavailable)
	if code := frames.code(frames.open(frames.block("GET", get.Target, third), true)); code != api.Unavailable {
		t.Errorf("a new stream: got %q", code)
	}
	_, err := r.client.Get(t.Context(), "ws", "sb")
	codeIs(t, err, api.Unavailable)
	select {
	case err := <-r.finished:
		t.Fatalf("ended with requests in progress: %v", err)
	default:
	}

	letGo()
	if err := <-done; err != nil {
		t.Errorf("the request in progress: %v", err)
	}
	if status, _, reset := frames.reply(inStream); status != "200" || reset {
		t.Errorf("the stream in progress: %s, reset %v", status, reset)
	}
	if err := <-r.finished; err != nil {
		t.Error(err)
	}
	r.finished <- nil // shutdown closes the store
	for name, c := range map[string]io.Reader{"idle": idle, "silent": silent, "HTTP/2": frames.c} {
		if b, err := io.ReadAll(c); name != "HTTP/2" && len(b) != 0 {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if n := r.fake.count(); n != 5 { // two gets, one more to prove, two execs
		t.Errorf("%d calls", n)
	}
}

// TestDrainTellsHTTP2: a connection that has nothing in progress gets GOAWAY, not just its end.
func TestDrainTellsHTTP2(t *testing.T) {
	r := newRig(t, tweak{})
	f := r.framed()
	f.prove(r)
	r.draining()
	for {
		g, err := f.try()
		if err != nil {
			t.Fatalf("no GOAWAY: %v", err)
		}
		if away, ok := g.(*http2.GoAwayFrame); ok {
			if away.ErrCode != http2.ErrCodeNo {
				t.Error(away)
			}
			break
		}
	}
	if err := <-r.finished; err != nil {
		t.Error(err)
	}
	r.finished <- nil
}

// TestHostileDrain: connections that do nothing but stand do not hold the end up.
func TestHostileDrain(t *testing.T) {
	r := newRig(t, tweak{})
	for i, text := range []string{"", "GET", "GET /healthz HTTP/1.1\r\nHost: w\r\nX: ", http2.ClientPreface} {
		say(t, r.dial(), text)
		// Known, and in the middle of its next header.
		known := r.send(client.RawRequest{Op: api.OpGet, Method: "GET", Target: fmt.Sprint("/v1/sandboxes/sb", i), WorkspaceID: "ws", SandboxID: fmt.Sprint("sb", i)}, 0, "")
		if res := answer(t, known); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		say(t, known, "GET /v1/health HTTP/1.1\r\nX: ")
	}
	r.stop()
	if err := <-r.finished; err != nil { // within the drain of 10 s, or this is its time-out
		t.Error(err)
	}
	r.finished <- nil
}
