// SPDX-License-Identifier: Apache-2.0

// Package target says what a sandbox runtime must offer to be tested. It owns the interfaces and
// the words; drivers implement them; it runs nothing.
//
//   - [Runtime], with [Sandbox] and [Files], is what a tenant's client can ask. It is required, and
//     it promises what the runtime promises, no more: a driver repairs nothing. A refusal is an
//     *[Error] with the runtime's own code; any other error means that the driver or the host is at
//     fault, and then nothing is judged.
//   - [Observer] looks from outside: engine, /proc, the host's view of a workspace. It promises
//     never to ask the tenant, nor to take the runtime's word for a fact.
//   - [Controller] disturbs: root inside a sandbox, a dead daemon, a fault at the engine. It
//     promises to touch this target's own sandboxes and daemon only.
//
// Observer and Controller are optional, part by part: [Target].Parts names what is there, a method
// of an absent part returns [ErrUnavailable], and the cases that need it are not run.
//
// Conventions that the cases count on, whatever the runtime: a command starts in the workspace, or
// in Cwd below it, as user and group 65532 without further groups and without privilege; a file
// written by the Files API can be executed by it; a path of the Files API is relative to the
// workspace; what the tenant stores there is seen at once by Files and, with
// observer.workspace-path, under [Container].Workspace on the host. With a foothold the workspace
// is at /workspace inside.
//
// Read next: package target/docker for a driver that is small, package conformance for the cases.
package target

import (
	"context"
	"errors"
	"time"
)

// ErrUnavailable means that this target lacks the part.
var ErrUnavailable = errors.New("target part unavailable")

// ErrNoContainer means that the engine was asked and has no container of that sandbox.
var ErrNoContainer = errors.New("the engine has no container of this sandbox")

// Kind is what a refusal or an end means, in words that every runtime shares. Codes are each
// runtime's own; a case that any runtime can pass asks for the kind.
type Kind string

// The closed set of kinds. A driver that cannot tell leaves the kind empty, and a case that needs
// to know judges that.
const (
	KindOOM         Kind = "oom"         // the sandbox ended at its memory limit
	KindDied        Kind = "died"        // the sandbox ended otherwise
	KindGone        Kind = "gone"        // it was disposed, has expired, or never was
	KindPathUnsafe  Kind = "path-unsafe" // a path that leaves the workspace, or a link on it
	KindNotFound    Kind = "not-found"   // no such entry
	KindNoSpace     Kind = "no-space"    // the workspace's bound, or what the host keeps for itself
	KindBusy        Kind = "busy"        // concurrency or capacity
	KindUnqualified Kind = "unqualified" // an image, helper or runtime that is not admitted
	KindUnsupported Kind = "unsupported" // the driver or its host cannot honour a bound or an option
)

// Error is a typed refusal by the runtime. Code is the runtime's stable code, for example
// "REMOTE_WORKER_PATH_UNSAFE"; the suite compares kinds and codes, never texts.
type Error struct {
	Code  string // never empty
	Kind  Kind
	Cause error
}

func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Code
	}
	return e.Code + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// CodeOf returns the code of the first *Error in err's chain, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// KindOf returns the kind of the first *Error in err's chain, or "".
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// Description is what the target says of itself.
type Description struct {
	Driver   string // "api", "docker", "exec", "toy"
	Mode     string
	Version  string
	WorkerID string
	Claims   []string // features
	CohortID string   // "" when the target does not say
	Digests  map[string]string
}

// Spec asks for one sandbox over one workspace. Zero resources mean the suite's defaults
// ([Spec.WithDefaults]). A driver honours every bound or refuses with [KindUnsupported], but for the
// workspace's bytes and inodes: those it may ignore when it does not claim the feature quota.
type Spec struct {
	WorkspaceID     string // "" for a new random one
	SessionID       string // "" for a random one; what the credentials of an invocation are bound to
	Image           string // config digest
	CPUs            int64  // thousandths
	MemoryBytes     int64
	PIDs            int64
	WorkspaceBytes  int64
	WorkspaceInodes int64
	HardTimeout     time.Duration
}

