// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// PT07 makes the worker fail in as many ways as can be had from outside.
var PT07 = conformance.Case{
	ID: "PT-07", Revision: 1, Title: "Error union",
	Requirement: "Every failure on the wire is one code of the closed union, with its status, its fixed sentence and nothing else; no cause, path, engine text or stack reaches a caller.",
	Threat:      "An error's text tells a tenant about host, engine and neighbours, or a client acts on a failure that it does not know.",
	Attack:      "A fault at every engine call that a create and a dispose make, injected by the tape; a sandbox whose process is killed under a running command; a full workspace; paths that are unsafe, absent, of another kind or too long; ids that are used, unknown or disposed; requests that are unsigned, malformed, too large or of no route; bytes that are no request.",
	Witness:     "Faults that the tape injected (12); refusals that were read (60); different codes of the union among them (14).",
	Oracle:      "The suite's own copy of the union, held against status, body and content type of every answer; every byte of every answer searched for the worker's folders, the engine's socket, ids and names of containers, the injected text and words of a stack; the worker's log searched for a panic.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartAuthority, conformance.PartWire, conformance.PartTape, conformance.PartEngine, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape},
	Kills:    []conformance.Kill{{Mutant: "m29", Reason: "not-of-the-union"}},
	Run:      runPT07,
}

// failures is one run of PT-07.
type failures struct {
	t      *conformance.T
	forbid []string // what no answer may hold
	codes  map[string]int
}

func runPT07(ctx context.Context, t *conformance.T) error {
	// Arrange.
	f := &failures{t: t, codes: map[string]int{}, forbid: []string{
		"goroutine ", "panic", ".go:", "fault injected", "*errors.", "*fmt.", "*os.", "*fs.", "*net.", "*url.", "*api.", "syscall.", "errno", "/proc/", "/var/", "/tmp/", "docker", "containerd", "runsc",
	}}
	socket, err := t.Target().Observer.EngineSocket()
	if err != nil {
		return err
	}
	f.forbid = append(f.forbid, socket, filepath.Dir(socket))
	logs, _ := t.Target().Observer.Logs() // unavailable when the worker's log is not known
	sizes := map[string]int64{}
	for _, path := range logs {
		f.forbid = append(f.forbid, filepath.Dir(path))
		if st, err := os.Stat(path); err == nil {
			sizes[path] = st.Size()
		}
	}
	t.NeedWitness("faults", 12)
	t.NeedWitness("refusals", 60)
	t.NeedWitness("codes", 14)
	sb := t.Sandbox(ctx, target.Spec{WorkspaceBytes: 16 << 20})
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	f.forbid = append(f.forbid, c.ID, c.ID[:12], c.Name, c.Workspace)

	// Attack, judged answer by answer.
	for _, step := range []func(context.Context, target.Sandbox) error{f.requests, f.paths, f.states, f.strangers, f.engine, f.removal} {
		if err := step(ctx, sb); err != nil {
			return err
		}
	}
	if err := f.killed(ctx, sb, c.Pid); err != nil {
		return err
	}
	t.Witness("codes", int64(len(f.codes)))
	t.Observe("codes", slices.Sorted(maps.Keys(f.codes)))
	for path, size := range sizes {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b[min(size, int64(len(b))):], []byte("panic")) {
			t.Fail("panicked", "the worker's log tells of a panic")
		}
	}
	return nil
}

// judge holds one answer against the union and searches it.
func (f *failures) judge(what string, a wire.Answer) {
	if a.Status < 400 {
		return
	}
	f.t.Witness("refusals", 1)
	code, err := wire.Refusal(a)
	if err != nil {
		f.t.Fail("not-of-the-union", "%s: %v", what, err)
	} else {
		f.codes[code]++
	}
	f.search(what, a)
}

func (f *failures) search(what string, a wire.Answer) {
	for _, word := range f.forbid {
		if bytes.Contains(bytes.ToLower(a.Raw), []byte(strings.ToLower(word))) {
			f.t.Fail("cause-on-wire", "%s: the answer holds %q", what, word)
		}
	}
}

// ask sends a signed request and judges the answer.
func (f *failures) ask(ctx context.Context, what string, req target.RawRequest) (wire.Answer, error) {
	q, err := wire.Sign(ctx, f.t.Target().Authority, req)
	if err != nil {
		return wire.Answer{}, err
	}
	return f.send(ctx, what, q)
}

