// SPDX-License-Identifier: Apache-2.0

package wiretest

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

func contract(t *testing.T) *Contract {
	t.Helper()
	c, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Examples are of no use if they are not looked at.
func TestWrongExampleIsFound(t *testing.T) {
	good := string(api.OpenAPI())
	bad := strings.Replace(good, "stdout: aGVsbG8K\n", "stdout: aGVsbG8\n", 1)
	if bad == good {
		t.Fatal("the example has gone")
	}
	if _, err := Parse([]byte(bad)); err == nil {
		t.Error("an example with bad base64 passes")
	}
}

// notes collects findings.
type notes struct{ found []string }

func (n *notes) Errorf(format string, args ...any) {
	n.found = append(n.found, fmt.Sprintf(format, args...))
}

// answer is a round-tripper that always answers the same.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

func typed(media string) http.Header { return http.Header{"Content-Type": {media}} }

// request makes one with a token of well-formed claims for op.
func request(t *testing.T, op api.Op, method, target, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://worker"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	claims := `{"iss":"i","aud":"w","sub":"ws","op":"` + string(op) + `","sandboxId":"sb","digest":"` + api.Digest(nil) + `","target":"` + api.Digest(nil) +
		`","epoch":"e","iat":1,"exp":2,"jti":"AAAAAAAAAAAAAAAAAAAAAAAA"}`
	r.Header.Set("Authorization", "Bearer e30."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".c2ln")
	return r
}

// exchangeOf runs one exchange and returns what was found and seen.
func exchangeOf(t *testing.T, r *http.Request, a answer) ([]string, map[string]int) {
	t.Helper()
	n := &notes{}
	tr := contract(t).Transport(n, a)
	res, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	return n.found, tr.Seen()
}

func failure(c api.Code) string {
	b, err := strictjson.Marshal(c.Body("r1"))
	if err != nil {
		panic(err)
	}
	return string(b)
}

const (
	execBody  = `{"invocationId":"i","argv":["x"],"cwd":"","timeoutMs":1,"maxOutputBytes":1}`
	noOutput  = `{"invocationId":"i","stdout":"","stderr":"","exitCode":0,"durationMs":1,"truncated":{"stdout":false,"stderr":false,"droppedBytes":0},"descendantsKilled":0,"cleanupProven":true,"timedOut":false}`
	started   = `{"type":"started","invocationId":"i"}` + "\n"
	finished  = `{"type":"result","result":` + noOutput + `}` + "\n"
	sandboxes = "/v1/sandboxes/sb"
)

func TestExchanges(t *testing.T) {
	type row struct {
		op             api.Op
		method, target string
		body           string
		answer         answer
		finds          string // a part of the finding; "" means none
		sees           string
	}
	exec := func(a answer, finds, sees string) row {
		return row{api.OpExec, "POST", sandboxes + "/exec", execBody, a, finds, sees}
	}
	stream := func(body, finds, sees string) row { return exec(answer{200, typed(api.TypeNDJSON), body}, finds, sees) }
	events := func(body, finds, sees string) row {
		return row{api.OpEvents, "GET", sandboxes + "/events", "", answer{200, typed(api.TypeEvents), body}, finds, sees}
	}
	ok := answer{200, typed(api.TypeJSON), noOutput}
	for name, tt := range map[string]row{
		"result":              exec(ok, "", "exec 200"),
		"extra member":        exec(answer{200, typed(api.TypeJSON), strings.Replace(noOutput, `"stdout"`, `"pid":1,"stdout"`, 1)}, "pid", ""),
		"member twice":        exec(answer{200, typed(api.TypeJSON), strings.Replace(noOutput, `"stdout"`, `"stderr":"","stdout"`, 1)}, "not strict JSON", ""),
		"missing member":      exec(answer{200, typed(api.TypeJSON), strings.Replace(noOutput, `,"timedOut":false`, "", 1)}, "timedOut", ""),
		"code and signal":     exec(answer{200, typed(api.TypeJSON), strings.Replace(noOutput, `"exitCode":0`, `"exitCode":0,"signal":"SIGKILL"`, 1)}, "status 200", ""),
		"negative duration":   exec(answer{200, typed(api.TypeJSON), strings.Replace(noOutput, `"durationMs":1`, `"durationMs":-1`, 1)}, "durationMs", ""),
		"undeclared status":   exec(answer{201, typed(api.TypeJSON), noOutput}, "status 201 is not declared", ""),
		"redirect":            exec(answer{307, http.Header{"Location": {"/"}}, ""}, "status 307 is not declared", ""),
		"plain text":          exec(answer{200, typed("text/plain"), noOutput}, "media type", ""),
		"no media type":       exec(answer{200, nil, noOutput}, "media type", ""),
		"header field":        exec(answer{200, http.Header{"Content-Type": {api.TypeJSON}, "X-Cause": {"disk"}}, noOutput}, "X-Cause", ""),
		"failure":             exec(answer{504, typed(api.TypeJSON), failure(api.Timeout)}, "", "exec REMOTE_WORKER_TIMEOUT"),
		"code not declared":   exec(answer{502, typed(api.TypeJSON), failure(api.ProtocolMismatch)}, "does not declare", ""),
		"code and status":     exec(answer{503, typed(api.TypeJSON), failure(api.Timeout)}, "does not match its status", ""),
		"code of nobody":      exec(answer{503, typed(api.TypeJSON), strings.Replace(failure(api.Unavailable), "UNAVAILABLE", "OTHER", 1)}, "status 503", ""),
		"own sentence":        exec(answer{503, typed(api.TypeJSON), strings.Replace(failure(api.Unavailable), "now", "today", 1)}, "does not match its code", ""),
		"body without schema": {api.OpDispose, "DELETE", sandboxes, "", answer{204, nil, "x"}, "has a body", ""},
		"no body":             {api.OpDispose, "DELETE", sandboxes, "", answer{204, nil, ""}, "", "dispose 204"},

		"stream":              stream(started+`{"type":"stdout","data":"eA=="}`+"\n"+finished, "", "exec line stdout"),
		"stream fails":        stream(started+`{"type":"error","error":`+strings.TrimSuffix(strings.TrimPrefix(failure(api.ExecAborted), `{"error":`), "}")+"}\n", "", "exec 200"),
		"foreign code inside": stream(started+`{"type":"error","error":`+strings.TrimSuffix(strings.TrimPrefix(failure(api.Unqualified), `{"error":`), "}")+"}\n", "does not declare", ""),
		"stream breaks off":   stream(started, "ended after", ""),
		"no line":             stream("", "ended after", ""),
		"half a line":         stream(started+finished[:20], "behind the last LF", ""),
		"not started":         stream(finished, "the first line is", ""),
		"two ends":            stream(started+finished+finished, "behind the last one", ""),
		"unknown line":        stream(started+`{"type":"note"}`+"\n"+finished, "line 2", ""),
		"two in one":          stream(started+`{"type":"heartbeat","data":"eA=="}`+"\n"+finished, "line 2", ""),
		"output in result":    stream(started+strings.Replace(finished, `"stdout":""`, `"stdout":"eA=="`, 1), "line 2", ""),

		"events":           events(": ready\n\nevent: change\ndata: {\"type\":\"overflow\"}\n\n:\n\nevent: end\ndata: "+detail(api.SandboxExpired)+"\n\n", "", "events event end"),
		"not ready":        events("event: end\ndata: "+detail(api.SandboxExpired)+"\n\n", "the first line is", ""),
		"events break off": events(": ready\n\n", "without end", ""),
		"unknown event":    events(": ready\n\nevent: note\ndata: {}\n\nevent: end\ndata: "+detail(api.SandboxExpired)+"\n\n", `event "note" is not declared`, ""),
		"wrong change":     events(": ready\n\nevent: change\ndata: {\"type\":\"moved\",\"path\":\"a\"}\n\nevent: end\ndata: "+detail(api.SandboxExpired)+"\n\n", "event change", ""),
		"behind end":       events(": ready\n\nevent: end\ndata: "+detail(api.SandboxExpired)+"\n\nevent: change\ndata: {\"type\":\"overflow\"}\n\n", "behind end", ""),
		"undeclared end":   events(": ready\n\nevent: end\ndata: "+detail(api.Unqualified)+"\n\n", "does not declare", ""),
		"id of an event":   events(": ready\n\nid: 1\n\nevent: end\ndata: "+detail(api.SandboxExpired)+"\n\n", `line "id: 1"`, ""),

		"request with env":   {api.OpExec, "POST", sandboxes + "/exec", strings.Replace(execBody, `"cwd"`, `"env":{},"cwd"`, 1), ok, "that the document refuses", ""},
		"refused, rightly":   {api.OpExec, "POST", sandboxes + "/exec", "{", answer{400, typed(api.TypeJSON), failure(api.RequestInvalid)}, "", "exec REMOTE_WORKER_REQUEST_INVALID"},
		"token of another":   {api.OpGet, "POST", sandboxes + "/exec", execBody, ok, "", "exec 200"},
		"token without op":   {"", "POST", sandboxes + "/exec", execBody, ok, "that the document refuses", ""},
		"query":              {api.OpExec, "POST", sandboxes + "/exec?x=1", execBody, ok, "query name", ""},
		"both paths":         {api.OpRead, "GET", sandboxes + "/files?path=a&pathBytes=YQ==", "", answer{200, http.Header{"Content-Type": {"application/octet-stream"}, "Content-Length": {"0"}}, ""}, "one is needed", ""},
		"dot dot":            {api.OpRead, "GET", sandboxes + "/files?path=a/../b", "", answer{200, http.Header{"Content-Type": {"application/octet-stream"}, "Content-Length": {"0"}}, ""}, "that the document refuses", ""},
		"file":               {api.OpRead, "GET", sandboxes + "/files?path=..a/b..", "", answer{200, http.Header{"Content-Type": {"application/octet-stream"}, "Content-Length": {"0"}}, ""}, "", "read 200"},
		"no length":          {api.OpRead, "GET", sandboxes + "/files?path=a", "", answer{200, typed("application/octet-stream"), ""}, "Content-Length is missing", ""},
		"body for get":       {api.OpGet, "GET", sandboxes, "x", answer{200, typed(api.TypeJSON), "{}"}, "that the document refuses", ""},
		"unknown route":      {api.OpGet, "GET", "/v1/images", "", answer{400, typed(api.TypeJSON), failure(api.RequestInvalid)}, "", "GET /v1/images REMOTE_WORKER_REQUEST_INVALID"},
		"unknown route runs": {api.OpGet, "GET", "/v1/images", "", answer{200, typed(api.TypeJSON), "{}"}, "no such operation", ""},
	} {
		t.Run(name, func(t *testing.T) {
			found, seen := exchangeOf(t, request(t, tt.op, tt.method, tt.target, tt.body), tt.answer)
			all := strings.Join(found, "\n")
			if tt.finds == "" && len(found) != 0 || !strings.Contains(all, tt.finds) {
				t.Errorf("found %q, want %q", all, tt.finds)
			}
			if tt.finds != "" && len(found) == 0 {
				t.Error("nothing was found")
			}
			if tt.sees != "" && seen[tt.sees] == 0 {
				t.Errorf("seen %q, want %q", slices.Sorted(maps.Keys(seen)), tt.sees)
			}
		})
	}
}

func detail(c api.Code) string {
	return strings.TrimSuffix(strings.TrimPrefix(failure(c), `{"error":`), "}")
}

// A signed statement is looked into.
func TestPayloadsAreChecked(t *testing.T) {
	c := contract(t)
	good := `{"protocolVersion":"hallmark.worker.v1","workerId":"w","bootEpoch":"e","mode":"production","challenge":"AAAAAAAAAAAAAAAAAAAAAA",` +
		`"cohortId":"` + api.Digest(nil) + `","pinsDigest":"` + api.Digest(nil) + `","evidenceDigests":[],"features":[],"limits":{"requestBytes":1,"headerBytes":1,` +
		`"connections":1,"creates":1,"execs":1,"execsPerSandbox":1,"outputBytes":1,"nonces":1,"noncesPerWorkspace":1,"resourceCeilings":` +
		`{"cpus":1,"memoryBytes":1,"pids":1,"workspaceBytes":1,"workspaceInodes":1}}}`
	for text, fine := range map[string]bool{good: true, strings.Replace(good, "production", "test", 1): false, strings.Replace(good, `"mode"`, `"x":1,"mode"`, 1): false} {
		body := `{"statement":"e30.` + base64.RawURLEncoding.EncodeToString([]byte(text)) + `.c2ln"}`
		if err := c.Check("HealthResponse", []byte(body)); (err == nil) != fine {
			t.Errorf("%v for %s", err, text)
		}
	}
}
