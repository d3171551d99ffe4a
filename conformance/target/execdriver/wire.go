// SPDX-License-Identifier: Apache-2.0

package execdriver

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/strictjson"
)

// Protocol names this version of the protocol. It is in the first request and its answer.
const Protocol = "hallmark-exec/1"

// MaxLine bounds a line in bytes, both ways, the newline included.
const MaxLine = 32 << 20

var answerLimits = strictjson.Limits{Bytes: MaxLine, Depth: 16, StringBytes: MaxLine}

// bounds are how long a program may take.
type bounds struct {
	answer time.Duration // to answer an ordinary request
	create time.Duration // to create a sandbox, or to kill and start the runtime
	margin time.Duration // to answer an exec, beyond the command's own time-out
	write  time.Duration // to read one request
	close  time.Duration // to answer close
	exit   time.Duration // to exit after the end of its input
}

var published = bounds{answer: time.Minute, create: 2 * time.Minute, margin: 30 * time.Second, write: 30 * time.Second, close: 30 * time.Second, exit: 10 * time.Second}

// head begins every request.
type head struct {
	ID int64  `json:"id"`
	Op string `json:"op"`
}

func (h *head) set(id int64, op string) { h.ID, h.Op = id, op }

type request interface{ set(id int64, op string) }

type describeRequest struct {
	head
	Protocol string `json:"protocol"`
}

type plainRequest struct{ head }

type createRequest struct {
	head
	Workspace       string `json:"workspace"`
	Image           string `json:"image"`
	CPUMillis       int64  `json:"cpuMillis"`
	MemoryBytes     int64  `json:"memoryBytes"`
	PIDs            int64  `json:"pids"`
	WorkspaceBytes  int64  `json:"workspaceBytes"`
	WorkspaceInodes int64  `json:"workspaceInodes"`
	HardTimeoutMs   int64  `json:"hardTimeoutMs"`
}

type workspaceRequest struct {
	head
	Workspace string `json:"workspace"`
}

type sandboxRequest struct {
	head
	Sandbox string `json:"sandbox"`
}

type execRequest struct {
	head
	Sandbox        string   `json:"sandbox"`
	Invocation     string   `json:"invocation"`
	Argv           [][]byte `json:"argv"`
	Cwd            []byte   `json:"cwd"`
	Stdin          []byte   `json:"stdin"`
	TimeoutMs      int64    `json:"timeoutMs"`
	MaxOutputBytes int64    `json:"maxOutputBytes"`
}

type footholdRequest struct {
	head
	Sandbox string   `json:"sandbox"`
	Argv    [][]byte `json:"argv"`
	Stdin   []byte   `json:"stdin"`
}

type pathRequest struct {
	head
	Sandbox string `json:"sandbox"`
	Path    []byte `json:"path"`
}

type writeRequest struct {
	head
	Sandbox string `json:"sandbox"`
	Path    []byte `json:"path"`
	Body    []byte `json:"body"`
}

// cancelNotice has no id and no answer.
type cancelNotice struct {
	Cancel int64 `json:"cancel"`
}

// answer is one line of the program.
type answer struct {
	ID    int64          `json:"id"`
	OK    jsontext.Value `json:"ok,omitzero"`
	Error *refusal       `json:"error,omitzero"`
}

type refusal struct {
	Code string `json:"code"`
	Kind string `json:"kind,omitzero"`
	Text string `json:"text,omitzero"`
}

type nothing struct{}

// Describe answer. Engine, Network and SandboxBinary come with their parts.
type describeAnswer struct {
	Protocol      string         `json:"protocol"`
	Name          string         `json:"name"`
	Version       string         `json:"version"`
	Claims        []string       `json:"claims"`
	Parts         []string       `json:"parts"`
	Serial        bool           `json:"serial,omitzero"`
	Images        bool           `json:"images,omitzero"`
	Root          string         `json:"root,omitzero"`
	WorkerPid     int            `json:"workerPid,omitzero"`
	CgroupParent  string         `json:"cgroupParent,omitzero"`
	Engine        string         `json:"engine,omitzero"`
	Network       *networkAnswer `json:"network,omitzero"`
	SandboxBinary string         `json:"sandboxBinary,omitzero"`
	Logs          []string       `json:"logs,omitzero"`
}

type networkAnswer struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type createAnswer struct {
	Sandbox string `json:"sandbox"`
}

type execAnswer struct {
	Stdout            []byte `json:"stdout"`
	Stderr            []byte `json:"stderr"`
	ExitCode          int    `json:"exitCode"`
	TimedOut          bool   `json:"timedOut"`
	Signal            string `json:"signal,omitzero"`
	DurationMs        int64  `json:"durationMs,omitzero"`
	TruncatedStdout   bool   `json:"truncatedStdout,omitzero"`
	TruncatedStderr   bool   `json:"truncatedStderr,omitzero"`
	DroppedBytes      int64  `json:"droppedBytes,omitzero"`
	DescendantsKilled int64  `json:"descendantsKilled,omitzero"`
	CleanupProven     bool   `json:"cleanupProven,omitzero"`
}

func (a execAnswer) result() target.Result {
	return target.Result{
		Stdout: a.Stdout, Stderr: a.Stderr, ExitCode: a.ExitCode, Signal: a.Signal, Duration: time.Duration(a.DurationMs) * time.Millisecond,
		TruncatedStdout: a.TruncatedStdout, TruncatedStderr: a.TruncatedStderr, DroppedBytes: a.DroppedBytes,
		DescendantsKilled: a.DescendantsKilled, CleanupProven: a.CleanupProven, TimedOut: a.TimedOut,
	}
}

type readAnswer struct {
	Body []byte `json:"body"`
}

type statAnswer struct {
	Name []byte `json:"name"`
	Kind string `json:"kind"`
	Size int64  `json:"size"`
}

type stateAnswer struct {
	State string `json:"state"`
}

type observeAnswer struct {
	Workspace string            `json:"workspace,omitzero"`
	Pid       int               `json:"pid,omitzero"`
	Cgroups   map[string]string `json:"cgroups,omitzero"`
	Container string            `json:"container,omitzero"`
}

// ProtocolError means that the program, or what it says of the host, cannot be believed. It is
// no refusal by the runtime: a case that meets one comes to error.
type ProtocolError struct{ Text string }

func (e *ProtocolError) Error() string { return "exec protocol: " + e.Text }

func violation(format string, args ...any) *ProtocolError {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// clip makes a line of the program fit into an error.
func clip(line []byte) string {
	const most = 120
	text := strings.ToValidUTF8(string(line[:min(len(line), most)]), "?")
	if len(line) > most {
		text += "…"
	}
	return fmt.Sprintf("%q", text)
}

var kinds = map[target.Kind]bool{
	"": true, target.KindOOM: true, target.KindDied: true, target.KindGone: true, target.KindPathUnsafe: true, target.KindNotFound: true,
	target.KindNoSpace: true, target.KindBusy: true, target.KindUnqualified: true, target.KindUnsupported: true,
}
