// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// fakeBench is a bench over f, whose cases may take patience to return.
func fakeBench(t *testing.T, f *fake, patience time.Duration) *bench {
	t.Helper()
	return &bench{
		target: &target.Target{Runtime: f, Observer: f, Controller: f}, blobs: t.TempDir(), work: t.TempDir(), grace: patience, settle: 500 * time.Millisecond,
		log: func(line string) { t.Log(line) },
	}
}

// A fault of a case, or of a driver below it, is an error: it is neither a pass nor held against the
// target. Each row passes but for its one misbehaviour.
func TestMisbehaviourOfACaseIsAnError(t *testing.T) {
	// What the rows leave behind ends with the test.
	release := make(chan struct{})
	var files []*os.File
	var processes []*exec.Cmd
	t.Cleanup(func() {
		close(release)
		for _, f := range files {
			f.Close()
		}
		for _, cmd := range processes {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	untyped := errors.New("connection reset by peer")
	tests := []struct {
		name   string
		spoil  func(t *testing.T, f *fake, b *bench)
		run    func(ctx context.Context, t *T) error
		reason string
		text   string
	}{
		{name: "panic", run: func(context.Context, *T) error { panic("bug") }, reason: "panic", text: "bug"},
		{name: "nil map", run: func(context.Context, *T) error {
			var m map[string]int
			m["x"] = 1
			return nil
		}, reason: "panic", text: "nil map"},
		{name: "returned error", run: func(context.Context, *T) error { return errors.New("bug") }, reason: "suite-error"},
		{name: "panic after a judgement", run: func(_ context.Context, t *T) error {
			t.Fail("judged", "x")
			panic("bug")
		}, reason: "panic"},
		{name: "error after a judgement", run: func(_ context.Context, t *T) error {
			t.Fail("judged", "x")
			return errors.New("bug")
		}, reason: "suite-error"},
		{name: "goexit", run: func(context.Context, *T) error { runtime.Goexit(); return nil }, reason: "goexit"},
		{name: "goexit after a judgement", run: func(_ context.Context, t *T) error {
			t.Fail("judged", "x")
			runtime.Goexit()
			return nil
		}, reason: "goexit"},
		{name: "FailNow on another goroutine", run: func(_ context.Context, t *T) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				t.FailNow("judged", "x")
			}()
			<-done
			return nil
		}, reason: "misuse"},
		{name: "Inconclusive on another goroutine", run: func(_ context.Context, t *T) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				t.Inconclusive("window", "x")
			}()
			<-done
			return nil
		}, reason: "misuse"},
		{name: "goroutine left", run: func(context.Context, *T) error {
			go func() { <-release }()
			return nil
		}, reason: "suite-leak", text: "created by"},
		{name: "goroutine left after a judgement", run: func(_ context.Context, t *T) error {
			t.Fail("judged", "x")
			go func() { <-release }()
			return nil
		}, reason: "suite-leak"},
		{name: "descriptor left", run: func(context.Context, *T) error {
			f, err := os.Open("/etc")
			files = append(files, f)
			return err
		}, reason: "suite-leak", text: "/etc"},
		{name: "process left", run: func(context.Context, *T) error {
			cmd := exec.Command("sleep", "300")
			processes = append(processes, cmd)
			return cmd.Start()
		}, reason: "suite-leak", text: "sleep"},
		{name: "process not waited for", run: func(context.Context, *T) error {
			cmd := exec.Command("true")
			processes = append(processes, cmd)
			return cmd.Start()
		}, reason: "suite-leak", text: "state Z"},
		{name: "observation without an encoding", run: func(_ context.Context, t *T) error {
			t.Observe("channel", make(chan int))
			return nil
		}, reason: "suite-error", text: "channel"},
		{name: "observation with a fraction", run: func(_ context.Context, t *T) error { t.Observe("ratio", 0.5); return nil }, reason: "suite-error", text: "ratio"},
		{name: "artifact that cannot be kept", spoil: func(t *testing.T, _ *fake, b *bench) {
			b.blobs = filepath.Join(t.TempDir(), "absent")
		}, run: func(_ context.Context, t *T) error { t.Artifact("a", []byte("b")); return nil }, reason: "suite-error", text: "keep artifact"},
		{name: "clean-up error", run: func(_ context.Context, t *T) error {
			t.Cleanup(func(context.Context) error { return errors.New("bug") })
			return nil
		}, reason: "cleanup-failed"},
		{name: "clean-up panic", run: func(_ context.Context, t *T) error {
			t.Cleanup(func(context.Context) error { panic("bug") })
			return nil
		}, reason: "cleanup-failed"},
		{name: "clean-up goexit", run: func(_ context.Context, t *T) error {
			t.Cleanup(func(context.Context) error { runtime.Goexit(); return nil })
			return nil
		}, reason: "cleanup-failed"},
		{name: "removal of what it owns fails", run: func(_ context.Context, t *T) error {
			return t.Own("container x", func(context.Context) error { return errors.New("bug") })
		}, reason: "cleanup-failed", text: "container x"},
		{name: "does not return", run: func(context.Context, *T) error { <-release; return nil }, reason: "timeout", text: "did not return"},
		{name: "does not return after a judgement", run: func(_ context.Context, t *T) error {
			t.Fail("judged", "x")
			<-release
			return nil
		}, reason: "timeout", text: "did not return"},
		{name: "time-out", run: func(ctx context.Context, _ *T) error { <-ctx.Done(); return ctx.Err() }, reason: "timeout"},
		{name: "create without a type", spoil: func(_ *testing.T, f *fake, _ *bench) { f.createErr = untyped }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "create-failed"},
		{name: "create of nothing", spoil: func(_ *testing.T, f *fake, _ *bench) { f.createNothing = true }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "create-failed", text: "neither"},
		{name: "create panics", spoil: func(_ *testing.T, f *fake, _ *bench) { f.createPanic = true }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "panic"},
		{name: "exec without a type", spoil: func(_ *testing.T, f *fake, _ *bench) { f.execErr = untyped }, run: func(ctx context.Context, t *T) error {
			_, err := t.Sandbox(ctx, target.Spec{}).Exec(ctx, target.Command{})
			return err
		}, reason: "suite-error"},
		{name: "dispose without a type", spoil: func(_ *testing.T, f *fake, _ *bench) { f.disposeErr = untyped }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "cleanup-failed"},
		{name: "dispose panics", spoil: func(_ *testing.T, f *fake, _ *bench) { f.disposePanic = true }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "cleanup-failed"},
		{name: "purge without a type", spoil: func(_ *testing.T, f *fake, _ *bench) { f.purgeErr = untyped }, run: func(ctx context.Context, t *T) error {
			t.Sandbox(ctx, target.Spec{})
			return nil
		}, reason: "cleanup-failed"},
		{name: "purges another's workspace", run: func(ctx context.Context, t *T) error {
			return t.Target().Runtime.Purge(ctx, "somebody-elses")
		}, reason: "suite-error", text: "not of this case"},
		{name: "none", run: func(context.Context, *T) error { return nil }}, // so that the table can pass
		{name: "closes the target", run: func(_ context.Context, t *T) error { return t.Target().Close() }, reason: "suite-error"},
		{name: "engine gone before", spoil: func(_ *testing.T, f *fake, _ *bench) { f.engine.vanish() }, run: func(_ context.Context, t *T) error {
			panic("the case must not run: nothing can be judged")
		}, reason: "engine-gone"},
		{name: "engine gone during", spoil: func(_ *testing.T, f *fake, _ *bench) {
			f.disposeErr = &target.Error{Code: "X_INCOMPLETE_CLEANUP"}
		}, run: func(ctx context.Context, t *T) error {
			t.Canary("searched for in inspect answers")
			t.Sandbox(ctx, target.Spec{})
			t.target.Runtime.(*fake).engine.vanish()
			t.Fail("judged", "the target could not do its work")
			return nil
		}, reason: "engine-gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{log: filepath.Join(t.TempDir(), "log"), engine: newFakeEngine(t)}
			b := fakeBench(t, f, 200*time.Millisecond)
			if tt.spoil != nil {
				tt.spoil(t, f, b)
			}
			e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: time.Second, Run: func(ctx context.Context, ct *T) error {
				ct.Witness("ran", 1)
				return tt.run(ctx, ct)
			}}, "image")
			want := Errored
			if tt.reason == "" {
				want = Pass
			}
			if e.Status != want || e.Reason != tt.reason || !strings.Contains(e.Text, tt.text) {
				t.Errorf("%s %s (%s), want %s %s with %q", e.Status, e.Reason, e.Text, want, tt.reason, tt.text)
			}
			for _, ws := range f.purged {
				if ws == "somebody-elses" {
					t.Error("a workspace that the case did not make was purged")
				}
			}
		})
	}
}