// WithDefaults returns s with every zero bound replaced: one CPU, 256 MiB, 256 tasks, a
// workspace of 64 MiB and 4,096 inodes, ten minutes.
func (s Spec) WithDefaults() Spec {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&s.CPUs, 1000)
	set(&s.MemoryBytes, 256<<20)
	set(&s.PIDs, 256)
	set(&s.WorkspaceBytes, 64<<20)
	set(&s.WorkspaceInodes, 4096)
	if s.HardTimeout == 0 {
		s.HardTimeout = 10 * time.Minute
	}
	return s
}

// Command is one invocation. There is no environment.
type Command struct {
	ID        string // "" for a random one
	Argv      []string
	Cwd       string // relative to the workspace
	Stdin     []byte
	Timeout   time.Duration // 0 means 30 s
	MaxOutput int64         // bytes over both streams; 0 means 1 MiB
}

// Result is a terminal outcome as the runtime reports it. What a runtime cannot tell stays zero:
// an engine that folds a signal into an exit code above 128 is not corrected.
type Result struct {
	Stdout, Stderr    []byte
	ExitCode          int // -1 when ended by a signal, as far as the runtime tells
	Signal            string
	Duration          time.Duration
	TruncatedStdout   bool
	TruncatedStderr   bool
	DroppedBytes      int64
	DescendantsKilled int64
	CleanupProven     bool
	TimedOut          bool
}

// Entry is a row of stat and list.
type Entry struct {
	Name string // bytes
	Kind string
	Size int64
}

// Runtime is what a tenant's client can ask. All methods are safe for concurrent use.
type Runtime interface {
	Describe(ctx context.Context) (Description, error)
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Purge removes a workspace's data; absent is success.
	Purge(ctx context.Context, workspaceID string) error
}

// Sandbox is one live sandbox. Errors of the runtime are *[Error].
type Sandbox interface {
	ID() string
	WorkspaceID() string
	Exec(ctx context.Context, cmd Command) (Result, error)
	Files() Files
	// State is one of creating, ready, retiring, gone.
	State(ctx context.Context) (string, error)
	// Dispose succeeds only after removal is proven; repeating it succeeds.
	Dispose(ctx context.Context) error
}

// Files is the workspace API. Paths are bytes.
type Files interface {
	Read(ctx context.Context, path string) ([]byte, error)
	// Write replaces or creates atomically; executable is given to the tenant by mode 0755.
	Write(ctx context.Context, path string, body []byte) error
	Stat(ctx context.Context, path string) (Entry, error)
	Remove(ctx context.Context, path string) error
}

// RawRequest is a request of the worker API with nothing repaired: Body is sent as it is, and
// the capability is signed over exactly these bytes unless Token is set.
type RawRequest struct {
	Op, Method, Target     string
	WorkspaceID, SandboxID string
	Header                 map[string]string
	Body                   []byte
	Token                  string // sent instead of a fresh capability
}

// RawResponse is the wire's answer. Code is error.code of a failure body, else "".
type RawResponse struct {
	Status int
	Code   string
	Body   []byte
}

// Wire is offered by drivers that speak the worker API.
type Wire interface {
	Raw(ctx context.Context, req RawRequest) (RawResponse, error)
	// CreateBody returns the canonical JSON body of a create request for spec.
	CreateBody(ctx context.Context, spec Spec) ([]byte, error)
}

// Container is the engine's view of a sandbox.
type Container struct {
	ID, Name  string
	ImageID   string
	Runtime   string
	Pid       int               // host pid of the sandbox process
	Workspace string            // host path bound at /workspace
	Cgroups   map[string]string // controller -> absolute host path; "" key on cgroup v2
	Labels    map[string]string
}

