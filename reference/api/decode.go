// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// requestLimits bound the JSON of requests; answerLimits that of answers.
var (
	requestLimits = strictjson.Limits{Bytes: MaxRequestBytes, Depth: 32, StringBytes: 2 << 20}
	answerLimits  = strictjson.Limits{Bytes: MaxAnswerBytes, Depth: 32, StringBytes: MaxAnswerString}
)

func invalid(format string, args ...any) error {
	return E(RequestInvalid, fmt.Errorf(format, args...))
}

// decode keeps of a refusal only which kind it is: the decoder's own text quotes names and numbers
// of the body, and a body may hold what no log is to hold.
func decode(body []byte, v any) error {
	err := strictjson.Unmarshal(body, v, requestLimits)
	if err == nil {
		return nil
	}
	for _, kind := range []error{strictjson.ErrLimit, strictjson.ErrSchema, strictjson.ErrNumber, strictjson.ErrEncoded} {
		if errors.Is(err, kind) {
			return E(RequestInvalid, kind)
		}
	}
	return E(RequestInvalid, strictjson.ErrSyntax)
}

// DecodeAnswer decodes a worker's answer into v; a refusal is RESPONSE_INVALID.
func DecodeAnswer(body []byte, v any) error {
	if err := strictjson.Unmarshal(body, v, answerLimits); err != nil {
		return E(ResponseInvalid, err)
	}
	return nil
}

// DecodeCreate decodes a create request and holds it against the worker's ceilings.
func DecodeCreate(body []byte, ceilings Resources) (CreateRequest, error) {
	var r CreateRequest
	if err := decode(body, &r); err != nil {
		return CreateRequest{}, err
	}
	if err := r.validate(ceilings); err != nil {
		return CreateRequest{}, err
	}
	return r, nil
}

func (r CreateRequest) validate(ceilings Resources) error {
	if r.ProtocolVersion != ProtocolVersion {
		return E(ProtocolMismatch, fmt.Errorf("protocol version of %d bytes", len(r.ProtocolVersion)))
	}
	for _, id := range []struct{ name, value string }{
		{"workspaceId", r.WorkspaceID}, {"sessionId", r.SessionID}, {"clientLeaseId", r.ClientLeaseID},
	} {
		if !ValidID(id.value) {
			return invalid("%s is not an identifier", id.name)
		}
	}
	if r.IdleTimeoutMs < MinTimeoutMs || r.IdleTimeoutMs > MaxIdleTimeoutMs {
		return invalid("idleTimeoutMs %d", r.IdleTimeoutMs)
	}
	if r.HardTimeoutMs < MinTimeoutMs || r.HardTimeoutMs > MaxHardTimeoutMs {
		return invalid("hardTimeoutMs %d", r.HardTimeoutMs)
	}
	for _, d := range []struct{ name, value string }{
		{"image", r.Image}, {"expected.cohortId", r.Expected.CohortID}, {"expected.pinsDigest", r.Expected.PinsDigest},
	} {
		if !ValidDigest(d.value) {
			return invalid("%s is not a digest", d.name)
		}
	}
	return r.Resources.within(ceilings)
}

// Positive refuses a bound that is absent or not positive.
func (r Resources) Positive() error {
	for _, f := range r.fields() {
		if f.value <= 0 {
			return invalid("resources.%s %d", f.name, f.value)
		}
	}
	return nil
}

func (r Resources) within(ceilings Resources) error {
	if err := r.Positive(); err != nil {
		return err
	}
	top := ceilings.fields()
	for i, f := range r.fields() {
		if f.value > top[i].value {
			return invalid("resources.%s %d is above the worker's ceiling", f.name, f.value)
		}
	}
	return nil
}

type bound struct {
	name  string
	value int64
}

func (r Resources) fields() []bound {
	return []bound{
		{"cpus", int64(r.CPUs)}, {"memoryBytes", r.MemoryBytes}, {"pids", r.PIDs},
		{"workspaceBytes", r.WorkspaceBytes}, {"workspaceInodes", r.WorkspaceInodes},
	}
}

// DecodeExec decodes an exec request.
func DecodeExec(body []byte) (ExecRequest, error) {
	var r ExecRequest
	if err := decode(body, &r); err != nil {
		return ExecRequest{}, err
	}
	if err := r.validate(); err != nil {
		return ExecRequest{}, err
	}
	return r, nil
}

func (r ExecRequest) validate() error {
	if !ValidID(r.InvocationID) {
		return invalid("invocationId is not an identifier")
	}
	if len(r.Argv) == 0 || len(r.Argv) > MaxArgs || r.Argv[0] == "" {
		return invalid("argv of %d entries", len(r.Argv))
	}
	total := 0
	for _, a := range r.Argv {
		total += len(a)
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("argv with NUL") // execve(2) would cut it short
		}
	}
	if total > MaxArgBytes {
		return invalid("argv of %d bytes", total)
	}
	if r.Cwd != "" {
		if err := CheckPath([]byte(r.Cwd)); err != nil {
			return err
		}
	}
	if len(r.Stdin) > MaxStdinBytes {
		return invalid("stdin of %d bytes", len(r.Stdin))
	}
	if r.TimeoutMs < 1 || r.TimeoutMs > MaxExecTimeoutMs {
		return invalid("timeoutMs %d", r.TimeoutMs)
	}
	if r.MaxOutputBytes < 1 || r.MaxOutputBytes > MaxOutputBytes {
		return invalid("maxOutputBytes %d", r.MaxOutputBytes)
	}
	return checkCredentialRefs(r.CredentialRefs)
}

// FSCall is a decoded [FSRequest]. Names are bytes.
type FSCall struct {
	Op       string
	Path, To []byte // Path is empty for the workspace itself
	Cursor   string
	Rows     int // list only, 1 .. 1,000
}

