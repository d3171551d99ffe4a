// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// h2 is a client of r over HTTP/2 with prior knowledge: all of its requests share one connection.
func (r *rig) h2() *http.Transport {
	var d net.Dialer
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", r.cfg.Socket)
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	r.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// post sends one exec through tr; accept is "" for the buffered form.
func (r *rig) post(ctx context.Context, tr *http.Transport, accept string) *http.Response {
	r.t.Helper()
	raw := client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)}
	token, err := r.client.Mint(ctx, raw)
	if err != nil {
		r.t.Fatal(err)
	}
	hr, err := http.NewRequestWithContext(ctx, raw.Method, "http://worker"+raw.Target, strings.NewReader(execBody))
	if err != nil {
		r.t.Fatal(err)
	}
	hr.Header.Set("Authorization", "Bearer "+token)
	if accept != "" {
		hr.Header.Set("Accept", accept)
	}
	res, err := tr.RoundTrip(hr)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.ProtoMajor != 2 {
		r.t.Fatalf("answered over %s", res.Proto)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestStreamsShareAConnection: over HTTP/2 the end of one stream is its own, and so is its slowness.
func TestStreamsShareAConnection(t *testing.T) {
	r := newRig(t, tweak{patience: 500 * time.Millisecond, heartbeat: 100 * time.Millisecond})
	tr, plays := r.h2(), r.streaming()
	open := func(ctx context.Context) (*tail, *play) {
		res := r.post(ctx, tr, api.TypeNDJSON)
		l := &tail{t: t, res: res, body: bufio.NewReader(res.Body)}
		l.want(api.ExecStarted, "")
		return l, <-plays
	}
	quiet, quietPlay := open(t.Context())
	ctx, leave := context.WithCancel(t.Context())
	_, left := open(ctx)
	leave()
	_, stuck := open(t.Context()) // and nobody reads it
	for what, p := range map[string]*play{"a caller that left": left, "a reader that takes nothing": stuck} {
		for chunk := "1" + strings.Repeat("x", 32<<10); ; {
			select {
			case p.chunks <- chunk:
				continue
			case <-p.closed:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s holds its invocation", what)
			}
			break
		}
	}
	quietPlay.chunks <- "1still here"
	ev := quiet.next()
	for ev.Type == api.ExecHeartbeat {
		ev = quiet.next()
	}
	if ev.Type != api.ExecStdout || string(ev.Data) != "still here" {
		t.Errorf("line %+v", ev)
	}
	quietPlay.finish(nil)
	for ev = quiet.next(); ev.Type == api.ExecHeartbeat; {
		ev = quiet.next()
	}
	if ev.Type != api.ExecEnded {
		t.Errorf("last line %+v", ev)
	}
	quiet.end()
}

// TestLongCommandOverHTTP2: the time that an answer may take does not run while there is none. In
// HTTP/2 a write deadline resets its stream when it passes, whether something is written or not.
func TestLongCommandOverHTTP2(t *testing.T) {
	const stall = 300 * time.Millisecond
	r := newRig(t, tweak{stall: stall})
	r.fake.onExec = func(ctx context.Context, req api.ExecRequest) (api.ExecResult, error) {
		zero := 0
		select {
		case <-ctx.Done():
			return api.ExecResult{}, api.E(api.ExecAborted, ctx.Err())
		case <-time.After(4 * stall):
			return api.ExecResult{InvocationID: req.InvocationID, ExitCode: &zero}, nil
		}
	}
	res := r.post(t.Context(), r.h2(), "")
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("got %d %s, %v", res.StatusCode, b, err)
	}
}