// Observer looks from outside. It never asks the tenant. All methods are safe for concurrent use.
type Observer interface {
	// Container finds the sandbox's container by the engine, not by the runtime's word; none is
	// [ErrNoContainer].
	Container(ctx context.Context, sandboxID string) (Container, error)
	// EngineSocket is the engine's own socket, past the tape.
	EngineSocket() (string, error)
	// CgroupParent is the parent cgroup of this target's containers, for example
	// "/hallmark-lab-ab12/5f0c", relative to each hierarchy's root.
	CgroupParent() (string, error)
	// WorkerPid is the runtime daemon's host pid.
	WorkerPid() (int, error)
	// NetworkNamespace is a path for setns(2) in which the engine's networks live.
	NetworkNamespace() (string, error)
	// LabNetwork names the engine network that arming probes may use.
	LabNetwork() (string, error)
	// SandboxBinary is the path and sha256 of the runtime binary that must be running.
	SandboxBinary() (path, digest string, err error)
	// Logs are the runtime's log files on the host.
	Logs() ([]string, error)
	// Tape returns the engine calls recorded since the mark that it returned last; mark 0 is
	// the start.
	Tape(mark int64) (calls []TapeCall, next int64, err error)
}

// TapeCall is one recorded request of the runtime to its engine.
type TapeCall struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query"`
	Body   []byte `json:"body"`   // the first 64 KiB
	Status int    `json:"status"` // 0 when no answer was passed on
	Fault  string `json:"fault"`  // the injected fault, or ""
	Held   bool   `json:"-"`      // by [FaultLate]: the engine has not answered it yet
}

// TapeFault is what a rule of the tape does to a call.
type TapeFault string

// Faults. A caller that has gone away ends those that wait, but for FaultLate.
const (
	FaultStatus   TapeFault = ""           // answered with Status; the engine is not asked
	FaultStall    TapeFault = "stall"      // no answer for For, then the connection ends; the engine is not asked
	FaultLate     TapeFault = "late"       // the engine is asked after For, also when the caller has gone
	FaultReplaced TapeFault = "replaced"   // the engine is asked, and Status is answered instead of what it said
	FaultLost     TapeFault = "lost-reply" // the engine is asked; the connection ends instead of its answer
	FaultCut      TapeFault = "cut-reply"  // the connection ends in the middle of the engine's answer
	FaultTwice    TapeFault = "twice"      // the engine is asked twice, one after the other; the second answer counts
)

// TapeRule injects a fault into the Nth (1-based) matching engine call, and into those that follow it, Times in
// all (0 is 1).
type TapeRule struct {
	Method string
	Match  string // a Go regular expression on the path
	Nth    int
	Times  int
	Fault  TapeFault
	Status int           // of FaultStatus and FaultReplaced: 200 to 599
	Text   string        // the body's message for Status of 400 and more; empty is the tape's own
	For    time.Duration // of FaultStall and FaultLate
}

// Controller disturbs a target. All methods are safe for concurrent use.
type Controller interface {
	// Foothold runs argv as root in the sandbox by the engine, past the runtime.
	Foothold(ctx context.Context, sandboxID string, argv []string, stdin []byte) (Result, error)
	// Kill ends the runtime daemon with SIGKILL; Start starts it again on the same state.
	Kill(ctx context.Context) error
	Start(ctx context.Context) error
	// Terminate asks the runtime daemon by SIGTERM to end and returns its exit status when it has, -1 when a signal
	// ended it. With again, a second SIGTERM follows when again returns.
	Terminate(ctx context.Context, again func()) (status int, err error)
	// Inject arms one fault on the tape. Calm disarms all of them; what one holds back stays held.
	Inject(rule TapeRule) error
	Calm() error
}

// Target bundles the parts. All but Runtime and Close may be nil. Parts names the optional
// abilities that are there, with the values of conformance.Part; a case that needs another one
// is not run.
type Target struct {
	Parts      []string
	Runtime    Runtime
	Observer   Observer
	Controller Controller
	Wire       Wire
	Authority  Authority
	Peers      Peers
	Secrets    Secrets
	// Documents are what the run keeps of the target as evidence, by name, for example
	// "launch-profile.json"; asked for before Close. May be nil.
	Documents func() (map[string][]byte, error)
	// Close ends what Open started and removes what it made; an error says what was left.
	Close func() error
}
