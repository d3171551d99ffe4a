// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/onsi/gomega/gleak/goroutine"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// TenantProgram is where [T.Tenant] puts the attack binary, relative to the workspace.
const TenantProgram = "hallmark-tenant"

// T is what a case arranges, witnesses and judges through. It records everything that the case
// creates and removes exactly that afterwards. Methods are safe for concurrent use; those that
// end the case (FailNow, Inconclusive, NotRun, a failing Sandbox) must be called on the goroutine
// that runs the case, as with testing.T; elsewhere they make it an error.
type T struct {
	caseID string
	image  string
	target *target.Target // bare: what the runner itself asks
	lent   *target.Target // as the case sees it: it records
	seed   int64
	tenant string // path of the static attack binary on this host
	armed  map[Oracle]bool
	log    func(line string)
	count  func(context.Context) (map[string]int64, error) // what the host and the engine hold

	mu         sync.Mutex
	failures   []verdictNote
	ended      *ending // set by Inconclusive, NotRun or a suite error
	broken     bool    // the suite is at fault: ended outweighs the failures
	witness    map[string]int64
	need       map[string]int64
	observed   map[string]any
	artifacts  []namedBlob
	canaries   []canary
	sandboxes  []target.Sandbox
	workspaces []string
	owned      []owned
	making     sync.WaitGroup // creates under way
	excused    *footprint     // what the driver made by starting its daemon again; nil for nothing
	goroutine  uint64         // that runs the case, 0 before
	left       bool           // that goroutine ends because the case said so
	abandoned  bool           // it did not come back in time
	closed     bool           // nothing more is made
	swept      bool           // the clean-up has its list
	expired    bool           // the context of Run has ended
}

type verdictNote struct{ reason, text string }

type ending struct {
	status Status
	verdictNote
}

type namedBlob struct {
	name string
	body []byte
}

type canary struct{ name, token string }

// Image is the config digest under test.
func (t *T) Image() string { return t.image }

// Target is the runtime under test. Whatever is created through it is recorded before, and removed
// after the case, as with [T.Sandbox].
func (t *T) Target() *target.Target { return t.lent }

// Seed is this case's share of the run's recorded seed: the same run seed, case and image
// give the same number.
func (t *T) Seed() int64 { return t.seed }

// Armed reports whether o detected its planted positive in this run.
func (t *T) Armed(o Oracle) bool { return t.armed[o] }

// Sandbox creates a sandbox and records it; a failure ends the case with status error.
func (t *T) Sandbox(ctx context.Context, spec target.Spec) target.Sandbox {
	sb, err := t.TrySandbox(ctx, spec)
	if err != nil {
		t.end(Errored, "create-failed", "create sandbox: "+err.Error())
	}
	return sb
}

// TrySandbox creates a sandbox and records it, or returns the runtime's error. Members of spec
// that are zero get the suite's defaults; a workspace id is drawn and recorded before the
// create, so that a create that fails half-way is purged too.
func (t *T) TrySandbox(ctx context.Context, spec target.Spec) (target.Sandbox, error) {
	return t.lent.Runtime.Create(ctx, t.Spec(spec))
}

// Spec completes spec with the suite's defaults, the image under test and a random workspace id.
func (t *T) Spec(spec target.Spec) target.Spec {
	if spec.Image == "" {
		spec.Image = t.image
	}
	if spec.WorkspaceID == "" {
		spec.WorkspaceID = newWorkspace()
	}
	return spec.WithDefaults()
}

// Tenant writes the static attack binary into the workspace by the target's own file API and
// returns the argv[0] that runs it from the workspace. A failure ends the case with status error.
func (t *T) Tenant(ctx context.Context, sb target.Sandbox) string {
	body, err := os.ReadFile(t.tenant)
	if err != nil {
		t.end(Errored, "tenant-missing", "read the attack binary: "+err.Error())
	}
	if err := sb.Files().Write(ctx, TenantProgram, body); err != nil {
		t.end(Errored, "tenant-refused", "write the attack binary: "+err.Error())
	}
	return "./" + TenantProgram
}

