// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
	"github.com/hallmark-sandbox/hallmark/reference/state"
)

func TestWhoGoes(t *testing.T) {
	now := time.Now()
	// ago is also how long a stranger has kept the worker waiting.
	at := func(name string, ago time.Duration, known bool, busy int) *conn {
		return &conn{refused: func(string) []byte { return []byte(name) }, since: now.Add(-ago), known: known, busy: busy, in: stopwatch{sum: ago}}
	}
	unread := func(c *conn) *conn { c.in.sum = 0; return c }
	const grace = time.Second
	for name, tt := range map[string]struct {
		open []*conn
		want string
		wait time.Duration
	}{
		"the stranger that came first":     {[]*conn{at("a", 2*grace, false, 0), at("b", 4*grace, false, 0), at("c", 3*grace, false, 0)}, "b", 0},
		"not who waits for the worker":     {[]*conn{at("a", 2*grace, false, 0), unread(at("b", 4*grace, false, 0))}, "a", 0},
		"who waits shields the known":      {[]*conn{at("a", 4*grace, true, 0), unread(at("b", 4*grace, false, 0))}, "", grace},
		"a stranger before who is known":   {[]*conn{at("a", 2*grace, false, 0), at("b", 4*grace, true, 0)}, "a", 0},
		"the longest idle":                 {[]*conn{at("a", 2*grace, true, 0), at("b", 4*grace, true, 0)}, "b", 0},
		"never a busy one":                 {[]*conn{at("a", 2*grace, true, 0), at("b", 4*grace, true, 1)}, "a", 0},
		"nobody within grace":              {[]*conn{at("a", grace/4, false, 0), at("b", grace/2, false, 0)}, "", grace / 2},
		"a new stranger shields the known": {[]*conn{at("a", grace/4, false, 0), at("b", 4*grace, true, 0)}, "", 3 * grace / 4},
		"all busy":                         {[]*conn{at("a", 2*grace, true, 1)}, "", time.Hour},
	} {
		p := newConnections(len(tt.open))
		p.grace = grace
		for _, c := range tt.open {
			p.open[c] = struct{}{}
		}
		out, wait := p.choose(now)
		got := ""
		if out != nil {
			got = string(out.refused(""))
		}
		if got != tt.want || wait != tt.wait {
			t.Errorf("%s: %q goes, wait %v; want %q, %v", name, got, wait, tt.want, tt.wait)
		}
	}
}

// TestPutOutMeansNoEffect: who has been put out sees no answer, so its request must do nothing.
func TestPutOutMeansNoEffect(t *testing.T) {
	p := newConnections(1)
	here, there := net.Pipe()
	defer there.Close()
	c := &conn{Conn: here, raw: here, pool: p}
	if !p.admit(c, nil) {
		t.Fatal("not admitted")
	}
	ctx := context.WithValue(t.Context(), connKey{}, c)
	leave, err := claim(ctx, "ws", api.OpExec)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	p.mu.Lock()
	p.remove(c)
	p.mu.Unlock()
	if _, err := claim(ctx, "ws", api.OpExec); !errors.Is(err, errPeerLeft) {
		t.Errorf("claimed after that: %v", err)
	}
}

// served says whether c is answered within the time.
func served(t *testing.T, c net.Conn, within time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 12)
	_, err := io.ReadFull(c, b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil && string(b[:8]) == "HTTP/1.1"
}

// ended waits until the worker has closed c.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stands")
	}
}

const healthz = "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n"

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// TestFullHouseOfCallers: requests in progress are not cut for a newcomer, who waits.
func TestFullHouseOfCallers(t *testing.T) {
	r := newRig(t, tweak{connections: 2})
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
		entered <- struct{}{}
		select {
		case <-leave:
		case <-ctx.Done():
			t.Error("a request in progress was put out")
		}
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	done := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := r.client.Exec(context.Background(), fmt.Sprint("ws", i), "sb", api.ExecRequest{InvocationID: fmt.Sprint("i", i), Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1})
			done <- err
		}()
	}
	for range 2 {
		select {
		case <-entered:
		case err := <-done:
			t.Fatalf("a command ended before it began: %v", err)
		}
	}
	third := r.dial()
	say(t, third, healthz)
	if served(t, third, 3*connectionGrace) {
		t.Fatal("a third connection is served")
	}
	leave <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !served(t, third, 10*time.Second) {
		t.Error("after one left, the third is not served")
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFullHouseOfStrangers: connections that prove nothing keep nobody out.
func TestFullHouseOfStrangers(t *testing.T) {
	for name, text := range map[string]string{
		"silent":        "",
		"half a header": "GET /v1/health HTTP/1.1\r\nHost: w\r\nX:",
		"healthz":       healthz,
		"HTTP/2":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{connections: 3})
			// Known, idle, and kept while there are strangers.
			known := r.send(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}, 0, "")
			if res := answer(t, known); res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			first, second := r.dial(), r.dial()
			say(t, first, text)
			say(t, second, text)
			for range 3 {
				if _, err := r.client.Get(t.Context(), "ws", "sb"); err != nil {
					t.Fatalf("a caller is kept out: %v", err)
				}
			}
			ended(t, first)
			say(t, known, healthz)
			if res := answer(t, known); res.StatusCode != 204 {
				t.Error(res.Status)
			}
		})
	}
}

