// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance"
	"github.com/hallmark-sandbox/hallmark/conformance/target"
	"github.com/hallmark-sandbox/hallmark/conformance/target/toy"
)

// lookAlikes are workspaces of somebody else on the same target, named as the suite names its own, or
// nearly so.
var lookAlikes = []string{"ws-000102030405060708090a0b", "ws-", "ws-0", "adopted", "adopted-too"}

// openCrowded opens a toy on which somebody else's sandboxes live. When it is closed it notes which of
// them still do.
func openCrowded(ctx context.Context, config json.RawMessage, dir string) (*target.Target, error) {
	tg, err := toy.Open(ctx, config, dir)
	if err != nil {
		return nil, err
	}
	var theirs []target.Sandbox
	for _, ws := range lookAlikes {
		sb, err := tg.Runtime.Create(ctx, target.Spec{WorkspaceID: ws})
		if err != nil {
			return nil, err
		}
		if err := sb.Files().Write(ctx, "mine", []byte(ws)); err != nil {
			return nil, err
		}
		theirs = append(theirs, sb)
	}
	closeToy := tg.Close
	tg.Close = func() error {
		ctx := context.Background()
		var alive []string
		var errs []error
		for _, sb := range theirs {
			state, err := sb.State(ctx)
			body, rerr := sb.Files().Read(ctx, "mine")
			if err == nil && rerr == nil && state == "ready" && string(body) == sb.WorkspaceID() {
				alive = append(alive, sb.WorkspaceID())
			}
			errs = append(errs, sb.Dispose(ctx), tg.Runtime.Purge(ctx, sb.WorkspaceID()))
		}
		errs = append(errs, os.WriteFile(filepath.Join(os.Getenv(notesEnv), "alive"), []byte(strings.Join(alive, "\n")), 0o600), closeToy())
		return errors.Join(errs...)
	}
	return tg, nil
}

// crowdedSuite has a case for each way of ending badly, each with sandboxes of its own.
func crowdedSuite() conformance.Suite {
	s := conformance.Suite{Drivers: map[string]conformance.Open{"crowded": openCrowded}}
	for id, run := range map[string]func(ctx context.Context, t *conformance.T) error{
		"BY-01": func(context.Context, *conformance.T) error { return nil },
		"BY-02": func(_ context.Context, t *conformance.T) error { t.FailNow("judged", "x"); return nil },
		"BY-03": func(context.Context, *conformance.T) error { panic("bug") },
		"BY-04": func(ctx context.Context, t *conformance.T) error { <-ctx.Done(); return ctx.Err() },
		"BY-05": func(context.Context, *conformance.T) error { runtime.Goexit(); return nil },
		"BY-06": func(_ context.Context, t *conformance.T) error {
			t.Cleanup(func(context.Context) error { panic("bug") })
			return nil
		},
		"BY-07": func(_ context.Context, t *conformance.T) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				t.FailNow("judged", "x")
			}()
			<-done
			return nil
		},
		"BY-08": func(ctx context.Context, t *conformance.T) error { return t.Target().Runtime.Purge(ctx, lookAlikes[0]) },
		"BY-09": signalled(syscall.SIGINT), "BY-10": signalled(syscall.SIGTERM),
	} {
		c := conformance.Case{
			ID: id, Revision: 1, Title: "case " + id, Tier: conformance.Full, Timeout: time.Minute, Features: []conformance.Feature{conformance.FeatureExec},
			Run: func(ctx context.Context, t *conformance.T) error {
				t.Witness("ran", 1)
				for range 2 {
					sb := t.Sandbox(ctx, target.Spec{})
					if err := sb.Files().Write(ctx, "mine", nil); err != nil {
						return err
					}
				}
				if _, err := t.Target().Runtime.Create(ctx, target.Spec{WorkspaceID: "adopted-by-" + id}); err != nil {
					return err
				}
				return run(ctx, t)
			},
		}
		if id == "BY-04" {
			c.Timeout = 300 * time.Millisecond
		}
		s.Cases = append(s.Cases, c)
	}
	return s
}

// signalled sends sig to the process that runs the case, and waits.
func signalled(sig syscall.Signal) func(ctx context.Context, t *conformance.T) error {
	return func(ctx context.Context, t *conformance.T) error {
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// However a case ends, and however the run does, what the cases made goes and what others made stays:
// sandboxes with look-alike names on the target, and folders beside the run's.
func TestBystandersLive(t *testing.T) {
	together := []string{"BY-01", "BY-02", "BY-03", "BY-04", "BY-05", "BY-06", "BY-07", "BY-08"}
	want := map[string]string{
		"BY-01": "pass ", "BY-02": "fail judged", "BY-03": "error panic", "BY-04": "error timeout", "BY-05": "error goexit", "BY-06": "error cleanup-failed",
		"BY-07": "error misuse", "BY-08": "error suite-error", "BY-09": "error interrupted", "BY-10": "error interrupted",
	}
	for name, tt := range map[string]struct {
		ids   []string
		procs int
	}{
		"every end of a case": {together, 1}, "in two processes": {together, 2}, "SIGINT": {[]string{"BY-09"}, 1}, "SIGTERM": {[]string{"BY-10"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			t.Setenv(suiteEnv, "crowded")
			t.Setenv(notesEnv, t.TempDir())
			o.Suite, o.Driver, o.CaseIDs, o.Procs, o.Workloads = crowdedSuite(), "crowded", tt.ids, tt.procs, []string{imageA}
			beside := []string{o.Work + "-old", o.Work + "2", filepath.Join(filepath.Dir(o.Work), "ws-000102030405060708090a0b")}
			for _, dir := range beside {
				if err := os.MkdirAll(filepath.Join(dir, "p1"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			out := run(t, context.Background(), o)
			for _, id := range tt.ids {
				if c, _ := out.Report.Case(id); string(c.Status)+" "+c.Reason != want[id] {
					t.Errorf("%s is %s %s (%s), want %s", id, c.Status, c.Reason, c.Text, want[id])
				}
			}
			alive, err := os.ReadFile(filepath.Join(os.Getenv(notesEnv), "alive"))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Split(string(alive), "\n"); fmt.Sprint(got) != fmt.Sprint(lookAlikes) {
				t.Errorf("%q of the bystanders live, want %q", got, lookAlikes)
			}
			for _, dir := range beside {
				if _, err := os.Stat(filepath.Join(dir, "p1")); err != nil {
					t.Error(err)
				}
			}
			if signal := len(tt.ids) == 1; out.Interrupted != signal || out.Bundle != "" {
				t.Errorf("interrupted %v, bundle %q", out.Interrupted, out.Bundle)
			}
			for _, fault := range out.Faults {
				if strings.Contains(fault, "left") || strings.Contains(fault, "closing the target") {
					t.Errorf("the run: %s", fault)
				}
			}
		})
	}
}
