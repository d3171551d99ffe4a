// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// CR09 lets everything fail with the secret in its hands.
var CR09 = conformance.Case{
	ID: "CR-09", Revision: 1, Title: "Error-path leak",
	Requirement: "Whatever fails with a secret in its name, path, message or payload, the caller gets a code of the protocol and its fixed sentence, and no log holds the secret, plain or encoded.",
	Threat:      "An error text quotes what it failed on, and the secret goes to callers, logs, and whoever reads them.",
	Attack:      "The secret as name of a program, of an argument and of a working folder of secret-bearing and ordinary commands that cannot start; as path of file operations that fail, through a symlink of that name too; as name and value in malformed requests and references, and in repetitions that conflict. A provider that says it on both streams and fails, and payloads that are wrong in every part that holds it. Commands that have read it, say it in the words of a log, name processes, sockets and folders after it, knock at the control socket under it, and end by panic and by time-out.",
	Witness:     "Requests that were refused (at least 25), and secret-bearing commands that failed with the secret in their hands (at least 3).",
	Oracle:      "Each refusal, byte by byte, against the protocol's own table; the runtime's logs from the case's beginning on, searched for the secret as it is and in hexadecimal and base64. The runner searches the engine calls and the engine's account of the containers after each case.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 180 * time.Second, // three secret-bearing commands, each with two replacements
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartAuthority, conformance.PartSecrets, conformance.PartTape, conformance.PartEngine},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills:    []conformance.Kill{{Mutant: "m93", Reason: "secret-in-log"}},
	Run:      runCR09,
}

// leak is one run of CR-09.
type leak struct {
	t     *conformance.T
	b     *delivery.Box
	forms map[string][]byte // of the secret
	next  int
}

func runCR09(ctx context.Context, t *conformance.T) error {
	// Arrange.
	logs, err := t.Target().Observer.Logs()
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for _, path := range logs {
		if st, err := os.Stat(path); err == nil {
			sizes[path] = st.Size()
		}
	}
	b, err := delivery.Arrange(ctx, t)
	if err != nil {
		return err
	}
	raw := []byte(b.Secret)
	l := &leak{t: t, b: b, forms: map[string][]byte{
		"as it is": raw, "in hexadecimal": []byte(hex.EncodeToString(raw)),
		// Of base64 that which does not depend on what stands around it.
		"in base64": []byte(base64.RawStdEncoding.EncodeToString(raw[:len(raw)/3*3])), "in base64, shifted": []byte(base64.RawStdEncoding.EncodeToString(raw[2 : 2+(len(raw)-2)/3*3])),
		"in base64, shifted twice": []byte(base64.RawStdEncoding.EncodeToString(raw[1 : 1+(len(raw)-1)/3*3])),
	}}
	t.NeedWitness("refused", 25)
	t.NeedWitness("failed-with-secret", 3)

	// Attack.
	for _, step := range []func(context.Context) error{l.requests, l.paths, l.payloads, l.commands} {
		if err := step(ctx); err != nil {
			return err
		}
	}

	// Verdict on the logs; each answer was judged when it came.
	for path, size := range sizes {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for form, token := range l.forms {
			if i := bytes.Index(text[min(size, int64(len(text))):], token); i >= 0 {
				t.Fail("secret-in-log", "the runtime's log holds the secret %s", form)
			}
		}
	}
	return nil
}

// ask sends a signed request, whose answer is a refusal when it is not expected to be anything else, and
// holds a refusal against the protocol.
func (l *leak) ask(ctx context.Context, what string, req target.RawRequest, refused bool) (wire.Answer, error) {
	q, err := wire.Sign(ctx, l.t.Target().Authority, req)
	if err != nil {
		return wire.Answer{}, err
	}
	a, err := wire.Send(ctx, l.t.Target().Authority.Dial, q)
	if err != nil {
		return a, fmt.Errorf("%s: %w", what, err)
	}
	if a.Status < 400 {
		if refused {
			return a, fmt.Errorf("%s was answered with status %d: nothing has failed", what, a.Status)
		}
		return a, nil
	}
	l.t.Witness("refused", 1)
	if code, err := wire.Refusal(a); err != nil {
		l.t.Fail("not-of-the-union", "%s: %v", what, code)
	}
	for form, token := range l.forms {
		if bytes.Contains(a.Raw, token) {
			l.t.Fail("secret-on-wire", "%s: the answer holds the secret %s", what, form)
		}
	}
	return a, nil
}

