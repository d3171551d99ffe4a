// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"encoding/json"
	"errors"
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
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/oracle"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

func TestProcessesAreKnownByTheirStart(t *testing.T) {
	self, err := Find(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("%+v, %v", self, err)
	}
	reused := Process{Pid: self.Pid, Start: self.Start + "0"}
	if reused.Alive() || (Process{}).Alive() || (Process{Pid: -1}).Alive() {
		t.Error("another process's number counts as alive")
	}
	if parent, err := Parent(os.Getpid()); err != nil || parent != os.Getppid() {
		t.Errorf("parent %d, %v", parent, err)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := Find(cmd.Process.Pid)
	if err != nil || !child.Alive() {
		t.Errorf("%+v, %v", child, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if child.Alive() {
		t.Error("a process that was waited for is alive")
	}
}

// id is the random value of the label in these tests.
var id = strings.Repeat("0a", 16)

// folder is a process's folder in a run's, with some content and a record; nobody holds the run.
func folder(t *testing.T, parent, name string, r Record) string {
	t.Helper()
	dir := filepath.Join(parent, name, "p1")
	if err := os.MkdirAll(filepath.Join(dir, "workspaces", "w"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	lock, err := target.LockRun(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	return dir
}

func owners(t *testing.T) (self, dead Process) {
	t.Helper()
	self, err := Find(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return self, Process{Pid: self.Pid, Start: self.Start + "0"}
}

func TestSweepTakesTheDeadOnly(t *testing.T) {
	parent := t.TempDir()
	self, dead := owners(t)
	silent := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: silent, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // the socket's file stays: an engine that may come back

	r := Record{Owner: dead, Engine: filepath.Join(parent, "no-socket"), Label: LabelRun + "=" + id}
	gone := folder(t, parent, "gone", r)
	waits := folder(t, parent, "waits", Record{Owner: dead, Engine: silent, Label: r.Label})
	living := folder(t, parent, "living", Record{Owner: self, Engine: r.Engine, Label: r.Label})
	// Somebody else's word about what is to be removed is not taken.
	strange := folder(t, parent, "strange", r)
	if err := os.Chown(filepath.Join(strange, File), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	open := folder(t, parent, "open", r)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	// Nor is one that lies where no run's does.
	shallow := filepath.Join(parent, "shallow")
	if err := os.Mkdir(shallow, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(shallow); err != nil {
		t.Fatal(err)
	}
	held := folder(t, parent, "held", r)
	if err := os.Remove(filepath.Join(filepath.Dir(held), target.RunLock)); err != nil {
		t.Fatal(err)
	}
	lock, err := target.LockRun(filepath.Dir(held)) // in another pid namespace
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := Sweep(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{filepath.Dir(gone): false, waits: true, living: true, strange: true, open: true, shallow: true, held: true} {
		if _, err := os.Stat(dir); (err == nil) != want || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := os.Stat(filepath.Join(dir, File)); want && err != nil {
			t.Errorf("its record: %v", err)
		}
	}
	if err := Sweep(t.Context(), filepath.Join(parent, "absent")); err != nil {
		t.Error(err)
	}
}

// A file of the record's name may be anybody's: only what is a record to the letter is believed.
func TestAFileOfTheSameNameIsNoRecord(t *testing.T) {
	_, dead := owners(t)
	r := Record{Owner: dead, Engine: "/no-socket", Label: LabelRun + "=" + id}
	whole, err := os.ReadFile(filepath.Join(folder(t, t.TempDir(), "run", r), File))
	if err != nil {
		t.Fatal(err)
	}
	with := func(from, to string) string {
		text := strings.Replace(string(whole), from, to, 1)
		if text == string(whole) {
			t.Fatalf("no %s in %s", from, whole)
		}
		return text
	}
	for name, tt := range map[string]struct {
		text         string
		swept, fails bool
	}{
		"whole":        {string(whole), true, false},
		"another's":    {`{"name":"alice"}`, false, false},
		"empty":        {``, false, false},
		"no JSON":      {`{`, false, false},
		"no format":    {with(`"format":"`+format+`",`, ""), false, false},
		"other format": {with(format, "hallmark-owner/2"), false, false},
		"cut":          {string(whole[:len(whole)-2]), false, true},
		"more":         {with(`{"format"`, `{"name":"alice","format"`), false, true},
		"no process":   {with(`"pid":`+strconv.Itoa(dead.Pid), `"pid":0`), false, true},
		"negative":     {with(`"pid":`, `"pid":-`), false, true},
		"no start":     {with(`"start":"`+dead.Start, `"start":"`), false, true},
		"other label":  {with(LabelRun, "com.example.app"), false, true},
		"short label":  {with(id, id[1:]), false, true},
		"no engine":    {with("/no-socket", ""), false, true},
		"shared group": {with(`"cgroup":""`, `"cgroup":"/docker"`), false, true},
		"steps up":     {with(`"cgroup":""`, `"cgroup":"/a/../hallmark-`+id[:12]+`"`), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := folder(t, parent, "run", r)
			if err := os.WriteFile(filepath.Join(dir, File), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := Sweep(t.Context(), parent); (err != nil) != tt.fails {
				t.Errorf("sweep: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "workspaces", "w")); (err != nil) != tt.swept {
				t.Errorf("its folder: %v", err)
			}
		})
	}
}

// engine answers what a sweep asks, and tells what was removed.
func engine(t *testing.T, containers map[string][2]string, images map[string]string) (socket string, removed func() []string) {
	t.Helper()
	var mu sync.Mutex
	gone := map[string]bool{}
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	h := func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Api-Version", "1.44")
		parts := strings.Split(strings.Trim(q.URL.Path, "/"), "/") // v1.44, kind, id, json
		switch {
		case strings.HasSuffix(q.URL.Path, "/_ping"):
		case q.Method == http.MethodDelete:
			gone[parts[1]+" "+parts[2]] = true
			answer(w, []any{})
		case strings.HasSuffix(q.URL.Path, "/containers/json"):
			rows := []any{}
			for c, has := range containers {
				rows = append(rows, map[string]any{"Id": c, "Labels": map[string]string{LabelRun: has[0]}})
			}
			answer(w, rows)
		case strings.HasSuffix(q.URL.Path, "/images/json"):
			rows := []any{}
			for m, parent := range images {
				if strings.Contains(q.URL.Query().Get("filters"), `"`+oracle.PlantParent+"="+parent+`"`) {
					rows = append(rows, map[string]any{"Id": m})
				}
			}
			answer(w, rows)
		case len(parts) == 4 && parts[1] == "containers" && !gone["containers "+parts[2]]:
			answer(w, map[string]any{"Id": parts[2], "HostConfig": map[string]any{"CgroupParent": containers[parts[2]][1]}})
		default:
			w.WriteHeader(http.StatusNotFound)
			answer(w, map[string]string{"message": "no such thing"})
		}
	}
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(h)}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(maps.Keys(gone))
	}
}

// Plants carry no label of the driver's: the recorded cgroup parent, and for an image the label
// with it, say whose they are. A run without a parent of its own has no plants that are known.
func TestPlantsOfADeadRunAreSwept(t *testing.T) {
	_, dead := owners(t)
	own := "/docker/" + CgroupName(id)
	for parent, want := range map[string][]string{
		own: {"containers labelled", "containers planted", "images planted"},
		"":  {"containers labelled"},
	} {
		socket, removed := engine(t, map[string][2]string{
			"labelled": {id, own}, "planted": {"", own}, "other": {"", "/docker"}, "below": {"", own + "/x"}, "default": {"", ""}, "run": {"1" + id[1:], "/docker/hallmark-1"},
		}, map[string]string{"planted": own, "other": "/docker/hallmark-1", "none": ""})
		runs := t.TempDir()
		dir := folder(t, runs, "run", Record{Owner: dead, Engine: socket, Label: LabelRun + "=" + id, Cgroup: parent})
		if err := Sweep(t.Context(), runs); err != nil {
			t.Error(err)
		}
		if got := removed(); !slices.Equal(got, want) {
			t.Errorf("parent %q: removed %v, want %v", parent, got, want)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder: %v", err)
		}
	}
}
