// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// kindless are the codes that mean nothing in the words that every runtime shares, and why.
var kindless = map[api.Code]string{
	api.ConfigInvalid:               "the worker's own configuration",
	api.ProtocolMismatch:            "protocol",
	api.Unauthenticated:             "authority",
	api.Unavailable:                 "says nothing of the sandbox",
	api.RequestInvalid:              "protocol",
	api.ResponseInvalid:             "protocol",
	api.CapabilityExpired:           "authority",
	api.CapabilityReplay:            "authority",
	api.AuthorizedWorkspaceRequired: "authority",
	api.BindingReceiptInvalid:       "authority",
	api.SandboxWorkspaceMismatch:    "authority: the sandbox may well live",
	api.IdempotencyConflict:         "protocol",
	api.ExecInProgress:              "protocol",
	api.SecretNotReplayable:         "protocol",
	api.OutcomeUnknown:              "leaves open what became of the invocation",
	api.IncompleteCleanup:           "leaves open what is left",
	api.EngineFailed:                "leaves open what the engine did",
	api.AlreadyExists:               "the suite's writes replace",
	api.SecretReferenceRejected:     "credentials",
	api.ExecAborted:                 "the caller's own wish",
	api.OutputLimit:                 "the size of an answer",
	api.Timeout:                     "leaves open what became of the operation",
	api.StreamClosed:                "leaves open what became of the invocation",
}

// all are the kinds of package target.
var all = []target.Kind{
	target.KindOOM, target.KindDied, target.KindGone, target.KindPathUnsafe, target.KindNotFound,
	target.KindNoSpace, target.KindBusy, target.KindUnqualified, target.KindUnsupported,
}

func TestEveryCodeHasAKindOrIsKindlessOnPurpose(t *testing.T) {
	for _, code := range api.Codes() {
		kind, mapped := kinds[code]
		why, bare := kindless[code]
		switch {
		case mapped == bare:
			t.Errorf("%s: mapped %v, listed as kindless %v", code, mapped, bare)
		case mapped && !slices.Contains(all, kind):
			t.Errorf("%s has the unknown kind %q", code, kind)
		case bare && why == "":
			t.Errorf("%s is kindless without a reason", code)
		}
	}
	if got := len(kinds) + len(kindless); got != len(api.Codes()) {
		t.Errorf("%d codes are listed here, the union has %d", got, len(api.Codes()))
	}
}

func TestCodedCarriesCodeKindAndCause(t *testing.T) {
	cause := api.E(api.SandboxOOM, errors.New("inner"))
	err := coded(fmt.Errorf("exec: %w", cause))
	if target.KindOf(err) != target.KindOOM || target.CodeOf(err) != string(api.SandboxOOM) || !errors.Is(err, cause) {
		t.Errorf("coded gives %#v", err)
	}
	if err := coded(fmt.Errorf("exec: %w", api.E(api.Timeout, nil))); target.KindOf(err) != "" || target.CodeOf(err) != string(api.Timeout) {
		t.Errorf("a kindless code gives kind %q, code %q", target.KindOf(err), target.CodeOf(err))
	}
	if err := coded(errors.New("connection")); target.CodeOf(err) != "" || target.KindOf(err) != "" {
		t.Errorf("an error without a code became %#v", err)
	}
	if coded(nil) != nil {
		t.Error("success became an error")
	}
}
