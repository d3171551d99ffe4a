// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// fake is a target whose faults a test chooses.
type fake struct {
	target.Observer // nil: calling what a test does not expect panics
	log             string
	tape            []target.TapeCall
	leak            bool
	createErr       error
	createNothing   bool // neither a sandbox nor an error
	createPanic     bool
	execErr         error
	disposeErr      error
	disposePanic    bool
	purgeErr        error
	dead            bool
	started         int
	onStart         func() // nil for nothing
	engine          *fakeEngine
	mount           func() // leaves a mount in the driver's folder
	armed           bool   // a fault of the tape
	disposed        []string
	purged          []string
}

func (f *fake) Describe(context.Context) (target.Description, error) {
	if f.dead {
		return target.Description{}, errors.New("connection refused")
	}
	return target.Description{Driver: "fake"}, nil
}

func (f *fake) Create(_ context.Context, s target.Spec) (target.Sandbox, error) {
	switch {
	case f.createPanic:
		panic("bug in the driver")
	case f.createNothing:
		return nil, nil
	case f.createErr != nil:
		return nil, f.createErr
	}
	return fakeSandbox{f, "sb-" + s.WorkspaceID, s.WorkspaceID}, nil
}

func (f *fake) Purge(_ context.Context, ws string) error {
	f.purged = append(f.purged, ws)
	return f.purgeErr
}

func (f *fake) Container(_ context.Context, id string) (target.Container, error) {
	if f.leak {
		return target.Container{ID: "c"}, nil
	}
	return target.Container{}, target.ErrNoContainer
}

func (f *fake) EngineSocket() (string, error) {
	if f.engine == nil {
		return "", target.ErrUnavailable
	}
	return f.engine.socket, nil
}

func (f *fake) CgroupParent() (string, error) { return "", target.ErrUnavailable }
func (f *fake) WorkerPid() (int, error)       { return os.Getpid(), nil }

func (f *fake) Logs() ([]string, error) { return []string{f.log}, nil }

func (f *fake) Tape(mark int64) ([]target.TapeCall, int64, error) {
	return f.tape[mark:], int64(len(f.tape)), nil
}

func (f *fake) Foothold(context.Context, string, []string, []byte) (target.Result, error) {
	return target.Result{}, target.ErrUnavailable
}
func (f *fake) Kill(context.Context) error { return target.ErrUnavailable }
func (f *fake) Start(context.Context) error {
	f.started++
	f.dead = false
	if f.onStart != nil {
		f.onStart()
	}
	return nil
}
func (f *fake) Inject(target.TapeRule) error {
	f.armed = true
	return nil
}
func (f *fake) Calm() error {
	f.armed = false
	return nil
}
func (f *fake) Terminate(context.Context, func()) (int, error) {
	return 0, target.ErrUnavailable
}

type fakeSandbox struct {
	*fake
	id, ws string
}

func (s fakeSandbox) ID() string                            { return s.id }
func (s fakeSandbox) WorkspaceID() string                   { return s.ws }
func (s fakeSandbox) State(context.Context) (string, error) { return "ready", nil }
func (s fakeSandbox) Files() target.Files                   { return nil }
func (s fakeSandbox) Exec(context.Context, target.Command) (target.Result, error) {
	if s.execErr != nil {
		return target.Result{}, s.execErr
	}
	return target.Result{}, target.ErrUnavailable
}
func (s fakeSandbox) Dispose(context.Context) error {
	if s.disposePanic {
		panic("bug in the driver")
	}
	s.disposed = append(s.disposed, s.id)
	if s.armed {
		return &target.Error{Code: "X_INCOMPLETE_CLEANUP"}
	}
	return s.disposeErr
}