func (f *failures) send(ctx context.Context, what string, q wire.Request) (wire.Answer, error) {
	a, err := wire.Send(ctx, f.t.Target().Authority.Dial, q)
	if err != nil {
		return a, fmt.Errorf("%s: %w", what, err)
	}
	f.judge(what, a)
	return a, nil
}

// refused is ask for a request that must not succeed.
func (f *failures) refused(ctx context.Context, what string, req target.RawRequest) error {
	a, err := f.ask(ctx, what, req)
	if err == nil && a.Status < 400 {
		f.t.Fail("not-refused", "%s: status %d", what, a.Status)
	}
	return err
}

// requests are malformed, unsigned, too large or of no route.
func (f *failures) requests(ctx context.Context, sb target.Sandbox) error {
	exec := func(body string) target.RawRequest { return wire.On(sb, "exec", "POST", "/exec", []byte(body)) }
	for what, req := range map[string]target.RawRequest{
		"no body": exec(""), "no JSON": exec("x"), "an array": exec("[]"), "an empty object": exec("{}"), "unclosed": exec(`{"invocationId":"`), "a zero byte": exec("\x00"),
		"no arguments":        exec(`{"invocationId":"pt07","argv":[],"cwd":"","timeoutMs":1000,"maxOutputBytes":1}`),
		"credentials":         exec(`{"invocationId":"pt07","argv":["x"],"cwd":"","timeoutMs":1000,"maxOutputBytes":1,"credentialRefs":[]}`),
		"an unsafe cwd":       exec(`{"invocationId":"pt07","argv":["x"],"cwd":"../..","timeoutMs":1000,"maxOutputBytes":1}`),
		"a body above 2 MiB":  exec(strings.Repeat(" ", 2<<20+1)),
		"an unknown fs op":    wire.FS(sb, "chmod", "x"),
		"a cursor of nothing": wire.On(sb, "fs", "POST", "/fs", []byte(`{"op":"list","cursor":"AAAA"}`)),
		"no such route":       wire.On(sb, "get", "GET", "/nothing", nil),
		"a body for get":      wire.On(sb, "get", "GET", "", []byte("{}")),
		"PATCH":               wire.On(sb, "get", "PATCH", "", nil),
		"OPTIONS":             wire.On(sb, "get", "OPTIONS", "", nil),
		"TRACE":               wire.On(sb, "get", "TRACE", "", nil),
		"an odd method":       wire.On(sb, "get", "GET2", "", nil),
		"no query":            wire.On(sb, "read", "GET", "/files", nil),
		"no mode":             wire.On(sb, "write", "PUT", "/files?path=x", []byte("x")),
		"an odd query":        wire.On(sb, "read", "GET", "/files?path=x&path=y&%zz", nil),
	} {
		if err := f.refused(ctx, what, req); err != nil {
			return err
		}
	}
	get := wire.On(sb, "get", "GET", "", nil)
	good, err := wire.Sign(ctx, f.t.Target().Authority, get)
	if err != nil {
		return err
	}
	for what, header := range map[string][]string{
		"no capability": {}, "two capabilities": {good.Header[0], good.Header[0]}, "a basic one": {"Authorization: Basic eDp4"}, "an empty one": {"Authorization: Bearer "},
		"a capability of dots": {"Authorization: Bearer ..."}, "one of 10,000 letters": {"Authorization: Bearer " + strings.Repeat("a", 10_000)},
		"headers above 32 KiB": {good.Header[0], "X-Long: " + strings.Repeat("a", 40<<10)}, "many headers": append([]string{good.Header[0]}, slices.Repeat([]string{"X-Many: 1"}, 4_000)...),
	} {
		q := good
		q.Header = append(header, "Connection: close")
		if a, err := f.send(ctx, what, q); err != nil {
			return err
		} else if a.Status < 400 {
			f.t.Fail("not-refused", "%s: status %d", what, a.Status)
		}
	}
	return nil
}

