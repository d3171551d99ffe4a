// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"
)

func TestCredentialNames(t *testing.T) {
	for _, name := range []string{"TOKEN", "token", "a b", "GITHUB_TOKEN", "PATHS", "MY_LD_", "X", "__", "\xff", strings.Repeat("n", 256)} {
		if !CredentialName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{
		"", "PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL", "PWD", "LD_PRELOAD", "LD_", "PYTHONPATH", "PYTHON", "NODE_OPTIONS", "DOCKER_HOST",
		"_", "HALLMARK_X", "path", "Ld_Preload", "a=b", "a\nb", "a\x00b", strings.Repeat("n", 257),
	} {
		if CredentialName(name) {
			t.Errorf("%q is allowed", name)
		}
	}
}

func TestDecodeExecCredentials(t *testing.T) {
	ref := func(f func(*CredentialRef)) CredentialRef {
		r := CredentialRef{DeliveryAttemptID: "d1", ProviderID: "p", BindingID: "b", ExecutionID: "s", Fields: []CredentialField{{Name: "TOKEN", FieldID: "token"}}}
		if f != nil {
			f(&r)
		}
		return r
	}
	body := func(refs ...CredentialRef) string {
		return marshal(t, ExecRequest{InvocationID: "i", Argv: []string{"x"}, TimeoutMs: 1, MaxOutputBytes: 1, CredentialRefs: refs})
	}
	other := func(name, id string) CredentialRef {
		return ref(func(r *CredentialRef) {
			r.DeliveryAttemptID, r.Fields = "d2", []CredentialField{{Name: name, FieldID: id}}
		})
	}
	many := func(n int) (out []CredentialField) {
		for i := range n {
			out = append(out, CredentialField{Name: fmt.Sprintf("N%d", i), FieldID: fmt.Sprintf("f%d", i)})
		}
		return out
	}
	good := body(ref(nil), other("OTHER", "token"))
	for name, text := range map[string]string{"two": good, "16 fields": body(ref(func(r *CredentialRef) { r.Fields = many(16) }))} {
		if _, err := DecodeExec([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var refs17 []CredentialRef
	for i, f := range many(17) {
		refs17 = append(refs17, ref(func(r *CredentialRef) { r.DeliveryAttemptID, r.Fields = fmt.Sprintf("d%d", i), []CredentialField{f} }))
	}
	for name, tt := range map[string]struct {
		body string
		code Code
	}{
		"17 references":     {body(refs17...), RequestInvalid},
		"17 fields":         {body(ref(func(r *CredentialRef) { r.Fields = many(17) })), RequestInvalid},
		"no field":          {body(ref(func(r *CredentialRef) { r.Fields = []CredentialField{} })), RequestInvalid},
		"attempt malformed": {body(ref(func(r *CredentialRef) { r.DeliveryAttemptID = "a/b" })), RequestInvalid},
		"provider absent":   {body(ref(func(r *CredentialRef) { r.ProviderID = "" })), RequestInvalid},
		"binding dot-dot":   {body(ref(func(r *CredentialRef) { r.BindingID = "../b" })), RequestInvalid},
		"execution long":    {body(ref(func(r *CredentialRef) { r.ExecutionID = strings.Repeat("e", 129) })), RequestInvalid},
		"field id":          {body(ref(func(r *CredentialRef) { r.Fields[0].FieldID = "-" })), RequestInvalid},
		"reserved":          {body(ref(func(r *CredentialRef) { r.Fields[0].Name = "LD_PRELOAD" })), SecretReferenceRejected},
		"name with =":       {body(ref(func(r *CredentialRef) { r.Fields[0].Name = "A=B" })), SecretReferenceRejected},
		"name with NUL":     {body(ref(func(r *CredentialRef) { r.Fields[0].Name = "A\x00B" })), SecretReferenceRejected},
		"name twice":        {body(ref(nil), other("TOKEN", "token")), SecretReferenceRejected},
		"field twice":       {body(ref(func(r *CredentialRef) { r.Fields = append(r.Fields, CredentialField{"B", "token"}) })), SecretReferenceRejected},
		"attempt twice":     {body(ref(nil), ref(func(r *CredentialRef) { r.Fields[0].Name = "B" })), SecretReferenceRejected},
		"a value":           {strings.Replace(good, `"bindingId"`, `"value":"x","bindingId"`, 1), RequestInvalid},
		"a classification":  {strings.Replace(good, `"bindingId"`, `"classification":"public","bindingId"`, 1), RequestInvalid},
		"a kind":            {strings.Replace(good, `"bindingId"`, `"kind":"token","bindingId"`, 1), RequestInvalid},
		"a category":        {strings.Replace(good, `"bindingId"`, `"category":"tool","bindingId"`, 1), RequestInvalid},
		"a delivery":        {strings.Replace(good, `"bindingId"`, `"delivery":"env","bindingId"`, 1), RequestInvalid},
		"null":              {strings.Replace(body(), `{`, `{"credentialRefs":null,`, 1), RequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := DecodeExec([]byte(tt.body)); codeOf(err) != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
		})
	}
}
