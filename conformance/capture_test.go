// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hallmark-sandbox/hallmark/conformance/target"
)

// seen is a fake target whose containers can be looked at until they are disposed.
type seen struct {
	*fake
	cgroup, workspace string
	gone              bool
}

func (s *seen) Create(_ context.Context, spec target.Spec) (target.Sandbox, error) {
	return seenSandbox{fakeSandbox{s.fake, "sb", spec.WorkspaceID}, s}, nil
}

func (s *seen) Container(context.Context, string) (target.Container, error) {
	if s.gone {
		return target.Container{}, target.ErrNoContainer
	}
	return target.Container{ID: "c1", Workspace: s.workspace, Cgroups: map[string]string{"pids": s.cgroup, "memory": s.cgroup}}, nil
}

type seenSandbox struct {
	fakeSandbox
	s *seen
}

func (s seenSandbox) Dispose(context.Context) error { s.s.gone = true; return nil }

// What can be seen of a case that did not pass is kept from before the removal, bounded, in the order
// of its names, and without the tokens that the case planted. Of one that passed nothing is kept.
func TestCaptureBeforeTeardown(t *testing.T) {
	var token string
	ends := map[string]struct {
		run  func(ctx context.Context, t *T) error
		want Status
	}{
		"fail":         {func(_ context.Context, t *T) error { t.Fail("judged", "x"); return nil }, Fail},
		"error":        {func(context.Context, *T) error { panic("bug") }, Errored},
		"inconclusive": {func(_ context.Context, t *T) error { t.NeedWitness("hits", 5); return nil }, Inconclusive},
		"time-out":     {func(ctx context.Context, _ *T) error { <-ctx.Done(); return nil }, Errored},
		"pass":         {func(context.Context, *T) error { return nil }, Pass},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := &seen{fake: &fake{log: filepath.Join(dir, "log"), engine: newFakeEngine(t)}, cgroup: filepath.Join(dir, "cgroup"), workspace: "/proc"}
			s.engine.add("c1", `{"Id":"c1","State":{"OOMKilled":true}}`)
			if err := os.Mkdir(s.cgroup, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"pids.max": "64\n", "memory.events": "max 3\noom 1\n", "cgroup.procs": strconv.Itoa(os.Getpid()) + "\n", "unrelated": "x"} {
				if err := os.WriteFile(filepath.Join(s.cgroup, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(s.log, []byte("of an earlier case\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			b := fakeBench(t, s.fake, 0)
			b.target.Runtime, b.target.Observer = s, s
			e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: time.Second, Run: func(ctx context.Context, ct *T) error {
				ct.Witness("ran", 1)
				ct.Sandbox(ctx, target.Spec{})
				token = ct.Canary("secret")
				// The runtime is asked to do something with the token that it must not write down, and
				// something else that shows it to everybody on the host.
				if name == "fail" {
					s.engine.add("c1", `{"Id":"c1","Cmd":["`+token+`"]}`)
				}
				huge := append([]byte("share of this case\n"), bytes.Repeat([]byte("x"), 3*maxArtifact)...)
				if err := os.WriteFile(s.log, append([]byte("of an earlier case\n"), append(huge, "\nlast words\n"...)...), 0o600); err != nil {
					return err
				}
				s.tape = append(s.tape, target.TapeCall{Method: "POST", Path: "/containers/create"})
				if name == "fail" {
					s.tape[0].Body = []byte(`{"Env":["` + token + `"]}`) // base64 in the file
				}
				return end.run(ctx, ct)
			}}, "image")
			if e.Status != end.want {
				t.Fatalf("%s %s: %s", e.Status, e.Reason, e.Text)
			}
			if end.want == Pass {
				if len(e.Artifacts) > 0 {
					t.Errorf("kept %v of a case that passed", e.Artifacts)
				}
				return
			}
			kept := map[string]string{}
			last := ""
			for _, a := range e.Artifacts {
				body, err := os.ReadFile(filepath.Join(b.blobs, strings.TrimPrefix(a.Digest, "sha256:")))
				if err != nil {
					t.Fatal(err)
				}
				if kept[a.Name] = string(body); a.Size > maxArtifact || a.Name <= last || plainName(a.Name) != a.Name {
					t.Errorf("%s: %d bytes after %s", a.Name, a.Size, last)
				}
				last = a.Name
				if bytes.Contains(body, []byte(token)) {
					t.Errorf("%s holds the planted token", a.Name)
				}
				for line := range bytes.Lines(body) {
					var call target.TapeCall
					if name == "fail" && a.Name == captureTape && (json.Unmarshal(line, &call) != nil || !bytes.Contains(call.Body, []byte("[canary secret]"))) {
						t.Errorf("the tape's body is %q", call.Body)
					}
				}
			}
			for file, texts := range map[string][]string{
				"capture-1-inspect.jsonl": {`"Id":"c1"`}, "capture-2-cgroups.txt": {"pids.max: 64", "memory.events: max 3; oom 1"},
				"capture-3-processes.txt": {strconv.Itoa(os.Getpid()), "conformance"}, "capture-4-mounts.txt": {" /proc "},
				"capture-5-runtime.log": {"last words"}, "capture-6-tape.jsonl": {"/containers/create"},
			} {
				for _, text := range texts {
					if !strings.Contains(kept[file], text) {
						t.Errorf("%s lacks %q: %.200q", file, text, kept[file])
					}
				}
			}
			if strings.Contains(kept["capture-2-cgroups.txt"], "unrelated") || strings.Contains(kept["capture-5-runtime.log"], "earlier") {
				t.Error("more is kept than asked for")
			}
			if n := strings.Count(kept["capture-2-cgroups.txt"], "pids.max"); n != 1 {
				t.Errorf("one folder of two controllers is read %d times", n)
			}
			if name == "fail" {
				if !strings.Contains(kept["capture-1-inspect.jsonl"], "[canary secret]") || string(e.Observations["canaries-in-capture-1-inspect.jsonl"]) != `["secret"]` {
					t.Errorf("the token went unnoticed: %q, %s", kept["capture-1-inspect.jsonl"], e.Observations)
				}
				if !strings.Contains(strings.Join(e.Failures, "\n"), "canary-leaked") {
					t.Errorf("a token in the engine's view is not judged: %q", e.Failures)
				}
			}
		})
	}
}

// What only the clean-up brings to light is captured after it.
func TestCaptureAfterAFailedTeardown(t *testing.T) {
	s := &seen{fake: &fake{log: filepath.Join(t.TempDir(), "log"), engine: newFakeEngine(t)}, workspace: "/proc"}
	b := fakeBench(t, s.fake, 0)
	b.target.Runtime, b.target.Observer = stubborn{s}, s
	s.engine.add("c1", `{"Id":"c1"}`)
	e := b.execute(context.Background(), Case{ID: "AA-01", Timeout: time.Second, Run: func(ctx context.Context, ct *T) error {
		ct.Witness("ran", 1)
		ct.Sandbox(ctx, target.Spec{})
		return nil
	}}, "image")
	if e.Status != Fail || e.Reason != "container-leaked" || len(e.Artifacts) == 0 || e.Artifacts[0].Name != "capture-1-inspect.jsonl" {
		t.Errorf("%s %s, kept %v", e.Status, e.Reason, e.Artifacts)
	}
}

// stubborn says that it has disposed and has not.
type stubborn struct{ *seen }

func (s stubborn) Create(_ context.Context, spec target.Spec) (target.Sandbox, error) {
	return fakeSandbox{s.fake, "sb", spec.WorkspaceID}, nil
}