func (l *leak) id() string {
	l.next++
	return fmt.Sprintf("cr09-%d", l.next)
}

// requests are malformed with the secret in them.
func (l *leak) requests(ctx context.Context) error {
	s := l.b.Secret
	exec := func(body string) target.RawRequest { return wire.On(l.b, "exec", "POST", "/exec", []byte(body)) }
	ref := func(text string) target.RawRequest {
		return exec(`{"invocationId":"` + l.id() + `","argv":["x"],"cwd":"","timeoutMs":1000,"maxOutputBytes":1,"credentialRefs":[` + text + `]}`)
	}
	names := l.t.Target().Secrets.Names()
	good := func(attempt, provider, binding, execution, name, field string) string {
		return `{"deliveryAttemptId":"` + attempt + `","providerId":"` + provider + `","bindingId":"` + binding + `","executionId":"` + execution + `","fields":[{"name":"` + name + `","fieldId":"` + field + `"}]}`
	}
	for what, req := range map[string]target.RawRequest{
		"an unknown member":         exec(`{"` + s + `":1}`),
		"an environment":            exec(`{"invocationId":"cr09","argv":["x"],"cwd":"","timeoutMs":1000,"maxOutputBytes":1,"env":{"TOKEN":"` + s + `"}}`),
		"text behind the request":   exec(`{}` + s),
		"an unclosed string":        exec(`{"invocationId":"` + s),
		"a number":                  exec(`{"invocationId":"cr09","argv":["x"],"cwd":"","timeoutMs":"` + s + `","maxOutputBytes":1}`),
		"stdin that is no base64":   exec(`{"invocationId":"cr09","argv":["x"],"cwd":"","stdin":"` + s + `!","timeoutMs":1000,"maxOutputBytes":1}`),
		"an invocation id":          exec(`{"invocationId":"/` + s + `","argv":["x"],"cwd":"","timeoutMs":1000,"maxOutputBytes":1}`),
		"an unsafe working folder":  exec(`{"invocationId":"cr09","argv":["x"],"cwd":"../` + s + `","timeoutMs":1000,"maxOutputBytes":1}`),
		"a reference's value":       ref(`{"value":"` + s + `"}`),
		"a reference's delivery":    ref(good("cr09", names.Provider, names.Binding, "e", "TOKEN", names.Fields[0])[:1] + `"delivery":"` + s + `"}`),
		"a provider":                ref(good(l.id(), s, names.Binding, "e", "TOKEN", names.Fields[0])),
		"a binding":                 ref(good(l.id(), names.Provider, s, "e", "TOKEN", names.Fields[0])),
		"an execution":              ref(good(l.id(), names.Provider, names.Binding, s, "TOKEN", names.Fields[0])),
		"a field":                   ref(good(l.id(), names.Provider, names.Binding, "e", "TOKEN", s)),
		"a name":                    ref(good(l.id(), names.Provider, names.Binding, "e", "LD_"+s, names.Fields[0])),
		"an operation on the files": wire.FS(l.b, s, "x"),
		"a route":                   wire.On(l.b, "get", "GET", "/"+s, nil),
		"a query":                   wire.On(l.b, "read", "GET", "/files?path=x&"+s+"=1", nil),
		"a cursor":                  wire.On(l.b, "fs", "POST", "/fs", []byte(`{"op":"list","cursor":"`+s+`"}`)),
	} {
		if _, err := l.ask(ctx, what+" with the secret", req, true); err != nil {
			return err
		}
	}
	// A repetition that conflicts: the same id, other arguments.
	for i, argv := range [][]string{attack.Command(l.b.Program, "noop"), {s}} {
		if _, err := l.ask(ctx, "a conflicting repetition", wire.Exec(l.b, "cr09-again", argv...), i == 1); err != nil {
			return err
		}
	}
	return nil
}

