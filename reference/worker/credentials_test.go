// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hallmark-sandbox/hallmark/reference/credential"
)

func TestCredentialsAreConfiguredStrictly(t *testing.T) {
	c := goodConfig(t)
	c.Credentials = &credential.Config{
		Providers: []credential.ProviderConfig{{ProviderID: "vault", Kind: credential.KindExec, Argv: []string{"/opt/vault"}, TimeoutMs: 1000}},
		Bindings:  []credential.Binding{{BindingID: "b", ProviderID: "vault", Category: "registry", Kind: "token", Fields: []string{"token"}}},
	}
	got, err := load(t, c)
	if err != nil || got.Credentials == nil || got.Credentials.Bindings[0].ProviderID != "vault" {
		t.Fatalf("the good configuration: %v", err)
	}
	for name, replace := range map[string][]string{
		"unknown member":   {`"providerId":"vault","kind"`, `"env":{},"providerId":"vault","kind"`},
		"a value":          {`"bindingId":"b"`, `"value":"x","bindingId":"b"`},
		"relative program": {`"/opt/vault"`, `"vault"`},
		"no providers":     {`"providers":[`, `"providerz":[`},
		"category":         {`"registry"`, `"anything"`},
	} {
		if _, err := load(t, c, replace...); err == nil {
			t.Errorf("%s is accepted", name)
		} else if name == "category" && !strings.Contains(err.Error(), "credentials: binding b") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// That secrets are delivered is claimed, and in the security document, where providers are
// configured; whose secrets is not.
func TestCredentialsAreAFeatureWithProvidersOnly(t *testing.T) {
	plain, with, other := goodConfig(t), goodConfig(t), goodConfig(t)
	with.Credentials = &credential.Config{Providers: []credential.ProviderConfig{{ProviderID: "one"}}}
	other.Credentials = &credential.Config{Providers: []credential.ProviderConfig{{ProviderID: "two"}}}
	if slices.Contains(plain.Features(), FeatureCredentials) || !slices.Contains(with.Features(), FeatureCredentials) || !slices.IsSorted(with.Features()) {
		t.Errorf("features are %q without and %q with providers", plain.Features(), with.Features())
	}
	var docs [3][]byte
	for i, c := range []Config{plain, with, other} {
		var err error
		if docs[i], err = c.SecurityDocument(); err != nil {
			t.Fatal(err)
		}
	}
	if bytes.Equal(docs[0], docs[1]) || !bytes.Equal(docs[1], docs[2]) || bytes.Contains(docs[1], []byte("one")) {
		t.Errorf("the documents are\n%s\n%s\n%s", docs[0], docs[1], docs[2])
	}
}
