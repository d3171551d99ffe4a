// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/delivery"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

const codeReplay = "REMOTE_WORKER_SECRET_INVOCATION_NOT_REPLAYABLE"

// CR08 asks for secrets that it has no right to, in every way a reference or a payload can be wrong.
var CR08 = conformance.Case{
	ID: "CR-08", Revision: 1, Title: "Scope, expiry, one-shot",
	Requirement: "A credential reference is made anew from what the operator configured, and a payload is taken only for the very workspace, binding, execution and fields, within its time, once. What is refused touches no container, and each provider that was asked is told of the end exactly once, whatever happened.",
	Threat:      "A caller reaches another tenant's secret, or one that has expired or was used, or a lease stays open.",
	Attack:      "References with an unknown or another provider and binding, a model provider's binding, another execution, fields and names outside the rules, and members that they do not have. Payloads of another version, workspace, binding or execution, expired by a second, with fields too few, too many or another, values too large, no JSON; a provider that has none, and one that fails with the secret on its lips. A delivery used twice, also after the worker was killed and started again.",
	Witness:     "References that were refused before a provider was asked (all); payloads that the provider gave and that were refused (all); the frame that one good reference delivered, by its digest (1); used deliveries asked for again (2).",
	Oracle:      "The provider's own log on the host: leases and ends, by delivery attempt. Status and code on the wire, the sandbox's container before and after, and the engine calls recorded meanwhile.",
	Precedent:   "origin",
	Tier:        conformance.Full, Timeout: 120 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol, conformance.FeatureCreds},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartSecrets, conformance.PartEngine, conformance.PartRestart},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape, conformance.OracleEngine},
	Kills: []conformance.Kill{
		{Mutant: "m60", Reason: "not-disposed-once"}, {Mutant: "m61", Reason: "payload-accepted"}, {Mutant: "m62", Reason: "delivery-reused"}, {Mutant: "m63", Reason: "reference-accepted"},
	},
	Run: runCR08,
}

// deliveries is one run of CR-08.
type deliveries struct {
	t       *conformance.T
	sb      target.Sandbox
	program string
	names   target.SecretNames
	secret  string
	next    int
}

const cr08Session = "cr08-session"

func runCR08(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{SessionID: cr08Session})
	d := &deliveries{t: t, sb: sb, program: t.Tenant(ctx, sb), names: t.Target().Secrets.Names(), secret: t.Canary("secret")}
	t.Cleanup(func(context.Context) error { return t.Target().Secrets.Answer(d.names.Binding, nil) })
	references, payloads := d.badReferences(), d.badPayloads()
	t.NeedWitness("references-refused", int64(len(references)))
	t.NeedWitness("payloads-refused", int64(len(payloads)))
	t.NeedWitness("frames-delivered", 1)
	t.NeedWitness("used-again", 2)

	// Attack and verdict. What is refused leaves the container where it was.
	before, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}
	if err := t.Target().Secrets.Answer(d.names.Binding, d.payload(nil)); err != nil {
		return err
	}
	for _, bad := range references {
		if err := d.reference(ctx, bad); err != nil {
			return err
		}
	}
	for _, bad := range payloads {
		if err := d.refusedPayload(ctx, bad); err != nil {
			return err
		}
	}
	if err := d.untouched(ctx, before, mark); err != nil {
		return err
	}
	return d.once(ctx)
}

// badReference is a good request with one change. shape says that the request's form is wrong, so
// that REQUEST_INVALID is an answer too.
type badReference struct {
	what  string
	shape bool
	do    func(ref map[string]any)
}

