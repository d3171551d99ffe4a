// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hallmark-sandbox/hallmark/reference/api"
	"github.com/hallmark-sandbox/hallmark/reference/control"
	"github.com/hallmark-sandbox/hallmark/reference/credential"
	"github.com/hallmark-sandbox/hallmark/reference/engine"
)

const canary = "s3cr3t-canary"

// vault is the provider and the store of attempts of a test.
type vault struct {
	mu              sync.Mutex
	leases, ends    int
	expires         time.Duration
	fail, store     error
	delivered, seen []string // frames as the supervisor got them; log lines
	calls           []string // op and attempt, in order
	asking, ending  func(context.Context)
}

// seenBy counts what the provider was called for.
func (v *vault) seenBy(attempt string) (leases, ends int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.calls {
		switch c {
		case "lease " + attempt:
			leases++
		case "dispose " + attempt:
			ends++
		}
	}
	return leases, ends
}

func (v *vault) Put(context.Context, string, string, []byte) error { return v.store }
func (v *vault) Delete(context.Context, string, string) error      { return nil }
func (v *vault) Each(string, func(string, []byte) error) error     { return nil }
func (v *vault) Dispose(ctx context.Context, r credential.Request) error {
	v.mu.Lock()
	v.ends++
	v.calls = append(v.calls, "dispose "+r.AttemptID)
	ending := v.ending
	v.mu.Unlock()
	if ending != nil {
		ending(ctx)
	}
	return nil
}
func (v *vault) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = append(v.seen, string(p))
	return len(p), nil
}
func (v *vault) Lease(ctx context.Context, r credential.Request) ([]byte, error) {
	v.mu.Lock()
	v.leases++
	v.calls = append(v.calls, "lease "+r.AttemptID)
	asking := v.asking
	v.mu.Unlock()
	if asking != nil {
		asking(ctx)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail != nil {
		return nil, v.fail
	}
	return json.Marshal(map[string]any{
		"version": credential.PayloadVersion, "expiresAtUnixMs": time.Now().Add(v.expires).UnixMilli(),
		"scope":  map[string]string{"workspaceId": r.WorkspaceID, "bindingId": r.BindingID, "executionId": r.ExecutionID},
		"fields": []map[string]any{{"fieldId": "token", "value": []byte(canary)}},
	})
}

// secretBubble is a bubble with a provider, and a sandbox.
func secretBubble(t *testing.T, f func(t *testing.T, w *world, m *Manager, v *vault, sb string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, v := newWorld(t), &vault{expires: time.Hour}
		var err error
		w.resolver, err = credential.New(credential.Options{
			Bindings: []credential.Binding{
				{BindingID: "b", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}},
				{BindingID: "narrow", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}, Workspaces: []string{"other"}},
				{BindingID: "model", ProviderID: "p", Category: "model-provider", Kind: "token", Fields: []string{"token"}},
				{BindingID: "model-key", ProviderID: "p", Category: "service", Kind: "model-api-key", Fields: []string{"token"}},
			},
			Providers: map[string]credential.Provider{"p": v, "p2": v}, Store: v,
			Now: func() (time.Time, error) { return time.Now(), nil }, Log: slog.New(slog.NewTextHandler(v, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		w.exec = v.exec
		m := w.boot(Limits{})
		m.log = slog.New(slog.NewTextHandler(v, nil))
		if err := m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		f(t, w, m, v, mustCreate(t, m, "lease", "ws").SandboxID)
		w.setFail(nil)
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		w.wantClean()
		if v.leases != v.ends || w.resolver.Outstanding() != 0 {
			t.Errorf("%d leases, %d disposals, %d outstanding", v.leases, v.ends, w.resolver.Outstanding())
		}
		if strings.Contains(strings.Join(v.seen, ""), canary) {
			t.Errorf("the secret is in the log:\n%s", strings.Join(v.seen, ""))
		}
	})
}

// exec is the command: it keeps the frame, as a supervisor would.
func (v *vault) exec(_ context.Context, s control.Spawn) (control.Outcome, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s.Secret != nil {
		v.delivered = append(v.delivered, string(s.Secret))
	}
	return control.Outcome{Stdout: []byte(s.ID), CleanupProven: true}, nil
}

func secretCommand(id string) api.ExecRequest {
	r := command(id)
	r.CredentialRefs = []api.CredentialRef{{DeliveryAttemptID: "d-" + id, ProviderID: "p", BindingID: "b", ExecutionID: "s",
		Fields: []api.CredentialField{{Name: "TOKEN", FieldID: "token"}}}}
	return r
}

// boxes are the containers of the world by name.
func (w *world) boxes() map[string]engine.Spec {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]engine.Spec{}
	for name, b := range w.containers {
		out[name] = b.spec
	}
	return out
}

// engineCalls are the calls from mark on that change containers.
func (w *world) engineCalls(mark int) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls[mark:] {
		op, _, _ := strings.Cut(c, " ")
		if slices.Contains([]string{"create", "start", "remove", "exec", "admit", "profile", "verify", "binary"}, op) {
			out = append(out, op)
		}
	}
	return out
}

