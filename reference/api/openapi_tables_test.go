// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/api/wiretest"
	"github.com/hallmark-sandbox/hallmark/reference/capability"
)

func base64Length(n int) int { return (n + 2) / 3 * 4 }

// places says where the document has each constant of bounds.go and types.go. A constant that is no
// part of the wire has none.
func places() map[string]struct {
	value any
	at    []string
} {
	type row = struct {
		value any
		at    []string
	}
	limit := func(name string) string { return "x-limits " + name }
	schema := func(path string) string { return "components schemas " + path }
	const data = "properties data"
	return map[string]row{
		"MaxRequestBytes":        {api.MaxRequestBytes, []string{limit("requestBytes")}},
		"MaxAnswerBytes":         {api.MaxAnswerBytes, []string{limit("answerBytes")}},
		"MaxAnswerString":        {api.MaxAnswerString, []string{limit("answerStringBytes")}},
		"MaxHeaderBytes":         {api.MaxHeaderBytes, []string{limit("headerBytes")}},
		"MaxTokenBytes":          {api.MaxTokenBytes, []string{limit("tokenBytes")}},
		"MaxTokenSeconds":        {api.MaxTokenSeconds, []string{limit("tokenSeconds")}},
		"MaxIDBytes":             {api.MaxIDBytes, []string{schema("Identifier maxLength")}},
		"MaxPathBytes":           {api.MaxPathBytes, []string{limit("pathBytes"), schema("Path maxLength")}},
		"MinTimeoutMs":           {api.MinTimeoutMs, []string{schema("CreateRequest properties idleTimeoutMs minimum"), schema("CreateRequest properties hardTimeoutMs minimum")}},
		"MaxIdleTimeoutMs":       {api.MaxIdleTimeoutMs, []string{schema("CreateRequest properties idleTimeoutMs maximum")}},
		"MaxHardTimeoutMs":       {api.MaxHardTimeoutMs, []string{schema("CreateRequest properties hardTimeoutMs maximum")}},
		"MaxArgs":                {api.MaxArgs, []string{schema("ExecRequest properties argv maxItems")}},
		"MaxArgBytes":            {api.MaxArgBytes, []string{limit("argBytes"), schema("ExecRequest properties argv items maxLength")}},
		"MaxStdinBytes":          {base64Length(api.MaxStdinBytes), []string{schema("ExecRequest properties stdin maxLength")}},
		"MaxExecTimeoutMs":       {api.MaxExecTimeoutMs, []string{schema("ExecRequest properties timeoutMs maximum")}},
		"MaxOutputBytes":         {api.MaxOutputBytes, []string{schema("ExecRequest properties maxOutputBytes maximum")}},
		"MaxCredentialRefs":      {api.MaxCredentialRefs, []string{schema("ExecRequest properties credentialRefs maxItems")}},
		"MaxCredentialFields":    {api.MaxCredentialFields, []string{schema("CredentialRef properties fields maxItems")}},
		"MaxCredentialNameBytes": {api.MaxCredentialNameBytes, []string{schema("CredentialField properties name maxLength")}},
		"MaxListRows":            {api.MaxListRows, []string{schema("FSRequest properties limit maximum"), schema("FSResponse properties entries maxItems")}},
		"MaxCursorBytes":         {api.MaxCursorBytes, []string{schema("FSRequest properties cursor maxLength"), schema("FSResponse properties cursor maxLength")}},
		"MinNonceChars":          {api.MinNonceChars, []string{schema("HealthClaims properties jti minLength"), schema("WorkspaceClaims properties jti minLength"), schema("SandboxClaims properties jti minLength"), schema("HealthClaims properties challenge minLength")}},
		"MaxNonceChars":          {api.MaxNonceChars, []string{schema("HealthClaims properties jti maxLength"), schema("WorkspaceClaims properties jti maxLength"), schema("SandboxClaims properties jti maxLength")}},
		"MaxChallengeChars":      {api.MaxChallengeChars, []string{schema("HealthClaims properties challenge maxLength"), schema("Health properties challenge maxLength")}},

		"ProtocolVersion": {api.ProtocolVersion, []string{"info version", schema("Health properties protocolVersion const")}},
		"Tenant":          {},
		"Qualification":   {api.Qualification, []string{schema("Mode enum")}},
		"Production":      {api.Production, []string{schema("Mode enum")}},
		"TypeJSON":        {api.TypeJSON, []string{"paths /v1/health get responses 200 content"}},
		"TypeNDJSON":      {api.TypeNDJSON, []string{"paths /v1/sandboxes/{sandboxId}/exec post responses 200 content"}},
		"TypeEvents":      {api.TypeEvents, []string{"paths /v1/sandboxes/{sandboxId}/events get responses 200 content"}},

		"FSStat": {api.FSStat, []string{schema("FSRequest properties op enum")}}, "FSList": {api.FSList, []string{schema("FSRequest properties op enum")}},
		"FSMkdir": {api.FSMkdir, []string{schema("FSRequest properties op enum")}}, "FSRemove": {api.FSRemove, []string{schema("FSRequest properties op enum")}},
		"FSRename": {api.FSRename, []string{schema("FSRequest properties op enum")}}, "FSReadlink": {api.FSReadlink, []string{schema("FSRequest properties op enum")}},
		"WriteCreate":  {api.WriteCreate, []string{"components parameters mode schema enum"}},
		"WriteReplace": {api.WriteReplace, []string{"components parameters mode schema enum"}},
		"WriteAppend":  {api.WriteAppend, []string{"components parameters mode schema enum"}},
		"ExecStarted":  {api.ExecStarted, []string{schema("ExecEvent properties type enum")}}, "ExecStdout": {api.ExecStdout, []string{schema("ExecEvent properties type enum")}},
		"ExecStderr": {api.ExecStderr, []string{schema("ExecEvent properties type enum")}}, "ExecHeartbeat": {api.ExecHeartbeat, []string{schema("ExecEvent properties type enum")}},
		"ExecEnded": {api.ExecEnded, []string{schema("ExecEvent properties type enum")}}, "ExecFailed": {api.ExecFailed, []string{schema("ExecEvent properties type enum")}},
		"ChangeCreated": {api.ChangeCreated, []string{schema("ChangeEvent properties type enum")}}, "ChangeModified": {api.ChangeModified, []string{schema("ChangeEvent properties type enum")}},
		"ChangeRemoved": {api.ChangeRemoved, []string{schema("ChangeEvent properties type enum")}}, "ChangeMoved": {api.ChangeMoved, []string{schema("ChangeEvent properties type enum")}},
		"ChangeOverflow": {api.ChangeOverflow, []string{schema("ChangeEvent properties type enum")}},
	}
}

