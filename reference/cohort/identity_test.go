// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHostID(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const id = "0123456789abcdef0123456789abcdef"
	good, same, other := file("good", id+"\n"), file("same", id), file("other", strings.Repeat("a", 32))
	ask := func(paths ...string) string {
		got, err := hostID(paths)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := ask(good)
	if !strings.HasPrefix(want, "sha256:") || len(want) != 71 || strings.Contains(want, id) {
		t.Errorf("of a machine id: %q", want)
	}
	if ask(filepath.Join(dir, "none"), same) != want {
		t.Error("a missing file hides the next one")
	}
	for name, text := range map[string]string{"empty": "", "new": "uninitialized\n", "zero": strings.Repeat("0", 32), "short": "abcd"} {
		if got := ask(file(name, text), same); got != "" {
			t.Errorf("a host that is not set up (%s) has the id %q of an older file", name, got)
		}
	}
	if ask(other) == want {
		t.Error("two hosts have one id")
	}
	if ask(filepath.Join(dir, "none")) != "" {
		t.Error("a host without a machine id has an id")
	}
	if _, err := hostID([]string{dir}); err == nil {
		t.Error("what cannot be read is no error")
	}
}
