// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A folder stays while its process holds it, and one that nobody holds goes with the next.
func TestTemp(t *testing.T) {
	o := Options{Cache: t.TempDir(), Repo: "."}
	first, remove, err := o.Temp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(o.dir(), tempPrefix+"stale")
	if err := os.MkdirAll(filepath.Join(stale, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	second, removeSecond, err := o.Temp(t.Context())
	if err != nil || second == first {
		t.Fatal(second, err)
	}
	for dir, want := range map[string]bool{first: true, second: true, stale: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
	if err := errors.Join(remove(), removeSecond()); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(o.dir(), tempPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
