// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"errors"
)

// Provider gives the payload of a binding for one delivery attempt. It is what a third party
// implements; package credentialtest runs the contract against it.
//
// Both methods may be called from several goroutines at once, end soon after ctx does, and return
// errors that hold no secret (the resolver drops their text all the same).
type Provider interface {
	// Lease returns the payload in a buffer that is the caller's alone from then on: it is zeroed.
	// Errors that match a sentinel of this package are told apart in the log, others are "failed".
	// An attempt comes once; a provider may refuse one that it has seen.
	Lease(ctx context.Context, r Request) ([]byte, error)
	// Dispose says that the attempt is over. It is called exactly once for each call of Lease,
	// after it, whatever Lease returned and however it ended; so it must not fail because there is
	// nothing to give back. When it fails, or the worker dies before it is on record, the next worker calls it at
	// its start: also for a call of Lease that never came to the provider, or for a second time.
	Dispose(ctx context.Context, r Request) error
}

// Request names what is asked for. All but AttemptID is the worker's own knowledge, never the
// caller's word. Members are identifiers ([api.ValidID]).
type Request struct {
	AttemptID    string   `json:"deliveryAttemptId"`
	WorkspaceID  string   `json:"workspaceId"`
	BindingID    string   `json:"bindingId"`
	ExecutionID  string   `json:"executionId"`
	InvocationID string   `json:"invocationId"`
	FieldIDs     []string `json:"fieldIds"` // sorted; the payload must hold exactly these
}

// Sentinels of providers.
var (
	ErrNoPayload = errors.New("the provider has no such payload")
	ErrTooLarge  = errors.New("the payload is larger than its bound")
	ErrUnsafe    = errors.New("the provider's source can be changed by others")
	ErrTimedOut  = errors.New("the provider did not answer in time")
	ErrFailed    = errors.New("the provider failed")
)

// failureOf names err for the log without a word of its text.
func failureOf(err error) string {
	for _, known := range []error{ErrNoPayload, ErrTooLarge, ErrUnsafe, ErrTimedOut, ErrFailed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return ErrFailed.Error()
}
