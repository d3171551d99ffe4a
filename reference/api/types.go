// SPDX-License-Identifier: Apache-2.0

package api

// ProtocolVersion is the only version of this wire.
const ProtocolVersion = "hallmark.worker.v1"

// Mode says what a worker's pins are.
type Mode string

// A qualification worker runs candidates; a production worker runs admitted pins.
const (
	Qualification Mode = "qualification"
	Production    Mode = "production"
)

// Tenant is the uid and gid of every tenant process and of every file that the API writes.
const Tenant = 65532

// Resources are a sandbox's bounds. All are required and positive.
type Resources struct {
	CPUs            Milli `json:"cpus"` // thousandths of a CPU
	MemoryBytes     int64 `json:"memoryBytes"`
	PIDs            int64 `json:"pids"`
	WorkspaceBytes  int64 `json:"workspaceBytes"`
	WorkspaceInodes int64 `json:"workspaceInodes"`
}

// Milli is a count of thousandths.
type Milli int64

// Expected is what the caller believes about the worker; a difference is UNQUALIFIED.
type Expected struct {
	CohortID   string `json:"cohortId"`
	PinsDigest string `json:"pinsDigest"`
}

// CreateRequest asks for one sandbox over one workspace.
type CreateRequest struct {
	ProtocolVersion string    `json:"protocolVersion"`
	WorkspaceID     string    `json:"workspaceId"`
	SessionID       string    `json:"sessionId"`
	ClientLeaseID   string    `json:"clientLeaseId"`
	IdleTimeoutMs   int64     `json:"idleTimeoutMs"` // 1 s .. 30 min
	HardTimeoutMs   int64     `json:"hardTimeoutMs"` // 1 s .. 24 h
	Image           string    `json:"image"`         // config digest, sha256:<64 hex>
	Expected        Expected  `json:"expected"`
	Resources       Resources `json:"resources"`
}

// CreateResponse is the lease and the proof of what it is bound to.
type CreateResponse struct {
	SandboxID string `json:"sandboxId"`
	ExpiresAt string `json:"expiresAt"` // RFC 3339, UTC
	Receipt   string `json:"receipt"`   // compact JWS over [Receipt]
}

// Receipt is the payload of the binding receipt.
type Receipt struct {
	WorkspaceID     string `json:"workspaceId"`
	ClientLeaseID   string `json:"clientLeaseId"`
	WorkerID        string `json:"workerId"`
	SandboxID       string `json:"sandboxId"`
	Generation      int64  `json:"generation"`
	BootEpoch       string `json:"bootEpoch"`
	Mode            Mode   `json:"mode"`
	RequestDigest   string `json:"requestDigest"`
	ImageDigest     string `json:"imageDigest"`
	WorkerDigest    string `json:"workerDigest"`
	SandboxBinary   string `json:"sandboxBinaryDigest"`
	CohortID        string `json:"cohortId"`
	PinsDigest      string `json:"pinsDigest"`
	ExpiresAtUnixMs int64  `json:"expiresAtUnixMs"`
}

// SandboxState is the answer of get.
type SandboxState struct {
	SandboxID   string `json:"sandboxId"`
	WorkspaceID string `json:"workspaceId"`
	State       string `json:"state"` // creating, ready, retiring, gone
	Reason      string `json:"reason"`
	ExpiresAt   string `json:"expiresAt"`
	Generation  int64  `json:"generation"`
	Usage       Usage  `json:"usage"`
}

// Usage is the workspace's use against its hard bounds.
type Usage struct {
	Bytes       int64 `json:"bytes"`
	BytesLimit  int64 `json:"bytesLimit"`
	Inodes      int64 `json:"inodes"`
	InodesLimit int64 `json:"inodesLimit"`
}

// ExecRequest asks for one command. Stdin is base64; there is no environment, on purpose.
type ExecRequest struct {
	InvocationID   string   `json:"invocationId"`
	Argv           []string `json:"argv"`            // 1..256 entries, 64 KiB in all
	Cwd            string   `json:"cwd"`             // relative to the workspace; "" is the workspace itself
	Stdin          []byte   `json:"stdin,omitempty"` // optional, at most 1 MiB
	TimeoutMs      int64    `json:"timeoutMs"`       // 1 .. 900,000
	MaxOutputBytes int64    `json:"maxOutputBytes"`  // 1 .. 4 MiB, shared by both streams

	CredentialRefs []CredentialRef `json:"credentialRefs,omitempty"` // optional, at most 16
}

// ExecResult is a terminal outcome. Exactly one of ExitCode and Signal is set.
type ExecResult struct {
	InvocationID      string    `json:"invocationId"`
	Stdout            []byte    `json:"stdout"`
	Stderr            []byte    `json:"stderr"`
	ExitCode          *int      `json:"exitCode,omitempty"`
	Signal            string    `json:"signal,omitempty"`
	DurationMs        int64     `json:"durationMs"`
	Truncated         Truncated `json:"truncated"`
	DescendantsKilled int64     `json:"descendantsKilled"`
	CleanupProven     bool      `json:"cleanupProven"`
	TimedOut          bool      `json:"timedOut"`
}

// Truncated counts what was drained and not returned.
type Truncated struct {
	Stdout       bool  `json:"stdout"`
	Stderr       bool  `json:"stderr"`
	DroppedBytes int64 `json:"droppedBytes"`
}

// Kinds of [ExecEvent].
const (
	ExecStarted   = "started"   // the invocation is claimed: from here on its outcome is terminal
	ExecStdout    = "stdout"    // Data
	ExecStderr    = "stderr"    // Data
	ExecHeartbeat = "heartbeat" // nothing new; the worker lives
	ExecEnded     = "result"    // Result, with empty Stdout and Stderr; the last line
	ExecFailed    = "error"     // Error; the last line
)

