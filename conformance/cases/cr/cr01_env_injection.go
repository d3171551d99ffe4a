// SPDX-License-Identifier: Apache-2.0

package cr

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/cases/internal/attack"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// The wire's answer to a request with a member that it does not know.
const (
	codeInvalid = "REMOTE_WORKER_REQUEST_INVALID"
	codeSecret  = "REMOTE_WORKER_SECRET_REFERENCE_REJECTED"
)

// CR01 asks for environment variables in every disguise.
var CR01 = conformance.Case{
	ID: "CR-01", Revision: 1, Title: "Raw env injection",
	Requirement: "No request carries environment variables, whatever they are called; a request that tries is refused with a stable code before anything runs.",
	Threat:      "A secret, or code by LD_PRELOAD or BASH_ENV, enters through the caller's environment.",
	Attack:      "Exec requests with env as object and as list, secretEnv, environment, and forged classification, kind and category, also inside a credential reference, with a value or an environment there; create requests with env.",
	Witness:     "Requests that were refused while the same request without the member was accepted (all).",
	Oracle:      "Status and code on the wire; a file that the command would leave, seen on the host; the engine calls recorded meanwhile.",
	Precedent:   "OpenSandbox PR #1194",
	Tier:        conformance.Smoke, Timeout: 45 * time.Second,
	Features: []conformance.Feature{conformance.FeatureExec, conformance.FeatureFiles, conformance.FeatureProtocol},
	Needs:    []conformance.Part{conformance.PartWire, conformance.PartTape, conformance.PartWorkspacePath},
	Oracles:  []conformance.Oracle{conformance.OracleWire, conformance.OracleTape},
	Kills:    []conformance.Kill{{Mutant: "m33", Reason: "env-accepted"}, {Mutant: "m43", Reason: "env-accepted"}},
	Run:      runCR01,
}

func runCR01(ctx context.Context, t *conformance.T) error {
	// Arrange.
	sb := t.Sandbox(ctx, target.Spec{})
	program := t.Tenant(ctx, sb)
	c, err := attack.Container(ctx, t, sb)
	if err != nil {
		return err
	}
	secret := t.Canary("secret")
	exec := func(id, extra string) target.RawRequest {
		body := fmt.Sprintf(`{"invocationId":"cr01-%s","argv":["%s","--allow-outside-sandbox","effect","-file","cr01-%s"],"cwd":"","timeoutMs":20000,"maxOutputBytes":65536%s}`, id, program, id, extra)
		return target.RawRequest{Op: "exec", Method: "POST", Target: "/v1/sandboxes/" + sb.ID() + "/exec", WorkspaceID: sb.WorkspaceID(), SandboxID: sb.ID(), Body: []byte(body)}
	}
	left := func(id string) bool {
		_, err := os.Lstat(filepath.Join(c.Workspace, "cr01-"+id))
		return !errors.Is(err, iofs.ErrNotExist)
	}
	plain, err := t.Target().Wire.Raw(ctx, exec("plain", ""))
	if err != nil {
		return err
	}
	if plain.Status != 200 || !left("plain") {
		return fmt.Errorf("the plain request is not accepted: status %d, code %s", plain.Status, plain.Code)
	}
	_, mark, err := t.Target().Observer.Tape(0)
	if err != nil {
		return err
	}

	ref := func(member string) string {
		return `,"credentialRefs":[{"deliveryAttemptId":"cr01","providerId":"p","bindingId":"b","executionId":"e","fields":[{"name":"A","fieldId":"a"}],` + member + `}]`
	}

	// Attack and verdict, request by request.
	members := []string{
		`,"env":{"OPENAI_API_KEY":"` + secret + `"}`, `,"env":["OPENAI_API_KEY=` + secret + `"]`, `,"env":{}`, `,"env":null`,
		`,"env":{"LD_PRELOAD":"/workspace/x.so"}`, `,"env":{"BASH_ENV":"/workspace/x"}`, `,"secretEnv":{"TOKEN":"` + secret + `"}`, `,"secretEnv":[]`,
		`,"credentialRefs":null`, `,"credentialRefs":[]`, ref(`"kind":"model"`), ref(`"category":"model-provider"`), ref(`"classification":"public"`),
		ref(`"value":"` + secret + `"`), ref(`"env":{"A":"` + secret + `"}`), ref(`"delivery":"env"`),
		`,"environment":{"A":"` + secret + `"}`, `,"Env":{"A":"` + secret + `"}`, `,"classification":"public"`, `,"kind":"model"`, `,"category":"model-provider"`,
	}
	t.NeedWitness("refused", int64(len(members))+1)
	for i, member := range members {
		id := strconv.Itoa(i)
		res, err := t.Target().Wire.Raw(ctx, exec(id, member))
		if err != nil {
			return err
		}
		switch {
		case res.Status < 300:
			t.Fail("env-accepted", "exec with %.40s was answered with status %d", member, res.Status)
		case res.Code != codeInvalid && res.Code != codeSecret:
			t.Fail("code-differs", "exec with %.40s was answered with %q", member, res.Code)
		default:
			t.Witness("refused", 1)
		}
		if left(id) {
			t.Fail("env-spawned", "exec with %.40s ran its command", member)
		}
		if bytes.Contains(res.Body, []byte(secret)) {
			t.Fail("secret-echoed", "the answer to %.40s repeats the value", member)
		}
	}
	spec := t.Spec(target.Spec{})
	t.AdoptWorkspace(spec.WorkspaceID)
	body, err := t.Target().Wire.CreateBody(ctx, spec)
	if err != nil {
		return err
	}
	body = append(bytes.TrimSuffix(bytes.TrimSpace(body), []byte("}")), []byte(`,"env":{"OPENAI_API_KEY":"`+secret+`"}}`)...)
	res, err := t.Target().Wire.Raw(ctx, target.RawRequest{Op: "create", Method: "POST", Target: "/v1/sandboxes", WorkspaceID: spec.WorkspaceID, Body: body})
	switch {
	case err != nil:
		return err
	case res.Status < 300:
		t.Fail("env-accepted", "create with env was answered with status %d", res.Status)
		if err := attack.DisposeRaw(ctx, t, spec.WorkspaceID, res.Body); err != nil {
			return err
		}
	case res.Code != codeInvalid:
		t.Fail("code-differs", "create with env was answered with %q", res.Code)
	default:
		t.Witness("refused", 1)
	}

	// The tape: nothing that was asked of the engine meanwhile holds the value, and no container was asked
	// for with an environment.
	calls, _, err := t.Target().Observer.Tape(mark)
	if err != nil {
		return err
	}
	for _, call := range calls {
		if names := environment(call); len(names) > 0 {
			t.Fail("env-on-tape", "%s %s sets %q", call.Method, call.Path, names)
		}
		if bytes.Contains(call.Body, []byte(secret)) {
			t.Fail("env-on-tape", "%s %s carries the value", call.Method, call.Path)
		}
	}
	t.Observe("engine-calls", len(calls))
	return nil
}

// environment returns the names that a create call sets, but for those that every sandbox's first
// process has.
func environment(call target.TapeCall) (names []string) {
	var body struct{ Env []string }
	if !strings.HasSuffix(call.Path, "/containers/create") || json.Unmarshal(call.Body, &body) != nil {
		return nil
	}
	for _, kv := range body.Env {
		if name, _, sets := strings.Cut(kv, "="); sets && !slices.Contains([]string{"HOME", "LANG", "PATH"}, name) {
			names = append(names, name)
		}
	}
	return names
}