func (w *world) mark() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls)
}

func TestSecretRunsBetweenTwoReplacements(t *testing.T) {
	secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
		if _, err := m.Exec(t.Context(), "ws", sb, command("before"), "d"); err != nil {
			t.Fatal(err)
		}
		first, mark := w.boxes(), w.mark()
		var during map[string]engine.Spec
		var held *sandbox
		w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
			during = w.boxes()
			m.mu.Lock()
			held = m.live[sb]
			m.mu.Unlock()
			return v.exec(ctx, s)
		}
		out, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
		if err != nil || string(out.Stdout) != "one" {
			t.Fatalf("%q, %v", out.Stdout, err)
		}
		boot := "admit,verify,start,binary"
		if got, want := strings.Join(w.engineCalls(mark), ","), "remove,create,profile,"+boot+",exec,remove,create,profile,"+boot; got != want {
			t.Errorf("calls are\n%s, want\n%s", got, want)
		}
		names := map[string]bool{}
		for i, at := range []map[string]engine.Spec{first, during, w.boxes()} {
			if len(at) != 1 {
				t.Fatalf("%d containers at stage %d", len(at), i)
			}
			for name, s := range at {
				names[name] = true
				if s.SandboxID != sb || s.Generation != int64(i+1) || s.ReadOnly != (i == 1) {
					t.Errorf("stage %d: generation %d, read-only %t", i, s.Generation, s.ReadOnly)
				}
			}
		}
		if len(names) != 3 {
			t.Errorf("%d names for three containers", len(names))
		}
		fields, err := credential.DecodeFrame([]byte(v.delivered[0]))
		if err != nil || len(v.delivered) != 1 || len(fields) != 1 || fields[0].Name != "TOKEN" || string(fields[0].Value) != canary {
			t.Errorf("%d frames, %v", len(v.delivered), err)
		}
		// Nothing of the outcome is kept, and nothing repeats.
		if inv := held.invocations["one"]; len(inv.result.Stdout) != 0 || inv.result.ExitCode != nil {
			t.Errorf("the outcome is kept: %+v", inv.result)
		}
		_, err = m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
		wantCode(t, "repetition", err, api.SecretNotReplayable)
		_, err = m.Exec(t.Context(), "ws", sb, secretCommand("one"), "other")
		wantCode(t, "another request", err, api.IdempotencyConflict)
		again := secretCommand("two")
		again.CredentialRefs[0].DeliveryAttemptID = "d-one"
		_, err = m.Exec(t.Context(), "ws", sb, again, "d")
		wantCode(t, "the attempt again", err, api.SecretReferenceRejected)
		if v.leases != 1 {
			t.Errorf("%d leases", v.leases)
		}
		if got, err := m.Cancel(t.Context(), "ws", sb, "one"); err != nil || got.Result != nil || got.Error == nil || got.Error.Code != api.SecretNotReplayable {
			t.Errorf("cancel says %+v, %v", got, err)
		}
		if out, err := m.Exec(t.Context(), "ws", sb, command("after"), "d"); err != nil || string(out.Stdout) != "after" {
			t.Errorf("a command after it: %q, %v", out.Stdout, err)
		}
	})
}