// ExecEvent is one line of a streamed exec. The first is started; the last is result or error, and
// a stream that ends otherwise says nothing of the outcome. Data of each stream is in the order in
// which the command wrote it, and all of it together is what the buffered answer would hold; the order
// between the two is not kept. An error may follow data, which then is no part of the outcome, and
// EXEC_CONCURRENCY_EXHAUSTED says that nothing was started after all: the id is free.
type ExecEvent struct {
	Type         string       `json:"type"`
	InvocationID string       `json:"invocationId,omitempty"` // started only
	Data         []byte       `json:"data,omitempty"`
	Result       *ExecResult  `json:"result,omitempty"`
	Error        *ErrorDetail `json:"error,omitempty"`
}

// CancelResponse is the terminal outcome of an invocation, whoever ended it. Exactly one member is
// set: Result when the command had ended by itself, Error as the exec call itself was answered.
type CancelResponse struct {
	Result *ExecResult  `json:"result,omitempty"`
	Error  *ErrorDetail `json:"error,omitempty"`
}

// RenewResponse is the answer of renew: the lease runs from now.
type RenewResponse struct {
	SandboxID string `json:"sandboxId"`
	ExpiresAt string `json:"expiresAt"` // RFC 3339, UTC; never before the earlier one, never past the hard expiry
}

// Kinds of [ChangeEvent].
const (
	ChangeCreated  = "created"  // what was known below that name is gone: what is there has a change of its own
	ChangeModified = "modified" // content, once it is closed or synced, or attributes
	ChangeRemoved  = "removed"
	ChangeMoved    = "moved"    // within the workspace: Path is the new name, From the old one
	ChangeOverflow = "overflow" // events were lost: list again, and what is moved later; no path
)

// ChangeEvent is one change of a workspace, as seen on the host. Exactly one of Path and PathBytes
// is set, but for overflow, and likewise From and FromBytes for moved.
type ChangeEvent struct {
	Type      string `json:"type"`
	Path      string `json:"path,omitempty"`
	PathBytes []byte `json:"pathBytes,omitempty"`
	From      string `json:"from,omitempty"`
	FromBytes []byte `json:"fromBytes,omitempty"`
	Kind      string `json:"kind,omitempty"` // as [FSEntry.Kind], where it is known
}

// CredentialRef names a secret for one invocation. It carries no value.
type CredentialRef struct {
	DeliveryAttemptID string            `json:"deliveryAttemptId"`
	ProviderID        string            `json:"providerId"`
	BindingID         string            `json:"bindingId"`
	ExecutionID       string            `json:"executionId"`
	Fields            []CredentialField `json:"fields"`
}

// CredentialField says under which name a field of the binding is delivered.
type CredentialField struct {
	Name    string `json:"name"`
	FieldID string `json:"fieldId"`
}

// FSRequest is one workspace operation: stat, list, mkdir, remove, rename or readlink.
// Exactly one of Path and PathBytes; likewise for the target of a rename. stat and list take
// neither for the workspace itself.
type FSRequest struct {
	Op          string `json:"op"`
	Path        string `json:"path,omitempty"`
	PathBytes   []byte `json:"pathBytes,omitempty"`
	To          string `json:"to,omitempty"`
	ToBytes     []byte `json:"toBytes,omitempty"`
	Cursor      string `json:"cursor,omitempty"` // list only
	LimitedRows int64  `json:"limit,omitempty"`  // list only, 1 .. 1,000
}

// FSEntry is a row of stat and list. Exactly one of Name and NameBytes is set.
type FSEntry struct {
	Name      string `json:"name,omitempty"`
	NameBytes []byte `json:"nameBytes,omitempty"`
	Kind      string `json:"kind"` // file, dir, symlink, fifo, socket, device
	Size      int64  `json:"size"`
	Mode      int64  `json:"mode"`
	MtimeMs   int64  `json:"mtimeMs"`
	Links     int64  `json:"links"`
}

// FSResponse answers every fs operation; members that do not apply are absent.
type FSResponse struct {
	Entry       *FSEntry  `json:"entry,omitempty"`
	Entries     []FSEntry `json:"entries,omitempty"`
	Cursor      string    `json:"cursor,omitempty"`
	Target      string    `json:"target,omitempty"`
	TargetBytes []byte    `json:"targetBytes,omitempty"`
}

// WriteResponse is the answer of a file write.
type WriteResponse struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

// Health is signed over the client's challenge.
type Health struct {
	ProtocolVersion string   `json:"protocolVersion"`
	WorkerID        string   `json:"workerId"`
	BootEpoch       string   `json:"bootEpoch"`
	Mode            Mode     `json:"mode"`
	Challenge       string   `json:"challenge"`
	CohortID        string   `json:"cohortId"`
	PinsDigest      string   `json:"pinsDigest"`
	EvidenceDigests []string `json:"evidenceDigests"`
	Features        []string `json:"features"`
	Limits          Limits   `json:"limits"`
}

// HealthResponse carries the signed statement.
type HealthResponse struct {
	Statement string `json:"statement"` // compact JWS over [Health]
}

// Limits are the bounds that this worker enforces.
type Limits struct {
	RequestBytes     int64     `json:"requestBytes"`
	HeaderBytes      int64     `json:"headerBytes"`
	Connections      int64     `json:"connections"`
	Creates          int64     `json:"creates"`
	Execs            int64     `json:"execs"`
	ExecsPerSandbox  int64     `json:"execsPerSandbox"`
	OutputBytes      int64     `json:"outputBytes"`
	Nonces           int64     `json:"nonces"`
	NoncesPerShare   int64     `json:"noncesPerWorkspace"`
	ResourceCeilings Resources `json:"resourceCeilings"`
}
