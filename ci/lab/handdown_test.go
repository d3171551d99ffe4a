// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// The children of the lab's cgroup get each controller that the root of the unified hierarchy hands down, one at a
// time, since the kernel refuses all when it refuses one; v1 knows nothing of it.
func TestHandDown(t *testing.T) {
	v1 := t.TempDir()
	if err := handDown(v1, filepath.Join(v1, "lab")); err != nil {
		t.Error(err)
	}
	v2 := t.TempDir()
	lab := filepath.Join(v2, "lab")
	if err := os.Mkdir(lab, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(v2, "cgroup.subtree_control"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := handDown(v2, lab); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(lab, "cgroup.subtree_control")); err != nil || string(got) != "+pids" {
		t.Errorf("the last write is %q, %v", got, err)
	}
	if err := handDown(v2, filepath.Join(v2, "gone")); err == nil {
		t.Error("a cgroup that is not there")
	}
}