// TestConstantsEqualDocument reads the sources, so that a new constant is found, and compares each
// with its places; a list of values holds exactly the constants that are placed there.
func TestConstantsEqualDocument(t *testing.T) {
	d, known := document(t), places()
	limits := tree{}
	for _, l := range asList(d["x-limits"]) {
		limits[fmt.Sprint(l.(tree)["name"])] = l.(tree)["value"]
	}
	d["x-limits"] = limits // by name
	for _, file := range []string{"bounds.go", "types.go", "credentials.go"} {
		for _, decl := range parsed(t, file).Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if _, ok := known[name.Name]; !ok && !strings.HasPrefix(name.Name, "Op") {
						t.Errorf("%s of %s is not in the document", name.Name, file)
					}
				}
			}
		}
	}
	lists := map[string][]string{}
	placed := map[string]bool{}
	for name, row := range known {
		for _, path := range row.at {
			switch v := d.at(path).(type) {
			case []any:
				lists[path] = append(lists[path], fmt.Sprint(row.value))
			case tree:
				if v[fmt.Sprint(row.value)] == nil {
					t.Errorf("%s: %v is not at %s", name, row.value, path)
				}
			default:
				if fmt.Sprint(v) != fmt.Sprint(row.value) {
					t.Errorf("%s is %v, the document says %v at %s", name, row.value, v, path)
				}
			}
			placed[path] = true
		}
	}
	for path, want := range lists {
		got := d.strings(path)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s lists %v, the constants are %v", path, got, want)
		}
	}
	for name := range limits {
		if !placed["x-limits "+name] {
			t.Errorf("x-limits: %s has no constant", name)
		}
	}
	for path, want := range map[string]int{
		"PathBytes maxLength": base64Length(api.MaxPathBytes), "FSResponse properties targetBytes maxLength": base64Length(api.MaxPathBytes),
		"Output maxLength": base64Length(api.MaxOutputBytes),
	} {
		if got := d.at("components schemas " + path); got != want {
			t.Errorf("%s is %v, want %d", path, got, want)
		}
	}
}

