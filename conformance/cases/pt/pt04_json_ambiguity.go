// SPDX-License-Identifier: Apache-2.0

package pt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

const codeInvalid = "REMOTE_WORKER_REQUEST_INVALID"

// PT04 sends JSON that two decoders read differently.
var PT04 = conformance.Case{
	ID: "PT-04", Revision: 1, Title: "JSON ambiguity",
	Requirement: "A request body that is not one unambiguous JSON value of the exact schema is refused, even when it is signed.",
	Threat:      "Signer, proxy and worker read different requests in the same bytes.",
	Attack:      "Duplicate names, case variants, unknown members, trailing data, a BOM, comments, a trailing comma, invalid UTF-8, null, non-canonical base64, in exec requests; a duplicate and a case variant of the workspace in create requests.",
	Witness:     "Variants that were refused while the base request was accepted before and after (all).",
	Oracle:      "Status and code on the wire; a file that the command would leave, seen on the host.",
	Precedent:   "golang/go#48298",
	Tier:        conformance.Smoke, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire},
	Kills:    []conformance.Kill{{Mutant: "m33", Reason: "ambiguity-accepted"}},
	Run:      runPT04,
}

func runPT04(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	send := func(body string) (target.RawResponse, error) {
		return t.Target().Wire.Raw(ctx, target.RawRequest{Op: "exec", Method: "POST", Target: "/v1/sandboxes/" + sb.ID() + "/exec", WorkspaceID: sb.WorkspaceID(), SandboxID: sb.ID(), Body: []byte(body)})
	}
	base := func(id string) string {
		return fmt.Sprintf(`{"invocationId":"pt04-%s","argv":["%s","--allow-outside-sandbox","effect","-file","pt04-%s"],"cwd":"","timeoutMs":20000,"maxOutputBytes":65536}`, id, program, id)
	}
	left := func(id string) bool {
		_, err := os.Lstat(filepath.Join(c.Workspace, "pt04-"+id))
		return !errors.Is(err, iofs.ErrNotExist)
	}
	accepted := func(id string) error {
		res, err := send(base(id))
		if err != nil {
			return err
		}
		if res.Status != 200 || !left(id) {
			return fmt.Errorf("the base request is not accepted: status %d, code %s", res.Status, res.Code)
		}
		return nil
	}
	if err := accepted("before"); err != nil {
		return err
	}

	// Attack and verdict, variant by variant.
	inside := func(member string) func(string) string {
		return func(b string) string { return strings.TrimSuffix(b, "}") + "," + member + "}" }
	}
	front := func(member string) func(string) string {
		return func(b string) string { return "{" + member + "," + strings.TrimPrefix(b, "{") }
	}
	replace := func(old, new string) func(string) string {
		return func(b string) string { return strings.Replace(b, old, new, 1) }
	}
	variants := []struct {
		name string
		make func(string) string
	}{
		{"duplicate-name-last", inside(`"cwd":""`)}, {"duplicate-name-first", front(`"cwd":""`)}, {"duplicate-escaped-name", inside(`"\u0063wd":""`)},
		{"case-variant-beside", inside(`"CWD":""`)}, {"case-variant-instead", replace(`"cwd"`, `"Cwd"`)}, {"unicode-case-variant", replace(`"timeoutMs"`, `"timeoutMſ"`)},
		{"unknown-member", inside(`"x":1`)}, {"trailing-object", func(b string) string { return b + "{}" }}, {"trailing-word", func(b string) string { return b + "x" }},
		{"trailing-nul", func(b string) string { return b + "\x00" }}, {"two-values", func(b string) string { return b + "\n" + b }},
		{"byte-order-mark", func(b string) string { return "\ufeff" + b }}, {"comment", func(b string) string { return "/* */" + b }}, {"line-comment", func(b string) string { return b + "// x" }},
		{"trailing-comma", func(b string) string { return strings.TrimSuffix(b, "}") + ",}" }}, {"invalid-utf8", inside("\"stdin\":\"\xff\"")}, {"lone-surrogate", replace(`"cwd":""`, `"cwd":"\ud800"`)},
		{"null-member", replace(`"cwd":""`, `"cwd":null`)}, {"missing-member", replace(`"cwd":"",`, ``)}, {"single-quotes", replace(`"cwd"`, `'cwd'`)},
		{"base64-newline", inside(`"stdin":"QUJD\nREVG"`)}, {"base64-spare-bits", inside(`"stdin":"QUJ="`)}, {"wrapped-in-array", func(b string) string { return "[" + b + "]" }}, {"number-as-string", replace(`:20000`, `:"20000"`)},
	}
	t.NeedWitness("refused", int64(len(variants))+2)
	for _, v := range variants {
		body := v.make(base(v.name))
		if body == base(v.name) {
			return fmt.Errorf("variant %s changes nothing", v.name)
		}
		res, err := send(body)
		if err != nil {
			return err
		}
		switch {
		case res.Status < 300:
			t.Fail("ambiguity-accepted", "exec variant %s was answered with status %d", v.name, res.Status)
		case res.Code != codeInvalid || res.Status != 400:
			t.Fail("code-differs", "exec variant %s was answered with status %d, code %q", v.name, res.Status, res.Code)
		default:
			t.Witness("refused", 1)
		}
		if left(v.name) {
			t.Fail("effect-of-refused", "exec variant %s ran its command", v.name)
		}
	}
	for _, member := range []string{`"workspaceId":"ws-somebody-else"`, `"WorkspaceId":"ws-somebody-else"`} {
		spec := t.Spec(target.Spec{})
		t.AdoptWorkspace(spec.WorkspaceID)
		body, err := t.Target().Wire.CreateBody(ctx, spec)
		if err != nil {
			return err
		}
		body = append([]byte("{"+member+","), bytes.TrimPrefix(bytes.TrimSpace(body), []byte("{"))...)
		res, err := t.Target().Wire.Raw(ctx, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: body})
		switch {
		case err != nil:
			return err
		case res.Status < 300:
			t.Fail("ambiguity-accepted", "create with %s beside the workspace was answered with status %d", member, res.Status)
			if err := attack.DisposeRaw(ctx, t, spec.WorkspaceID, res.Body); err != nil {
				return err
			}
		case res.Code != codeInvalid || res.Status != 400:
			t.Fail("code-differs", "create with %s was answered with status %d, code %q", member, res.Status, res.Code)
		default:
			t.Witness("refused", 1)
		}
	}
	return accepted("after")
}
