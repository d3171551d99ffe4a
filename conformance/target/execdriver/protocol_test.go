// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

const about = `{"id":1,"ok":{"protocol":"hallmark-exec/1","name":"x","version":"1","claims":["exec","files"],"parts":[],"root":"none"}}`

// short are bounds that a test can wait for.
var short = bounds{answer: 5 * time.Second, create: 2 * time.Second, margin: time.Second, write: time.Second, close: 2 * time.Second, exit: 2 * time.Second}

// script opens a program that is a shell script.
func script(t *testing.T, dir, text string) (*driver, error) {
	t.Helper()
	config, err := json.Marshal(Config{Command: []string{"sh", "-c", text}, StartTimeoutMs: 1500})
	if err != nil {
		t.Fatal(err)
	}
	return open(t.Context(), config, dir, short)
}

// described answers describe and goes on with text.
func described(text string) string { return "read l; echo '" + about + "'; " + text }

// Whatever a program does wrong is an error with a clear text, soon, for this call and the next.
func TestViolations(t *testing.T) {
	// A well-behaved end, for scripts whose fault is elsewhere.
	const end = `while read l; do case "$l" in *close*) id=${l#*:}; echo "{\"id\":${id%%,*},\"ok\":{}}";; esac; done`
	for _, tt := range []struct {
		name, script string
		opens        bool
		want         string
		alive        bool // the connection survives: only this answer is bad
	}{
		{name: "exits at once", script: "echo no socket >&2; exit 3", want: "the program has ended: exit status 3; its last words: no socket"},
		{name: "never describes itself", script: "sleep 60", want: "no answer to request 1 (describe) within 1.5s"},
		{name: "another protocol", script: `read l; echo '` + strings.Replace(about, "exec/1", "exec/2", 1) + `'; ` + end, want: `speaks "hallmark-exec/2"`},
		{name: "an unknown part", script: `read l; echo '` + strings.Replace(about, `"parts":[]`, `"parts":["observer.tape"]`, 1) + `'; ` + end, want: "observer.tape"},
		{name: "a part without its member", script: `read l; echo '` + strings.Replace(about, `"parts":[]`, `"parts":["observer.cgroup"]`, 1) + `'; ` + end, want: "cgroupParent"},
		{name: "no root", script: `read l; echo '` + strings.Replace(about, `,"root":"none"`, ``, 1) + `'; ` + end, want: "root must say"},
		{name: "an unknown member", script: `read l; echo '` + strings.Replace(about, `"root"`, `"more":1,"root"`, 1) + `'; ` + end, want: "unknown member"},
		{name: "a missing member", script: `read l; echo '` + strings.Replace(about, `"version":"1",`, ``, 1) + `'; ` + end, want: `member "version" missing`},
		{name: "garbage", script: described(`read l; echo hello; sleep 60`), opens: true, want: `not an answer: "hello"`},
		{name: "unknown id", script: described(`read l; echo '{"id":7,"ok":{}}'; sleep 60`), opens: true, want: "there is no request 7"},
		{name: "id 0", script: described(`read l; echo '{"id":0,"ok":{}}'; sleep 60`), opens: true, want: "there is no request 0"},
		{name: "duplicate answer", script: described(`read l; echo '` + about + `'; sleep 60`), opens: true, want: "request 1 has been answered before"},
		{name: "neither ok nor error", script: described(`read l; echo '{"id":2}'; sleep 60`), opens: true, want: "not exactly one of ok and error"},
		{name: "ok and error", script: described(`read l; echo '{"id":2,"ok":{},"error":{"code":"X"}}'; sleep 60`), opens: true, want: "not exactly one of ok and error"},
		{name: "error without a code", script: described(`read l; echo '{"id":2,"error":{"code":""}}'; sleep 60`), opens: true, want: "no code"},
		{name: "unknown kind", script: described(`read l; echo '{"id":2,"error":{"code":"X","kind":"odd"}}'; sleep 60`), opens: true, want: `unknown kind "odd"`},
		{name: "duplicate member", script: described(`read l; echo '{"id":2,"id":2,"ok":{}}'; sleep 60`), opens: true, want: "not an answer"},
		{name: "base64 without padding", script: described(`read l; echo '{"id":2,"ok":{"body":"YQ"}}'; ` + end), opens: true, want: "the answer to read", alive: true},
		{name: "no body", script: described(`read l; echo '{"id":2,"ok":{}}'; ` + end), opens: true, want: `member "body" missing`, alive: true},
		{name: "exits", script: described(`read l; echo broken >&2; exit 7`), opens: true, want: "exit status 7; its last words: broken"},
		{name: "is killed", script: described(`read l; kill -9 $$`), opens: true, want: "signal: killed"},
		{name: "closes its output", script: described(`read l; exec >&-; sleep 60`), opens: true, want: "closed its output"},
		{name: "half a line", script: described(`read l; printf '{"id":2,'; exit 0`), opens: true, want: "ends in the middle of a line"},
		{name: "a huge line", script: described(`read l; head -c 34000000 /dev/zero | tr '\0' a; sleep 60`), opens: true, want: "more than 33554432 bytes"},
		{name: "never answers", script: described(`read l; sleep 60`), opens: true, want: "no answer to request 2 (read) within 5s"},
		{name: "a child holds the output", script: described(`read l; sleep 60 & exit 1`), opens: true, want: "exit status 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			start := time.Now()
			d, err := script(t, dir, tt.script)
			if tt.opens {
				if err != nil {
					t.Fatal(err)
				}
				tg := d.target()
				files := files{sandbox{driver: d, id: "sb"}}
				_, err = files.Read(t.Context(), "x")
				if _, again := files.Read(t.Context(), "x"); !tt.alive && (again == nil || again.Error() != err.Error()) {
					t.Errorf("the next call says %v", again)
				}
				if cerr := tg.Close(); !tt.alive && (cerr == nil || !strings.Contains(cerr.Error(), tt.want)) {
					t.Errorf("close says %v", cerr)
				}
			}
			var violation *ProtocolError
			if err == nil || !errors.As(err, &violation) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q in it", err, tt.want)
			}
			if target.CodeOf(err) != "" {
				t.Errorf("a broken program looks like a refusal: %v", err)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%s is left in the folder", left[0].Name())
			}
		})
	}
}

