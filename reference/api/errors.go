// SPDX-License-Identifier: Apache-2.0

package api

import "net/http"

// Code is one stable error code of the wire. The set is closed.
type Code string

// The union, with PROTOCOL order. Each has one row in [codes].
const (
	ConfigInvalid               Code = "REMOTE_WORKER_CONFIG_INVALID"
	ProtocolMismatch            Code = "REMOTE_WORKER_PROTOCOL_MISMATCH"
	Unauthenticated             Code = "REMOTE_WORKER_UNAUTHENTICATED"
	Unavailable                 Code = "REMOTE_WORKER_UNAVAILABLE"
	Unqualified                 Code = "REMOTE_WORKER_UNQUALIFIED"
	RequestInvalid              Code = "REMOTE_WORKER_REQUEST_INVALID"
	ResponseInvalid             Code = "REMOTE_WORKER_RESPONSE_INVALID"
	CapabilityExpired           Code = "REMOTE_WORKER_CAPABILITY_EXPIRED"
	CapabilityReplay            Code = "REMOTE_WORKER_CAPABILITY_REPLAY"
	NonceStoreExhausted         Code = "REMOTE_WORKER_CAPABILITY_NONCE_STORE_EXHAUSTED"
	AuthorizedWorkspaceRequired Code = "REMOTE_WORKER_AUTHORIZED_WORKSPACE_REQUIRED"
	BindingReceiptInvalid       Code = "REMOTE_WORKER_BINDING_RECEIPT_INVALID"
	SandboxWorkspaceMismatch    Code = "REMOTE_WORKER_SANDBOX_WORKSPACE_MISMATCH"
	SandboxNotFound             Code = "REMOTE_WORKER_SANDBOX_NOT_FOUND"
	SandboxExpired              Code = "REMOTE_WORKER_SANDBOX_EXPIRED"
	SandboxDisposed             Code = "REMOTE_WORKER_SANDBOX_DISPOSED"
	CreateConcurrencyExhausted  Code = "REMOTE_WORKER_CREATE_CONCURRENCY_EXHAUSTED"
	ExecConcurrencyExhausted    Code = "REMOTE_WORKER_EXEC_CONCURRENCY_EXHAUSTED"
	IdempotencyConflict         Code = "REMOTE_WORKER_IDEMPOTENCY_CONFLICT"
	ExecInProgress              Code = "REMOTE_WORKER_EXEC_IN_PROGRESS"
	SecretNotReplayable         Code = "REMOTE_WORKER_SECRET_INVOCATION_NOT_REPLAYABLE"
	OutcomeUnknown              Code = "REMOTE_WORKER_OUTCOME_UNKNOWN"
	IncompleteCleanup           Code = "REMOTE_WORKER_INCOMPLETE_CLEANUP"
	EngineFailed                Code = "REMOTE_WORKER_ENGINE_FAILED"
	PathUnsafe                  Code = "REMOTE_WORKER_PATH_UNSAFE"
	PathNotFound                Code = "REMOTE_WORKER_PATH_NOT_FOUND"
	AlreadyExists               Code = "REMOTE_WORKER_ALREADY_EXISTS"
	PathPrimitiveUnavailable    Code = "REMOTE_WORKER_PATH_PRIMITIVE_UNAVAILABLE"
	QuotaExceeded               Code = "REMOTE_WORKER_QUOTA_EXCEEDED"
	SecretReferenceRejected     Code = "REMOTE_WORKER_SECRET_REFERENCE_REJECTED"
	ExecAborted                 Code = "REMOTE_WORKER_EXEC_ABORTED"
	OutputLimit                 Code = "REMOTE_WORKER_OUTPUT_LIMIT"
	Timeout                     Code = "REMOTE_WORKER_TIMEOUT"
	StreamClosed                Code = "REMOTE_WORKER_STREAM_CLOSED"
	SandboxDied                 Code = "REMOTE_WORKER_SANDBOX_DIED"
	SandboxOOM                  Code = "REMOTE_WORKER_SANDBOX_OOM"
)

// row is what the wire says for one code.
type row struct {
	code      Code
	status    int
	retryable bool
	message   string
}

