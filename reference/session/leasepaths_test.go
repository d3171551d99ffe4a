// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

// way is one secret-bearing invocation that something happens to.
type way struct {
	t     *testing.T
	w     *world
	m     *Manager
	v     *vault
	sb    string
	leave func() // the caller goes away
}

// Stages of a secret-bearing invocation, in order. Two are calls of the engine, of either replacement.
const (
	inLease  = "while the provider is asked"
	inFirst  = "while the container is replaced before it"
	inRun    = "while the command runs"
	inSecond = "while the container is replaced after it"
)

// at makes something happen in a stage, once, and lets it take its effect for a moment before the
// stage goes on.
func (y *way) at(stage string, happens func()) {
	happened := false
	now := func() {
		if !happened {
			happened = true
			happens()
			time.Sleep(time.Millisecond) // virtual: what was begun beside this comes as far as it can
		}
	}
	creates := 0
	y.v.asking = func(context.Context) {
		if stage == inLease {
			now()
		}
	}
	y.w.setFail(func(op, _ string) error {
		if op == "create" {
			if creates++; stage == inFirst && creates == 1 || stage == inSecond && creates == 2 {
				now()
			}
		}
		return nil
	})
	plain := y.v.exec
	y.w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
		if stage != inRun || s.Secret == nil {
			return plain(ctx, s)
		}
		now()
		select {
		case <-ctx.Done():
			return control.Outcome{}, ctx.Err()
		case <-time.After(time.Hour): // nothing ends it but what happened
			return plain(ctx, s)
		}
	}
}

