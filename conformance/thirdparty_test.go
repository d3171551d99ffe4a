// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// thirdParty makes a module of somebody else's that uses this one by a replace directive, with the
// package of testdata/<name>, and returns its folder.
func thirdParty(t *testing.T, name string) string {
	t.Helper()
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	// A module that was only built has not downloaded what other systems need, and the go command of
	// another module asks for the go.mod of each.
	fetch := exec.CommandContext(t.Context(), "go", "mod", "download")
	fetch.Dir = repo
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("download the modules of go.mod: %v\n%s", err, out)
	}
	ours, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, requirements, ok := strings.Cut(string(ours), "\nrequire (")
	if !ok {
		t.Fatal("go.mod requires nothing")
	}
	const module = "github.com/hallmark-sandbox/hallmark"
	text := "module example.test/" + name + "\n\ngo 1.26\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + repo + "\n\nrequire (" + requirements
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(repo, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(filepath.Join("testdata", name, name+"_test.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{"go.mod": []byte(text), "go.sum": sums, name + "_test.go": body} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// offline runs the go command in dir without a module proxy, and returns what it printed and its
// exit status.
func offline(t *testing.T, dir string, env []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off"), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// An ordinary test package without a TestMain validates a target, and goes red with each kind of
// case that did not pass.
func TestThirdPartyTestShowsEveryCase(t *testing.T) {
	dir := thirdParty(t, "third")
	binary := filepath.Join(dir, "third.test")
	if out, code := offline(t, dir, nil, "go", "test", "-c", "-o", binary); code != 0 {
		t.Fatalf("build: %s", out)
	}
	tests := []struct {
		env  []string
		code int
		has  []string
	}{
		{[]string{"THIRD_WHOLE=1"}, 0, []string{"--- PASS: TestConformance/ZZ-01", "--- PASS: TestConformance/ZZ-02"}},
		{[]string{"THIRD_WHOLE=1", "THIRD=fail"}, 1, []string{"--- FAIL: TestConformance/ZZ-02", "the verdict is non-conformant"}},
		{nil, 0, []string{"--- PASS: TestConformance/ZZ-01", "--- PASS: TestConformance/ZZ-02", "not applicable, and neither passed nor failed: ZZ-03", "AFTER-RAN"}},
		{[]string{"THIRD_PROCS=2"}, 0, []string{"--- PASS: TestConformance/two_processes/ZZ-01", "--- PASS: TestConformance/two_processes/ZZ-02"}},
		{[]string{"THIRD=fail"}, 1, []string{"--- PASS: TestConformance/ZZ-01", "--- FAIL: TestConformance/ZZ-02", "fail planted: the planted failure"}},
		{[]string{"THIRD=error"}, 1, []string{"--- FAIL: TestConformance/ZZ-02", "error suite-error: the planted bug"}},
		{[]string{"THIRD=inconclusive"}, 1, []string{"--- FAIL: TestConformance/ZZ-02", "inconclusive no-witness"}},
		{[]string{"THIRD=not-run"}, 1, []string{"--- FAIL: TestConformance/ZZ-02", "not-run part-unavailable"}},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.env, " "), func(t *testing.T) {
			out, code := offline(t, dir, tt.env, binary, "-test.v")
			if code != tt.code {
				t.Errorf("exit status %d, want %d", code, tt.code)
			}
			for _, text := range tt.has {
				if !strings.Contains(out, text) {
					t.Errorf("the output lacks %q", text)
				}
			}
			if strings.Contains(out, "TestConformance/ZZ-03") {
				t.Error("a case that does not apply has a subtest")
			}
			if n := strings.Count(out, "BEFORE-RAN"); n != 1 {
				t.Errorf("another test of the package ran %d times, want once: not in the processes of the suite", n)
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}