// A program that does not read gets no half line, and the caller an error.
func TestProgramThatDoesNotRead(t *testing.T) {
	d, err := script(t, t.TempDir(), described("sleep 60"))
	if err != nil {
		t.Fatal(err)
	}
	f := files{sandbox{driver: d, id: "sb"}}
	if err := f.Write(t.Context(), "x", make([]byte, 1<<20)); err == nil || !strings.Contains(err.Error(), "does not read its requests") {
		t.Errorf("the error is %v", err)
	}
	d.close()
}

// A request that fits no line is refused, typed, and nothing is sent.
func TestRequestBeyondTheLine(t *testing.T) {
	d, err := script(t, t.TempDir(), described(`read l; case "$l" in *state*) echo '{"id":3,"ok":{"state":"ready"}}';; esac; read l; echo '{"id":4,"ok":{}}'; read l; exit 0`))
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox{driver: d, id: "sb"}
	if err := s.Files().Write(t.Context(), "x", make([]byte, 30<<20)); target.KindOf(err) != target.KindUnsupported {
		t.Errorf("the error is %v", err)
	}
	if state, err := s.State(t.Context()); err != nil || state != "ready" {
		t.Errorf("the next request: %q, %v", state, err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// What a program does wrong at its end is said, and nothing of it is left.
func TestEnds(t *testing.T) {
	const answer = `read l; echo '{"id":2,"ok":{}}'; `
	for _, tt := range []struct{ name, script, want string }{
		{"in order", answer + "read l; exit 0", ""},
		{"does not answer", "read l; sleep 60", "no answer to request 2 (close)"},
		{"refuses", `read l; echo '{"id":2,"error":{"code":"X_BUSY","kind":"busy"}}'; read l`, "X_BUSY"},
		{"does not exit", answer + "sleep 60", "has not ended 2s after"},
		{"exit status", answer + "read l; exit 5", "ended with exit status 5 after close"},
		{"answers late", answer + `echo '{"id":2,"ok":{}}'; read l`, "an answer came after that to close"},
		{"leaves a file", `touch "$HALLMARK_EXEC_STATE/left"; ` + answer + "read l", "left 1 things in its folder: left"},
		{"leaves a process in its group", "sleep 61 & " + answer + "read l; exit 0", ""},
		{"leaves a process in another session", "setsid sleep 62 & sleep 0.3; " + answer + "read l; exit 0", "(sleep)"},
		{"leaves a process that holds the pipes", "setsid sh -c 'trap \"\" TERM HUP; sleep 63; true' & sleep 0.3; " + answer + "read l; exit 0", "process"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d, err := script(t, dir, described(tt.script))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			err = d.close()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("close says %v, want %q in it", err, tt.want)
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("close took %s", took)
			}
			if left := marked(d.conn.proc.marker); len(left) > 0 {
				t.Errorf("process %d (%s) is left", left[0].pid, left[0].name)
			}
		})
	}
}

// The answer to a request whose caller has left may come after that to close: the program ends the
// command because it is closed, and says so then.
func TestAnswerOwedAtTheEnd(t *testing.T) {
	d, err := script(t, t.TempDir(), described(`read l; read l; read l; echo '{"id":3,"ok":{}}'; echo '{"id":2,"ok":{"state":"ready"}}'; read l; exit 0`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (sandbox{driver: d, id: "sb"}).State(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller that leaves gets %v", err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
}

// A mount in the program's folder is detached, so that nobody who cleans up walks through it.
func TestMountIsDetached(t *testing.T) {
	dir, precious := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(precious, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := script(t, dir, described(`mkdir "$HALLMARK_EXEC_STATE/m"; mount --bind `+precious+` "$HALLMARK_EXEC_STATE/m"; read l; echo '{"id":2,"ok":{}}'; read l; exit 0`))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err == nil || !strings.Contains(err.Error(), "mount "+filepath.Join(dir, "state", "m")) {
		t.Errorf("close says %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Error(err)
	}
}

// A serial program never has two requests, also when a caller has left; it is not told of that.
func TestSerial(t *testing.T) {
	describe := strings.Replace(about, `"root"`, `"serial":true,"root"`, 1)
	// Answers a request after 200 ms, and only if nothing else has come meanwhile.
	d, err := script(t, t.TempDir(), "read l; echo '"+describe+`'; n=1; while read l; do n=$((n+1));
		if timeout 0.2 sh -c 'head -c 1 >/dev/null'; then exit 9; fi
		echo "{\"id\":$n,\"ok\":{\"state\":\"ready\"}}"; [ $n = 8 ] && break; done; read l; echo '{"id":9,"ok":{}}'; read l; exit 0`)
	if err != nil {
		t.Fatal(err)
	}
	tg := d.target()
	if len(tg.Parts) != 0 {
		t.Errorf("parts are %q", tg.Parts)
	}
	left, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s := sandbox{driver: d, id: "sb"}
	if _, err := s.State(left); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller that leaves: %v", err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if state, err := s.State(t.Context()); err != nil || state != "ready" {
				t.Errorf("state: %q, %v", state, err)
			}
		})
	}
	wg.Wait()
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
}

// orphanVariable makes the test binary a suite that dies.
const orphanVariable = "EXECDRIVER_ORPHAN"

func orphan(state string) {
	text := described(`trap 'echo $$ >` + state + `/cleaned; exit 0' TERM; echo $$ >` + state + `/started; while :; do sleep 0.05; done`)
	config, _ := json.Marshal(Config{Command: []string{"sh", "-c", text}})
	if _, err := Open(context.Background(), config, filepath.Join(state, "work")); err != nil {
		fmt.Println(err)
		os.Exit(5)
	}
	for {
		if _, err := os.Stat(filepath.Join(state, "started")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// When the suite dies the program is told, and can clean up.
func TestSuiteDies(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), orphanVariable+"="+state)
	if out, err := cmd.CombinedOutput(); err == nil || len(out) > 0 {
		t.Fatalf("the dying suite: %v, %s", err, out)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pid, err := os.ReadFile(filepath.Join(state, "cleaned"))
		if err == nil {
			if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)) + "/status"); err != nil {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the program lives on, or has not cleaned up: %v", err)
		}
	}
}

// An observer that lies is not believed.
func TestLies(t *testing.T) {
	other := t.TempDir()
	for _, tt := range []struct{ name, parts, observe, want string }{
		{"another folder", `"observer.workspace-path"`, `{"workspace":"` + other + `"}`, "is not the workspace"},
		{"a relative path", `"observer.workspace-path"`, `{"workspace":"ws"}`, "not clean and absolute"},
		{"no path", `"observer.workspace-path"`, `{}`, "not clean and absolute"},
		{"no cgroups", `"observer.cgroup"`, `{}`, "no cgroups"},
		{"a folder as cgroup", `"observer.cgroup"`, `{"cgroups":{"pids":"` + other + `"}}`, "is no cgroup"},
		{"a cgroup of others", `"observer.cgroup"`, `{"cgroups":{"":"/sys/fs/cgroup/unified"}}`, "below the parent"},
		{"the host's init", `"observer.workspace-path"`, `{"workspace":"` + other + `","pid":1}`, "process 1"},
		{"a process that is not there", `"observer.workspace-path"`, `{"workspace":"` + other + `","pid":4194305}`, "process 4194305"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts := `"parts":[` + tt.parts + `]`
			if strings.Contains(tt.parts, "cgroup") {
				parts += `,"cgroupParent":"/never-there"`
			}
			// Answers observe with the lie, and everything else with {}.
			d, err := script(t, t.TempDir(), `read l; echo '`+strings.Replace(about, `"parts":[]`, parts, 1)+`'; n=1; while read l; do n=$((n+1));
				case "$l" in *observe*) echo "{\"id\":$n,\"ok\":`+strings.ReplaceAll(tt.observe, `"`, `\"`)+`}";; *) echo "{\"id\":$n,\"ok\":{}}";; esac; done`)
			if err != nil {
				t.Fatal(err)
			}
			c, err := d.target().Observer.Container(t.Context(), "sb")
			var lie *ProtocolError
			if !errors.As(err, &lie) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v, %v, want %q in the error", c, err, tt.want)
			}
			if err := d.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without images the description of the root stands for one.
func TestWorkload(t *testing.T) {
	text := func(d string) json.RawMessage {
		b, err := json.Marshal(Config{Command: []string{"sh", "-c", "read l; echo '" + d + `'; read l; echo '{"id":2,"ok":{}}'; read l; exit 0`}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one, err := Workload(t.Context(), text(about))
	if err != nil {
		t.Fatal(err)
	}
	two, err := Workload(t.Context(), text(strings.Replace(about, `"root":"none"`, `"root":"another"`, 1)))
	if err != nil || one == two || len(one) != len("sha256:")+64 {
		t.Errorf("%s and %s, %v", one, two, err)
	}
	if _, err := Workload(t.Context(), text(strings.Replace(about, `"root":"none"`, `"images":true`, 1))); err == nil {
		t.Error("a runtime with images needs no workload")
	}
}
