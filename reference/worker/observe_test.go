// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// seen is an Observer that remembers.
type seen struct {
	mu      sync.Mutex
	began   int
	streams int
	ends    []RequestEnd
}

func (s *seen) RequestBegan() { s.mu.Lock(); s.began++; s.mu.Unlock() }
func (s *seen) StreamBegan()  { s.mu.Lock(); s.streams++; s.mu.Unlock() }
func (s *seen) RequestEnded(e RequestEnd) {
	s.mu.Lock()
	s.ends = append(s.ends, e)
	s.mu.Unlock()
}

// wait returns the ends once there are n.
func (s *seen) wait(t *testing.T, n int) []RequestEnd {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got, began := slices.Clone(s.ends), s.began
		s.mu.Unlock()
		if len(got) >= n {
			if began != len(got) {
				t.Errorf("%d requests began, %d ended", began, len(got))
			}
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d requests ended: %+v", len(got), n, got)
		}
	}
}

// lines decodes the log, and leaves out what is not about a request.
func (r *rig) lines() []map[string]any {
	r.t.Helper()
	var out []map[string]any
	for line := range strings.Lines(r.log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			r.t.Fatalf("log line %q: %v", line, err)
		}
		if strings.HasPrefix(m["msg"].(string), "request ") {
			out = append(out, m)
		}
	}
	return out
}

// Each request is observed once and has one line, whatever became of it.
func TestEachRequestIsObservedOnce(t *testing.T) {
	r := newRig(t, tweak{})
	sandbox := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	if res := r.raw(sandbox); res.Status != 200 { // a health request first
		t.Fatal(res.Code)
	}
	unsigned := sandbox
	unsigned.Token = "a.b.c"
	r.raw(unsigned)
	r.raw(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/nowhere", Token: "a.b.c"})
	r.raw(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/healthz", Token: "a.b.c"})
	r.fake.fail = api.E(api.SandboxOOM, nil)
	r.raw(sandbox)
	c, err := net.Dial("unix", r.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("this is no HTTP at all, and longer than a preface\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	want := []string{"health ", "get ", "get " + string(api.Unauthenticated), "unrouted " + string(api.RequestInvalid), "liveness ",
		"get " + string(api.SandboxOOM), "unparsed " + string(api.RequestInvalid)}
	var got []string
	for _, e := range r.seen.wait(t, len(want)) {
		got = append(got, string(e.Op)+" "+string(e.Code))
		if e.Took < 0 || e.Took > time.Minute || e.Streamed {
			t.Errorf("observed %+v", e)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("observed %q, want %q", got, want)
	}
	ids := map[any]bool{}
	lines := r.lines()
	for _, m := range lines {
		id, _ := m["request"].(string)
		if len(id) != 24 || ids[id] {
			t.Errorf("request id %q in %v", id, m)
		}
		ids[id] = true
	}
	if len(lines) != len(want)-1 { // a liveness probe has none
		t.Errorf("%d lines: %v", len(lines), lines)
	}
}

// What anybody can send, and send again, fills no disk; what was not written is counted.
func TestLinesOfStrangersAreBounded(t *testing.T) {
	r := newRig(t, tweak{})
	used := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := r.client.Mint(t.Context(), used)
	if err != nil {
		t.Fatal(err)
	}
	used.Token = token
	if res := r.raw(used); res.Status != 200 {
		t.Fatal(res.Code)
	}
	unsigned := used
	unsigned.Token = "a.b.c"
	for range 40 {
		if res := r.raw(unsigned); res.Code != api.Unauthenticated {
			t.Fatal(res.Code)
		}
		if res := r.raw(used); res.Code != api.CapabilityReplay { // a thief's copy
			t.Fatal(res.Code)
		}
	}
	refused, suppressed := 0, 0.0
	for _, m := range r.lines() {
		if m["msg"] == "request refused" {
			refused++
			suppressed += m["suppressed"].(float64)
		}
	}
	if got := r.server.SuppressedLines(); refused+int(got) != 80 || refused%strangerLines != 0 || refused == 80 || suppressed > float64(got) {
		t.Errorf("%d lines, %g of them told as suppressed, %d counted", refused, suppressed, got)
	}
	// An authorised request has its line in any case.
	served := len(r.lines()) - refused
	used.Token = ""
	r.raw(used)
	r.seen.wait(t, 83) // with the health request of the client
	if now := len(r.lines()) - refused; now != served+1 {
		t.Errorf("%d served lines, then %d", served, now)
	}
}

func TestLineBudget(t *testing.T) {
	var b lineBudget
	now := time.Unix(1000, 0)
	for range strangerLines {
		if ok, n := b.take(now); !ok || n != 0 {
			t.Fatalf("within the budget: %v, %d", ok, n)
		}
	}
	for range 7 {
		if ok, _ := b.take(now.Add(strangerEvery - 1)); ok {
			t.Fatal("beyond the budget")
		}
	}
	if ok, n := b.take(now.Add(strangerEvery)); !ok || n != 7 {
		t.Errorf("in the next interval: %v, %d", ok, n)
	}
	if ok, n := b.take(now.Add(strangerEvery)); !ok || n != 0 {
		t.Errorf("told twice: %v, %d", ok, n)
	}
	if b.total != 7 {
		t.Errorf("%d in all", b.total)
	}
}

// Neither tokens nor what a request carries are logged, at any level.
func TestLogHasNoPayload(t *testing.T) {
	r := newRig(t, tweak{})
	ctx := t.Context()
	const marker = "c4n4ry-payload"
	request := api.ExecRequest{InvocationID: "i", Argv: []string{"run", marker}, Stdin: []byte(marker), TimeoutMs: 1000, MaxOutputBytes: 1000}
	for range 2 {
		_, _ = r.client.Exec(ctx, "ws", "sb", request)
		_, _ = r.client.Write(ctx, "ws", "sb", "dir/"+marker, []byte(marker), client.WriteOptions{})
		_, _ = r.client.Read(ctx, "ws", "sb", "absent-"+marker)
		_, _ = r.client.FS(ctx, "ws", "sb", api.FSRequest{Op: api.FSMkdir, Path: marker})
		r.fake.fail = api.E(api.EngineFailed, nil)
	}
	get := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := r.client.Mint(ctx, get)
	if err != nil {
		t.Fatal(err)
	}
	get.Token = token
	r.raw(get)
	r.raw(get)
	text := r.log.String()
	if strings.Contains(text, marker) {
		t.Errorf("the log holds what a request carried:\n%s", text)
	}
	for _, part := range strings.Split(token, ".") {
		if strings.Contains(text, part) {
			t.Errorf("the log holds a part of a token")
		}
	}
	if len(r.lines()) < 10 {
		t.Errorf("%d lines", len(r.lines()))
	}
}