func (d *deliveries) badReferences() []badReference {
	set := func(name string, v any) func(map[string]any) { return func(r map[string]any) { r[name] = v } }
	fields := func(rows ...any) func(map[string]any) { return set("fields", rows) }
	field := func(name, id string) any { return map[string]any{"name": name, "fieldId": id} }
	token, user := d.names.Fields[0], d.names.Fields[1]
	many := []any{}
	for i := range 17 {
		many = append(many, field(fmt.Sprintf("N%d", i), token))
	}
	out := []badReference{
		{"unknown binding", false, set("bindingId", "suite-unknown")},
		{"unknown provider", false, set("providerId", "suite-unknown")},
		{"another provider's binding", false, set("providerId", d.names.OtherProvider)},
		{"a model provider's binding", false, set("bindingId", d.names.ModelBinding)},
		{"a binding of another workspace", false, set("bindingId", d.names.OtherWorkspace)},
		{"another execution", false, set("executionId", "cr08-other")},
		{"a field outside the binding", false, fields(field("TOKEN", "root"))},
		{"a field twice", false, fields(field("A", token), field("B", token))},
		{"a name twice", false, fields(field("A", token), field("A", user))},
		{"17 fields", true, set("fields", many)},
		{"no field", true, fields()},
		{"a provider with a slash", true, set("providerId", "../x")},
		{"a category", true, set("category", "service")},
		{"a kind", true, set("kind", "token")},
		{"a classification", true, set("classification", "public")},
		{"a delivery by environment", true, set("delivery", "env")},
		{"a value", true, set("value", "x")},
	}
	for _, name := range []string{"PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL", "PWD", "LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "DOCKER_HOST", "_", "HALLMARK_X",
		"A\x00B", "A=B", "A\nB", "", strings.Repeat("n", 257)} {
		out = append(out, badReference{fmt.Sprintf("the name %.20q", name), false, fields(field(name, token))})
	}
	return out
}

// request is an exec with one reference, and its invocation and attempt.
func (d *deliveries) request(change func(map[string]any), attempt string) (req target.RawRequest, id string) {
	d.next++
	id = fmt.Sprintf("cr08-%d", d.next)
	if attempt == "" {
		attempt = d.attempt(id)
	}
	ref := map[string]any{
		"deliveryAttemptId": attempt, "providerId": d.names.Provider, "bindingId": d.names.Binding, "executionId": cr08Session,
		"fields": []any{map[string]any{"name": "TOKEN", "fieldId": d.names.Fields[0]}},
	}
	if change != nil {
		change(ref)
	}
	body, _ := json.Marshal(map[string]any{ // of strings and numbers
		"invocationId": id, "argv": attack.Command(d.program, "secret-frame"), "cwd": "", "timeoutMs": 20_000, "maxOutputBytes": 65_536,
		"credentialRefs": []any{ref},
	})
	return wire.On(d.sb, "exec", "POST", "/exec", body), id
}

// attempt is new in every run: the worker remembers them.
func (d *deliveries) attempt(id string) string { return d.secret[len(d.secret)-12:] + "-" + id }

// asked counts the provider's calls for an attempt.
func (d *deliveries) asked(attempt string) (leases, ends int, err error) {
	calls, err := d.t.Target().Secrets.Asked()
	for _, c := range calls {
		if c.AttemptID != attempt {
			continue
		}
		if c.Op == "lease" {
			leases++
		} else {
			ends++
		}
	}
	return leases, ends, err
}

func (d *deliveries) reference(ctx context.Context, bad badReference) error {
	req, id := d.request(bad.do, "")
	res, err := d.t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return err
	}
	leases, _, err := d.asked(d.attempt(id))
	if err != nil {
		return err
	}
	switch {
	case res.Status < 300:
		d.t.Fail("reference-accepted", "%s was answered with status %d", bad.what, res.Status)
	case res.Code != codeSecret && !(bad.shape && res.Code == codeInvalid):
		d.t.Fail("code-differs", "%s was answered with %q", bad.what, res.Code)
	case leases != 0:
		d.t.Fail("provider-asked", "%s made the worker ask the provider %d times", bad.what, leases)
	default:
		d.t.Witness("references-refused", 1)
	}
	d.silent(bad.what, res)
	return nil
}

