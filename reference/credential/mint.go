// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"slices"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Subject is what the worker itself knows of the invocation that asks: of its durable record of
// the sandbox, never of the request. ExecutionID is the session that the sandbox was created for.
type Subject struct {
	WorkspaceID, ExecutionID, InvocationID string
}

// Reference is a reference that this worker has made itself, from a binding that it trusts. Only
// [Resolver.Mint] makes one.
type Reference struct {
	attempt string
	binding Binding
	subject Subject
	fields  []api.CredentialField
}

func (r Reference) request() Request {
	q := Request{AttemptID: r.attempt, WorkspaceID: r.subject.WorkspaceID, BindingID: r.binding.BindingID,
		ExecutionID: r.subject.ExecutionID, InvocationID: r.subject.InvocationID}
	for _, f := range r.fields {
		q.FieldIDs = append(q.FieldIDs, f.FieldID)
	}
	slices.Sort(q.FieldIDs)
	return q
}

// Mint makes references anew for what a request names. It asks nobody and changes nothing. Every
// error is SECRET_REFERENCE_REJECTED with a [Reason]. On a nil Resolver everything is refused.
func (r *Resolver) Mint(refs []api.CredentialRef, s Subject) ([]Reference, error) {
	if r == nil {
		return nil, reject(NoProvider)
	}
	fields := 0
	for _, ref := range refs {
		fields += len(ref.Fields)
	}
	if len(refs) == 0 || len(refs) > api.MaxCredentialRefs || fields > MaxFields {
		return nil, reject(RefCount)
	}
	out := make([]Reference, 0, len(refs))
	names, attempts := map[string]bool{}, map[string]bool{}
	for _, ref := range refs {
		m, reason := r.mint(ref, s)
		if reason == "" && attempts[m.attempt] {
			reason = AttemptUsed
		}
		for _, f := range m.fields {
			if names[f.Name] {
				reason = NameRefused
			}
			names[f.Name] = true
		}
		if reason != "" {
			return nil, reject(reason)
		}
		attempts[m.attempt] = true
		out = append(out, m)
	}
	return out, nil
}

func (r *Resolver) mint(ref api.CredentialRef, s Subject) (Reference, Reason) {
	b, known := r.bindings[ref.BindingID]
	switch {
	case !api.ValidID(ref.DeliveryAttemptID), len(ref.Fields) == 0:
		return Reference{}, RefMalformed
	case !known:
		return Reference{}, BindingUnknown
	case ref.ProviderID != b.ProviderID:
		return Reference{}, ProviderMismatch
	case b.modelProvider():
		return Reference{}, ModelProvider
	case len(b.Workspaces) > 0 && !slices.Contains(b.Workspaces, s.WorkspaceID):
		return Reference{}, WorkspaceOutside
	case ref.ExecutionID != s.ExecutionID:
		return Reference{}, ExecutionOther
	}
	ids := map[string]bool{}
	for _, f := range ref.Fields {
		switch {
		case !slices.Contains(b.Fields, f.FieldID) || ids[f.FieldID]:
			return Reference{}, FieldOutside
		case !api.CredentialName(f.Name):
			return Reference{}, NameRefused
		}
		ids[f.FieldID] = true
	}
	return Reference{attempt: ref.DeliveryAttemptID, binding: b, subject: s, fields: slices.Clone(ref.Fields)}, ""
}
