// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/internal/proctable"
)

// fakeEngine answers the two questions of the inventory.
type fakeEngine struct {
	socket string
	server *http.Server

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
	e.server = &http.Server{Handler: e}
	go e.server.Serve(l)
	t.Cleanup(e.vanish)
	return e
}

func (e *fakeEngine) remove(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.containers, id)
}

func (e *fakeEngine) vanish() { e.server.Close() }

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
	var pids, want []string
	for range 3 {
		p, err := proctable.ReadProcess(sleeper(t, "").Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		pids, want = append(pids, strconv.Itoa(p.Pid)), append(want, processKey(p))
	}
	for path, procs := range map[string]string{"pids/lab/c1": pids[0] + "\n" + pids[1] + "\n", "memory/lab/c1": pids[0] + "\n", "lab/c2": pids[2] + "\n", "pids/other": "1\n"} {
		dir := filepath.Join(root, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(procs), 0o644); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(path, "lab") {
			want = append(want, "cgroup "+dir)
		}
	}
	got := inventory{}
	if err := got.cgroups(root, "/lab"); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
		t.Errorf("found %q, want %q", have, want)
	}
	if group := got["cgroup "+root+"/pids/lab/c1"].cgroup; group != "/lab/c1" {
		t.Errorf("the cgroup lies at %q of its hierarchy, want /lab/c1", group)
	}
}

// sleeper starts a process in dir that the test ends.
func sleeper(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// Processes are found by where they work and by whom they descend from; the suite's own child is not
// the target's, and neither is the daemon under test.
func TestInventoryOfProcesses(t *testing.T) {
	work := t.TempDir()
	// A shell of another user, so that its child is a grandchild of the suite.
	shell := exec.Command("sh", "-c", "sleep 300 & echo $!; wait")
	shell.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}, Setpgid: true}
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-shell.Process.Pid, syscall.SIGKILL); shell.Wait() })
	var grandchild int
	if _, err := fmt.Fscan(out, &grandchild); err != nil {
		t.Fatal(err)
	}
	own := sleeper(t, work)
	has := func(i inventory, pid int) bool {
		p, err := proctable.ReadProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		_, ok := i[processKey(p)]
		return ok
	}
	look := func(worker int, shared bool) inventory {
		t.Helper()
		i := inventory{}
		if err := i.host(work, worker, shared); err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := look(0, false); !has(i, shell.Process.Pid) || !has(i, grandchild) {
		t.Error("a descendant under another user is not seen")
	} else if has(i, own.Process.Pid) || has(i, os.Getpid()) {
		t.Error("the suite or its own child counts as the target's")
	}
	if i := look(shell.Process.Pid, false); has(i, shell.Process.Pid) || has(i, grandchild) {
		t.Error("the daemon under test or its helper counts as left over")
	}
	if i := look(0, true); has(i, shell.Process.Pid) {
		t.Error("in a shared process somebody else's child counts")
	}
	// Nobody's child, as a daemonised tenant is, but at work in the run's folder.
	orphan := exec.Command("setsid", "-f", "sh", "-c", "echo $$ >pid.new; mv pid.new pid; exec sleep 300")
	orphan.Dir = work
	if err := orphan.Run(); err != nil { // without pipes, which would stay open
		t.Fatal(err)
	}
	var pid int
	waitUntil(t, func() bool {
		b, _ := os.ReadFile(filepath.Join(work, "pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0
	})
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	if !has(look(0, true), pid) {
		t.Error("a daemon in the run's folder is not seen")
	}
}

func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition was not reached")
		}
	}
}

// On the unified hierarchy there is one tree, whose root holds files beside cgroups; on v1 there is one for each
// controller.
func TestHierarchies(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(v1, "memory"), filepath.Join(v1, "pids"), filepath.Join(v2, "init")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cgroup.controllers", "cgroup.procs"} {
		if err := os.WriteFile(filepath.Join(v2, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for root, want := range map[string][]string{v1: {v1, filepath.Join(v1, "memory"), filepath.Join(v1, "pids")}, v2: {v2}} {
		if got, err := hierarchies(root); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v %v, want %v", got, err, want)
		}
	}
}