// silent judges that an answer does not repeat the secret.
func (d *deliveries) silent(what string, res target.RawResponse) {
	if bytes.Contains(res.Body, []byte(d.secret)) {
		d.t.Fail("secret-echoed", "the answer to %s holds the secret", what)
	}
}

type badPayload struct {
	what string
	put  func() error
}

// payload is what the provider gives, good unless change says otherwise.
func (d *deliveries) payload(change func(p map[string]any)) []byte {
	p := map[string]any{
		"version": d.names.PayloadVersion, "expiresAtUnixMs": time.Now().Add(time.Hour).UnixMilli(),
		"scope":  map[string]any{"workspaceId": d.sb.WorkspaceID(), "bindingId": d.names.Binding, "executionId": cr08Session},
		"fields": []any{map[string]any{"fieldId": d.names.Fields[0], "value": []byte(d.secret)}},
	}
	if change != nil {
		change(p)
	}
	b, _ := json.Marshal(p) // of strings, bytes and numbers
	return b
}

func (d *deliveries) badPayloads() []badPayload {
	secrets := d.t.Target().Secrets
	give := func(what string, change func(map[string]any)) badPayload {
		return badPayload{what, func() error { return secrets.Answer(d.names.Binding, d.payload(change)) }}
	}
	scope := func(name string) badPayload {
		return give("another "+name, func(p map[string]any) { p["scope"].(map[string]any)[name] = "cr08-other" })
	}
	field := func(id string, v []byte) any { return map[string]any{"fieldId": id, "value": v} }
	return []badPayload{
		give("another version", func(p map[string]any) { p["version"] = "hallmark.credential.v2" }),
		scope("workspaceId"), scope("bindingId"), scope("executionId"),
		give("a payload that expired a second ago", func(p map[string]any) { p["expiresAtUnixMs"] = time.Now().Add(-time.Second).UnixMilli() }),
		give("a payload that expired in 1970", func(p map[string]any) { p["expiresAtUnixMs"] = 0 }),
		give("no field", func(p map[string]any) { p["fields"] = []any{} }),
		give("a field besides", func(p map[string]any) {
			p["fields"] = append(p["fields"].([]any), field(d.names.Fields[1], []byte("x")))
		}),
		give("another field", func(p map[string]any) { p["fields"] = []any{field(d.names.Fields[1], []byte("x"))} }),
		give("a member besides", func(p map[string]any) { p["env"] = map[string]any{"A": d.secret} }),
		give("a value of 64 KiB and 1", func(p map[string]any) { p["fields"] = []any{field(d.names.Fields[0], make([]byte, 64<<10+1))} }),
		{"a payload beyond its bound", func() error { return secrets.Answer(d.names.Binding, bytes.Repeat([]byte(d.secret), 8<<10)) }},
		{"no JSON", func() error { return secrets.Answer(d.names.Binding, []byte(d.secret)) }},
		{"nothing", func() error { return secrets.Answer(d.names.Binding, nil) }},
		{"a failure that says the secret", func() error { return secrets.Break(d.names.Binding, []byte(d.secret)) }},
	}
}

func (d *deliveries) refusedPayload(ctx context.Context, bad badPayload) error {
	if err := bad.put(); err != nil {
		return fmt.Errorf("arrange %s: %w", bad.what, err)
	}
	req, id := d.request(nil, "")
	res, err := d.t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return err
	}
	leases, ends, err := d.asked(d.attempt(id))
	if err != nil {
		return err
	}
	switch {
	case res.Status < 300:
		d.t.Fail("payload-accepted", "%s was answered with status %d", bad.what, res.Status)
	case res.Code != codeSecret:
		d.t.Fail("code-differs", "%s was answered with %q", bad.what, res.Code)
	case leases == 1:
		d.t.Witness("payloads-refused", 1)
	}
	if leases != 1 || ends != leases {
		d.t.Fail("not-disposed-once", "%s: the provider was asked %d times, and told of the end %d times", bad.what, leases, ends)
	}
	d.silent(bad.what, res)
	return nil
}