func TestRefusedReferencesTouchNoContainer(t *testing.T) {
	secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
		mark := w.mark()
		changes := map[string]func(*api.ExecRequest){}
		for what, change := range map[string]func(*api.ExecRequest){
			"binding":                             func(r *api.ExecRequest) { r.CredentialRefs[0].BindingID = "c" },
			"execution":                           func(r *api.ExecRequest) { r.CredentialRefs[0].ExecutionID = "other" },
			"provider":                            func(r *api.ExecRequest) { r.CredentialRefs[0].ProviderID = "q" },
			"another provider than the binding's": func(r *api.ExecRequest) { r.CredentialRefs[0].ProviderID = "p2" },
			"a category of a model provider":      func(r *api.ExecRequest) { r.CredentialRefs[0].BindingID = "model" },
			"a kind of a model provider":          func(r *api.ExecRequest) { r.CredentialRefs[0].BindingID = "model-key" },
			"another workspace's binding":         func(r *api.ExecRequest) { r.CredentialRefs[0].BindingID = "narrow" },
			"a field outside the binding":         func(r *api.ExecRequest) { r.CredentialRefs[0].Fields[0].FieldID = "root" },
			"a field twice": func(r *api.ExecRequest) {
				r.CredentialRefs[0].Fields = append(r.CredentialRefs[0].Fields, api.CredentialField{Name: "B", FieldID: "token"})
			},
			"a name twice": func(r *api.ExecRequest) {
				other := r.CredentialRefs[0]
				other.DeliveryAttemptID = "d-2"
				r.CredentialRefs = append(r.CredentialRefs, other)
			},
			"no field":            func(r *api.ExecRequest) { r.CredentialRefs[0].Fields = nil },
			"17 fields":           func(r *api.ExecRequest) { r.CredentialRefs[0].Fields = make([]api.CredentialField, 17) },
			"a malformed attempt": func(r *api.ExecRequest) { r.CredentialRefs[0].DeliveryAttemptID = "a/b" },
		} {
			changes[what] = change
		}
		// The names of RUNTIME, each of its prefixes with something behind it.
		for _, name := range []string{"PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS",
			"DOCKER_HOST", "DOCKER_CONFIG", "_", "HALLMARK_X", "", "A\x00B", "A=B", "A\nB", strings.Repeat("n", 257)} {
			changes[fmt.Sprintf("the name %.20q", name)] = func(r *api.ExecRequest) { r.CredentialRefs[0].Fields[0].Name = name }
		}
		for what, change := range changes {
			r := secretCommand("one")
			change(&r)
			_, err := m.Exec(t.Context(), "ws", sb, r, "d")
			wantCode(t, what, err, api.SecretReferenceRejected)
		}
		if v.leases != 0 {
			t.Errorf("the provider was asked %d times", v.leases)
		}
		v.expires = -time.Second
		_, err := m.Exec(t.Context(), "ws", sb, secretCommand("expired"), "d")
		wantCode(t, "expired", err, api.SecretReferenceRejected)
		v.expires, v.fail = time.Hour, errors.New(canary)
		_, err = m.Exec(t.Context(), "ws", sb, secretCommand("failing"), "d")
		wantCode(t, "failing", err, api.SecretReferenceRejected)
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the error says %v", err)
		}
		if calls := w.engineCalls(mark); len(calls) != 0 {
			t.Errorf("the engine was asked %q", calls)
		}
		if _, err := m.Exec(t.Context(), "ws", sb, command("plain"), "d"); err != nil {
			t.Errorf("a command after it: %v", err)
		}
	})
}

func TestNoProviderRefusesEveryReference(t *testing.T) {
	bubble(t, Limits{}, func(t *testing.T, w *world, m *Manager) {
		r := mustCreate(t, m, "lease", "ws")
		_, err := m.Exec(t.Context(), "ws", r.SandboxID, secretCommand("one"), "d")
		wantCode(t, "no provider", err, api.SecretReferenceRejected)
	})
}