// TestStrangersEnd: without a valid capability a connection lasts no longer than headers may take,
// whatever it says meanwhile.
func TestStrangersEnd(t *testing.T) {
	r := newRig(t, tweak{strange: 500 * time.Millisecond})
	trickle := r.dial()
	go func() {
		_, err := io.WriteString(trickle, "GET /v1/health HTTP/1.1\r\nX: ")
		for err == nil {
			time.Sleep(50 * time.Millisecond)
			_, err = io.WriteString(trickle, "a")
		}
	}()
	ended(t, trickle)
	polite := r.dial()
	go func() {
		_, err := io.WriteString(polite, healthz)
		for err == nil {
			time.Sleep(50 * time.Millisecond)
			_, err = io.WriteString(polite, healthz)
		}
	}()
	ended(t, polite)
	known := r.send(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}, 0, "")
	if res := answer(t, known); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	time.Sleep(600 * time.Millisecond) // past the time of a stranger
	say(t, known, healthz)
	if res := answer(t, known); res.StatusCode != 204 {
		t.Error(res.Status)
	}
}

// TestSlowHeadersOfACaller: having been served once gives no more time for the next headers.
func TestSlowHeadersOfACaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, tweak{})
	known := r.send(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}, 0, "")
	if res := answer(t, known); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	say(t, known, "GET /v1/health HTTP/1.1\r\nHost: w\r\nX: ")
	ended(t, known)
}

// TestUsedCapabilityProvesNothing: what was good once, or could not be used up, leaves its connection a
// stranger's, which gets one answer.
func TestUsedCapabilityProvesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		consume error
		code    api.Code
	}{
		"used":      {state.ErrReplay, api.CapabilityReplay},
		"ended":     {state.ErrExpired, api.CapabilityExpired},
		"no room":   {state.ErrExhausted, api.NonceStoreExhausted},
		"not known": {errors.New("disk"), api.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{forgetful: true})
			req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
			token := r.mint(req)
			r.nonces.set(func() error { return tt.consume })
			c := r.dial()
			say(t, c, "GET "+req.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+token+"\r\n\r\n")
			refusal(t, c, tt.code)
			if n := r.fake.count(); n != 0 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// TestStrangersTimeEndsDuringTheCommit: the capability may be used up by then, so its caller is served;
// when it was not, the connection ends with its request, whose caller is told.
func TestStrangersTimeEndsDuringTheCommit(t *testing.T) {
	for name, consume := range map[string]error{"good": nil, "used": state.ErrReplay} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tweak{forgetful: true})
			req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
			token := r.mint(req)
			r.nonces.set(func() error {
				r.server.connections.expireAll()
				return consume
			})
			c := r.dial()
			say(t, c, "GET "+req.Target+" HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer "+token+"\r\n\r\n")
			if consume != nil {
				refusal(t, c, api.CapabilityReplay)
				return
			}
			if res := answer(t, c); res.StatusCode != http.StatusOK {
				t.Error(res.Status)
			}
			say(t, c, healthz)
			if res := answer(t, c); res.StatusCode != http.StatusNoContent {
				t.Errorf("the next request: %s", res.Status)
			}
		})
	}
}

// TestWorkspaceHasHalfOfThePlaces: beyond that its requests are refused with their capabilities unused,
// and others are served. Streams of one connection count once.
func TestWorkspaceHasHalfOfThePlaces(t *testing.T) {
	r := newRig(t, tweak{connections: 4})
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
		entered <- struct{}{}
		<-leave
		zero := 0
		return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
	}
	f := r.framed()
	f.exec(r, 0)
	f.exec(r, 1)
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Exec(context.Background(), "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1})
		done <- err
	}()
	for range 3 {
		<-entered
	}
	of := func(ws string) client.RawRequest {
		return client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: ws, SandboxID: "sb"}
	}
	again := of("ws")
	again.Op, again.Method, again.Target, again.Body = api.OpFS, "POST", "/v1/sandboxes/sb/fs", []byte(`{"op":"stat","path":"a"}`)
	again.Token = r.mint(again)
	if res := r.raw(again); res.Code != api.Unavailable {
		t.Errorf("a third connection: got %d %s", res.Status, res.Code)
	}
	if res := r.raw(of("other")); res.Status != http.StatusOK {
		t.Errorf("another workspace: got %d %s", res.Status, res.Code)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	p := r.server.connections
	eventually(t, "connections stay counted", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.busy.by) == 0 && p.busy.last == 0
	})
	if res := r.raw(again); res.Status != http.StatusOK {
		t.Errorf("the same capability afterwards: got %d %s", res.Status, res.Code)
	}
}

// TestStrangerWithManyAnswers: a stranger that has capabilities which were used before, asks with all of them at once and
// takes no answer, gets no more time for it than for one.
func TestStrangerWithManyAnswers(t *testing.T) {
	r := newRig(t, tweak{forgetful: true, strange: 500 * time.Millisecond})
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token := r.mint(req)
	r.nonces.set(func() error { return state.ErrReplay })
	f := r.framed()
	f.must(0, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	began := time.Now()
	var err error
	for err == nil && time.Since(began) < 10*time.Second {
		f.next += 2
		err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.next - 2, BlockFragment: f.block("GET", req.Target, token), EndHeaders: true, EndStream: true})
		time.Sleep(20 * time.Millisecond) // again and again, for as long as it may
	}
	if took := time.Since(began); err == nil || took > 500*time.Millisecond+lingerTimeout+5*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	if n := r.fake.count(); n != 0 {
		t.Errorf("%d calls", n)
	}
}
