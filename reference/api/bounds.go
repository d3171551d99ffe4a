// SPDX-License-Identifier: Apache-2.0

package api

// Bounds of requests, from PROTOCOL.md. Sizes are bytes, times milliseconds; all inclusive.
const (
	MaxRequestBytes = 2 << 20  // a JSON body
	MaxAnswerBytes  = 8 << 20  // a JSON answer: 4 MiB of output in base64, and room
	MaxAnswerString = 6 << 20  // one string of an answer
	MaxHeaderBytes  = 32 << 10 // request line and header fields

	MaxIDBytes   = 128
	MaxPathBytes = 4096

	MinTimeoutMs     = 1_000
	MaxIdleTimeoutMs = 30 * 60 * 1_000
	MaxHardTimeoutMs = 24 * 60 * 60 * 1_000

	MaxArgs           = 256
	MaxArgBytes       = 64 << 10 // over all entries
	MaxStdinBytes     = 1 << 20
	MaxExecTimeoutMs  = 15 * 60 * 1_000
	MaxOutputBytes    = 4 << 20
	MaxCredentialRefs = 16
	MaxListRows       = 1_000
	MaxCursorBytes    = 8192
	MaxTokenBytes     = 4096
	MaxTokenSeconds   = 300 // exp - iat
	MinNonceChars     = 22  // 128 bits in base64url
	MaxNonceChars     = 64
	MaxChallengeChars = 128
)

// Op names an operation in a capability.
type Op string

// The operations of this worker.
const (
	OpHealth  Op = "health"
	OpCreate  Op = "create"
	OpGet     Op = "get"
	OpExec    Op = "exec"
	OpCancel  Op = "cancel"
	OpFS      Op = "fs"
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpEvents  Op = "events"
	OpRenew   Op = "renew"
	OpDispose Op = "dispose"
	OpPurge   Op = "purge"
)

// Ops returns every operation, in the order of PROTOCOL.md.
func Ops() []Op {
	return []Op{OpHealth, OpCreate, OpGet, OpExec, OpCancel, OpFS, OpRead, OpWrite, OpEvents, OpRenew, OpDispose, OpPurge}
}

// OnSandbox says whether the operation names a sandbox, so that its capability must too.
func (o Op) OnSandbox() bool {
	switch o {
	case OpGet, OpExec, OpCancel, OpFS, OpRead, OpWrite, OpEvents, OpRenew, OpDispose:
		return true
	}
	return false
}

// Names of the workspace operations in [FSRequest.Op].
const (
	FSStat     = "stat"
	FSList     = "list"
	FSMkdir    = "mkdir"
	FSRemove   = "remove"
	FSRename   = "rename"
	FSReadlink = "readlink"
)

// Modes of a file write.
const (
	WriteCreate  = "create"  // the path must not exist
	WriteReplace = "replace" // created or replaced
	WriteAppend  = "append"  // the file must exist with exactly expectedSize bytes
)

// Media types of streams.
const (
	TypeJSON   = "application/json"
	TypeNDJSON = "application/x-ndjson"
	TypeEvents = "text/event-stream"
)