// paths go wrong in the workspace.
func (f *failures) paths(ctx context.Context, sb target.Sandbox) error {
	for name, body := range map[string]string{"pt07-file": "x", "pt07-dir/file": "x"} {
		if strings.Contains(name, "/") {
			if a, err := f.ask(ctx, "mkdir", wire.FS(sb, "mkdir", filepath.Dir(name))); err != nil || a.Status >= 300 {
				return fmt.Errorf("make a folder: status %d, %w", a.Status, err)
			}
		}
		if err := sb.Files().Write(ctx, name, []byte(body)); err != nil {
			return err
		}
	}
	fs := func(body string) target.RawRequest { return wire.On(sb, "fs", "POST", "/fs", []byte(body)) }
	for what, req := range map[string]target.RawRequest{
		"read of nothing": wire.File(sb, "pt07-none"), "read of a folder": wire.File(sb, "pt07-dir"), "read below a file": wire.File(sb, "pt07-file/x"), "read above": wire.File(sb, "../../etc/passwd"),
		"read of an absolute path": wire.File(sb, "/etc/passwd"), "read of NUL": wire.File(sb, "a\x00b"), "read of 5,000 letters": wire.File(sb, strings.Repeat("a", 5_000)), "a name of 256 letters": wire.File(sb, strings.Repeat("a", 256)),
		"stat of nothing": wire.FS(sb, "stat", "pt07-none"), "mkdir again": wire.FS(sb, "mkdir", "pt07-dir"), "mkdir below a file": wire.FS(sb, "mkdir", "pt07-file/x"), "remove of a full folder": wire.FS(sb, "remove", "pt07-dir"),
		"readlink of a file": wire.FS(sb, "readlink", "pt07-file"), "list of a file": wire.FS(sb, "list", "pt07-file"), "rename of nothing": fs(`{"op":"rename","path":"pt07-none","to":"x"}`),
		"rename into itself": fs(`{"op":"rename","path":"pt07-dir","to":"pt07-dir/x"}`), "rename above": fs(`{"op":"rename","path":"pt07-file","to":"../x"}`), "bytes that are no base64": fs(`{"op":"stat","pathBytes":"!"}`), "two names": fs(`{"op":"stat","path":"a","pathBytes":"YQ=="}`),
		"write over a folder": wire.Write(sb, "pt07-dir", []byte("x")), "write below nothing": wire.Write(sb, "pt07-none/x", []byte("x")), "write above": wire.Write(sb, "a/../../x", []byte("x")),
		"create of what is there": wire.On(sb, "write", "PUT", "/files?path=pt07-file&mode=create", []byte("x")),
		"more than the workspace": wire.Write(sb, "pt07-large", make([]byte, 24<<20)),
	} {
		if err := f.refused(ctx, what, req); err != nil {
			return err
		}
	}
	return nil
}

// states are ids that are used, unknown, or of something else.
func (f *failures) states(ctx context.Context, sb target.Sandbox) error {
	body, err := f.t.Target().Wire.CreateBody(ctx, f.t.Spec(target.Spec{WorkspaceID: sb.WorkspaceID()}))
	if err != nil {
		return err
	}
	create := func(member, value string) target.RawRequest {
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal(body, &members); err == nil && member != "" {
			members[member] = json.RawMessage(value)
		}
		text, _ := json.Marshal(members) // of JSON values
		return target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: sb.WorkspaceID(), Body: text}
	}
	none := "sb-" + strings.Repeat("0", 32)
	noneSuch := wire.On(sb, "get", "GET", "", nil)
	noneSuch.Target, noneSuch.SandboxID = "/v1/sandboxes/"+none, none
	foreign := wire.On(sb, "get", "GET", "", nil)
	foreign.WorkspaceID = "pt07-other"
	first := wire.Exec(sb, "pt07-once", "/nothing")
	if _, err := f.ask(ctx, "a command that does not exist", first); err != nil {
		return err
	}
	for what, req := range map[string]target.RawRequest{
		"an unknown sandbox": noneSuch, "another workspace's sandbox": foreign,
		"another command under its id":   wire.Exec(sb, "pt07-once", "/other"),
		"a second sandbox":               create("", ""),
		"another protocol":               create("protocolVersion", `"hallmark.worker.v0"`),
		"another cohort":                 create("expected", `{"cohortId":"sha256:`+strings.Repeat("0", 64)+`","pinsDigest":"sha256:`+strings.Repeat("0", 64)+`"}`),
		"an image by its tag":            create("image", `"busybox:latest"`),
		"a workspace that is not its":    create("workspaceId", `"pt07-other"`),
		"resources above every ceiling":  create("resources", `{"cpus":1,"memoryBytes":9007199254740991,"pids":1,"workspaceBytes":1,"workspaceInodes":1}`),
		"a purge of a workspace in use":  {Op: "purge", Method: "DELETE", Target: "/v1/workspaces/" + sb.WorkspaceID(), WorkspaceID: sb.WorkspaceID()},
		"a purge of another's workspace": {Op: "purge", Method: "DELETE", Target: "/v1/workspaces/pt07-other", WorkspaceID: sb.WorkspaceID()},
	} {
		if err := f.refused(ctx, what, req); err != nil {
			return err
		}
	}
	used, err := wire.Sign(ctx, f.t.Target().Authority, wire.On(sb, "get", "GET", "", nil))
	if err != nil {
		return err
	}
	for range 2 {
		if _, err := f.send(ctx, "a used capability", used); err != nil {
			return err
		}
	}
	return nil
}

