// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/client"
)

// TestBridgeHeedsItsDeadline: an engine, or a proxy before it, that takes the attach and never
// answers neither holds the caller nor keeps the connection.
func TestBridgeHeedsItsDeadline(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	attached, gone := make(chan struct{}), make(chan error, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/start") {
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, `{"Id":"x"}`)
			return
		}
		io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			gone <- err
			return
		}
		defer c.Close()
		close(attached)
		_, err = c.Read(make([]byte, 1))
		gone <- err
	})}
	go srv.Serve(l)
	defer srv.Close()
	cli, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithDialContext(dialer(socket)), client.WithVersion(minAPI))
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	e := &Engine{cfg: Config{Socket: socket, Log: slog.New(slog.DiscardHandler)}, cli: cli}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := e.Bridge(ctx, "c")
		done <- err
	}()
	select {
	case <-attached:
	case err := <-done:
		t.Fatalf("no attach: %v", err)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the attach outlives its context")
	}
	select {
	case err := <-gone:
		if !errors.Is(err, io.EOF) {
			t.Errorf("the engine's end got %v, want the end of the connection", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the connection stays open")
	}
}
