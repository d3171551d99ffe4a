// SPDX-License-Identifier: Apache-2.0

package tape_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// What a caller sees of each fault, how often the engine was asked, and what the tape says of it.
func TestFaults(t *testing.T) {
	const create = "/v1.41/containers/create"
	for _, tt := range []struct {
		name    string
		rule    target.TapeRule
		reached int64
		status  int    // 0: the connection ends without an answer
		body    string // what can be read of it
		cut     bool   // the body ends before its time
		fault   string
		taped   int
	}{
		{"status", target.TapeRule{Status: 500}, 0, 500, `{"message":"fault injected by the tape"}` + "\n", false, "status-500", 500},
		{"status with a text", target.TapeRule{Status: 409, Text: `removal of "x" is already in progress`}, 0, 409, `{"message":"removal of \"x\" is already in progress"}` + "\n", false, "status-409", 409},
		{"success that is none", target.TapeRule{Status: 204}, 0, 204, "", false, "status-204", 204},
		{"stall", target.TapeRule{Fault: target.FaultStall, For: 50 * time.Millisecond}, 0, 0, "", false, "stall", 0},
		{"late", target.TapeRule{Fault: target.FaultLate, For: 50 * time.Millisecond}, 1, 201, `{"Id":"c2"}`, false, "late", 201},
		{"replaced", target.TapeRule{Fault: target.FaultReplaced, Status: 404}, 1, 404, `{"message":"fault injected by the tape"}` + "\n", false, "replaced-404", 404},
		{"lost reply", target.TapeRule{Fault: target.FaultLost}, 1, 0, "", false, "lost-reply", 0},
		{"cut reply", target.TapeRule{Fault: target.FaultCut}, 1, 201, `{"Id"`, true, "cut-reply", 201},
		{"twice", target.TapeRule{Fault: target.FaultTwice}, 2, 201, `{"Id":"c2"}`, false, "twice", 201},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(t)
			p, _, c := newProxy(t, e)
			rule := tt.rule
			rule.Method, rule.Match, rule.Nth = "POST", `/containers/create$`, 1
			if err := p.Inject(rule); err != nil {
				t.Fatal(err)
			}
			resp, err := c.Post("http://d"+create, "application/json", strings.NewReader("{}"))
			if tt.status == 0 {
				if err == nil {
					t.Fatalf("answered with %d", resp.StatusCode)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != tt.status || string(body) != tt.body || (err != nil) != tt.cut {
					t.Errorf("status %d, body %q, %v", resp.StatusCode, body, err)
				}
			}
			calls, _, err := p.Since(0)
			if err != nil || len(calls) != 1 || calls[0].Fault != tt.fault || calls[0].Status != tt.taped || string(calls[0].Body) != "{}" {
				t.Errorf("taped %+v, %v", calls, err)
			}
			if got := e.reached.Load(); got != tt.reached {
				t.Errorf("the engine was asked %d times, want %d", got, tt.reached)
			}
			// One shot: the next call is undisturbed.
			resp, err = c.Post("http://d"+create, "application/json", strings.NewReader("{}"))
			if err != nil || resp.StatusCode != 201 {
				t.Errorf("the next call: %v", err)
			} else {
				resp.Body.Close()
			}
		})
	}
}

