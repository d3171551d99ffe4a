// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

// TestAcceptIsExact: what is not one of the four is refused, and reaches nothing.
func TestAcceptIsExact(t *testing.T) {
	r := newRig(t, tweak{})
	r.fake.onStart = func(ctx context.Context, req api.ExecRequest) (Execution, error) {
		p := newPlay(ctx, req.InvocationID)
		p.finish(nil)
		return p, nil
	}
	for _, tt := range []struct {
		name   string
		values []string
		typ    string // "" for a refusal
	}{
		{"absent", nil, api.TypeJSON},
		{"anything", []string{"*/*"}, api.TypeJSON},
		{"json", []string{"application/json"}, api.TypeJSON},
		{"lines", []string{"application/x-ndjson"}, api.TypeNDJSON},
		{"empty", []string{""}, ""},
		{"other", []string{"text/html"}, ""},
		{"events", []string{"text/event-stream"}, ""},
		{"list", []string{"application/x-ndjson, application/json"}, ""},
		{"two fields", []string{"application/x-ndjson", "application/json"}, ""},
		{"twice the same", []string{"application/json", "application/json"}, ""},
		{"parameter", []string{"application/x-ndjson; charset=utf-8"}, ""},
		{"preference", []string{"application/json;q=0.5"}, ""},
		{"case", []string{"Application/JSON"}, ""},
		{"all of a kind", []string{"application/*"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := r.fake.count()
			req := client.RawRequest{Op: api.OpExec, Method: "POST", Target: "/v1/sandboxes/sb/exec", WorkspaceID: "ws", SandboxID: "sb", Body: []byte(execBody)}
			if tt.values != nil {
				req.Header = http.Header{"Accept": tt.values}
			}
			res := r.raw(req)
			if tt.typ == "" {
				if res.Code != api.RequestInvalid || r.fake.count() != before {
					t.Errorf("got %d %s, and %d calls", res.Status, res.Code, r.fake.count()-before)
				}
				return
			}
			if res.Status != http.StatusOK || res.Header.Get("Content-Type") != tt.typ {
				t.Errorf("got %d as %q", res.Status, res.Header.Get("Content-Type"))
			}
		})
	}
}

func TestCancelAndRenewAnswers(t *testing.T) {
	r := newRig(t, tweak{})
	cancel := client.RawRequest{Op: api.OpCancel, Method: "DELETE", Target: "/v1/sandboxes/sb/exec/i-1", WorkspaceID: "ws", SandboxID: "sb"}
	for _, tt := range []struct {
		name string
		res  api.CancelResponse
		err  error
		want string // of the body; %s is the request id
		code api.Code
	}{
		{"ended by itself", api.CancelResponse{Result: &api.ExecResult{InvocationID: "i-1", Signal: "SIGTERM"}}, nil, `"signal":"SIGTERM"`, ""},
		{"cancelled", api.CancelResponse{Error: &api.ErrorDetail{Code: api.ExecAborted, Message: api.ExecAborted.Message()}}, nil, `{"error":{"code":"REMOTE_WORKER_EXEC_ABORTED"`, ""},
		{"neither", api.CancelResponse{}, nil, "", api.Unavailable},
		{"unknown", api.CancelResponse{}, api.E(api.OutcomeUnknown, nil), "", api.OutcomeUnknown},
		{"too late", api.CancelResponse{}, fmt.Errorf("wait: %w", context.DeadlineExceeded), "", api.Timeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.fake.onCancel = func(_ context.Context, id string) (api.CancelResponse, error) {
				if id != "i-1" {
					t.Errorf("cancel of %q", id)
				}
				return tt.res, tt.err
			}
			res := r.raw(cancel)
			if tt.code != "" {
				if res.Code != tt.code {
					t.Errorf("got %d %s", res.Status, res.Code)
				}
				return
			}
			if res.Status != http.StatusOK || !bytes.Contains(res.Body, []byte(tt.want)) {
				t.Errorf("got %d %s", res.Status, res.Body)
			}
			if tt.res.Error != nil && bytes.Contains(res.Body, []byte(`"requestId":""`)) {
				t.Errorf("no request id in %s", res.Body)
			}
		})
	}
	renew := client.RawRequest{Op: api.OpRenew, Method: "POST", Target: "/v1/sandboxes/sb/renew", WorkspaceID: "ws", SandboxID: "sb"}
	if res := r.raw(renew); res.Status != http.StatusOK || string(res.Body) != `{"sandboxId":"sb","expiresAt":"2026-01-02T03:04:05.000Z"}` {
		t.Errorf("renew gave %d %s", res.Status, res.Body)
	}
	before := r.fake.count()
	for _, req := range []client.RawRequest{cancel, renew} {
		req.Body = []byte("{}")
		if res := r.raw(req); res.Code != api.RequestInvalid {
			t.Errorf("%s with a body: %d %s", req.Op, res.Status, res.Code)
		}
		req.Body, req.Op = nil, api.OpGet
		if res := r.raw(req); res.Code != api.Unauthenticated && res.Code != api.AuthorizedWorkspaceRequired {
			t.Errorf("%s with another operation's capability: %d %s", req.Target, res.Status, res.Code)
		}
	}
	if n := r.fake.count(); n != before {
		t.Errorf("%d refused requests reached the session", n-before)
	}
}

// TestLostReplyOfCreate: the caller's connection ends before the answer; the same request later gets
// the lease that was made, and nothing was undone.
func TestLostReplyOfCreate(t *testing.T) {
	r := newRig(t, tweak{})
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	r.fake.onCreate = func() { entered <- struct{}{}; <-leave }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Create(ctx, r.createRequest("ws"))
		done <- err
	}()
	<-entered
	cancel()
	if err := <-done; err == nil {
		t.Fatal("the reply was not lost")
	}
	close(leave)
	lease, err := r.client.Create(t.Context(), r.createRequest("ws"))
	if err != nil {
		t.Fatal(err)
	}
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	if len(r.fake.byLease) != 1 || r.fake.byLease["lease-ws"].SandboxID != lease.SandboxID {
		t.Errorf("leases %+v, the repetition got %s", r.fake.byLease, lease.SandboxID)
	}
	for _, c := range r.fake.calls {
		if c == "dispose" {
			t.Error("the lost lease was disposed")
		}
	}
}
