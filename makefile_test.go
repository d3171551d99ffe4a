// SPDX-License-Identifier: Apache-2.0

package hallmark_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// bare is a PATH that holds these programs and no other.
func bare(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Without Go, or with one that is too old, make says what is needed and how to get it.
func TestMakeWithoutGo(t *testing.T) {
	none := bare(t, "make", "grep")
	old := bare(t, "make", "grep")
	script := "#!/bin/sh\necho go version go1.19.8 linux/amd64\n"
	if err := os.WriteFile(filepath.Join(old, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"none": none, "too old": old} {
		for _, target := range []string{"build", "conformance"} {
			cmd := exec.Command("make", target)
			cmd.Env = []string{"PATH=" + path}
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "Go 1.26 or newer is not on PATH. Get it from https://go.dev/dl") || !strings.Contains(string(out), `sudo env "PATH=$PATH" make `+target) {
				t.Errorf("%s, make %s: %v: %s", name, target, err, out)
			}
		}
	}
	cmd := exec.Command("make", "-n", "clean")
	cmd.Env = []string{"PATH=" + none}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make clean needs Go: %v: %s", err, out)
	}
}

// Without root the targets that need it stop before they build, and say so; so does a build into
// a folder of somebody else's.
func TestMakeWithoutRoot(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "run")
	if out, err := exec.Command("go", "build", "-o", program, "./ci/build/run").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "of-root"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-need-root"}, "error: this needs root.*\nremedy: run it as root, for example with sudo"},
		{[]string{"-out", filepath.Join(dir, "of-root")}, "remedy: .*build as root again"},
	} {
		cmd := exec.Command(program, tt.args...)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err == nil || !regexp.MustCompile(tt.want).Match(out) {
			t.Errorf("%v: %v: %s", tt.args, err, out)
		}
	}
}

// At most eleven targets, one for each job and the four around them, and the targets that need root ask for it before they build.
func TestMakefileIsSmall(t *testing.T) {
	text := read(t, "Makefile")
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(text)
	if phony == nil || len(strings.Fields(phony[1])) > 11 {
		t.Errorf("targets: %v", phony)
	}
	for _, target := range []string{"test", "conformance", "control", "mutants", "alternatives", "vm-conformance"} {
		if !strings.Contains(text, "\n"+target+":\n\t$(GO) run ./ci/build/run -need-root && ") {
			t.Errorf("make %s does not ask for root first", target)
		}
	}
}