// paths fail with the secret for a name, in commands and in the file API.
func (l *leak) paths(ctx context.Context) error {
	s := l.b.Secret
	if _, err := attack.Must(ctx, l.b, target.Command{Argv: attack.Command(l.b.Program, "symlinks", "link-"+s+"=/etc/"+s, "cr09-dir-"+s+"=.")}); err != nil {
		return err
	}
	for what, req := range map[string]target.RawRequest{
		"a file that is not there":   wire.File(l.b, s+"/"+s),
		"a file behind a symlink":    wire.File(l.b, "link-"+s+"/x"),
		"a symlink":                  wire.File(l.b, "link-"+s),
		"a folder that is no folder": wire.FS(l.b, "list", l.b.Program[2:]+"/"+s),
		"a removal":                  wire.FS(l.b, "remove", s),
		"a path upwards":             wire.File(l.b, "../"+s),
		"a write behind a symlink":   wire.Write(l.b, "link-"+s+"/x", []byte(s)),
	} {
		if _, err := l.ask(ctx, what+" with the secret for a name", req, true); err != nil {
			return err
		}
	}
	// A command that is not there is an outcome, and one whose folder is not there a refusal.
	if _, err := l.ask(ctx, "a command that is not there", wire.Exec(l.b, l.id(), "./"+s, s), false); err != nil {
		return err
	}
	_, err := l.ask(ctx, "a working folder that is not there", wire.On(l.b, "exec", "POST", "/exec",
		[]byte(`{"invocationId":"`+l.id()+`","argv":["./x"],"cwd":"`+s+`","timeoutMs":20000,"maxOutputBytes":65536}`)), true)
	return err
}

// payloads are wrong in every part that can hold the secret.
func (l *leak) payloads(ctx context.Context) error {
	s, names, secrets := l.b.Secret, l.t.Target().Secrets.Names(), l.t.Target().Secrets
	payload := func(version, workspace, field, rest string) []byte {
		return fmt.Appendf(nil, `{"version":%q,"scope":{"workspaceId":%q,"bindingId":%q,"executionId":"x"},"expiresAtUnixMs":9000000000000,"fields":[{"fieldId":%q,"value":%q}]%s}`,
			version, workspace, names.Binding, field, base64.StdEncoding.EncodeToString([]byte(s)), rest)
	}
	for what, put := range map[string]func() error{
		"a version": func() error { return secrets.Answer(names.Binding, payload(s, l.b.WorkspaceID(), names.Fields[0], "")) },
		"a workspace": func() error {
			return secrets.Answer(names.Binding, payload(names.PayloadVersion, s, names.Fields[0], ""))
		},
		"a field": func() error {
			return secrets.Answer(names.Binding, payload(names.PayloadVersion, l.b.WorkspaceID(), s, ""))
		},
		"a member besides": func() error {
			return secrets.Answer(names.Binding, payload(names.PayloadVersion, l.b.WorkspaceID(), names.Fields[0], `,"`+s+`":1`))
		},
		"no JSON at all":    func() error { return secrets.Answer(names.Binding, []byte(s)) },
		"a failing program": func() error { return secrets.Break(names.Binding, []byte(s)) },
	} {
		if err := put(); err != nil {
			return err
		}
		if _, err := l.ask(ctx, "a payload with the secret as "+what, l.b.Request(l.id(), "", "./x"), true); err != nil {
			return err
		}
	}
	return l.b.Provide()
}

// commands have the secret, and fail.
func (l *leak) commands(ctx context.Context) error {
	s := l.b.Secret
	shout := func(end string) []string { return attack.Command(l.b.Program, "secret-shout", "-end", end) }
	for _, c := range []struct {
		what    string
		refused bool
		cwd     string
		timeout time.Duration
		argv    []string
	}{
		{"a working folder that is not there", true, s, 20 * time.Second, []string{"./" + s}},
		{"a panic", false, "", 20 * time.Second, shout("panic")},
		{"an end by its time", false, "", 3 * time.Second, shout("hang")},
	} {
		if _, err := l.ask(ctx, "a secret-bearing command with "+c.what, l.b.RequestFor(l.id(), c.cwd, c.timeout, c.argv...), c.refused); err != nil {
			return err
		}
		l.t.Witness("failed-with-secret", 1)
	}
	return nil
}
