// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// lastingOps are those that are not brief.
var lastingOps = []api.Op{api.OpCreate, api.OpExec, api.OpFS, api.OpRead, api.OpWrite, api.OpEvents}

// TestEveryOpIsBriefOrLasts: a new operation has to be put into one of the two.
func TestEveryOpIsBriefOrLasts(t *testing.T) {
	for _, op := range api.Ops() {
		if brief(op) == slices.Contains(lastingOps, op) {
			t.Errorf("%s: brief is %v", op, brief(op))
		}
	}
}

// TestHealthHasNoShare: it is of no workspace, and every caller asks for it first.
func TestHealthHasNoShare(t *testing.T) {
	p := newConnections(2)
	for range 9 {
		if err := p.enter(&conn{}, "", api.OpHealth); err != nil {
			t.Error(err)
		}
	}
	if err := p.enter(&conn{}, "ws", api.OpExec); err != nil {
		t.Error(err)
	}
	if err := p.enter(&conn{}, "ws", api.OpExec); err == nil {
		t.Error("a workspace has more than half of the places")
	}
}

// TestOccupancyIsBounded: whatever callers ask for and whenever they leave, no workspace is busy on more than its half
// and its eighth, what lasts leaves a quarter free, and a workspace that lets its brief requests end finds
// a place for one more. At the end nothing is counted.
func TestOccupancyIsBounded(t *testing.T) {
	for _, all := range []int{8, 9, 16, 128} {
		rng := rand.New(rand.NewPCG(1, uint64(all)))
		p := newOccupancy(all)
		type request struct {
			c  *conn
			ws string
		}
		conns := make([]*conn, all)
		for i := range conns {
			conns[i] = &conn{}
		}
		var running []request
		refused := map[bool]int{}
		for range 20_000 {
			if rng.IntN(9) < 4 && len(running) > 0 {
				i := rng.IntN(len(running))
				p.leave(running[i].c, running[i].ws)
				running = slices.Delete(running, i, i+1)
				continue
			}
			r := request{conns[rng.IntN(all)], fmt.Sprint("ws", rng.IntN(3))}
			b := rng.IntN(3) == 0
			if p.enter(r.c, r.ws, b) != nil {
				refused[b]++
			} else {
				running = append(running, r)
			}
			last, by := 0, map[string]int{}
			for _, c := range conns {
				if c.lasting() {
					last++
				}
				for ws := range c.held {
					by[ws]++
				}
			}
			if last != p.last || last > all-all/4 {
				t.Fatalf("%d places: %d connections are busy with what lasts, counted %d", all, last, p.last)
			}
			for ws, n := range by {
				of := p.by[ws]
				if n != of.lasting+of.brief || n > all/2+max(all/8, 2) || of.lasting > all/2 {
					t.Fatalf("%d places: %d are busy with %s, counted %+v", all, n, ws, of)
				}
				if of.brief > 0 {
					continue
				}
				if one := (&conn{}); p.enter(one, ws, true) != nil {
					t.Fatalf("%d places: none for a brief request of %s beside %+v", all, ws, of)
				} else {
					p.leave(one, ws)
				}
			}
		}
		if all < 128 && (refused[true] == 0 || refused[false] == 0) {
			t.Errorf("%d places: refused %v: the bounds were never met", all, refused)
		}
		for _, r := range running {
			p.leave(r.c, r.ws)
		}
		if len(p.by) != 0 || p.last != 0 {
			t.Errorf("%d places: at the end %v, %d", all, p.by, p.last)
		}
	}
}

