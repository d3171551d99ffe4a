// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// httpEngine answers the calls that reference/engine makes as a container engine does, for containers that
// are nothing but an entry. Every sandbox has the same process.
type httpEngine struct {
	socket string
	pid    int

	mu         sync.Mutex
	containers map[string]*entry // by id
	execs      map[string]string // id -> container
}

// entry is one container.
type entry struct {
	id, name string
	config   *container.Config
	host     *container.HostConfig
	running  bool
	foreign  bool
	ended    chan struct{}
}

// newHTTPEngine serves on a socket of its own, with two containers of other people, one of which has
// every label of worker.
func newHTTPEngine(t *testing.T, dir string, pid int) *httpEngine {
	t.Helper()
	e := &httpEngine{socket: filepath.Join(dir, "engine.sock"), pid: pid, containers: map[string]*entry{}, execs: map[string]string{}}
	for _, labels := range []map[string]string{nil, {engine.LabelWorker: "worker", engine.LabelEpoch: "epoch-1", engine.LabelSandbox: "sb-0", engine.LabelGeneration: "1"}} {
		id := randomID()
		e.containers[id] = &entry{id: id, name: "hallmark-" + randomHex(), config: &container.Config{Labels: labels}, host: &container.HostConfig{}, running: true, foreign: true, ended: make(chan struct{})}
	}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return e
}

func randomID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// left names the containers that are not other people's, and how many of those there are.
func (e *httpEngine) left() (ours []string, foreign int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		if c.foreign {
			foreign++
		} else {
			ours = append(ours, c.name)
		}
	}
	return ours, foreign
}

func (e *httpEngine) findLocked(key string) *entry {
	if c := e.containers[key]; c != nil {
		return c
	}
	for _, c := range e.containers {
		if c.name == key {
			return c
		}
	}
	return nil
}

func reply(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	w.WriteHeader(status)
	w.Write(text)
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	reply(w, status, map[string]string{"message": fmt.Sprintf(format, args...)})
}

// ServeHTTP is the API, as far as it is needed.
func (e *httpEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if strings.HasPrefix(path, "/v1.") {
		path = path[strings.IndexByte(path[1:], '/')+1:]
	}
	part := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/_ping":
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Ostype", "linux")
		io.WriteString(w, "OK")
	case path == "/info":
		reply(w, 200, map[string]any{"Runtimes": map[string]any{"runsc": map[string]string{"path": "/runsc"}}})
	case part[0] == "images":
		reply(w, 200, map[string]any{"Id": part[1], "Config": map[string]any{}})
	case path == "/containers/create":
		e.create(w, r)
	case path == "/containers/json":
		e.list(w)
	case part[0] == "containers" && len(part) >= 2:
		e.container(w, r, part[1], strings.Join(part[2:], "/"))
	case part[0] == "exec" && len(part) == 3:
		e.attach(w, r, part[1])
	default:
		refuse(w, 404, "page not found")
	}
}

func (e *httpEngine) create(w http.ResponseWriter, r *http.Request) {
	var in struct {
		*container.Config
		HostConfig *container.HostConfig
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, 400, "%v", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.URL.Query().Get("name")
	if c := e.findLocked(name); c != nil {
		refuse(w, 409, "Conflict. The container name %q is already in use by container %q.", "/"+name, c.id)
		return
	}
	in.HostConfig.MaskedPaths, in.HostConfig.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
	c := &entry{id: randomID(), name: name, config: in.Config, host: in.HostConfig, ended: make(chan struct{})}
	e.containers[c.id] = c
	reply(w, 201, map[string]any{"Id": c.id, "Warnings": []string{}})
}

func (e *httpEngine) list(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []map[string]any{}
	for _, c := range e.containers {
		if c.config.Labels[engine.LabelWorker] == "worker" {
			rows = append(rows, map[string]any{"Id": c.id, "Names": []string{"/" + c.name}, "Labels": c.config.Labels, "State": "running"})
		}
	}
	reply(w, 200, rows)
}

func (e *httpEngine) container(w http.ResponseWriter, r *http.Request, key, verb string) {
	e.mu.Lock()
	c := e.findLocked(key)
	if c == nil {
		e.mu.Unlock()
		refuse(w, 404, "No such container: %s", key)
		return
	}
	if verb == "wait" {
		ended := c.ended
		if !c.running {
			ended = make(chan struct{})
			close(ended)
		}
		e.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		select {
		case <-ended:
			io.WriteString(w, `{"StatusCode":137}`)
		case <-r.Context().Done():
		}
		return
	}
	defer e.mu.Unlock()
	switch r.Method + " " + verb {
	case "GET json":
		reply(w, 200, c.inspect(e.pid))
	case "POST start":
		c.running = true
		w.WriteHeader(204)
	case "DELETE ":
		if c.foreign {
			refuse(w, 403, "not yours")
			return
		}
		delete(e.containers, c.id)
		c.running = false
		close(c.ended)
		w.WriteHeader(204)
	case "POST exec":
		if !c.running {
			refuse(w, 409, "Container %s is not running", c.id)
			return
		}
		id := randomID()
		e.execs[id] = c.id
		reply(w, 201, map[string]string{"Id": id})
	default:
		refuse(w, 404, "page not found")
	}
}

func (c *entry) inspect(pid int) container.InspectResponse {
	state := &container.State{Running: c.running}
	if c.running {
		state.Pid = pid
	}
	out := container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: c.id, Name: "/" + c.name, Image: c.config.Image, Args: c.config.Cmd, State: state, HostConfig: c.host,
		},
		Config: c.config, NetworkSettings: &container.NetworkSettings{},
	}
	if len(c.config.Entrypoint) > 0 {
		out.Path = c.config.Entrypoint[0]
	}
	for _, m := range c.host.Mounts {
		out.Mounts = append(out.Mounts, container.MountPoint{Type: m.Type, Source: m.Source, Destination: m.Target, RW: !m.ReadOnly, Propagation: m.BindOptions.Propagation})
	}
	return out
}

// attach holds the connection until the container has ended.
func (e *httpEngine) attach(w http.ResponseWriter, r *http.Request, id string) {
	io.Copy(io.Discard, r.Body)
	e.mu.Lock()
	c := e.containers[e.execs[id]]
	e.mu.Unlock()
	if c == nil {
		refuse(w, 404, "No such exec instance: %s", id)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		io.Copy(io.Discard, conn)
	}()
	select {
	case <-c.ended:
	case <-gone:
	}
}