// DecodeFS decodes a workspace operation. Members that the operation does not use are refused.
func DecodeFS(body []byte) (FSCall, error) {
	var r FSRequest
	if err := decode(body, &r); err != nil {
		return FSCall{}, err
	}
	c := FSCall{Op: r.Op, Cursor: r.Cursor, Rows: MaxListRows}
	switch r.Op {
	case FSStat, FSList, FSMkdir, FSRemove, FSRename, FSReadlink:
	default:
		return FSCall{}, invalid("unknown fs operation")
	}
	var err error
	if whole := r.Path == "" && r.PathBytes == nil; !whole || (r.Op != FSStat && r.Op != FSList) {
		if c.Path, err = oneName("path", r.Path, r.PathBytes); err != nil {
			return FSCall{}, err
		}
	}
	switch {
	case r.Op == FSRename:
		if c.To, err = oneName("to", r.To, r.ToBytes); err != nil {
			return FSCall{}, err
		}
	case r.To != "" || r.ToBytes != nil:
		return FSCall{}, invalid("%s takes no target", r.Op)
	}
	if r.Op != FSList && (r.Cursor != "" || r.LimitedRows != 0) {
		return FSCall{}, invalid("%s takes no page", r.Op)
	}
	if r.LimitedRows < 0 || r.LimitedRows > MaxListRows || len(r.Cursor) > MaxCursorBytes {
		return FSCall{}, invalid("page of %d rows, cursor of %d bytes", r.LimitedRows, len(r.Cursor))
	}
	if r.LimitedRows > 0 {
		c.Rows = int(r.LimitedRows)
	}
	return c, nil
}

func oneName(what, text string, raw []byte) ([]byte, error) {
	if (text != "") == (raw != nil) {
		return nil, invalid("exactly one of %s and %sBytes is needed", what, what)
	}
	if raw == nil {
		raw = []byte(text)
	}
	return raw, CheckPath(raw)
}

// FileCall is a decoded query of a file transfer.
type FileCall struct {
	Path         []byte
	Mode         string // write only: [WriteCreate], [WriteReplace] or [WriteAppend]
	Executable   bool   // write only, but for an append, which keeps the mode: 0755 instead of 0644
	ExpectedSize int64  // append only: of the file before it, in bytes
}

// DecodeFileQuery decodes the raw query of a file transfer: path or pathBytes (standard base64),
// and for a write mode (required), executable (true or false, optional, not for an append) and
// expectedSize (for an append alone, required: decimal, without sign or leading zero). A name that
// is unknown or given twice is refused.
func DecodeFileQuery(raw string, write bool) (FileCall, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return FileCall{}, E(RequestInvalid, err)
	}
	var c FileCall
	var text string
	var blob []byte
	for name, values := range q {
		if len(values) != 1 {
			return FileCall{}, invalid("query name given %d times", len(values))
		}
		v := values[0]
		switch {
		case name == "path" && utf8.ValidString(v):
			text = v
		case name == "pathBytes":
			if blob, err = canonicalBase64(v); err != nil {
				return FileCall{}, err
			}
		case name == "mode" && write && (v == WriteCreate || v == WriteReplace || v == WriteAppend):
			c.Mode = v
		case name == "expectedSize" && write:
			if c.ExpectedSize, err = strconv.ParseInt(v, 10, 64); err != nil || c.ExpectedSize < 0 || strconv.FormatInt(c.ExpectedSize, 10) != v {
				return FileCall{}, invalid("expectedSize is not a size")
			}
		case name == "executable" && write && (v == "true" || v == "false"):
			c.Executable = v == "true"
		default:
			return FileCall{}, invalid("query is not one of a file transfer")
		}
	}
	if write && c.Mode == "" {
		return FileCall{}, invalid("mode is missing")
	}
	if adds := c.Mode == WriteAppend; adds != q.Has("expectedSize") || adds && q.Has("executable") {
		return FileCall{}, invalid("an append needs expectedSize and keeps the mode; nothing else has one")
	}
	if q.Has("path") && q.Has("pathBytes") {
		return FileCall{}, invalid("path and pathBytes exclude each other")
	}
	c.Path, err = oneName("path", text, blob)
	return c, err
}

func canonicalBase64(s string) ([]byte, error) {
	out, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, E(RequestInvalid, err)
	}
	if base64.StdEncoding.EncodeToString(out) != s { // newlines and spare bits
		return nil, invalid("base64 that is not canonical")
	}
	return out, nil
}

// DecodeError decodes a failure body that came with status. A code outside the union, a status
// or a sentence that is not the code's, or any other shape, is RESPONSE_INVALID.
func DecodeError(status int, body []byte) *Error {
	var b ErrorBody
	if err := strictjson.Unmarshal(body, &b, answerLimits); err != nil {
		return E(ResponseInvalid, err)
	}
	if b.Error.Code.Status() != status {
		return E(ResponseInvalid, errors.New("failure body does not match its status"))
	}
	return b.Error.Err()
}

// Err returns the failure that d tells; RESPONSE_INVALID when its code is not of the union, or
// when anything else is not the code's.
func (d ErrorDetail) Err() *Error {
	c := d.Code
	if !c.Known() || c.Message() != d.Message || c.Retryable() != d.Retryable || !ValidID(d.RequestID) {
		return E(ResponseInvalid, errors.New("failure body does not match its code"))
	}
	return E(c, fmt.Errorf("request %s", d.RequestID))
}

// Body returns the wire form of a failure.
func (c Code) Body(requestID string) ErrorBody {
	return ErrorBody{Error: ErrorDetail{Code: c, Message: c.Message(), Retryable: c.Retryable(), RequestID: requestID}}
}
