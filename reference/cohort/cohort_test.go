// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPathlessArgsNameContentNotPlace(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, other := write("one", "same"), write("two", "same"), write("three", "other")
	args := func(path string) []string {
		got, err := pathlessArgs([]string{"--platform=systrap", "--profile=" + path, path, "--root=" + dir, "--log=" + dir + "/none"}, digestPath)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := args(one)
	if !slices.Equal(got, args(two)) {
		t.Errorf("equal files at two paths differ: %q, %q", got, args(two))
	}
	if slices.Equal(got, args(other)) {
		t.Error("another file gives the same arguments")
	}
	if got[0] != "--platform=systrap" || got[3] != "--root=folder" || got[4] != "--log=absent" {
		t.Errorf("arguments %q", got)
	}
	if strings.Contains(strings.Join(got, " "), dir) {
		t.Errorf("a path is left in %q", got)
	}
}

func TestRelevantParameters(t *testing.T) {
	got := relevantParameters("console=ttyS0 mitigations=off root=/dev/vda lsm=landlock,yama mitigations=off -- selinux=0")
	if want := []string{"lsm=landlock,yama", "mitigations=off"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlatform(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"none", nil, "default"},
		{"one word", []string{"--network=none", "--platform=ptrace"}, "ptrace"},
		{"two words", []string{"-platform", "kvm"}, "kvm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := platform(tt.args); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
