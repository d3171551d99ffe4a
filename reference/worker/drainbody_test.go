// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"net"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// TestDrainEndsBodiesThatDoNotCome: requests that announce a body and send none of it, of each kind, do not keep
// the end until it cuts them off: at its half they are told.
func TestDrainEndsBodiesThatDoNotCome(t *testing.T) {
	r := newRig(t, tweak{drain: 3 * time.Second})
	exec := client.RawRequest{Op: api.OpExec, Method: "POST", Target: execTarget, WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)}
	waiting := map[string]net.Conn{
		"command":   r.send(exec, len(exec.Body), execBody[:5]),
		"of none":   r.send(client.RawRequest{Op: api.OpDispose, Method: "DELETE", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}, 10, ""),
		"of create": r.send(r.createRaw("ws", "{}"), 100, "{"),
		"upload":    r.send(client.RawRequest{Op: api.OpWrite, Method: "PUT", Target: "/v1/sandboxes/sb/files?mode=create&path=a", WorkspaceID: "ws", SandboxID: "sb", Body: []byte("body")}, 4, "bo"),
	}
	f := r.framed()
	stream := f.open(f.block("POST", execTarget, r.mint(exec)), false)
	eventually(t, "not all wait for their bodies", func() bool {
		p := r.server.connections
		p.mu.Lock()
		defer p.mu.Unlock()
		busy := 0
		for c := range p.open {
			if c.known {
				busy += c.busy
			}
		}
		return busy == len(waiting)+1
	})
	r.stop()
	for name, c := range waiting {
		t.Log(name)
		refusal(t, c, api.Unavailable)
	}
	if code := f.code(stream); code != api.Unavailable {
		t.Errorf("HTTP/2: got %q", code)
	}
	if err := <-r.finished; err != nil {
		t.Error(err)
	}
	r.finished <- nil
	for _, call := range r.fake.calls {
		if call != "open" && call != "write" {
			t.Errorf("%s was called", call)
		}
	}
}