func TestSecretHasTheSandboxForItself(t *testing.T) {
	secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
		gate := make(chan struct{})
		w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
			<-gate
			return v.exec(ctx, s)
		}
		exec := func(r api.ExecRequest) error {
			_, err := m.Exec(t.Context(), "ws", sb, r, "d")
			return err
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := exec(command("plain")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		wantCode(t, "a secret beside a command", exec(secretCommand("s1")), api.ExecConcurrencyExhausted)
		gate <- struct{}{}
		wg.Wait()
		done, err := m.Mutate("ws", sb)
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, "a secret beside a write", exec(secretCommand("s2")), api.ExecConcurrencyExhausted)
		done()
		done()
		if v.leases != 0 {
			t.Errorf("the provider was asked %d times", v.leases)
		}
		wg.Go(func() {
			if err := exec(secretCommand("s3")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		wantCode(t, "a command beside a secret", exec(command("p2")), api.ExecConcurrencyExhausted)
		wantCode(t, "a secret beside a secret", exec(secretCommand("s4")), api.ExecConcurrencyExhausted)
		wantCode(t, "its repetition", exec(secretCommand("s3")), api.ExecInProgress)
		_, err = m.Mutate("ws", sb)
		wantCode(t, "a write beside a secret", err, api.ExecConcurrencyExhausted)
		if _, _, release, err := m.Tree(t.Context(), "ws", sb); err != nil {
			t.Errorf("a read beside a secret: %v", err)
		} else {
			release()
		}
		close(gate)
		wg.Wait()
		if done, err = m.Mutate("ws", sb); err != nil {
			t.Errorf("a write after it: %v", err)
		} else {
			done()
		}
		if err := exec(command("p3")); err != nil {
			t.Errorf("a command after it: %v", err)
		}
	})
}

// Every step of either replacement fails once. The caller hears INCOMPLETE_CLEANUP, nobody runs
// anything any more, and the sandbox goes as soon as it can.
func TestFailedReplacementEndsTheSandbox(t *testing.T) {
	steps := []string{"precheck", "image", "remove", "instance", "create", "profile", "admit", "verify", "start", "binary", "bridge", "connect", "statfs", "store"}
	// A definite answer: a create that nobody knows the end of stays a tombstone, as for any sandbox.
	broken := fmt.Errorf("broken: %w", engine.ErrNotCreated)
	for which := 1; which <= 2; which++ {
		for _, step := range steps {
			t.Run(fmt.Sprintf("%s %d", step, which), func(t *testing.T) {
				secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
					ran := false
					w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
						ran = true
						if which == 2 {
							w.setFail(failing(step, broken))
						}
						return v.exec(ctx, s)
					}
					if which == 1 {
						// The claim and the mark of an invocation go to the store too.
						w.setFail(func(op, subject string) error {
							if op == step && (op != "store" || subject == bucketSandboxes) {
								return broken
							}
							return nil
						})
					}
					_, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
					want := api.IncompleteCleanup
					if which == 1 && slices.Contains([]string{"precheck", "profile", "admit"}, step) {
						want = api.Unqualified // nothing has run, and it is the start that is refused
					}
					wantCode(t, "the caller", err, want)
					if ran != (which == 2) || len(v.delivered) != which-1 {
						t.Errorf("ran %t, %d frames delivered", ran, len(v.delivered))
					}
					if v.ends != 1 {
						t.Errorf("disposed %d times", v.ends)
					}
					_, err = m.Exec(t.Context(), "ws", sb, command("later"), "d")
					wantCode(t, "a later command", err, api.SandboxDisposed)
					if len(v.delivered) != which-1 {
						t.Error("a later command ran")
					}
					w.setFail(nil)
					if err := m.Dispose(t.Context(), "ws", sb); err != nil {
						t.Logf("dispose: %v", err) // a retry may be under way
					}
					time.Sleep(backoffLast + time.Second)
					if err := m.Dispose(t.Context(), "ws", sb); err != nil {
						t.Errorf("it is still there: %v", err)
					}
					if !w.hasImage("ws") {
						t.Error("the workspace went with it")
					}
				})
			})
		}
	}
}

func TestCancelledSecret(t *testing.T) {
	secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
		w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
			<-ctx.Done()
			return control.Outcome{CleanupProven: false}, ctx.Err()
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
			wantCode(t, "cancelled", err, api.ExecAborted)
		})
		synctest.Wait()
		got, err := m.Cancel(t.Context(), "ws", sb, "one")
		if err != nil || got.Error == nil || got.Error.Code != api.ExecAborted {
			t.Errorf("cancel says %+v, %v", got, err)
		}
		wg.Wait()
		w.exec = v.exec
		for _, s := range w.boxes() {
			if s.ReadOnly || s.Generation != 3 {
				t.Errorf("generation %d, read-only %t", s.Generation, s.ReadOnly)
			}
		}
		if _, err := m.Exec(t.Context(), "ws", sb, command("after"), "d"); err != nil {
			t.Errorf("a command after it: %v", err)
		}
	})
}

// A caller that left in time frees the id, or is told that the outcome is unknown when it cannot be freed: what the
// next one with this id hears, too.
func TestCallerOfASecretThatLeftInTime(t *testing.T) {
	for _, tt := range []struct {
		name        string
		fail        error // of the removal of the row
		told, again api.Code
	}{
		{"freed", nil, api.ExecAborted, ""},
		{"not freed", errors.New("full"), api.OutcomeUnknown, api.SecretNotReplayable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				stores := 0
				w.setFail(func(op, subject string) error {
					if op != "store" || subject != bucketInvocations {
						return nil
					}
					switch stores++; stores {
					case 1:
						leave()
					case 2:
						return tt.fail
					}
					return nil
				})
				_, err := m.Exec(ctx, "ws", sb, secretCommand("one"), "d")
				wantCode(t, "the caller", err, tt.told)
				if v.leases != 0 {
					t.Errorf("%d leases", v.leases)
				}
				synctest.Wait()
				w.setFail(nil)
				_, err = m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
				wantCode(t, "the id afterwards", err, tt.again)
			})
		})
	}
}