// untouched judges that nothing so far has reached a container.
func (d *deliveries) untouched(ctx context.Context, before target.Container, mark int64) error {
	calls, _, err := d.t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if (c.Method == "POST" || c.Method == "DELETE") && strings.Contains(c.Path, "/containers/"+before.ID) || strings.HasSuffix(c.Path, "/containers/create") && strings.Contains(string(c.Body), d.sb.ID()) {
			d.t.Fail("container-touched", "a refused reference led to %s %s", c.Method, c.Path)
		}
	}
	after, err := attack.Container(ctx, d.t, d.sb)
	if err != nil {
		return err
	}
	if after.ID != before.ID {
		d.t.Fail("container-touched", "the container was replaced for a refused reference")
	}
	return nil
}

// once delivers, and then tries to deliver again.
func (d *deliveries) once(ctx context.Context) error {
	if err := d.t.Target().Secrets.Answer(d.names.Binding, d.payload(nil)); err != nil {
		return err
	}
	req, id := d.request(nil, "")
	attempt := d.attempt(id)
	res, err := d.t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return err
	}
	var out struct {
		Stdout []byte `json:"stdout"`
	}
	if err := json.Unmarshal(res.Body, &out); err != nil || res.Status != 200 {
		return fmt.Errorf("the good reference is not accepted: status %d, code %s", res.Status, res.Code)
	}
	r, err := report.Parse(out.Stdout)
	if err != nil {
		return err
	}
	attack.Witness(d.t, "secret-frame", r)
	if sum := sha256.Sum256(delivery.Frame(delivery.Name, d.secret)); r.Facts["sha256"] == hex.EncodeToString(sum[:]) {
		d.t.Witness("frames-delivered", 1)
	} else {
		d.t.Fail("frame-differs", "descriptor 3 held %d bytes that are not the frame", r.Counts["bytes"])
	}
	if err := d.told(attempt, "a good delivery"); err != nil {
		return err
	}
	if res, err = d.t.Target().Wire.Raw(ctx, req); err != nil {
		return err
	}
	if res.Code != codeReplay {
		d.t.Fail("outcome-kept", "the invocation again was answered with status %d, code %q", res.Status, res.Code)
	}
	if err := d.again(ctx, attempt, "another invocation"); err != nil {
		return err
	}

	// The attempt outlives the worker's process.
	if err := d.t.Target().Controller.Kill(ctx); err != nil {
		return err
	}
	if err := d.t.Target().Controller.Start(ctx); err != nil {
		return err
	}
	d.sb = d.t.Sandbox(ctx, target.Spec{WorkspaceID: d.sb.WorkspaceID(), SessionID: cr08Session})
	return d.again(ctx, attempt, "another invocation after a restart")
}

// again asks for a used delivery.
func (d *deliveries) again(ctx context.Context, attempt, what string) error {
	req, _ := d.request(nil, attempt)
	res, err := d.t.Target().Wire.Raw(ctx, req)
	if err != nil {
		return err
	}
	d.t.Witness("used-again", 1)
	if res.Code != codeSecret {
		d.t.Fail("delivery-reused", "%s under a used delivery was answered with status %d, code %q", what, res.Status, res.Code)
	}
	leases, _, err := d.asked(attempt)
	if err == nil && leases != 1 {
		d.t.Fail("delivery-reused", "%s: the provider was asked %d times for one delivery", what, leases)
	}
	return err
}

func (d *deliveries) told(attempt, what string) error {
	leases, ends, err := d.asked(attempt)
	if err == nil && (leases != 1 || ends != 1) {
		d.t.Fail("not-disposed-once", "%s: the provider was asked %d times, and told of the end %d times", what, leases, ends)
	}
	return err
}