// TenantOnHost is where the attack binary lies on the host, for what is armed there.
func (t *T) TenantOnHost() string { return t.tenant }

// Canary returns a fresh random token of 32 hex digits. After the case it is searched for in
// the runtime's logs, in the engine calls that the case caused, and in what the engine tells of
// every container.
func (t *T) Canary(name string) string {
	c := canary{name, "hmcanary" + randomHex(16)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.canaries = append(t.canaries, c)
	return c.token
}

// Witness adds n occurrences of a dangerous event.
func (t *T) Witness(name string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.witness[name] += n
}

// NeedWitness demands at least min occurrences by the end of the case; fewer, without a judged
// failure, is inconclusive with reason no-witness.
func (t *T) NeedWitness(name string, min int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.need[name] = min
	if _, ok := t.witness[name]; !ok {
		t.witness[name] = 0
	}
}

// Observe records a measured fact. value must encode as JSON without floats.
func (t *T) Observe(name string, value any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.observed[name] = value
}

// Artifact keeps raw bytes as evidence of this case. At most 4 MiB; the rest is cut.
func (t *T) Artifact(name string, body []byte) {
	if len(body) > maxArtifact {
		body = body[:maxArtifact]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.artifacts = append(t.artifacts, namedBlob{name, append([]byte(nil), body...)})
}

// Fail records a judged failure and goes on. The first failure's reason is the case's. After the
// case's time-out, or an interrupt, nothing is judged any more: errors that the ended context
// causes say nothing about the target.
func (t *T) Fail(reason, format string, args ...any) {
	t.mu.Lock()
	expired := t.expired
	t.mu.Unlock()
	if expired {
		t.Log("not judged, the case's time had ended: %s: %s", reason, fmt.Sprintf(format, args...))
		return
	}
	t.judge(reason, format, args...)
}

// judge records a failure that the runner itself saw, whatever became of the case's time.
func (t *T) judge(reason, format string, args ...any) {
	n := verdictNote{reason, fmt.Sprintf(format, args...)}
	t.mu.Lock()
	t.failures = append(t.failures, n)
	t.mu.Unlock()
	t.Log("FAIL %s: %s", n.reason, n.text)
}

func (t *T) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expired = true
}

// FailNow records a judged failure and ends the case.
func (t *T) FailNow(reason, format string, args ...any) {
	t.Fail(reason, format, args...)
	t.leave()
}

// Inconclusive ends the case: it ran, but proves nothing. A failure judged before it stays.
func (t *T) Inconclusive(reason, format string, args ...any) {
	t.end(Inconclusive, reason, fmt.Sprintf(format, args...))
}

// NotRun ends the case: the host or the target lacks a prerequisite.
func (t *T) NotRun(reason, format string, args ...any) {
	t.end(NotRun, reason, fmt.Sprintf(format, args...))
}

// Log writes one line to the case's log.
func (t *T) Log(format string, args ...any) {
	t.log(strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

func (t *T) end(s Status, reason, text string) {
	t.mu.Lock()
	if t.ended == nil {
		t.ended = &ending{s, verdictNote{reason, text}}
	}
	t.mu.Unlock()
	t.Log("%s %s: %s", strings.ToUpper(string(s)), reason, text)
	t.leave()
}

// leave ends the calling goroutine. Any other than the case's would end in silence while the case
// goes on.
func (t *T) leave() {
	me := goroutine.Current().ID
	t.mu.Lock()
	own := t.goroutine == 0 || t.goroutine == me
	t.left = t.left || own
	t.mu.Unlock()
	if !own {
		t.broke("misuse", "the case was ended on another goroutine than its own")
	}
	runtime.Goexit()
}

// Bounds of one case.
const (
	maxArtifact   = 4 << 20          // bytes kept of one artifact
	returnGrace   = 10 * time.Second // from the cancelled context to the end of Run
	cleanupBudget = 90 * time.Second // dispose and purge of everything that one case created
)

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b)
}
