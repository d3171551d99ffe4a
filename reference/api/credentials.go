// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"strings"
)

// Bounds of credential references, from RUNTIME.md; inclusive.
const (
	MaxCredentialFields    = 16  // over all references of an invocation
	MaxCredentialNameBytes = 256 // of the name that a field is delivered under
)

// reservedNames change what a shell, a loader or an interpreter does when they are exported from
// the frame; reservedPrefixes likewise. Names differ by case for the kernel, but not for every tool.
var (
	reservedNames    = []string{"PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL", "PWD", "NODE_OPTIONS", "_"}
	reservedPrefixes = []string{"LD_", "PYTHON", "DOCKER_", "HALLMARK_"}
)

// CredentialName reports whether a field may be delivered under name: 1 to 256 bytes without NUL,
// "=" or newline, and not reserved, in whatever case.
func CredentialName(name string) bool {
	if name == "" || len(name) > MaxCredentialNameBytes || strings.ContainsAny(name, "\x00=\n") {
		return false
	}
	upper := strings.ToUpper(name)
	for _, r := range reservedNames {
		if upper == r {
			return false
		}
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(upper, p) {
			return false
		}
	}
	return true
}

// checkCredentialRefs refuses what needs no binding to refuse: with REQUEST_INVALID what is not the
// shape of a reference, with SECRET_REFERENCE_REJECTED names and fields that no binding can allow.
// Nothing of a reference is repeated in the error.
func checkCredentialRefs(refs []CredentialRef) error {
	if refs != nil && len(refs) == 0 || len(refs) > MaxCredentialRefs {
		return invalid("%d credential references", len(refs))
	}
	fields, names, attempts := 0, map[string]bool{}, map[string]bool{}
	for _, r := range refs {
		for _, id := range []string{r.DeliveryAttemptID, r.ProviderID, r.BindingID, r.ExecutionID} {
			if !ValidID(id) {
				return invalid("credential reference with a malformed identifier")
			}
		}
		if attempts[r.DeliveryAttemptID] {
			return E(SecretReferenceRejected, errors.New("a delivery attempt is there twice"))
		}
		attempts[r.DeliveryAttemptID] = true
		if fields += len(r.Fields); len(r.Fields) == 0 || fields > MaxCredentialFields {
			return invalid("%d credential fields", fields)
		}
		ids := map[string]bool{}
		for _, f := range r.Fields {
			switch {
			case !ValidID(f.FieldID):
				return invalid("credential field with a malformed identifier")
			case ids[f.FieldID]:
				return E(SecretReferenceRejected, errors.New("a field is there twice"))
			case !CredentialName(f.Name):
				return E(SecretReferenceRejected, errors.New("a field's name is malformed or reserved"))
			case names[f.Name]:
				return E(SecretReferenceRejected, errors.New("a field's name is there twice"))
			}
			ids[f.FieldID], names[f.Name] = true, true
		}
	}
	return nil
}
