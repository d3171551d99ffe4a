// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// logged is a fake target that writes down what it was asked, in order.
type logged struct {
	*fake
	mu    sync.Mutex
	calls []string
	stall chan struct{} // creates wait for it when it is not nil
}

func (l *logged) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, what)
}

func (l *logged) seen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func (l *logged) Create(ctx context.Context, s target.Spec) (target.Sandbox, error) {
	l.note("create " + s.WorkspaceID)
	if l.stall != nil {
		<-l.stall
	}
	if l.createErr != nil {
		return nil, l.createErr
	}
	return loggedSandbox{fakeSandbox{l.fake, "sb-" + s.WorkspaceID, s.WorkspaceID}, l}, nil
}

func (l *logged) Purge(_ context.Context, ws string) error { l.note("purge " + ws); return nil }

// Raw accepts every create.
func (l *logged) Raw(_ context.Context, r target.RawRequest) (target.RawResponse, error) {
	l.note("raw " + r.Op + " " + r.WorkspaceID + r.SandboxID)
	return target.RawResponse{Status: 201, Body: []byte(`{"sandboxId":"wired"}`)}, nil
}

func (l *logged) CreateBody(context.Context, target.Spec) ([]byte, error) { return nil, nil }

type loggedSandbox struct {
	fakeSandbox
	l *logged
}

func (s loggedSandbox) Dispose(context.Context) error { s.l.note("dispose " + s.id); return nil }

// Whatever way a case makes something, it is removed afterwards, and nothing but that.
func TestWhatACaseMakesIsRemoved(t *testing.T) {
	var drawn string
	tests := []struct {
		name string
		run  func(ctx context.Context, t *T, l *logged) error
		want func() []string
	}{
		{"by T", func(ctx context.Context, t *T, _ *logged) error {
			t.Sandbox(ctx, target.Spec{WorkspaceID: "a"})
			t.Sandbox(ctx, target.Spec{WorkspaceID: "b"})
			return nil
		}, func() []string {
			return []string{"create a", "create b", "dispose sb-b", "dispose sb-a", "purge a", "purge b"}
		}},
		{"by the target itself", func(ctx context.Context, t *T, _ *logged) error {
			sb, err := t.Target().Runtime.Create(ctx, target.Spec{})
			if err == nil {
				drawn = sb.WorkspaceID()
			}
			return err
		}, func() []string { return []string{"create " + drawn, "dispose sb-" + drawn, "purge " + drawn} }},
		{"one workspace twice", func(ctx context.Context, t *T, _ *logged) error {
			t.Sandbox(ctx, target.Spec{WorkspaceID: "a"})
			t.AdoptWorkspace("a")
			return nil
		}, func() []string { return []string{"create a", "dispose sb-a", "purge a"} }},
		{"a create that fails half-way", func(ctx context.Context, t *T, l *logged) error {
			l.createErr = &target.Error{Code: "X_FAILED"}
			_, err := t.TrySandbox(ctx, target.Spec{WorkspaceID: "a"})
			if target.CodeOf(err) == "" {
				return errors.New("no code")
			}
			return nil
		}, func() []string { return []string{"create a", "purge a"} }},
		{"by the wire", func(ctx context.Context, t *T, _ *logged) error {
			_, err := t.Target().Wire.Raw(ctx, target.RawRequest{Op: "create", WorkspaceID: "a"})
			return err
		}, func() []string { return []string{"raw create a", "raw dispose awired", "purge a"} }},
		{"outside the target, newest first", func(_ context.Context, t *T, l *logged) error {
			for _, name := range []string{"one", "two"} {
				if err := t.Own(name, func(context.Context) error { l.note("remove " + name); return nil }); err != nil {
					return err
				}
			}
			return nil
		}, func() []string { return []string{"remove two", "remove one"} }},
		{"purged already", func(ctx context.Context, t *T, _ *logged) error {
			sb := t.Sandbox(ctx, target.Spec{WorkspaceID: "a"})
			if err := sb.Dispose(ctx); err != nil {
				return err
			}
			return t.Target().Runtime.Purge(ctx, "a")
		}, func() []string { return []string{"create a", "dispose sb-a", "purge a", "dispose sb-a", "purge a"} }},
		{"a create that is under way on another goroutine", func(ctx context.Context, t *T, l *logged) error {
			l.stall = make(chan struct{})
			go t.TrySandbox(ctx, target.Spec{WorkspaceID: "a"})
			for len(l.seen()) == 0 {
				time.Sleep(time.Millisecond)
			}
			go func() {
				time.Sleep(50 * time.Millisecond) // by then the clean-up waits
				close(l.stall)
			}()
			return nil
		}, func() []string { return []string{"create a", "dispose sb-a", "purge a"} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &logged{fake: &fake{log: "/nonexistent"}}
			b := fakeBench(t, l.fake, 0)
			b.target.Runtime, b.target.Wire = l, l
			e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: 20 * time.Second, Run: func(ctx context.Context, ct *T) error {
				ct.Witness("ran", 1)
				return tt.run(ctx, ct, l)
			}}, "image")
			if e.Status != Pass {
				t.Errorf("%s %s: %s", e.Status, e.Reason, e.Text)
			}
			if got, want := l.seen(), tt.want(); !slices.Equal(got, want) {
				t.Errorf("the target was asked %q, want %q", got, want)
			}
		})
	}
}

// A goroutine that outlives its case makes nothing more, and what it had made by then goes too.
func TestNothingIsMadeAfterTheEnd(t *testing.T) {
	l := &logged{fake: &fake{log: "/nonexistent"}}
	b := fakeBench(t, l.fake, 0)
	b.target.Runtime, b.target.Wire = l, l
	ct := b.newT("AA-01", "image")
	ct.cleanUp(b.target)
	if _, err := ct.TrySandbox(t.Context(), target.Spec{}); !errors.Is(err, errEnded) {
		t.Errorf("create: %v", err)
	}
	if _, err := ct.Target().Wire.Raw(t.Context(), target.RawRequest{Op: "create", WorkspaceID: "a"}); !errors.Is(err, errEnded) {
		t.Errorf("create by the wire: %v", err)
	}
	if err := ct.Own("x", nil); !errors.Is(err, errEnded) {
		t.Errorf("own: %v", err)
	}
	if calls := l.seen(); len(calls) > 0 {
		t.Errorf("the target was asked %q", calls)
	}
	ct.Cleanup(func(context.Context) error { l.note("late clean-up"); return nil })
	ct.Adopt(loggedSandbox{fakeSandbox{l.fake, "sb-late", "late"}, l})
	if got, want := l.seen(), []string{"late clean-up", "dispose sb-late", "purge late"}; !slices.Equal(got, want) {
		t.Errorf("late: %q, want %q", got, want)
	}
}

// A daemon that a case starts again holds things in the suite's process: they are no leak of the case.
func TestRestartIsNoLeak(t *testing.T) {
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	f := &fake{log: "/nonexistent", onStart: func() { go func() { <-end }() }}
	b := fakeBench(t, f, 0)
	e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: 20 * time.Second, Run: func(ctx context.Context, ct *T) error {
		ct.Witness("ran", 1)
		return ct.Target().Controller.Start(ctx)
	}}, "image")
	if e.Status != Pass || f.started != 1 {
		t.Errorf("%s %s: %s; started %d times", e.Status, e.Reason, e.Text, f.started)
	}
}