// Leases are disposed exactly once on every path: whatever happens to a secret-bearing invocation, and
// whenever, each provider that was asked is told of the end once, nothing is outstanding, the container
// that had the secret is not the sandbox's any more, and no error or log says the secret.
func TestLeaseIsDisposedOnceOnEveryPath(t *testing.T) {
	broken := fmt.Errorf("broken: %w", engine.ErrNotCreated)
	type path struct {
		name   string
		leases int
		code   api.Code // "" for an outcome
		do     func(y *way)
	}
	paths := []path{
		{"an outcome", 1, "", func(*way) {}},
		{"the command's time is over", 1, "", func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
				return control.Outcome{TimedOut: true, Signal: "SIGKILL", CleanupProven: true}, nil
			}
		}},
		{"its end is not proven", 1, "", func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) { return control.Outcome{}, nil }
		}},
		{"it cannot be started", 1, api.PathNotFound, func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
				return control.Outcome{}, &control.SpawnError{Step: control.StepCwd, Errno: syscall.ENOENT}
			}
		}},
		{"the supervisor has no room", 1, api.ExecAborted, func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
				return control.Outcome{}, control.ErrBusy
			}
		}},
		{"the supervisor takes no such frame", 1, api.RequestInvalid, func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
				return control.Outcome{}, control.ErrFrame
			}
		}},
		{"its keeper is lost", 1, api.SandboxDied, func(y *way) {
			y.w.exec = func(context.Context, control.Spawn) (control.Outcome, error) {
				return control.Outcome{}, control.ErrLost
			}
		}},
		{"the provider fails", 1, api.SecretReferenceRejected, func(y *way) { y.v.fail = errors.New(canary) }},
		{"the provider has none", 1, api.SecretReferenceRejected, func(y *way) { y.v.fail = credential.ErrNoPayload }},
		{"the provider panics", 1, api.SecretReferenceRejected, func(y *way) { y.v.asking = func(context.Context) { panic(canary) } }},
		{"the provider does not answer", 1, api.SecretReferenceRejected, func(y *way) { y.v.asking = func(ctx context.Context) { <-ctx.Done(); y.v.fail = ctx.Err() } }},
		{"the provider panics when it is told", 1, "", func(y *way) { y.v.ending = func(context.Context) { panic(canary) } }},
		{"the provider hangs when it is told", 1, "", func(y *way) { y.v.ending = func(ctx context.Context) { <-ctx.Done() } }},
		{"the payload has expired", 1, api.SecretReferenceRejected, func(y *way) { y.v.expires = -time.Second }},
		{"the payload expires while the container is replaced", 1, api.SecretReferenceRejected, func(y *way) {
			y.v.expires = time.Minute
			y.w.slow("create", 2*time.Minute)
			y.m.lim.CreateDeadline = time.Hour
		}},
		{"the attempts cannot be stored", 0, api.ExecAborted, func(y *way) { y.v.store = errors.New("disk full") }},
		{"the attempt was used", 0, api.SecretReferenceRejected, func(y *way) {
			l, err := y.w.resolver.Lease(y.t.Context(), mustMint(y, "d-one"))
			if err != nil {
				y.t.Fatal(err)
			}
			l.Dispose()
			y.v.calls = nil
		}},
	}
	for _, stage := range []string{inLease, inFirst, inRun, inSecond} {
		in := func(name string, code api.Code, happens func(y *way)) {
			paths = append(paths, path{name + " " + stage, 1, code, func(y *way) { y.at(stage, func() { happens(y) }) }})
		}
		gone := map[string]api.Code{inLease: api.ExecAborted, inFirst: api.ExecAborted, inRun: api.ExecAborted, inSecond: ""}[stage]
		ends := func(code api.Code) api.Code { // a command that has ended has its outcome, whatever comes then
			if stage == inSecond {
				return ""
			}
			return code
		}
		in("the caller leaves", gone, func(y *way) { y.leave() })
		in("somebody cancels", gone, func(y *way) { go y.m.Cancel(y.t.Context(), "ws", y.sb, "one") })
		in("the sandbox is disposed", ends(api.SandboxDisposed), func(y *way) { go y.m.Dispose(y.t.Context(), "ws", y.sb) })
		in("the worker shuts down", ends(api.SandboxDisposed), func(y *way) {
			y.w.mu.Lock()
			y.w.instance = "engine-2" // a create that is cut off by it may not stay a tombstone: the test ends with nothing left
			y.w.mu.Unlock()
			go y.m.Shutdown(y.t.Context())
		})
		if stage != inFirst && stage != inSecond { // there is no container then
			in("the sandbox dies", api.SandboxOOM, func(y *way) { y.w.die(engine.Death{OOMKilled: true}) })
		}
	}
	for which := 1; which <= 2; which++ {
		for _, step := range []string{"precheck", "remove", "create", "admit", "start", "bridge", "connect", "statfs"} {
			code := api.IncompleteCleanup
			if which == 1 && (step == "precheck" || step == "admit") {
				code = api.Unqualified // a start that is refused, and the command has not run
			}
			paths = append(paths, path{fmt.Sprintf("%s fails in replacement %d", step, which), 1, code, func(y *way) {
				if which == 1 {
					y.w.setFail(failing(step, broken))
					return
				}
				y.w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
					y.w.setFail(failing(step, broken))
					return y.v.exec(ctx, s)
				}
			}})
		}
	}
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				before := w.names()
				p.do(&way{t, w, m, v, sb, leave})
				_, err := m.Exec(ctx, "ws", sb, secretCommand("one"), "d")
				if p.code == "" {
					if err != nil {
						t.Errorf("no outcome: %v", err)
					}
				} else {
					wantCode(t, p.name, err, p.code)
				}
				if err != nil && strings.Contains(fmt.Sprintf("%v %+v", err, err), canary) {
					t.Errorf("the error says %v", err)
				}
				leases, disposals := v.seenBy("d-one")
				if leases != p.leases || disposals != p.leases {
					t.Errorf("the provider was asked %d times and told %d times; %d are right", leases, disposals, p.leases)
				}
				if len(v.delivered) > 1 {
					t.Errorf("%d frames were delivered", len(v.delivered))
				}
				w.setFail(nil)
				w.slow("create", 0)
				v.asking, v.ending = nil, nil
				// In any state that lets another command run, it is in a container that had no secret.
				if _, err := m.Exec(t.Context(), "ws", sb, command("later"), "d"); err == nil && len(v.delivered) > 0 {
					for name, spec := range w.boxes() {
						if spec.ReadOnly || len(before) == 1 && name == before[0] {
							t.Errorf("a later command ran in container %s of generation %d", name, spec.Generation)
						}
					}
				}
				w.mu.Lock()
				w.instance = "engine-2" // a create that was cut off is a tombstone until then
				w.mu.Unlock()
				time.Sleep(time.Minute)
				synctest.Wait()
				if leases, disposals := v.seenBy("d-one"); leases != p.leases || disposals != p.leases {
					t.Errorf("a minute later: asked %d times, told %d times", leases, disposals)
				}
			})
		})
	}
}

// mustMint makes a reference under an attempt, by the resolver itself.
func mustMint(y *way, attempt string) []credential.Reference {
	r := secretCommand("x").CredentialRefs
	r[0].DeliveryAttemptID = attempt
	refs, err := y.w.resolver.Mint(r, credential.Subject{WorkspaceID: "ws", ExecutionID: "s", InvocationID: "x"})
	if err != nil {
		y.t.Fatal(err)
	}
	return refs
}