// TestBriefBesideCommands: where commands, bodies and streams of a workspace have all the places that they may
// have, what ends or observes them is served on connections of its own, and a second workspace too.
func TestBriefBesideCommands(t *testing.T) {
	for _, all := range []int{8, DefaultConnections} {
		t.Run(fmt.Sprint(all), func(t *testing.T) {
			r := newRig(t, tweak{connections: all})
			entered, leave := make(chan struct{}, all), make(chan struct{})
			r.fake.onExec = func(_ context.Context, req api.ExecRequest) (api.ExecResult, error) {
				entered <- struct{}{}
				<-leave
				zero := 0
				return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
			}
			done := make(chan error, all)
			running := 0
			fill := func(ws string, most int) {
				for i := range most {
					go func() {
						_, err := r.client.Exec(context.Background(), ws, "sb", api.ExecRequest{InvocationID: fmt.Sprint(ws, i), Argv: []string{"x"}, TimeoutMs: 60_000, MaxOutputBytes: 1})
						done <- err
					}()
					<-entered
					running++
				}
			}
			fill("ws", all/2)
			fill("other", all-all/4-all/2)
			lasts := func(ws string) client.RawRequest {
				return client.RawRequest{Op: api.OpFS, Method: "POST", Target: "/v1/sandboxes/sb/fs", WorkspaceID: ws, SandboxID: "sb", Body: []byte(`{"op":"stat","path":"a"}`)}
			}
			for _, ws := range []string{"ws", "other", "third"} {
				if res := r.raw(lasts(ws)); res.Code != api.Unavailable {
					t.Errorf("what lasts, of %s: got %d %s", ws, res.Status, res.Code)
				}
				for _, req := range []client.RawRequest{
					{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: ws, SandboxID: "sb"},
					{Op: api.OpRenew, Method: "POST", Target: "/v1/sandboxes/sb/renew", WorkspaceID: ws, SandboxID: "sb"},
					{Op: api.OpCancel, Method: "DELETE", Target: "/v1/sandboxes/sb/exec/i", WorkspaceID: ws, SandboxID: "sb"},
					{Op: api.OpDispose, Method: "DELETE", Target: "/v1/sandboxes/sb", WorkspaceID: ws, SandboxID: "sb"},
					{Op: api.OpPurge, Method: "DELETE", Target: "/v1/workspaces/" + ws, WorkspaceID: ws},
				} {
					if res := r.raw(req); res.Status >= 300 {
						t.Errorf("%s of %s: got %d %s", req.Op, ws, res.Status, res.Code)
					}
				}
			}
			if _, err := r.client.Health(t.Context()); err != nil {
				t.Errorf("health: %v", err)
			}
			close(leave)
			for range running {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			for _, ws := range []string{"ws", "other"} {
				if res := r.raw(lasts(ws)); res.Status != http.StatusOK {
					t.Errorf("what lasts, of %s, afterwards: got %d %s", ws, res.Status, res.Code)
				}
			}
		})
	}
}

// TestBriefOpensNoFlood: what is brief and hangs has its own bound, and takes no place from others.
func TestBriefOpensNoFlood(t *testing.T) {
	r := newRig(t, tweak{connections: 16})
	entered, leave := make(chan struct{}, 16), make(chan struct{})
	r.fake.onCancel = func(_ context.Context, id string) (api.CancelResponse, error) {
		entered <- struct{}{}
		<-leave
		zero := 0
		return api.CancelResponse{Result: &api.ExecResult{InvocationID: id, ExitCode: &zero}}, nil
	}
	cancel := client.RawRequest{Op: api.OpCancel, Method: "DELETE", Target: "/v1/sandboxes/sb/exec/i", WorkspaceID: "ws", SandboxID: "sb"}
	done := make(chan int, 16)
	for range 8 {
		go func() { done <- r.raw(cancel).Status }()
		<-entered
	}
	ninth := make(chan client.RawResponse, 1)
	go func() { ninth <- r.raw(cancel) }()
	select {
	case res := <-ninth:
		if res.Code != api.Unavailable {
			t.Errorf("a ninth of 16: got %d %s", res.Status, res.Code)
		}
	case <-entered:
		t.Error("a ninth of 16 is served")
	}
	other := cancel
	other.Op, other.Method, other.Target, other.WorkspaceID = api.OpGet, "GET", "/v1/sandboxes/sb", "other"
	if res := r.raw(other); res.Status != http.StatusOK {
		t.Errorf("another workspace: got %d %s", res.Status, res.Code)
	}
	close(leave)
	for range 8 {
		if s := <-done; s != http.StatusOK {
			t.Error(s)
		}
	}
}