// A provider that does not let go holds the outcome up for as long as a call of it may take. It keeps neither the
// container that had the secret nor the caller beyond that, whatever the command came to.
func TestHangingProviderKeepsNoContainer(t *testing.T) {
	for _, tt := range []struct {
		name string
		exec func(*vault, context.Context, control.Spawn) (control.Outcome, error)
		want api.Code
	}{
		{"success", (*vault).exec, ""},
		{"no process", func(*vault, context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, &control.SpawnError{Step: control.StepFork, Errno: syscall.EAGAIN}
		}, api.ExecAborted},
		{"cleanup not proven", func(*vault, context.Context, control.Spawn) (control.Outcome, error) { return control.Outcome{}, nil }, ""},
		{"supervisor lost", func(*vault, context.Context, control.Spawn) (control.Outcome, error) {
			return control.Outcome{}, control.ErrLost
		}, api.SandboxDied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
				w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) { return tt.exec(v, ctx, s) }
				v.ending = func(ctx context.Context) {
					synctest.Wait() // a sandbox that retires is gone by then
					for name, s := range w.boxes() {
						if s.ReadOnly {
							t.Errorf("the provider is told while %s, which had the secret, is there", name)
						}
					}
					<-ctx.Done()
				}
				began := time.Now()
				_, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
				wantCode(t, "the caller", err, tt.want)
				if d := time.Since(began); d > time.Minute {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

func TestSecretAndTheEndOfTheLease(t *testing.T) {
	t.Run("hard expiry while it runs", func(t *testing.T) {
		secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
			w.exec = func(ctx context.Context, s control.Spawn) (control.Outcome, error) {
				<-ctx.Done()
				return control.Outcome{}, ctx.Err()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := m.Exec(ctx, "ws", sb, secretCommand("one"), "d")
			wantCode(t, "expired", err, api.SandboxExpired)
			synctest.Wait()
		})
	})
	t.Run("hard expiry while the container is replaced", func(t *testing.T) {
		secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
			time.Sleep(59 * time.Second)
			for range 9 {
				if _, err := m.Renew(t.Context(), "ws", sb); err != nil {
					t.Fatal(err)
				}
				time.Sleep(59 * time.Second)
			}
			w.slow("create", 20*time.Second)
			_, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
			wantCode(t, "expired", err, api.SandboxExpired)
			if len(v.delivered) != 0 {
				t.Error("a secret was delivered")
			}
			w.slow("create", 0)
			w.mu.Lock()
			w.instance = "engine-2" // the create was cut off: until then its name is a tombstone
			w.mu.Unlock()
			time.Sleep(time.Minute)
		})
	})
	t.Run("idle afterwards", func(t *testing.T) {
		secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
			if _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(61 * time.Second)
			_, err := m.Exec(t.Context(), "ws", sb, command("late"), "d")
			wantCode(t, "idle", err, api.SandboxExpired)
		})
	})
	t.Run("death afterwards", func(t *testing.T) {
		secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
			if _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); err != nil {
				t.Fatal(err)
			}
			w.die(engine.Death{OOMKilled: true})
			synctest.Wait()
			_, err := m.Exec(t.Context(), "ws", sb, command("late"), "d")
			wantCode(t, "dead", err, api.SandboxOOM)
		})
	})
}