// strangerTime is how long a stranger waits for an answer: some have not said all that the HTTP layer
// waits for.
const strangerTime = 3 * time.Second

// strangers send bytes that are no request of the API. The HTTP layer may answer them in one line
// of its own, or not at all; what it says is searched like every answer.
func (f *failures) strangers(ctx context.Context, _ target.Sandbox) error {
	texts := map[string]string{
		"a newline": "\n\n\n\n", "letters": strings.Repeat("x", 5_000) + "\r\n\r\n", "another protocol": "SSH-2.0-x\r\n\r\n", "a TLS greeting": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"no host": "GET /v1/health HTTP/1.1\r\n\r\n", "two hosts": "GET /v1/health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "an old version": "GET /v1/health HTTP/0.9\r\n\r\n", "a far version": "GET /v1/health HTTP/9.9\r\nHost: a\r\n\r\n",
		"two lengths":   "POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"both lengths":  "POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
		"an odd coding": "POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "a negative length": "POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
		"a header without a name": "GET /v1/health HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", "a control letter": "GET /v1/\x01 HTTP/1.1\r\nHost: a\r\n\r\n", "a header of 1 MiB": "GET /v1/health HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
	}
	type end struct {
		a   wire.Answer
		err error
	}
	ends := make(map[string]chan end, len(texts))
	for what, text := range texts {
		c, err := f.t.Target().Authority.Dial(ctx)
		if err != nil {
			return err
		}
		ends[what] = make(chan end, 1)
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(strangerTime))
			c.Write([]byte(text)) // the worker may close before the end
			a, err := wire.Read(c)
			ends[what] <- end{a, err}
		}()
	}
	for what := range texts {
		e := <-ends[what]
		f.t.Witness("strangers", 1)
		if e.err != nil && e.a.Status == 0 {
			continue // closed without a word, or waiting for more
		}
		f.search(what, e.a)
		if _, err := wire.Refusal(e.a); err != nil && (e.a.Status < 400 || len(e.a.Body) > 200 || bytes.ContainsAny(e.a.Body, "\n{<")) {
			f.t.Fail("not-of-the-union", "%s: status %d with %.200q", what, e.a.Status, e.a.Body)
		}
	}
	return nil
}

// fault is one engine call that goes wrong.
type fault struct {
	method, path string
	nth, status  int
}

// engine lets a create fail at each of its engine calls.
func (f *failures) engine(ctx context.Context, _ target.Sandbox) error {
	const id = `/containers/[0-9a-f]{64}`
	for _, fl := range []fault{
		{"GET", `/images/.*/json$`, 1, 500}, {"GET", `/images/.*/json$`, 1, 404}, {"POST", `/containers/create$`, 1, 500}, {"POST", `/containers/create$`, 1, 404}, {"POST", `/containers/create$`, 1, 409},
		{"GET", id + `/json$`, 1, 500}, {"GET", id + `/json$`, 2, 500}, {"GET", id + `/json$`, 3, 404}, {"POST", id + `/start$`, 1, 500}, {"POST", id + `/exec$`, 1, 500}, {"POST", `/exec/[0-9a-f]{64}/start$`, 1, 500},
	} {
		what := fmt.Sprintf("a create with %s %s number %d answered with %d", fl.method, fl.path, fl.nth, fl.status)
		spec := f.t.Spec(target.Spec{})
		f.t.AdoptWorkspace(spec.WorkspaceID)
		body, err := f.t.Target().Wire.CreateBody(ctx, spec)
		if err != nil {
			return err
		}
		req := target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: body}
		a, err := f.under(ctx, what, fl, req)
		if err != nil {
			return err
		}
		if a.Status == 201 { // the worker could do without that call
			if err := attack.DisposeRaw(ctx, f.t, spec.WorkspaceID, a.Body); err != nil {
				return err
			}
		}
	}
	return nil
}

