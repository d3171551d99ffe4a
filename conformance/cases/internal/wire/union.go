// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"regexp"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Prefix begins every code of the union.
const Prefix = "REMOTE_WORKER_"

// Codes that cases name.
const (
	Unauthenticated   = Prefix + "UNAUTHENTICATED"
	RequestInvalid    = Prefix + "REQUEST_INVALID"
	Expired           = Prefix + "CAPABILITY_EXPIRED"
	Replay            = Prefix + "CAPABILITY_REPLAY"
	NoncesExhausted   = Prefix + "CAPABILITY_NONCE_STORE_EXHAUSTED"
	WorkspaceRequired = Prefix + "AUTHORIZED_WORKSPACE_REQUIRED"
	WorkspaceMismatch = Prefix + "SANDBOX_WORKSPACE_MISMATCH"
	NotFound          = Prefix + "SANDBOX_NOT_FOUND"
	Conflict          = Prefix + "IDEMPOTENCY_CONFLICT"
	PathUnsafe        = Prefix + "PATH_UNSAFE"
	PathNotFound      = Prefix + "PATH_NOT_FOUND"
	ExecConcurrency   = Prefix + "EXEC_CONCURRENCY_EXHAUSTED"
	ExecInProgress    = Prefix + "EXEC_IN_PROGRESS"
	ExecAborted       = Prefix + "EXEC_ABORTED"
	OutcomeUnknown    = Prefix + "OUTCOME_UNKNOWN"
	Incomplete        = Prefix + "INCOMPLETE_CLEANUP"
	SandboxExpired    = Prefix + "SANDBOX_EXPIRED"
)

// row is what the protocol says of one code.
type row struct {
	status    int
	retryable bool
	sentence  string
}

// union is the suite's own copy of the protocol's table, without the prefix. A worker that answers
// anything else, however well it reads, answers outside of the contract.
var union = map[string]row{
	"CONFIG_INVALID":                   {500, false, "The worker's configuration is not valid."},
	"PROTOCOL_MISMATCH":                {502, false, "The protocol version is not supported."},
	"UNAUTHENTICATED":                  {401, false, "The capability is missing or not valid."},
	"UNAVAILABLE":                      {503, true, "The worker cannot serve this request now."},
	"UNQUALIFIED":                      {503, false, "No live evidence admits this image, helper or cohort."},
	"REQUEST_INVALID":                  {400, false, "The request is not valid."},
	"RESPONSE_INVALID":                 {502, false, "The worker's answer is not valid."},
	"CAPABILITY_EXPIRED":               {401, false, "The capability has expired or is not yet valid."},
	"CAPABILITY_REPLAY":                {409, false, "The capability was used before."},
	"CAPABILITY_NONCE_STORE_EXHAUSTED": {503, true, "The nonce store is full."},
	"AUTHORIZED_WORKSPACE_REQUIRED":    {403, false, "The capability does not authorise this workspace."},
	"BINDING_RECEIPT_INVALID":          {502, false, "The binding receipt is not valid."},
	"SANDBOX_WORKSPACE_MISMATCH":       {404, false, "The sandbox does not belong to this workspace."},
	"SANDBOX_NOT_FOUND":                {404, false, "There is no such sandbox."},
	"SANDBOX_EXPIRED":                  {410, false, "The sandbox's lease has expired."},
	"SANDBOX_DISPOSED":                 {410, false, "The sandbox was disposed."},
	"CREATE_CONCURRENCY_EXHAUSTED":     {429, true, "Too many creates are in progress."},
	"EXEC_CONCURRENCY_EXHAUSTED":       {429, true, "Too many invocations are in progress."},
	"IDEMPOTENCY_CONFLICT":             {409, false, "This id was used for a different request."},
	"EXEC_IN_PROGRESS":                 {409, true, "The invocation is still running."},
	"SECRET_INVOCATION_NOT_REPLAYABLE": {409, false, "A secret-bearing invocation has no replayable outcome."},
	"OUTCOME_UNKNOWN":                  {502, false, "The invocation's outcome is not known."},
	"INCOMPLETE_CLEANUP":               {502, true, "Clean-up is not complete; it will be retried."},
	"ENGINE_FAILED":                    {502, true, "The container engine failed."},
	"PATH_UNSAFE":                      {400, false, "The path is not safe."},
	"PATH_NOT_FOUND":                   {404, false, "There is no such path."},
	"ALREADY_EXISTS":                   {409, false, "The path exists already."},
	"PATH_PRIMITIVE_UNAVAILABLE":       {503, false, "The host lacks a required path primitive."},
	"QUOTA_EXCEEDED":                   {507, false, "The quota or the host reserve does not allow this."},
	"SECRET_REFERENCE_REJECTED":        {403, false, "A credential reference was rejected."},
	"EXEC_ABORTED":                     {499, false, "The invocation was aborted."},
	"OUTPUT_LIMIT":                     {413, false, "The answer exceeds its bound."},
	"TIMEOUT":                          {504, true, "The operation exceeded its deadline."},
	"STREAM_CLOSED":                    {502, false, "The stream was closed."},
	"SANDBOX_DIED":                     {502, false, "The sandbox ended and is being retired."},
	"SANDBOX_OOM":                      {502, false, "The sandbox ran out of memory and is being retired."},
}

var requestID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// Refusal returns the code of an answer that refuses. An error says in what the answer differs from
// the protocol's failure of that code: another shape, status, sentence or member, or a code that
// is not of the union.
func Refusal(a Answer) (code string, err error) {
	if a.Status < 400 {
		return "", fmt.Errorf("status %d refuses nothing", a.Status)
	}
	var body struct {
		Error struct {
			Code      string `json:"code"`
			Message   string `json:"message"`
			Retryable bool   `json:"retryable"`
			RequestID string `json:"requestId"`
		} `json:"error"`
	}
	if err := strictjson.Unmarshal(a.Body, &body, strictjson.Limits{Bytes: 4096, Depth: 2, StringBytes: 1024}); err != nil {
		return "", fmt.Errorf("status %d with a body that is no failure: %w: %.200q", a.Status, err, a.Body)
	}
	e := body.Error
	want, ok := union[trim(e.Code)]
	switch {
	case !ok:
		return e.Code, fmt.Errorf("code %.80q is not of the union", e.Code)
	case a.Status != want.status:
		return e.Code, fmt.Errorf("code %s with status %d, not %d", e.Code, a.Status, want.status)
	case e.Message != want.sentence:
		return e.Code, fmt.Errorf("code %s with the sentence %.200q", e.Code, e.Message)
	case e.Retryable != want.retryable:
		return e.Code, fmt.Errorf("code %s says retryable %v", e.Code, e.Retryable)
	case !requestID.MatchString(e.RequestID):
		return e.Code, fmt.Errorf("code %s with the request id %.80q", e.Code, e.RequestID)
	case a.Header.Get("Content-Type") != "application/json":
		return e.Code, fmt.Errorf("code %s with the content type %.80q", e.Code, a.Header.Get("Content-Type"))
	}
	return e.Code, nil
}

func trim(code string) string {
	if len(code) < len(Prefix) || code[:len(Prefix)] != Prefix {
		return ""
	}
	return code[len(Prefix):]
}
