// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
)

// Buckets of the store.
const (
	bucketSandboxes   = "sandboxes"   // sandbox id -> record
	bucketInvocations = "invocations" // sandbox id "/" invocation id -> request digest, " done" when ended
)

// Reasons of a retirement.
const (
	reasonIdle     = "idle"
	reasonHard     = "hard-expiry"
	reasonDispose  = "dispose"
	reasonDied     = "died"
	reasonCleanup  = "cleanup"
	reasonShutdown = "shutdown"
)

// record is the durable part of a sandbox: enough to prove and undo what we did.
type record struct {
	SandboxID     string        `json:"sandboxId"`
	WorkspaceID   string        `json:"workspaceId"`
	SessionID     string        `json:"sessionId"`
	ClientLeaseID string        `json:"clientLeaseId"`
	RequestDigest string        `json:"requestDigest"`
	ImageDigest   string        `json:"imageDigest"`
	Resources     api.Resources `json:"resources"`
	IdleMs        int64         `json:"idleMs"`
	State         string        `json:"state"`
	Reason        string        `json:"reason,omitempty"`
	OOM           bool          `json:"oom,omitempty"`
	Generation    int64         `json:"generation"`
	Epoch         string        `json:"epoch"` // of the process that made it

	// Container is the exact random name, chosen before the create. While Sent is true and
	// Settled is not, a create of that name may still be in flight in EngineInstance.
	Container      string `json:"container"`
	ContainerID    string `json:"containerId,omitempty"`
	EngineInstance string `json:"engineInstance,omitempty"`
	Sent           bool   `json:"sent,omitempty"`
	Settled        bool   `json:"settled,omitempty"`

	// Fresh says that the workspace held nothing when this create began. Durable before the
	// workspace is made: when the create fails, or is cut off, its image goes with it.
	Fresh bool `json:"fresh,omitempty"`

	// Released says that the workspace was given back while the name is still owned.
	Released bool `json:"released,omitempty"`

	// Failed marks a create that did not succeed: nothing of it is remembered once it is
	// gone, so that the same request may be tried again.
	Failed bool `json:"failed,omitempty"`

	GoneUnixMs int64 `json:"goneUnixMs,omitempty"`
	// Unknown holds the invocations that ran when the worker or the sandbox ended, id to
	// request digest; at most as many as run at once.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// code is what an operation on a retiring or gone sandbox answers.
func (r record) code() api.Code {
	switch {
	case r.OOM:
		return api.SandboxOOM
	case r.Reason == reasonDied:
		return api.SandboxDied
	case r.Reason == reasonIdle || r.Reason == reasonHard:
		return api.SandboxExpired
	}
	return api.SandboxDisposed
}

// wireState is the state as get says it.
func (r record) wireState() string {
	switch r.State {
	case stateIntended:
		return stateCreating
	case stateReplacing:
		return stateReady
	}
	return r.State
}

// put makes r durable.
func (m *Manager) put(ctx context.Context, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	return m.cfg.Store.Put(ctx, bucketSandboxes, r.SandboxID, text)
}

// rememberFor is how long a disposed id answers as such at least.
const rememberFor = 24 * time.Hour

// memoryCeiling times what is kept beyond 24 h is the most that is kept at all: 100,000 by default, which
// is more than one create per second all day, and about 150 MB. Nothing is forgotten early for it: with so
// many ids there are no creates until the oldest are 24 h old.
//
// One workspace has a part of that in 24 h as large as what is kept beyond them: 10,000 by default, a create every
// 9 s all day. With so many ids less than 24 h old it has no creates, and the others have theirs.
const memoryCeiling = 10

// memory holds the records of sandboxes that are gone. The Manager's lock guards it.
type memory struct {
	bound       int // as many are kept, however old they are; and a workspace has as many in 24 h
	byID        map[string]record
	byLease     map[string]string
	order       []string            // oldest first
	byWorkspace map[string][]string // likewise, of each
}

func newMemory(bound int) *memory {
	return &memory{bound: bound, byID: map[string]record{}, byLease: map[string]string{}, byWorkspace: map[string][]string{}}
}

func (g *memory) sandbox(id string) (record, bool) { r, ok := g.byID[id]; return r, ok }

func (g *memory) lease(id string) (record, bool) {
	r, ok := g.byID[g.byLease[id]]
	return r, ok
}

// add remembers r.
func (g *memory) add(r record) {
	g.byID[r.SandboxID] = r
	g.byLease[r.ClientLeaseID] = r.SandboxID
	g.order = append(g.order, r.SandboxID)
	g.byWorkspace[r.WorkspaceID] = append(g.byWorkspace[r.WorkspaceID], r.SandboxID)
}

// full reports whether there is no room for the ids of so many sandboxes that are not gone yet.
func (g *memory) full(live int) bool { return len(g.order)+live >= memoryCeiling*g.bound }

// shareUsed reports whether workspace has used up its part of 24 h; live is how many sandboxes of it are not gone yet.
func (g *memory) shareUsed(workspace string, live int, now time.Time) bool {
	ids := g.byWorkspace[workspace]
	oldest := len(ids) + live - g.bound // of those that would have to be younger
	switch {
	case oldest < 0:
		return false
	case oldest >= len(ids):
		return true
	}
	return now.Sub(time.UnixMilli(g.byID[ids[oldest]].GoneUnixMs)) < rememberFor
}

// forget drops, and returns, the oldest ids beyond the bound that are older than 24 h.
func (g *memory) forget(now time.Time) (forgotten []string) {
	for len(g.order) > g.bound {
		old := g.byID[g.order[0]]
		if now.Sub(time.UnixMilli(old.GoneUnixMs)) < rememberFor {
			break
		}
		delete(g.byID, old.SandboxID)
		if g.byLease[old.ClientLeaseID] == old.SandboxID {
			delete(g.byLease, old.ClientLeaseID)
		}
		g.order = g.order[1:]
		ids := g.byWorkspace[old.WorkspaceID] // the oldest of all is the oldest of its own
		if g.byWorkspace[old.WorkspaceID] = ids[1:]; len(ids) == 1 {
			delete(g.byWorkspace, old.WorkspaceID)
		}
		forgotten = append(forgotten, old.SandboxID)
	}
	return forgotten
}
