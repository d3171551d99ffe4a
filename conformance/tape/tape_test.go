// SPDX-License-Identifier: Apache-2.0

package tape_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/tape"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// engine is a unix-socket server that behaves like the four kinds of engine endpoint: plain,
// upgraded, streaming, and one that takes large bodies.
type engine struct {
	socket  string
	reached atomic.Int64
	dropped chan struct{} // closed when a silent upgraded connection was dropped
	release chan struct{}
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{socket: filepath.Join(t.TempDir(), "engine.sock"), dropped: make(chan struct{}), release: make(chan struct{})}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1.41/containers/create", func(w http.ResponseWriter, r *http.Request) {
		e.reached.Add(1)
		n, _ := io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"Id":"c%d"}`, n)
	})
	mux.HandleFunc("GET /v1.41/events", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		http.NewResponseController(w).Flush()
		select {
		case <-e.release:
		case <-r.Context().Done():
		}
		fmt.Fprintln(w, "second")
	})
	mux.HandleFunc("POST /v1.41/exec/x/start", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		all, _ := io.ReadAll(rw) // until the client half-closes
		fmt.Fprintf(c, "got %d bytes: %s", len(all), bytes.ToUpper(all))
	})
	mux.HandleFunc("POST /v1.41/exec/silent/start", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		raw, err := c.(*net.UnixConn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		for { // say nothing and keep it, whatever the client has said, until it is closed on the other side
			set := []unix.PollFd{{}}
			raw.Control(func(fd uintptr) {
				set[0].Fd = int32(fd)
				unix.Poll(set, 20)
			})
			if set[0].Revents&unix.POLLHUP != 0 {
				close(e.dropped)
				return
			}
		}
	})
	mux.HandleFunc("POST /v1.41/mute", func(w http.ResponseWriter, r *http.Request) {
		e.reached.Add(1)
		panic(http.ErrAbortHandler)
	})
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return e
}

func newProxy(t *testing.T, e *engine) (*tape.Proxy, string, *http.Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "tape.sock")
	p, err := tape.Listen(socket, e.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return p, socket, &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func TestRecordsCallsInOrderWithBodyAndStatus(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	big := bytes.Repeat([]byte("a"), tape.MaxBody+1000)
	resp, err := c.Post("http://d/v1.41/containers/create?name=n", "application/json", bytes.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := fmt.Sprintf(`{"Id":"c%d"}`, len(big)); string(answer) != want {
		t.Errorf("answer %q, want %q: the engine did not see the whole body", answer, want)
	}
	resp, err = c.Get("http://d/v1.41/nothing")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	calls, next, err := p.Since(0)
	if err != nil || next != 2 || len(calls) != 2 {
		t.Fatalf("%d calls, next %d, err %v; want 2", len(calls), next, err)
	}
	if got := calls[0]; got.Method != "POST" || got.Path != "/v1.41/containers/create" || got.Query != "name=n" || got.Status != 201 || !bytes.Equal(got.Body, big[:tape.MaxBody]) {
		t.Errorf("first call %s %s?%s %d with %d body bytes", got.Method, got.Path, got.Query, got.Status, len(got.Body))
	}
	if calls[1].Status != 404 {
		t.Errorf("second call has status %d, want 404", calls[1].Status)
	}
	if _, _, err := p.Since(3); err == nil {
		t.Error("a mark past the end was accepted")
	}
}

func TestStreamsArriveAsTheyHappen(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	resp, err := c.Get("http://d/v1.41/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if line, err := r.ReadString('\n'); line != "first\n" {
		t.Fatalf("first line %q, %v", line, err) // would hang until the client's deadline without a flush
	}
	if calls, _, _ := p.Since(0); calls[0].Status != 200 {
		t.Errorf("status %d while the stream is open, want 200", calls[0].Status)
	}
	close(e.release)
	if line, _ := r.ReadString('\n'); line != "second\n" {
		t.Errorf("second line %q", line)
	}
}

func TestUpgradeHalfClose(t *testing.T) {
	e := newEngine(t)
	p, socket, _ := newProxy(t, e)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	// The payload rides in the same write as the request: nothing buffered may be lost.
	io.WriteString(conn, "POST /v1.41/exec/x/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}early ")
	r := bufio.NewReader(conn)
	head, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(head, "HTTP/1.1 101 ") {
		t.Fatalf("head %q, %v", head, err)
	}
	for line := head; line != "\r\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	io.WriteString(conn, "late")
	conn.(*net.UnixConn).CloseWrite()
	all, err := io.ReadAll(r)
	if err != nil || string(all) != "got 10 bytes: EARLY LATE" {
		t.Errorf("answer %q, %v", all, err)
	}
	calls, _, _ := p.Since(0)
	if calls[0].Status != 101 || string(calls[0].Body) != "{}" {
		t.Errorf("recorded status %d body %q, want 101 and {}", calls[0].Status, calls[0].Body)
	}
}

// An engine may keep the upgraded connection of a process that was killed. The tape does not keep it too.
func TestUpgradedConnectionOfADeadClientIsDropped(t *testing.T) {
	e := newEngine(t)
	_, socket, _ := newProxy(t, e)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "POST /v1.41/exec/silent/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}")
	if head, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(head, "HTTP/1.1 101 ") {
		t.Fatalf("head %q, %v", head, err)
	}
	conn.(*net.UnixConn).CloseWrite()
	select {
	case <-e.dropped:
		t.Fatal("dropped while the client still listens")
	case <-time.After(300 * time.Millisecond):
	}
	conn.Close()
	select {
	case <-e.dropped:
	case <-time.After(10 * time.Second):
		t.Error("the connection to the engine is still open")
	}
}

// TestCalm: after it nothing is disturbed, whatever was left of a rule, and new rules act.
func TestCalm(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	ask := func() int {
		resp, err := c.Post("http://d/v1.41/containers/create", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	rule := target.TapeRule{Method: "POST", Match: `/containers/create$`, Nth: 1, Times: 100, Status: 500}
	for range 2 {
		if err := p.Inject(rule); err != nil {
			t.Fatal(err)
		}
		if got := ask(); got != 500 {
			t.Errorf("an armed rule: status %d", got)
		}
		p.Calm()
		if got := ask(); got == 500 {
			t.Errorf("after Calm: status %d", got)
		}
	}
}

func TestInjectFailsExactlyTheNthMatch(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	if err := p.Inject(target.TapeRule{Method: "POST", Match: `/containers/create$`, Nth: 3, Status: 500}); err != nil {
		t.Fatal(err)
	}
	const total = 8
	var wg sync.WaitGroup
	var failed atomic.Int64
	for range total {
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, err := c.Post("http://d/v1.41/containers/create", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode == 500 {
				failed.Add(1)
			}
		}()
	}
	wg.Wait()
	if failed.Load() != 1 || e.reached.Load() != total-1 {
		t.Errorf("%d failed and %d reached the engine; want 1 and %d", failed.Load(), e.reached.Load(), total-1)
	}
	calls, _, _ := p.Since(0)
	faults := 0
	for i, call := range calls {
		if call.Fault != "" {
			faults++
			if i != 2 || call.Status != 500 || string(call.Body) != "{}" {
				t.Errorf("fault at call %d with status %d body %q, want the third, 500, {}", i, call.Status, call.Body)
			}
		}
	}
	if faults != 1 {
		t.Errorf("%d faults recorded, want 1", faults)
	}
	for _, bad := range []target.TapeRule{{Match: "(", Nth: 1, Status: 500}, {Nth: 0, Status: 500}, {Nth: 1, Status: 100}, {Nth: 1}, {Nth: 1, Fault: "other"}, {Nth: 1, Fault: target.FaultStall}, {Nth: 1, Fault: target.FaultLost, Status: 500}, {Nth: 1, Times: -1, Status: 500}} {
		if p.Inject(bad) == nil {
			t.Errorf("rule %+v was accepted", bad)
		}
	}
}