func TestCodesEqualDocument(t *testing.T) {
	d := document(t)
	if got := d.strings("components schemas ErrorCode enum"); !slices.Equal(got, asStrings(api.Codes())) {
		t.Errorf("ErrorCode lists %v", got)
	}
	from := map[api.Code]string{}
	for i, v := range asList(d.at("components schemas ErrorCode x-codes")) {
		row := v.(tree)
		c := api.Codes()[i]
		if row["code"] != strings.TrimPrefix(string(c), "REMOTE_WORKER_") || row["status"] != c.Status() || row["retryable"] != c.Retryable() || row["message"] != c.Message() {
			t.Errorf("row %d is %v, the code is %s, %d, %v, %q", i, row, c, c.Status(), c.Retryable(), c.Message())
		}
		from[c] = fmt.Sprint(row["from"])
	}
	if len(from) != len(api.Codes()) {
		t.Errorf("%d rows", len(from))
	}
	declared := map[api.Code]bool{}
	contract, err := wiretest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range contract.Doc.Paths.Map() {
		for _, op := range item.Operations() {
			want := map[string]bool{}
			for _, name := range op.Extensions["x-codes"].([]any) {
				c := api.Code(fmt.Sprintf("REMOTE_WORKER_%v", name))
				if !c.Known() {
					t.Errorf("%s answers %s, which is not in the union", op.OperationID, c)
				}
				declared[c], want[fmt.Sprint(c.Status())] = true, true
			}
			for status := range op.Responses.Map() {
				if status >= "400" && !want[status] {
					t.Errorf("%s declares status %s without a code", op.OperationID, status)
				}
				delete(want, status)
			}
			for status := range want {
				t.Errorf("%s does not declare status %s", op.OperationID, status)
			}
		}
	}
	for _, c := range api.Codes() {
		if sent := from[c] == "worker" || from[c] == "both"; sent != declared[c] {
			t.Errorf("%s comes from %s; an operation declares it: %v", c, from[c], declared[c])
		}
	}
	// Each status has exactly the codes that some operation declares with it.
	responses, _ := d.at("components responses").(tree)
	for name := range responses {
		all := asList(d.at("components responses " + name + " content application/json schema").(tree)["allOf"])
		got := tree(all[1].(tree)).strings("properties error properties code enum")
		var want []string
		for _, c := range api.Codes() {
			if "Status"+fmt.Sprint(c.Status()) == name && declared[c] {
				want = append(want, string(c))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %v, want %v", name, got, want)
		}
	}
}

func asStrings[S ~string](in []S) []string {
	var out []string
	for _, s := range in {
		out = append(out, string(s))
	}
	return out
}

func TestOperationsEqualDocument(t *testing.T) {
	contract, err := wiretest.Load()
	if err != nil {
		t.Fatal(err)
	}
	var ops []string
	for path, item := range contract.Doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "healthz" {
				continue
			}
			name, _ := op.Extensions["x-op"].(string)
			ops = append(ops, name)
			if name != op.OperationID {
				t.Errorf("%s %s is %q and names %q in its capability", method, path, op.OperationID, name)
			}
			if on := strings.Contains(path, "{sandboxId}"); on != api.Op(name).OnSandbox() {
				t.Errorf("%s: the target names a sandbox: %v, its capability: %v", name, on, !on)
			}
		}
	}
	want := asStrings(api.Ops())
	slices.Sort(ops)
	if slices.Sort(want); !slices.Equal(ops, want) {
		t.Errorf("operations %v, want %v", ops, want)
	}
	d := document(t)
	claims := slices.Concat(d.strings("components schemas HealthClaims properties op enum"), d.strings("components schemas WorkspaceClaims properties op enum"),
		d.strings("components schemas SandboxClaims properties op enum"))
	if slices.Sort(claims); !slices.Equal(claims, want) {
		t.Errorf("claims name the operations %v, want %v", claims, want)
	}
}

// TestExampleTokensAreSigned verifies the two statements of the examples under the key whose seed
// is 32 zero bytes, so that a reader can try a verifier of their own on them.
func TestExampleTokensAreSigned(t *testing.T) {
	d := document(t)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
	created := asList(d.schema("CreateResponse")["examples"])[0].(tree)
	r, err := capability.VerifyReceipt(key, fmt.Sprint(created["receipt"]))
	if err != nil || r.SandboxID != created["sandboxId"] {
		t.Errorf("receipt %+v, %v", r, err)
	}
	b, err := json.Marshal(asList(d.schema("CreateRequest")["examples"])[0])
	if err != nil {
		t.Fatal(err)
	}
	req, err := api.DecodeCreate(b, api.Resources{CPUs: 500, MemoryBytes: 1 << 27, PIDs: 128, WorkspaceBytes: 1 << 24, WorkspaceInodes: 512})
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := api.CanonicalDigest(req); err != nil || digest != r.RequestDigest {
		t.Errorf("the receipt is of another request: %v", err)
	}
	statement := fmt.Sprint(asList(d.schema("HealthResponse")["examples"])[0].(tree)["statement"])
	if h, err := capability.VerifyHealth(key, statement, "qL0mXx9b1vS2c4Zt7Yw8aA"); err != nil || h.BootEpoch != r.BootEpoch {
		t.Errorf("health %+v, %v", h, err)
	}
}