func TestWhatFollowsACase(t *testing.T) {
	refusal := &target.Error{Code: "X_INCOMPLETE_CLEANUP"}
	tests := []struct {
		name   string
		spoil  func(*fake)
		attack func(ctx context.Context, f *fake, t *T)
		status Status
		reason string
		also   []string // of the signed row
	}{
		{name: "nothing", status: Pass},
		{name: "dispose refused", spoil: func(f *fake) { f.disposeErr = refusal }, status: Fail, reason: "cleanup-incomplete"},
		{name: "dispose broken", spoil: func(f *fake) { f.disposeErr = errors.New("no route") }, status: Errored, reason: "cleanup-failed"},
		{name: "purge refused", spoil: func(f *fake) { f.purgeErr = refusal }, status: Fail, reason: "cleanup-incomplete"},
		{name: "container left", spoil: func(f *fake) { f.leak = true }, status: Fail, reason: "container-leaked"},
		{name: "died of the attack", attack: func(_ context.Context, f *fake, _ *T) { f.dead = true }, status: Fail, reason: "target-died"},
		{name: "a fault that is still armed", attack: func(_ context.Context, _ *fake, t *T) {
			if err := t.Target().Controller.Inject(target.TapeRule{Nth: 1, Times: 100, Status: 500}); err != nil {
				panic(err)
			}
		}, status: Pass},
		{name: "canary in the log", attack: func(_ context.Context, f *fake, t *T) {
			os.WriteFile(f.log, []byte("before\n"+t.Canary("secret")), 0o600)
		}, status: Fail, reason: "canary-leaked"},
		{name: "canary on the tape", attack: func(_ context.Context, f *fake, t *T) {
			f.tape = append(f.tape, target.TapeCall{Body: []byte(`{"Env":["` + t.Canary("secret") + `"]}`)})
		}, status: Fail, reason: "canary-leaked"},
		{name: "canary nowhere", attack: func(_ context.Context, f *fake, t *T) { t.Canary("secret") }, status: Pass},
		{name: "own judgement first", spoil: func(f *fake) { f.disposeErr = refusal },
			attack: func(_ context.Context, _ *fake, t *T) { t.Fail("judged", "x") }, status: Fail, reason: "judged", also: []string{"fail:cleanup-incomplete"}},
		{name: "not run after a judgement", attack: func(_ context.Context, _ *fake, t *T) {
			t.Fail("judged", "x")
			t.Fail("judged", "y")
			t.NotRun("part-unavailable", "z")
		}, status: Fail, reason: "judged", also: []string{"not-run:part-unavailable"}},
		{name: "bug outweighs refusal", spoil: func(f *fake) { f.disposeErr = refusal },
			attack: func(context.Context, *fake, *T) { panic("bug") }, status: Errored, reason: "panic"},
		{name: "somebody's container left", attack: func(_ context.Context, f *fake, _ *T) {
			f.engine.add("c2", "{}")
		}, status: Fail, reason: "leftover"},
		{name: "canary in the engine's view", attack: func(_ context.Context, f *fake, t *T) {
			f.engine.add("c1", `{"Env":["`+t.Canary("secret")+`"]}`)
		}, status: Fail, reason: "canary-leaked"},
		{name: "mount left", attack: func(_ context.Context, f *fake, _ *T) { f.mount() }, status: Fail, reason: "leftover"},
		{name: "judged after the end", attack: func(_ context.Context, _ *fake, t *T) {
			t.expire()
			t.Fail("late", "x")
		}, status: Pass},
		{name: "panic in clean-up", attack: func(_ context.Context, _ *fake, t *T) {
			t.Cleanup(func(context.Context) error { panic("bug") })
		}, status: Errored, reason: "cleanup-failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{log: filepath.Join(t.TempDir(), "log"), engine: newFakeEngine(t), mount: func() {}}
			work := t.TempDir()
			f.mount = func() {
				if err := unix.Mount("left", work, "tmpfs", 0, "size=64k"); err != nil {
					t.Error(err)
				}
				t.Cleanup(func() { unix.Unmount(work, 0) })
			}
			f.engine.add("c1", "{}")
			if err := os.WriteFile(f.log, []byte("before\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.spoil != nil {
				tt.spoil(f)
			}
			b := &bench{target: &target.Target{Runtime: f, Observer: f, Controller: f}, blobs: t.TempDir(), work: work, settle: 500 * time.Millisecond, log: func(line string) { t.Log(line) }}
			e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: 20 * time.Second, Run: func(ctx context.Context, ct *T) error {
				ct.Witness("ran", 1)
				ct.Sandbox(ctx, target.Spec{WorkspaceID: "one"})
				ct.Sandbox(ctx, target.Spec{WorkspaceID: "two"})
				if tt.attack != nil {
					tt.attack(ctx, f, ct)
				}
				return nil
			}}, "image")
			if e.Status != tt.status || e.Reason != tt.reason {
				t.Errorf("%s %s (%s), want %s %s", e.Status, e.Reason, e.Text, tt.status, tt.reason)
			}
			row := Record{Status: e.Status, Reason: e.Reason, Workloads: []Execution{e}}.row()
			if tt.also != nil && !slices.Equal(row.Also, tt.also) || tt.status == Pass && len(row.Also) > 0 {
				t.Errorf("the row says that it came to %q as well, want %q", row.Also, tt.also)
			}
			if len(f.disposed) != 2 || f.disposed[0] != "sb-two" || len(f.purged) != 2 {
				t.Errorf("disposed %v, purged %v; want both, newest first", f.disposed, f.purged)
			}
			if tt.reason == "target-died" && f.started != 1 {
				t.Errorf("the dead target was started %d times, want once", f.started)
			}
		})
	}
}

