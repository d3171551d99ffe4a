// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/worker"
)

// TestFullHouseCanBeCancelled: a worker of the fewest places whose workspace keeps all that it may have busy with
// commands, among strangers that come and stay, can be asked, and told to end each of them and the sandbox.
func TestFullHouseCanBeCancelled(t *testing.T) {
	s := newSite(t)
	s.cfg.Limits = &worker.Limits{Connections: 8}
	p := s.start()
	ctx := t.Context()
	sb := s.create("ws").SandboxID
	var running sync.WaitGroup
	started := make(chan struct{})
	for i := range 4 { // half of the places
		running.Go(func() {
			req := api.ExecRequest{InvocationID: fmt.Sprint("i", i), Argv: []string{"sleep", "600"}, TimeoutMs: 600_000, MaxOutputBytes: api.MaxOutputBytes}
			_, err := s.client.ExecStream(ctx, "ws", sb, req, func(e api.ExecEvent) error {
				if e.Type == api.ExecStarted {
					started <- struct{}{}
				}
				return nil
			})
			codeIs(t, err, api.ExecAborted)
		})
		<-started
	}
	away, gone := context.WithCancel(ctx)
	var strangers sync.WaitGroup
	for range 8 {
		strangers.Go(func() {
			for away.Err() == nil {
				c, err := net.Dial("unix", s.cfg.Listen)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = io.Copy(io.Discard, c) // until it is put out
				_ = c.Close()
			}
		})
	}
	_, err := s.client.FS(ctx, "ws", sb, api.FSRequest{Op: api.FSList})
	codeIs(t, err, api.Unavailable)
	if st, err := s.client.Get(ctx, "ws", sb); err != nil || st.State != "ready" {
		t.Errorf("get: %+v, %v", st, err)
	}
	for i := range 4 {
		_, err := s.client.Cancel(ctx, "ws", sb, fmt.Sprint("i", i))
		codeIs(t, err, api.ExecAborted)
	}
	running.Wait()
	if err := s.client.Dispose(ctx, "ws", sb); err != nil {
		t.Error(err)
	}
	gone()
	strangers.Wait()
	s.stop(p)
}