// A late call reaches the engine although its caller has gone, and not when the proxy has.
func TestLateOutlivesItsCaller(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	for range 2 {
		if err := p.Inject(target.TapeRule{Method: "POST", Match: `/create$`, Nth: 1, Fault: target.FaultLate, For: 200 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://d/v1.41/containers/create", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the caller got %v", err)
		}
		if e.reached.Load() == 0 {
			for deadline := time.Now().Add(10 * time.Second); e.reached.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the late call does not come")
				}
			}
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(300 * time.Millisecond)
	if got := e.reached.Load(); got != 1 {
		t.Errorf("the engine was asked %d times; the second call was held back beyond the proxy's end", got)
	}
}

// A late call that takes its connection over reaches the engine too when its caller has gone, and no
// late call counts as held once the engine has had it, whether it answered or not.
func TestLateUpgradeOutlivesItsCaller(t *testing.T) {
	for _, tt := range []struct {
		path    string
		reached func(*engine) bool
	}{
		{"/v1.41/exec/silent/start", func(e *engine) bool { // answers, and sees that nobody is there
			select {
			case <-e.dropped:
				return true
			default:
				return false
			}
		}},
		{"/v1.41/mute", func(e *engine) bool { return e.reached.Load() == 1 }},
	} {
		t.Run(tt.path, func(t *testing.T) {
			e := newEngine(t)
			p, socket, _ := newProxy(t, e)
			if err := p.Inject(target.TapeRule{Match: tt.path + "$", Nth: 1, Fault: target.FaultLate, For: 200 * time.Millisecond}); err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, "POST "+tt.path+" HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}")
			until := func(what string, done func() bool) {
				t.Helper()
				for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal(what)
					}
				}
			}
			held := func() bool {
				calls, _, _ := p.Since(0)
				return len(calls) == 1 && calls[0].Held
			}
			until("the call is not held", held)
			conn.Close()
			until("the engine is not asked", func() bool { return tt.reached(e) })
			until("the call counts as held for good", func() bool { return !held() })
		})
	}
}

// A rule that is to act several times does, and no longer.
func TestTimes(t *testing.T) {
	e := newEngine(t)
	p, _, c := newProxy(t, e)
	if err := p.Inject(target.TapeRule{Match: `/create$`, Nth: 2, Times: 2, Status: 503}); err != nil {
		t.Fatal(err)
	}
	var got []int
	for range 5 {
		resp, err := c.Post("http://d/v1.41/containers/create", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got = append(got, resp.StatusCode)
	}
	if want := [5]int{201, 503, 503, 201, 201}; [5]int(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An upgraded connection can be stalled, cut behind its head, refused, and asked for twice.
func TestFaultsOfAnUpgrade(t *testing.T) {
	for _, tt := range []struct {
		name string
		rule target.TapeRule
		head string // what the status line begins with; "" for an end without one
		ends bool   // right behind the head
	}{
		{"status", target.TapeRule{Status: 500}, "HTTP/1.1 500", true},
		{"stall", target.TapeRule{Fault: target.FaultStall, For: 20 * time.Millisecond}, "", true},
		{"lost reply", target.TapeRule{Fault: target.FaultLost}, "", true},
		{"cut reply", target.TapeRule{Fault: target.FaultCut}, "HTTP/1.1 101", true},
		{"twice", target.TapeRule{Fault: target.FaultTwice}, "HTTP/1.1 101", false},
		{"late", target.TapeRule{Fault: target.FaultLate, For: 20 * time.Millisecond}, "HTTP/1.1 101", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(t)
			p, socket, _ := newProxy(t, e)
			rule := tt.rule
			rule.Match, rule.Nth = `/exec/x/start$`, 1
			if err := p.Inject(rule); err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(conn, "POST /v1.41/exec/x/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}")
			r := bufio.NewReader(conn)
			head, _ := r.ReadString('\n')
			if !strings.HasPrefix(head, tt.head) || tt.head == "" && head != "" {
				t.Fatalf("head %q, want %q", head, tt.head)
			}
			if strings.HasPrefix(head, "HTTP/1.1 500") { // the connection may be used again
				return
			}
			if tt.ends {
				if rest, _ := io.ReadAll(r); strings.Contains(string(rest), "got") {
					t.Errorf("the connection goes on: %q", rest)
				}
				return
			}
			for line := head; line != "\r\n"; {
				if line, err = r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			io.WriteString(conn, "late")
			conn.(*net.UnixConn).CloseWrite()
			if all, err := io.ReadAll(r); err != nil || string(all) != "got 4 bytes: LATE" {
				t.Errorf("answer %q, %v", all, err)
			}
		})
	}
}
