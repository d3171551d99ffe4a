// SPDX-License-Identifier: Apache-2.0

package credential

import "github.com/hallmark-sandbox/hallmark/reference/api"

// Reason says for the log why a reference was rejected. It is an error so that it can be matched;
// the wire carries SECRET_REFERENCE_REJECTED for all of them.
type Reason string

func (r Reason) Error() string { return string(r) }

// The reasons. The first group needs no provider, and nothing has happened by then.
const (
	NoProvider       Reason = "this worker has no provider"
	RefCount         Reason = "number of references or fields"
	RefMalformed     Reason = "a reference is malformed"
	BindingUnknown   Reason = "unknown binding"
	ProviderMismatch Reason = "unknown provider, or not the binding's"
	ModelProvider    Reason = "the binding leads to a model provider"
	WorkspaceOutside Reason = "the binding is not for this workspace"
	ExecutionOther   Reason = "not the sandbox's execution"
	FieldOutside     Reason = "a field outside the binding, or twice"
	NameRefused      Reason = "a field's name is malformed, reserved, or there twice"

	AttemptUsed  Reason = "the delivery attempt was used before"
	AttemptsFull Reason = "too many delivery attempts are remembered"
	LeasesOpen   Reason = "too many leases of the provider are not given back"

	ProviderFailed        Reason = "the provider gave no payload"
	PayloadMalformed      Reason = "the payload is malformed"
	PayloadVersionUnknown Reason = "the payload is of another version"
	PayloadScope          Reason = "the payload is of another scope"
	PayloadExpired        Reason = "the payload has expired"
	PayloadFields         Reason = "the payload has other fields"
	PayloadTooLarge       Reason = "the payload or its values are too large"
	LeaseSpent            Reason = "the lease was used or disposed"
)

func reject(r Reason) error { return api.E(api.SecretReferenceRejected, r) }
