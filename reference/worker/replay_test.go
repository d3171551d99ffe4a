// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/client"
)

func TestReplay(t *testing.T) {
	r := newRig(t, tweak{})
	req := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	token, err := r.client.Mint(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.Token = token
	var won, replayed atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			again := req
			again.Header = http.Header{"X-Order": {fmt.Sprint(i)}}
			switch res, err := r.client.Raw(context.Background(), again); {
			case err != nil:
				t.Error(err)
			case res.Status == 200:
				won.Add(1)
			case res.Code == api.CapabilityReplay:
				replayed.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || replayed.Load() != 49 || r.fake.count() != 1 {
		t.Errorf("%d won, %d replayed, %d effects", won.Load(), replayed.Load(), r.fake.count())
	}
}

func TestReplayAfterRestart(t *testing.T) {
	r := newRig(t, tweak{})
	ctx := t.Context()
	workerKey, authority := key(t), r.cfg.Key
	r.cfg.WorkerKey = workerKey.Public().(ed25519.PublicKey)
	r.shutdown()
	r.start(workerKey, authority, tweak{mode: api.Production})

	used := client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: "ws", SandboxID: "sb"}
	unused, health := used, client.RawRequest{Op: api.OpHealth, Method: "GET", Target: "/v1/health"}
	for _, req := range []*client.RawRequest{&used, &unused, &health} {
		token, err := r.client.Mint(ctx, *req)
		if err != nil {
			t.Fatal(err)
		}
		req.Token = token
	}
	if res := r.raw(used); res.Status != 200 {
		t.Fatalf("first use: %s", res.Code)
	}
	if res := r.raw(health); res.Status != 200 {
		t.Fatalf("first health: %s", res.Code)
	}
	old := r.client
	r.shutdown()
	r.start(workerKey, authority, tweak{mode: api.Production})
	if res := r.raw(used); res.Code != api.Unauthenticated {
		t.Errorf("a used capability after a restart: %d %s", res.Status, res.Code)
	}
	if res := r.raw(unused); res.Code != api.Unauthenticated {
		t.Errorf("a captured capability after a restart: %d %s", res.Status, res.Code)
	}
	if res := r.raw(health); res.Code != api.CapabilityReplay {
		t.Errorf("a used health token after a restart: %d %s", res.Status, res.Code)
	}
	if n := r.fake.count(); n != 0 {
		t.Errorf("%d effects", n)
	}
	// A client that lived through the restart learns the new epoch, but never repeats an exec.
	if _, err := old.Get(ctx, "ws", "sb"); err != nil {
		t.Errorf("get across the restart: %v", err)
	}
	r.shutdown()
	r.start(workerKey, authority, tweak{mode: api.Production})
	_, err := old.Exec(ctx, "ws", "sb", api.ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1, MaxOutputBytes: 1})
	codeIs(t, err, api.Unauthenticated)
	if n := r.fake.count(); n != 0 {
		t.Errorf("exec was sent again: %v", r.fake.calls)
	}
}

func TestNonceStoreFull(t *testing.T) {
	r := newRig(t, tweak{nonces: 6, share: 3})
	get := func(ws string) api.Code {
		return r.raw(client.RawRequest{Op: api.OpGet, Method: "GET", Target: "/v1/sandboxes/sb", WorkspaceID: ws, SandboxID: "sb"}).Code
	}
	for range 3 {
		if c := get("greedy"); c != "" {
			t.Fatal(c)
		}
	}
	if c := get("greedy"); c != api.NonceStoreExhausted {
		t.Errorf("beyond the share: %s", c)
	}
	if c := get("modest"); c != "" {
		t.Errorf("a neighbour pays for it: %s", c)
	}
	if c := get("third"); c != "" { // with the one health token: 6
		t.Fatal(c)
	}
	if c := get("fourth"); c != api.NonceStoreExhausted {
		t.Errorf("beyond the capacity: %s", c)
	}
}