// The worst of a case's passes is its status; the others stand beside it.
func TestRowNamesEveryEnd(t *testing.T) {
	failed := Execution{Status: Fail, Reason: "judged", Failures: []string{"judged: a: b", "judged: c", "leftover: d"}}
	for _, tt := range []struct {
		name string
		runs []Execution
		want []string
	}{
		{"alone", []Execution{{Status: Fail, Reason: "judged", Failures: []string{"judged: a"}}}, []string{}},
		{"a pass beside it", []Execution{{Status: Pass}, failed}, []string{"fail:leftover"}},
		{"an error beside it", []Execution{failed, {Status: Errored, Reason: "timeout", Failures: []string{"leaked: x"}}}, []string{"error:timeout", "fail:leaked", "fail:leftover"}},
		{"another failure beside it", []Execution{failed, {Status: Fail, Reason: "escaped", Failures: []string{"escaped: x"}}}, []string{"fail:escaped", "fail:leftover"}},
		{"not run beside it", []Execution{failed, {Status: NotRun, Reason: "part-unavailable"}}, []string{"fail:leftover", "not-run:part-unavailable"}},
	} {
		if got := (Record{Status: Fail, Reason: "judged", Workloads: tt.runs}).row().Also; !slices.Equal(got, tt.want) || got == nil {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := (Record{Status: Pass, Workloads: []Execution{{Status: Pass}}}).row().Also; got == nil || len(got) > 0 {
		t.Errorf("a pass: %q", got)
	}
}

func TestBrokenChainIsRefused(t *testing.T) {
	spoil := map[string]func(t *testing.T, dir string){
		"row changed": func(t *testing.T, dir string) { edit(t, filepath.Join(dir, rowsFile), `"fail"`, `"pass"`) },
		"both changed": func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, rowsFile), `"fail"`, `"pass"`)
			edit(t, filepath.Join(dir, detailsFile), `"fail"`, `"pass"`)
		},
		"arming changed": func(t *testing.T, dir string) { edit(t, filepath.Join(dir, armingFile), `"AA-01"`, `"AA-09"`) },
	}
	for name, f := range spoil {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j, err := newJournal(dir, Setup{RunID: "r", Planned: []string{"AA-01"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := j.add(Record{ID: "AA-01", Revision: 1, Status: Fail, Reason: "judged", Attempts: 1}); err != nil {
				t.Fatal(err)
			}
			if err := j.seal(time.Now(), ""); err != nil {
				t.Fatal(err)
			}
			if r, err := readRaw(dir); err != nil || r.seal == nil || len(r.rows) != 1 {
				t.Fatalf("the untouched run: %+v, %v", r, err)
			}
			f(t, dir)
			if _, err := readRaw(dir); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func edit(t *testing.T, path, from, to string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), from)
	if i < 0 {
		t.Fatalf("%s lacks %s", path, from)
	}
	if err := os.WriteFile(path, []byte(string(b[:i])+to+string(b[i+len(from):])), 0o600); err != nil {
		t.Fatal(err)
	}
}
