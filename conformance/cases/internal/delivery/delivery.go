// SPDX-License-Identifier: Apache-2.0

// Package delivery runs commands with a secret that the suite's own provider gives. It owns the
// payload and the reference; it returns facts and never judges. The secret is a canary of the case.
package delivery

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/wire"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/fixtures/tenant/report"
)

// Name is what the secret is delivered under.
const Name = "TOKEN"

// Box is a sandbox, the attack program in it, and a secret for it.
type Box struct {
	target.Sandbox
	Program string
	Secret  string

	t       *conformance.T
	session string
}

// Arrange makes the sandbox and the secret, which lives for an hour from now.
func Arrange(ctx context.Context, t *conformance.T) (*Box, error) {
	b := &Box{t: t, Secret: t.Canary("secret")}
	b.session = "session-" + b.Secret[len(b.Secret)-8:]
	b.Sandbox = t.Sandbox(ctx, target.Spec{SessionID: b.session})
	b.Program = t.Tenant(ctx, b.Sandbox)
	s := t.Target().Secrets
	t.Cleanup(func(context.Context) error { return s.Answer(s.Names().Binding, nil) })
	return b, b.Provide()
}

// Provide makes the provider give the box's secret, for an hour from now.
func (b *Box) Provide() error {
	n := b.t.Target().Secrets.Names()
	payload, err := json.Marshal(map[string]any{
		"version": n.PayloadVersion, "expiresAtUnixMs": time.Now().Add(time.Hour).UnixMilli(),
		"scope":  map[string]any{"workspaceId": b.WorkspaceID(), "bindingId": n.Binding, "executionId": b.session},
		"fields": []any{map[string]any{"fieldId": n.Fields[0], "value": []byte(b.Secret)}},
	})
	if err != nil {
		return fmt.Errorf("encode payload: %w", err)
	}
	return b.t.Target().Secrets.Answer(n.Binding, payload)
}

// Attempt is the delivery attempt of an invocation of the box's.
func (b *Box) Attempt(id string) string { return id + b.session }

// Request asks for a command with the secret on descriptor 3, for at most 30 s.
func (b *Box) Request(id, cwd string, argv ...string) target.RawRequest {
	return b.RequestFor(id, cwd, 30*time.Second, argv...)
}

// RequestFor is Request with a time-out.
func (b *Box) RequestFor(id, cwd string, timeout time.Duration, argv ...string) target.RawRequest {
	n := b.t.Target().Secrets.Names()
	body, _ := json.Marshal(map[string]any{ // of strings and numbers
		"invocationId": id, "argv": argv, "cwd": cwd, "timeoutMs": timeout.Milliseconds(), "maxOutputBytes": 65_536,
		"credentialRefs": []any{map[string]any{
			"deliveryAttemptId": b.Attempt(id), "providerId": n.Provider, "bindingId": n.Binding, "executionId": b.session,
			"fields": []any{map[string]any{"name": Name, "fieldId": n.Fields[0]}},
		}},
	})
	return wire.On(b.Sandbox, "exec", "POST", "/exec", body)
}

// Asked is how often the provider was asked for an invocation's secret, and told of its end.
func (b *Box) Asked(id string) (leases, ends int, err error) {
	calls, err := b.t.Target().Secrets.Asked()
	for _, c := range calls {
		switch {
		case c.AttemptID != b.Attempt(id):
		case c.Op == "lease":
			leases++
		default:
			ends++
		}
	}
	return leases, ends, err
}

// Run runs one attack with the secret on descriptor 3. It has to end by itself, with a report. A
// refusal is a *[target.Error].
func (b *Box) Run(ctx context.Context, id string, args ...string) (report.Report, error) {
	res, err := b.Wire(ctx, b.Request(id, "", attack.Command(b.Program, args...)...))
	if err != nil {
		return report.Report{}, err
	}
	if res.Status != 200 {
		return report.Report{}, fmt.Errorf("secret-bearing %v: status %d: %w", args, res.Status, &target.Error{Code: res.Code})
	}
	r, err := Report(res)
	if err != nil {
		return r, fmt.Errorf("secret-bearing %v: %w", args, err)
	}
	return r, nil
}

// Wire sends a request as it is.
func (b *Box) Wire(ctx context.Context, req target.RawRequest) (target.RawResponse, error) {
	return b.t.Target().Wire.Raw(ctx, req)
}

// Report is what the attack of an exec that was answered says of itself.
func Report(res target.RawResponse) (report.Report, error) {
	var out struct {
		Stdout []byte `json:"stdout"`
		Stderr []byte `json:"stderr"`
	}
	if err := json.Unmarshal(res.Body, &out); err != nil {
		return report.Report{}, err
	}
	r, err := report.Parse(out.Stdout)
	if err != nil {
		return r, fmt.Errorf("%w: %.300s", err, out.Stderr)
	}
	return r, nil
}

// Started are the ids of the containers that the engine was asked to start, in order.
func Started(calls []target.TapeCall) (ids []string) {
	for _, c := range calls {
		rest, ok := strings.CutSuffix(c.Path, "/start")
		if i := strings.LastIndex(rest, "/containers/"); ok && i >= 0 && c.Method == "POST" {
			ids = append(ids, rest[i+len("/containers/"):])
		}
	}
	return ids
}

// Frame is what descriptor 3 has to give for one field, in the suite's own words.
func Frame(name, value string) []byte {
	b := binary.BigEndian.AppendUint16([]byte("HMC1"), 1)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(append(b, name...), value...)
}
