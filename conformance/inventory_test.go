// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeEngine answers the two questions of the inventory.
type fakeEngine struct {
	socket string

	mu         sync.Mutex
	containers map[string]string // id -> inspect output
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "inv-") // short: sockaddr_un(7) has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &fakeEngine{socket: filepath.Join(dir, "s"), containers: map[string]string{}}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: e}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return e
}

func (e *fakeEngine) add(id, inspect string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[id] = inspect
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.URL.Path == "/containers/json" {
		list := []map[string]any{}
		for _, id := range slices.Sorted(maps.Keys(e.containers)) {
			list = append(list, map[string]any{"Id": id, "Names": []string{"/" + id}})
		}
		json.NewEncoder(w).Encode(list)
		return
	}
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/containers/"), "/json")
	w.Write([]byte(e.containers[id]))
}

// Containers of a hierarchy of either version are found, with their processes, and nothing else.
func TestInventoryOfCgroups(t *testing.T) {
	root := t.TempDir()
	for path, procs := range map[string]string{"pids/lab/c1": "12\n13\n", "memory/lab/c1": "12\n", "lab/c2": "14\n", "pids/other": "1\n"} {
		dir := filepath.Join(root, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(procs), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := inventory{}
	if err := got.cgroups(root, "/lab"); err != nil {
		t.Fatal(err)
	}
	want := []string{"cgroup " + root + "/lab/c2", "cgroup " + root + "/memory/lab/c1", "cgroup " + root + "/pids/lab/c1", "process 12", "process 13", "process 14"}
	if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
		t.Errorf("found %q, want %q", have, want)
	}
}
