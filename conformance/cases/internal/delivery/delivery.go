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
	n := s.Names()
	payload, err := json.Marshal(map[string]any{
		"version": n.PayloadVersion, "expiresAtUnixMs": time.Now().Add(time.Hour).UnixMilli(),
		"scope":  map[string]any{"workspaceId": b.WorkspaceID(), "bindingId": n.Binding, "executionId": b.session},
		"fields": []any{map[string]any{"fieldId": n.Fields[0], "value": []byte(b.Secret)}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode payload: %w", err)
	}
	t.Cleanup(func(context.Context) error { return s.Answer(n.Binding, nil) })
	return b, s.Answer(n.Binding, payload)
}

// Run runs one attack with the secret on descriptor 3. It has to end by itself, with a report. A
// refusal is a *[target.Error].
func (b *Box) Run(ctx context.Context, id string, args ...string) (report.Report, error) {
	n := b.t.Target().Secrets.Names()
	body, err := json.Marshal(map[string]any{
		"invocationId": id, "argv": attack.Command(b.Program, args...), "cwd": "", "timeoutMs": 30_000, "maxOutputBytes": 65_536,
		"credentialRefs": []any{map[string]any{
			"deliveryAttemptId": id + b.session, "providerId": n.Provider, "bindingId": n.Binding, "executionId": b.session,
			"fields": []any{map[string]any{"name": Name, "fieldId": n.Fields[0]}},
		}},
	})
	if err != nil {
		return report.Report{}, fmt.Errorf("encode request: %w", err)
	}
	res, err := b.t.Target().Wire.Raw(ctx, wire.On(b.Sandbox, "exec", "POST", "/exec", body))
	if err != nil {
		return report.Report{}, err
	}
	var out struct {
		Stdout []byte `json:"stdout"`
		Stderr []byte `json:"stderr"`
	}
	if res.Status != 200 {
		return report.Report{}, fmt.Errorf("secret-bearing %v: status %d: %w", args, res.Status, &target.Error{Code: res.Code})
	}
	if err := json.Unmarshal(res.Body, &out); err != nil {
		return report.Report{}, fmt.Errorf("secret-bearing %v: %w", args, err)
	}
	r, err := report.Parse(out.Stdout)
	if err != nil {
		return r, fmt.Errorf("secret-bearing %v: %w: %.300s", args, err, out.Stderr)
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
