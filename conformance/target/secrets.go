// SPDX-License-Identifier: Apache-2.0

package target

// Secrets is a credential provider on the host that the suite controls and that the runtime was
// configured with: what it answers is the case's, and what it was asked it writes down itself, so
// that the runtime's word is not needed. It comes with the part controller.secrets. All methods are
// safe for concurrent use.
type Secrets interface {
	// Names are what the runtime was configured with.
	Names() SecretNames
	// Answer makes body what the provider prints for a lease of a binding from now on, whatever body
	// is, but for line ends; nil makes it say that it has nothing.
	Answer(bindingID string, body []byte) error
	// Break makes the provider print body on both streams and fail, for a binding from now on.
	Break(bindingID string, body []byte) error
	// Asked returns the calls that the provider was run for, in order, since it was made.
	Asked() ([]SecretCall, error)
}

// SecretNames are a provider and its bindings. Bindings are of an ordinary category; ModelBinding
// is of a model provider's; OtherWorkspace is bound to a workspace that no case uses. Each binding
// has the fields Fields.
type SecretNames struct {
	Provider, OtherProvider      string
	Binding                      string
	ModelBinding, OtherWorkspace string
	Fields                       []string
	PayloadVersion               string
}

// SecretCall is one run of the provider. Op is lease or dispose.
type SecretCall struct {
	Op           string `json:"op"`
	AttemptID    string `json:"deliveryAttemptId"`
	WorkspaceID  string `json:"workspaceId"`
	BindingID    string `json:"bindingId"`
	ExecutionID  string `json:"executionId"`
	InvocationID string `json:"invocationId"`
}