// A worker that is killed while the container is replaced removes whichever there is, and keeps the
// workspace.
func TestRestartDuringReplacement(t *testing.T) {
	for _, step := range []string{"remove", "create", "start", "exec"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, v := newWorld(t), &vault{expires: time.Hour}
				var err error
				if w.resolver, err = credential.New(credential.Options{
					Bindings:  []credential.Binding{{BindingID: "b", ProviderID: "p", Category: "service", Kind: "token", Fields: []string{"token"}}},
					Providers: map[string]credential.Provider{"p": v}, Store: v,
					Now: func() (time.Time, error) { return time.Now(), nil }, Log: slog.New(slog.NewTextHandler(v, nil)),
				}); err != nil {
					t.Fatal(err)
				}
				m := w.boot(Limits{})
				if err := m.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				sb := mustCreate(t, m, "lease", "ws").SandboxID
				var rows map[string][]byte
				w.setFail(func(op, _ string) error {
					if op == step && rows == nil {
						w.mu.Lock()
						defer w.mu.Unlock()
						rows = map[string][]byte{}
						for k, r := range w.rows {
							rows[k] = bytes.Clone(r)
						}
					}
					return nil
				})
				if _, err := m.Exec(t.Context(), "ws", sb, secretCommand("one"), "d"); err != nil {
					t.Fatal(err)
				}
				w.setFail(nil)
				synctest.Wait() // the mark of its end goes to the store that is thrown away
				// What is durable now is as it was at that step; of the containers, the last one lives.
				var at record
				if err := json.Unmarshal(rows[bucketSandboxes+"|"+sb], &at); err != nil || at.State != stateReplacing && step != "exec" {
					t.Fatalf("the record says %q, %v", at.State, err)
				}
				w.mu.Lock()
				for name, b := range w.containers {
					delete(w.containers, name)
					w.containers[at.Container] = b
					if at.ContainerID != "" {
						b.id = at.ContainerID
					}
				}
				w.rows = rows
				w.mu.Unlock()
				next := w.boot(Limits{})
				if err := next.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(w.names()) != 0 || !w.hasImage("ws") {
					t.Errorf("containers %q, workspace kept %t", w.names(), w.hasImage("ws"))
				}
				_, err = next.Exec(t.Context(), "ws", sb, secretCommand("one"), "d")
				wantCode(t, "the invocation after it", err, api.OutcomeUnknown)
				m.halt()
				if err := next.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				m.Shutdown(t.Context())
			})
		})
	}
}

func TestSecretBoundsAgree(t *testing.T) {
	if credential.MaxFrameBytes != control.MaxSecret || credential.MaxFields != api.MaxCredentialFields || credential.MaxNameBytes != api.MaxCredentialNameBytes {
		t.Error("the bounds of a secret differ between packages")
	}
}

// TestDeadlineOfTheAPI: it is a TIMEOUT, which may be tried again, as long as nothing has begun; afterwards the
// outcome is EXEC_ABORTED, whatever the time went into. Who leaves instead gets EXEC_ABORTED, but for a
// lease that fails.
func TestDeadlineOfTheAPI(t *testing.T) {
	waits := func(ctx context.Context, _ control.Spawn) (control.Outcome, error) {
		<-ctx.Done()
		return control.Outcome{CleanupProven: true}, ctx.Err()
	}
	for _, tt := range []struct {
		name       string
		secret     bool
		slow       func(w *world, v *vault)
		left, late api.Code
	}{
		{"claim", false, func(w *world, _ *vault) { w.slow("store", 2*time.Second) }, api.ExecAborted, api.Timeout},
		{"command", false, func(w *world, _ *vault) { w.exec = waits }, api.ExecAborted, api.ExecAborted},
		{"claim of a secret-bearing one", true, func(w *world, _ *vault) { w.slow("store", 2*time.Second) }, api.ExecAborted, api.Timeout},
		{"lease", true, func(_ *world, v *vault) {
			v.asking = func(ctx context.Context) { <-ctx.Done() }
			v.fail = errors.New("late")
		}, api.SecretReferenceRejected, api.ExecAborted},
		{"replacement", true, func(w *world, _ *vault) { w.slow("start", 2*time.Second) }, api.ExecAborted, api.ExecAborted},
		{"secret-bearing command", true, func(w *world, _ *vault) { w.exec = waits }, api.ExecAborted, api.ExecAborted},
	} {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, deadline %t", tt.name, late), func(t *testing.T) {
				secretBubble(t, func(t *testing.T, w *world, m *Manager, v *vault, sb string) {
					tt.slow(w, v)
					req, want := command("i"), tt.left
					if tt.secret {
						req = secretCommand("i")
					}
					ctx, cancel := context.WithCancel(t.Context())
					if late {
						want = tt.late
						ctx, cancel = context.WithTimeout(t.Context(), time.Second)
					} else {
						time.AfterFunc(time.Second, cancel)
					}
					defer cancel()
					_, err := m.Exec(ctx, "ws", sb, req, "d")
					wantCode(t, "exec", err, want)
					w.slow("store", 0)
					w.slow("start", 0)
				})
			})
		}
	}
}