var codes = []row{
	{ConfigInvalid, http.StatusInternalServerError, false, "The worker's configuration is not valid."},
	{ProtocolMismatch, http.StatusBadGateway, false, "The protocol version is not supported."},
	{Unauthenticated, http.StatusUnauthorized, false, "The capability is missing or not valid."},
	{Unavailable, http.StatusServiceUnavailable, true, "The worker cannot serve this request now."},
	{Unqualified, http.StatusServiceUnavailable, false, "No live evidence admits this image, helper or cohort."},
	{RequestInvalid, http.StatusBadRequest, false, "The request is not valid."},
	{ResponseInvalid, http.StatusBadGateway, false, "The worker's answer is not valid."},
	{CapabilityExpired, http.StatusUnauthorized, false, "The capability has expired or is not yet valid."},
	{CapabilityReplay, http.StatusConflict, false, "The capability was used before."},
	{NonceStoreExhausted, http.StatusServiceUnavailable, true, "The nonce store is full."},
	{AuthorizedWorkspaceRequired, http.StatusForbidden, false, "The capability does not authorise this workspace."},
	{BindingReceiptInvalid, http.StatusBadGateway, false, "The binding receipt is not valid."},
	{SandboxWorkspaceMismatch, http.StatusNotFound, false, "The sandbox does not belong to this workspace."},
	{SandboxNotFound, http.StatusNotFound, false, "There is no such sandbox."},
	{SandboxExpired, http.StatusGone, false, "The sandbox's lease has expired."},
	{SandboxDisposed, http.StatusGone, false, "The sandbox was disposed."},
	{CreateConcurrencyExhausted, http.StatusTooManyRequests, true, "Too many creates are in progress."},
	{ExecConcurrencyExhausted, http.StatusTooManyRequests, true, "Too many invocations are in progress."},
	{IdempotencyConflict, http.StatusConflict, false, "This id was used for a different request."},
	{ExecInProgress, http.StatusConflict, true, "The invocation is still running."},
	{SecretNotReplayable, http.StatusConflict, false, "A secret-bearing invocation has no replayable outcome."},
	{OutcomeUnknown, http.StatusBadGateway, false, "The invocation's outcome is not known."},
	{IncompleteCleanup, http.StatusBadGateway, true, "Clean-up is not complete; it will be retried."},
	{EngineFailed, http.StatusBadGateway, true, "The container engine failed."},
	{PathUnsafe, http.StatusBadRequest, false, "The path is not safe."},
	{PathNotFound, http.StatusNotFound, false, "There is no such path."},
	{AlreadyExists, http.StatusConflict, false, "The path exists already."},
	{PathPrimitiveUnavailable, http.StatusServiceUnavailable, false, "The host lacks a required path primitive."},
	{QuotaExceeded, http.StatusInsufficientStorage, false, "The quota or the host reserve does not allow this."},
	{SecretReferenceRejected, http.StatusForbidden, false, "A credential reference was rejected."},
	{ExecAborted, 499, false, "The invocation was aborted."},
	{OutputLimit, http.StatusRequestEntityTooLarge, false, "The answer exceeds its bound."},
	{Timeout, http.StatusGatewayTimeout, true, "The operation exceeded its deadline."},
	{StreamClosed, http.StatusBadGateway, false, "The stream was closed."},
	{SandboxDied, http.StatusBadGateway, false, "The sandbox ended and is being retired."},
	{SandboxOOM, http.StatusBadGateway, false, "The sandbox ran out of memory and is being retired."},
}

var byCode = func() map[Code]row {
	m := make(map[Code]row, len(codes))
	for _, r := range codes {
		m[r.code] = r
	}
	return m
}()

// Codes returns every code of the union, in order.
func Codes() []Code {
	out := make([]Code, len(codes))
	for i, r := range codes {
		out[i] = r.code
	}
	return out
}

// Known reports whether c is in the union.
func (c Code) Known() bool { _, ok := byCode[c]; return ok }

// Status returns the HTTP status of c; 500 when c is unknown.
func (c Code) Status() int {
	if r, ok := byCode[c]; ok {
		return r.status
	}
	return http.StatusInternalServerError
}

// Retryable reports whether a later identical attempt may succeed.
func (c Code) Retryable() bool { return byCode[c].retryable }

// Message returns the fixed sentence of c.
func (c Code) Message() string { return byCode[c].message }

// Error carries a code across layers. Cause stays on this side of the wire.
type Error struct {
	Code  Code
	Cause error
}

// E returns an *Error. cause may be nil.
func E(code Code, cause error) *Error { return &Error{Code: code, Cause: cause} }

func (e *Error) Error() string {
	if e.Cause == nil {
		return string(e.Code)
	}
	return string(e.Code) + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// ErrorBody is the wire form of a failure.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail holds a code of the union and its fixed sentence; never a cause.
type ErrorDetail struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	RequestID string `json:"requestId"`
}
