// SPDX-License-Identifier: Apache-2.0

package passphrase

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPassphraseOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string // "" is refused
	}{
		"line":              {"two words\n", 0o600, "two words"},
		"no line end":       {" a b ", 0o600, " a b "},
		"carriage return":   {"a\r\n", 0o400, "a"},
		"two line ends":     {"a\n\n", 0o600, "a\n"},
		"empty":             {"", 0o600, ""},
		"line end only":     {"\n", 0o600, ""},
		"too long":          {strings.Repeat("a", maxFile+1), 0o600, ""},
		"readable by group": {"a", 0o640, ""},
		"readable by all":   {"a", 0o604, ""},
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		t.Setenv(File, path)
		for _, get := range []func(string) ([]byte, error){Ask, New} {
			got, err := get("a.key")
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
	t.Setenv(File, filepath.Join(t.TempDir(), "none"))
	if _, err := Ask("a.key"); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}