// under asks with one fault armed, and sees that it struck.
func (f *failures) under(ctx context.Context, what string, fl fault, req target.RawRequest) (wire.Answer, error) {
	_, mark, err := f.t.Target().Observer.Tape(0)
	if err != nil {
		return wire.Answer{}, err
	}
	if err := f.t.Target().Controller.Inject(target.TapeRule{Method: fl.method, Match: fl.path, Nth: fl.nth, Status: fl.status}); err != nil {
		return wire.Answer{}, err
	}
	a, err := f.ask(ctx, what, req)
	if err != nil {
		return a, err
	}
	calls, _, err := f.t.Target().Observer.Tape(mark)
	if err != nil {
		return a, err
	}
	if !slices.ContainsFunc(calls, func(c target.TapeCall) bool { return c.Fault != "" }) {
		return a, fmt.Errorf("%s: the engine was not asked", what)
	}
	f.t.Witness("faults", 1)
	return a, nil
}

// removal lets a dispose fail, until it succeeds.
func (f *failures) removal(ctx context.Context, _ target.Sandbox) error {
	sb := f.t.Sandbox(ctx, target.Spec{})
	c, err := attack.Container(ctx, f.t, sb)
	if err != nil {
		return err
	}
	f.forbid = append(f.forbid, c.ID, c.Name, c.Workspace)
	dispose := wire.On(sb, "dispose", "DELETE", "", nil)
	if _, err := f.under(ctx, "a dispose whose removal fails", fault{"DELETE", `/containers/` + c.ID, 1, 500}, dispose); err != nil {
		return err
	}
	gone, err := attack.Eventually(ctx, 20*time.Second, func() (bool, error) {
		a, err := f.ask(ctx, "the dispose again", dispose)
		return a.Status == 204, err
	})
	if err != nil || !gone {
		return fmt.Errorf("the sandbox is not disposed: %w", err)
	}
	for what, req := range map[string]target.RawRequest{"get of what is disposed": wire.On(sb, "get", "GET", "", nil), "exec in what is disposed": wire.Exec(sb, "pt07", "true"), "read of what is disposed": wire.File(sb, "x")} {
		if _, err := f.ask(ctx, what, req); err != nil {
			return err
		}
	}
	return nil
}

// killed ends the sandbox's process on the host while a command runs in it.
func (f *failures) killed(ctx context.Context, sb target.Sandbox, pid int) error {
	program := f.t.Tenant(ctx, sb)
	q, err := wire.Sign(ctx, f.t.Target().Authority, wire.Exec(sb, "pt07-killed", attack.Command(program, "contract", "-touch", "pt07-runs", "-sleep", "15s")...))
	if err != nil {
		return err
	}
	type end struct {
		a   wire.Answer
		err error
	}
	ended := make(chan end, 1)
	go func() {
		a, err := wire.Send(ctx, f.t.Target().Authority.Dial, q)
		ended <- end{a, err}
	}()
	runs, err := attack.Eventually(ctx, 10*time.Second, func() (bool, error) {
		_, err := sb.Files().Stat(ctx, "pt07-runs")
		return err == nil, nil
	})
	if err == nil && runs {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	e := <-ended
	if err != nil || !runs || e.err != nil {
		return fmt.Errorf("kill the sandbox under its command (it ran: %v): %w, %w", runs, err, e.err)
	}
	f.judge("a command whose sandbox is killed", e.a)
	if e.a.Status < 400 {
		f.t.Fail("not-refused", "a command whose sandbox is killed: status %d", e.a.Status)
	}
	for _, req := range []target.RawRequest{wire.Exec(sb, "pt07-after", "true"), wire.FS(sb, "stat", "pt07-file"), wire.File(sb, "pt07-file"), wire.On(sb, "get", "GET", "", nil), wire.On(sb, "dispose", "DELETE", "", nil)} {
		if _, err := f.ask(ctx, req.Op+" in a killed sandbox", req); err != nil {
			return err
		}
	}
	return nil
}
