// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/docker/docker/client"
)

// TestDefiniteAnswers: only the engine's own refusal says that a create is not in flight any more.
func TestDefiniteAnswers(t *testing.T) {
	taken := fmt.Sprintf("Conflict. The container name %q is already in use by container %q.", "/"+testSpec.Name, "0123")
	for _, tt := range []struct {
		status   int // 0: the connection ends
		message  string
		definite bool
	}{
		{400, "bad parameter", true}, {403, "no", true}, {404, "no such image", true}, {409, "container is marked for removal", true}, {500, "broken", true}, {501, "no", true},
		{409, taken, false}, {502, "bad gateway", false}, {503, "unavailable", false}, {504, "gateway timeout", false}, {0, "", false},
	} {
		t.Run(fmt.Sprint(tt.status, " ", tt.message), func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if tt.status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				fmt.Fprintf(w, `{"message":%q}`, tt.message)
			})}
			go srv.Serve(l)
			defer srv.Close()
			cli, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithDialContext(dialer(socket)), client.WithVersion(minAPI))
			if err != nil {
				t.Fatal(err)
			}
			defer cli.Close()
			e := &Engine{cfg: Config{Socket: socket, Log: slog.New(slog.DiscardHandler)}, cli: cli}
			if _, err := e.Create(t.Context(), testSpec); errors.Is(err, ErrNotCreated) != tt.definite || err == nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What was asked of a host before it started again is not in flight any more.
func TestSameBoot(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"b1/10/5", "b1/11/7", true}, {"b1/10/5", "b2/10/5", false}, {"", "b1/10/5", false}} {
		if got := SameBoot(tt.a, tt.b); got != tt.want {
			t.Errorf("%s and %s: %v", tt.a, tt.b, got)
		}
	}
}
